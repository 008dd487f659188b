//! The iterations of a run, bounded in number.

use std::collections::BTreeMap;

use rollmesh_core::protocol::message::{Iteration, NamedMetrics};

use super::WORKER_RATE;

/// Maximum number of points. A chart has fewer columns than this on any screen.
const MAX_POINTS: usize = 1 << 15;
/// Maximum number of named metrics of a run, and of its workers' rates in addition.
pub(super) const MAX_NAMED: usize = 64;

/// A function that returns a number that every iteration has.
pub type FieldValue = fn(&Iteration) -> f32;

/// A number of each iteration.
#[derive(Clone, Debug)]
pub enum Metric {
    /// One that every iteration has.
    Field(FieldValue),
    /// One that only some runs have, by its name.
    Named(String),
}

/// The iterations of one run in order, thinned out when there are too many.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    run: u32,
    points: Vec<Iteration>,
    /// Values by name, one per point; NaN for a missing value.
    named: BTreeMap<String, Vec<f32>>,
    revision: u64,
}

impl Curves {
    /// Returns the points, ascending in `iteration` and in `env_steps`.
    #[must_use]
    pub fn points(&self) -> &[Iteration] {
        &self.points
    }

    /// Returns a number that changes with the points and their metrics.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the newest point.
    #[must_use]
    pub fn last(&self) -> Option<&Iteration> {
        self.points.last()
    }

    /// Returns the values of a metric, one per point; NaN for a missing value.
    pub fn values(&self, metric: &Metric) -> impl Iterator<Item = f64> {
        let named = if let Metric::Named(name) = metric { self.named.get(name) } else { None };
        let value = move |(index, point): (usize, &Iteration)| match metric {
            Metric::Field(value) => value(point),
            Metric::Named(_) => named.and_then(|values| values.get(index)).copied().unwrap_or(f32::NAN),
        };
        self.points.iter().enumerate().map(value).map(f64::from)
    }

    /// Returns the names of the metrics that only some runs have.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// Adds named metrics to the point of their iteration, if that point exists.
    pub fn add_named(&mut self, metrics: &NamedMetrics) {
        let values = metrics.iter().map(|(name, value)| (name.to_owned(), value));
        self.add_values(metrics.run, metrics.iteration, values);
    }

    /// Adds named values to the point of an iteration, if that point exists.
    pub(super) fn add_values(&mut self, run: u32, iteration: u64, values: impl Iterator<Item = (String, f32)>) {
        let found = self.points.binary_search_by_key(&iteration, |point| point.iteration);
        let Some(index) = found.ok().filter(|_| self.run == run) else { return };
        for (name, value) in values {
            if !self.named.contains_key(&name) && self.is_full_for(&name) {
                continue;
            }
            let column = self.named.entry(name).or_default();
            column.resize(column.len().max(index + 1), f32::NAN);
            column[index] = value;
        }
        self.revision += 1;
    }

    /// Returns whether the limit for metrics of the name's kind is reached. Workers' rates have a limit of their own.
    fn is_full_for(&self, name: &str) -> bool {
        let is_rate = |name: &str| name.starts_with(WORKER_RATE);
        self.named.keys().filter(|known| is_rate(known) == is_rate(name)).count() >= MAX_NAMED
    }

    /// Returns the wall time after this iteration in milliseconds; 0 before the first.
    #[must_use]
    pub fn wall_ms_at(&self, iteration: u64) -> u64 {
        let after = self.points.partition_point(|point| point.iteration <= iteration);
        after.checked_sub(1).map_or(0, |index| self.points[index].wall_ms)
    }

    /// Switches to a run, and discards the points of another one.
    pub fn begin(&mut self, run: u32) {
        if self.run != run {
            self.clear();
            self.run = run;
        }
    }

    /// Appends a point, possibly of a new run. A point that is not newer than the last one is a repetition and is
    /// ignored.
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

    /// Discards all points.
    pub fn clear(&mut self) {
        if !self.points.is_empty() {
            self.points.clear();
            self.named.clear();
            self.revision += 1;
        }
    }

    fn halve(&mut self) {
        keep_every_second(&mut self.points);
        self.named.values_mut().for_each(keep_every_second);
    }
}

fn keep_every_second<T>(all: &mut Vec<T>) {
    let mut index = 0;
    all.retain(|_| {
        index += 1;
        index % 2 == 1
    });
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
    fn metrics_with_names_are_of_the_point_of_their_iteration_and_missing_ones_are_nan() {
        let lag = Metric::Named("lag_mean".into());
        let mut curves = Curves::default();
        curves.push(Iteration { wall_ms: 70, ..point(1) });
        curves.push(point(2));
        curves.push(point(3));
        let named = |run, iteration, value| NamedMetrics::new(run, iteration, [("lag_mean".into(), value)]);
        [named(0, 2, 0.5), named(0, 9, 7.0), named(1, 2, 7.0)].iter().for_each(|metrics| curves.add_named(metrics));
        let values: Vec<f64> = curves.values(&lag).collect();
        assert!(matches!(values[..], [a, 0.5, b] if a.is_nan() && b.is_nan()), "{values:?}");
        assert!(curves.names().eq(["lag_mean"]));
        assert_eq!([0, 1, 9].map(|iteration| curves.wall_ms_at(iteration)), [0, 70, 0]);
        for iteration in 4..=MAX_POINTS as u64 + 9 {
            curves.push(point(iteration));
            curves.add_named(&named(0, iteration, iteration as f64));
        }
        let (last, value) = (curves.last().map(|point| point.iteration as f64), curves.values(&lag).last());
        assert_eq!(value, last, "names keep their points when these are thinned out");
    }

    #[test]
    fn rates_of_many_workers_leave_places_for_other_metrics() {
        let mut curves = Curves::default();
        curves.push(point(1));
        let rates = (1..=100).map(|worker| (format!("{WORKER_RATE}/{worker}"), 1.0));
        curves.add_values(0, 1, rates);
        let metric = |number| NamedMetrics::new(0, 1, [(format!("metric {number}"), 1.0)]);
        (0..100).for_each(|number| curves.add_named(&metric(number)));
        let rates = curves.names().filter(|name| name.starts_with(WORKER_RATE)).count();
        assert_eq!((rates, curves.names().count()), (MAX_NAMED, 2 * MAX_NAMED));
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
