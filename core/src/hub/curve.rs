//! Curves of a run for dashboards.

use crate::{
    prelude::*,
    protocol::{Message, MessageFrame},
};

/// The points of a curve, each encoded once for all dashboards.
#[derive(Clone, Debug)]
pub struct Curve<P> {
    all: Vec<(P, MessageFrame)>,
    /// Number of points that all dashboards have been sent.
    sent: usize,
}

impl<P> Default for Curve<P> {
    fn default() -> Self {
        Self { all: Vec::new(), sent: 0 }
    }
}

impl<P: Copy> Curve<P> {
    /// Most points of a curve; when it is reached, every second one is dropped.
    pub const MAX_POINTS: usize = 4096;

    /// Adds a point, and its message.
    pub fn push(&mut self, point: P, message: &Message) {
        // A point is small.
        let Ok(frame) = MessageFrame::new(message) else { return };
        if push_thinned(&mut self.all, (point, frame), Self::MAX_POINTS) {
            self.sent = self.all.len() - 1;
        }
    }

    /// Iterates over the messages of all points.
    pub fn frames(&self) -> impl Iterator<Item = MessageFrame> {
        self.all.iter().map(|(_, frame)| frame.clone())
    }

    /// Returns the messages of the points that have not been sent yet.
    pub fn take_fresh(&mut self) -> Vec<MessageFrame> {
        let fresh = self.frames().skip(self.sent).collect();
        self.sent = self.all.len();
        fresh
    }

    /// Returns every n-th point, the latest one among them, so that there are at most `most`.
    #[must_use]
    pub fn at_most(&self, most: usize) -> Vec<P> {
        self.every_nth(most).map(|(point, _)| *point).collect()
    }

    /// Returns the same points with their messages. At least one, if there is a point.
    pub fn every_nth(&self, most: usize) -> impl Iterator<Item = &(P, MessageFrame)> {
        let len = self.all.len();
        let every = len.div_ceil(most.max(1)).max(1);
        // The latest one has the index `len - 1`.
        self.all.iter().skip((len + every - 1) % every).step_by(every)
    }
}

/// Adds a point to a curve of at most `most` points: when it is full, every second one is dropped. Returns whether it was.
pub fn push_thinned<P>(curve: &mut Vec<P>, point: P, most: usize) -> bool {
    let is_full = curve.len() >= most;
    if is_full {
        let mut index = 0;
        curve.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
    curve.push(point);
    is_full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_curve_loses_every_second_point_and_keeps_the_newest() {
        let mut curve = Vec::new();
        let thinned = (0..5).map(|point| push_thinned(&mut curve, point, 4)).collect::<Vec<_>>();
        assert_eq!((curve, thinned), (vec![0, 2, 4], vec![false, false, false, false, true]));
    }
}
