//! The choice whether the slots of a lease are sampled concurrently or sequentially.

use crate::time::Micros;

/// Env steps from this duration on do not suffer from sampling each slot separately: the networks that workers act with need
/// a small part of it, see [`kernels`](crate::kernels).
const SLOW_STEP: Micros = Micros(500);

/// Measures how long a worker's env steps take, and decides from it.
///
/// Slots that are sampled concurrently all finish at the same time, at the end of the lease, and are all lost if the worker
/// exits before. If env steps are slow, concurrency gains nothing, so slots are sampled sequentially, and each is
/// uploaded when it is complete; unless that turns out to be slower, as with environments that step all their lanes in
/// one call.
#[derive(Debug, Default)]
pub(super) struct StepTimes {
    order: SlotOrder,
    /// Whether the running lease has several slots: otherwise there is no difference.
    has_several: bool,
    /// Env steps of the running lease.
    done: u64,
    /// Time and env steps at the first measurement of the running lease. Not at its beginning, when environments may have to
    /// be created.
    since: Option<(Micros, u64)>,
    /// Duration of an env step in the running lease since then.
    measured: Option<Micros>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotOrder {
    /// Env steps were fast so far.
    #[default]
    Concurrent,
    /// Env steps are slow; this is their duration with concurrent sampling.
    Sequential { concurrent: Micros },
    /// Sequential sampling was slower.
    FasterConcurrent,
}

impl StepTimes {
    /// Begins a lease with this many slots; returns true if they are to be sampled sequentially.
    pub(super) fn begin(&mut self, slots: usize) -> bool {
        *self = Self { order: self.order, has_several: slots > 1, ..Self::default() };
        matches!(self.order, SlotOrder::Sequential { .. })
    }

    /// Records how many env steps of the lease are done.
    pub(super) fn advance_to(&mut self, env_steps: u64) {
        self.done = env_steps;
    }

    /// Measures at time `now`.
    pub(super) fn look(&mut self, now: Micros) {
        match self.since {
            None if self.done > 0 => self.since = Some((now, self.done)),
            Some((since, before)) if self.done > before => {
                self.measured = Some(Micros(now.since(since).0 / (self.done - before)));
            }
            None | Some(_) => {}
        }
    }

    /// Ends the lease.
    pub(super) fn end(&mut self) {
        let Some(step) = self.measured.filter(|_| self.has_several) else { return };
        self.order = match self.order {
            SlotOrder::Concurrent if step >= SLOW_STEP => SlotOrder::Sequential { concurrent: step },
            // The earlier measurement was slow because of the machine, not the environment.
            SlotOrder::Sequential { .. } if step < SLOW_STEP => SlotOrder::Concurrent,
            SlotOrder::Sequential { concurrent } if step.0 > concurrent.0 + concurrent.0 / 4 => {
                SlotOrder::FasterConcurrent
            }
            order => order,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a lease in slices of `step` µs per env step. Returns whether its slots were sampled sequentially.
    fn lease(step_times: &mut StepTimes, slots: usize, step: u64) -> bool {
        let sequential = step_times.begin(slots);
        for slice in 0..4 {
            step_times.look(Micros(7 + slice * 10 * step));
            step_times.advance_to((slice + 1) * 10);
        }
        step_times.end();
        sequential
    }

    #[test]
    fn slots_are_sampled_sequentially_if_steps_are_slow() {
        let mut step_times = StepTimes::default();
        assert_eq!(
            [499, 500, 500, 600, 499, 10].map(|step| lease(&mut step_times, 3, step)),
            [false, false, true, true, true, false]
        );
    }

    #[test]
    fn lanes_that_are_stepped_together_stay_together() {
        let mut step_times = StepTimes::default();
        assert_eq!([600, 751, 600, 600].map(|step| lease(&mut step_times, 3, step)), [false, true, false, false]);
    }

    #[test]
    fn one_slot_or_a_short_lease_is_no_measurement() {
        let mut step_times = StepTimes::default();
        assert_eq!([1, 1, 3].map(|slots| lease(&mut step_times, slots, 900)), [false; 3]);
        let mut step_times = StepTimes::default();
        for _ in 0..2 {
            assert!(!step_times.begin(3));
            step_times.look(Micros(0));
            step_times.advance_to(10);
            step_times.look(Micros(1_000_000));
            step_times.end();
        }
    }
}
