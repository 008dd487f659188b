//! The iterations of a run, bounded.

use rollmesh_core::protocol::message::Iteration;

/// Points kept. A chart has fewer columns than this on any screen.
const MAX_POINTS: usize = 1 << 15;

/// The iterations of one run in order, thinned out when there are too many.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    run: u32,
    points: Vec<Iteration>,
    revision: u64,
}

impl Curves {
    /// The points, ascending in `iteration` and in `env_steps`.
    #[must_use]
    pub fn points(&self) -> &[Iteration] {
        &self.points
    }

    /// Changes whenever the points do.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The newest point.
    #[must_use]
    pub fn last(&self) -> Option<&Iteration> {
        self.points.last()
    }

    /// Turns to a run; the points of another one are forgotten.
    pub fn begin(&mut self, run: u32) {
        if self.run != run {
            self.clear();
            self.run = run;
        }
    }

    /// Appends a point, of a new run perhaps. One that is not newer than the last is a repetition and changes nothing.
    pub fn push(&mut self, point: Iteration) {
        self.begin(point.run);
        let is_newer = |last: &Iteration| point.iteration > last.iteration && point.env_steps >= last.env_steps;
        if !self.points.last().is_none_or(is_newer) {
            return;
        }
        if self.points.len() == MAX_POINTS {
            self.halve();
        }
        self.points.push(point);
        self.revision += 1;
    }

    /// Forgets all points.
    pub fn clear(&mut self) {
        if !self.points.is_empty() {
            self.points.clear();
            self.revision += 1;
        }
    }

    fn halve(&mut self) {
        let mut index = 0;
        self.points.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(iteration: u64) -> Iteration {
        Iteration { iteration, env_steps: iteration * 100, ..Iteration::default() }
    }

    #[test]
    fn repeated_and_older_points_change_nothing() {
        let mut curves = Curves::default();
        curves.push(point(1));
        curves.push(point(2));
        let revision = curves.revision();
        curves.push(point(2));
        curves.push(point(1));
        assert_eq!(curves.points().len(), 2);
        assert_eq!(curves.revision(), revision);
    }

    #[test]
    fn a_new_run_begins_with_nothing() {
        let mut curves = Curves::default();
        curves.push(point(5));
        curves.push(Iteration { run: 2, ..point(1) });
        assert_eq!(curves.points(), [Iteration { run: 2, ..point(1) }]);
        curves.begin(3);
        assert_eq!(curves.points(), []);
    }

    #[test]
    fn a_long_run_stays_bounded_ordered_and_keeps_its_ends() {
        let mut curves = Curves::default();
        let last = MAX_POINTS as u64 * 3;
        for iteration in 1..=last {
            curves.push(point(iteration));
        }
        assert!(curves.points().len() <= MAX_POINTS);
        assert!(curves.points().is_sorted_by(|a, b| a.iteration < b.iteration));
        assert_eq!(curves.points()[0].iteration, 1);
        assert_eq!(curves.last().map(|point| point.iteration), Some(last));
    }
}
