//! The course of a run: which step comes next, and how requests to stop, to drain or to roll back take effect.

#[cfg(test)]
mod tests;

use super::{RunEnd, RunLoop};
use crate::{group::WorkerState, ids::FragmentNo, time::Micros};

/// Decides which step of a run comes next, without I/O. One per hub: requests outlive the run that they were made for if that
/// run is rolled back.
///
/// The shell asks for [steps](Self::poll) after everything that happens, until there are none, and executes each before it
/// asks for the next one. Of several steps that are due the first one of this list is taken:
///
/// 1. The run is rolled back, as soon as the snapshot that it goes back to is complete.
/// 2. A draining run whose leases have ended, or whose time for that is over, has reached its end.
/// 3. A run that has reached its end is over, once its rows have been audited.
/// 4. The consequence of a batch: the end, a checkpoint, the next iteration.
#[derive(Debug, Default)]
pub struct RunCourse {
    stage: CourseStage,
    turns: Turns,
    /// The run ends after the batch that is being consumed.
    is_stopping: bool,
    /// When a draining run ends even with leases outstanding.
    draining_until: Option<Micros>,
    /// The first batch with rows of a principal that failed an audit, if the run is to be rolled back.
    roll_back_before: Option<FragmentNo>,
}

/// The position of a run between two batches.
#[derive(Clone, Debug, Default, PartialEq)]
enum CourseStage {
    /// Its first iteration has not begun, or a batch is being sampled or consumed.
    #[default]
    Sampling,
    /// A batch has been counted, and what follows is not decided yet.
    Counted,
    /// The next iteration is due.
    Due,
    /// The next iteration is due then: the run is throttled.
    Throttled(Micros),
    /// It has reached its end, and ends once its audits have, or then at the latest.
    Finishing(RunEnd, Micros),
}

/// When iterations begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turns {
    /// One after the other.
    #[default]
    Free,
    /// Each when the program requests it; no request is pending.
    Awaited,
    /// Each when the program requests it; a request is pending.
    Asked,
}

/// The next step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Roll the run back to before this batch and start it again; [`RunCourse::reset`] if that fails.
    RollBack(FragmentNo),
    /// End the run with what [`RunCourse::end`] returns for this.
    End(RunEnd),
    /// Save the run if a checkpoint is due.
    Save,
    /// Publish new weights and begin the next iteration.
    Begin,
}

/// The conditions for the course of a run that are not part of its [`RunLoop`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RunFacts {
    /// Local workers that the run begins with.
    pub num_workers: u32,
    /// A run that is stopped while it consumes a batch keeps what comes of it: it has checkpoints, or its rows are taken.
    pub keeps_last_batch: bool,
    /// It is data-parallel: other ranks have to be notified of its end.
    pub has_ranks: bool,
    /// The other ranks have to be notified now, by one more iteration.
    pub has_ranks_to_notify: bool,
    /// The next stage depends on an evaluation that has not finished.
    pub awaits_evaluation: bool,
    /// Fragments that are being recomputed.
    pub num_unaudited: u64,
    /// The snapshot that a rollback needs is complete.
    pub may_be_undone: bool,
}

impl RunCourse {
    /// Time for the leases of a draining run to end.
    pub const DRAIN_PATIENCE: Micros = Micros::from_secs(10);
    /// Time for audits to finish at the end of a run.
    pub const AUDIT_PATIENCE: Micros = Micros::from_secs(10);
    /// Time to wait for local workers before a run begins without those that have not answered, if any worker is able.
    pub const JOIN_PATIENCE: Micros = Micros::from_secs(3);

    /// Sets whether the run's iterations begin only when [asked for](Self::take_turn).
    pub fn set_stepwise(&mut self, stepwise: bool) {
        self.turns = if stepwise { Turns::Awaited } else { Turns::Free };
    }

    /// Returns whether the run's iterations begin only when asked for.
    #[must_use]
    pub fn is_stepwise(&self) -> bool {
        self.turns != Turns::Free
    }

    /// Asks for the next iteration of a stepwise run.
    pub fn take_turn(&mut self) {
        if self.is_stepwise() {
            self.turns = Turns::Asked;
        }
    }

    /// Returns true if the next complete batch may be consumed: the previous one is counted, what follows it is decided, and
    /// the run continues.
    #[must_use]
    pub fn may_take_batch(&self, run: &RunLoop) -> bool {
        !run.is_consuming() && self.stage == CourseStage::Sampling
    }

    /// Records that the run has counted a batch.
    pub fn handle_counted(&mut self) {
        if self.turns == Turns::Asked {
            self.turns = Turns::Awaited;
        }
        self.set_stage(CourseStage::Counted);
    }

    /// Drains a run that [has begun to](RunLoop::drain): it ends with its leases, or when its time for that is over.
    pub fn drain(&mut self, run: &RunLoop, now: Micros) {
        self.draining_until = Some(now + if run.is_local() { own_patience(run) } else { Self::DRAIN_PATIENCE });
    }

    /// Stops the run on request: after the batch that is being consumed if that is worth it, immediately otherwise, and on a second
    /// request. Returns the step if it ends immediately.
    #[must_use]
    pub fn stop(&mut self, run: &RunLoop, facts: &RunFacts, now: Micros) -> Option<RunStep> {
        if run.is_over() {
            return None;
        }
        let may_wait = !self.is_stopping && (run.is_consuming() || facts.has_ranks);
        if !may_wait || !(facts.keeps_last_batch || run.is_local()) {
            return Some(RunStep::End(RunEnd::Stopped));
        }
        self.is_stopping = true;
        if run.is_local() {
            // The run's own worker may wait for something that never comes.
            self.draining_until = Some(now + own_patience(run));
        }
        None
    }

    /// Rolls the run back to before this batch, or to before the earlier one that an earlier call named.
    pub fn roll_back(&mut self, before: FragmentNo) {
        self.roll_back_before = Some(self.roll_back_before.map_or(before, |earlier| earlier.min(before)));
    }

    /// Returns the batch before which the run is to be rolled back, if it is.
    #[must_use]
    pub fn roll_back_before(&self) -> Option<FragmentNo> {
        self.roll_back_before
    }

    /// Returns how a run ends that is to end so, and forgets the requests that were made for it. A request to stop does not
    /// change how a run ends that has reached its end already.
    #[must_use]
    pub fn end(&mut self, end: RunEnd) -> RunEnd {
        match (core::mem::take(self).stage, end) {
            (CourseStage::Finishing(reached, _), RunEnd::Stopped) => reached,
            (_, end) => end,
        }
    }

    /// Forgets the requests that were made for a run that is over.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns the next step of the run, if one is due.
    #[must_use]
    pub fn poll(&mut self, run: &RunLoop, facts: &RunFacts, now: Micros) -> Option<RunStep> {
        if run.is_over() {
            return None;
        }
        if let Some(before) = self.roll_back_before.take_if(|_| facts.may_be_undone) {
            (self.stage, self.draining_until) = (CourseStage::Sampling, None);
            return Some(RunStep::RollBack(before));
        }
        // A batch that is being consumed is still learned from, unless that takes too long; other ranks are notified first.
        let is_drained = run.is_drained() && !run.is_consuming() && !facts.has_ranks_to_notify;
        if is_drained || self.draining_until.is_some_and(|until| until <= now) {
            let asked = if self.is_stopping { RunEnd::Stopped } else { RunEnd::Drained };
            self.draining_until = None;
            self.finish(run.end_reached(now).unwrap_or(asked), now);
        }
        let next = match run.has_begun() {
            true => self.follow_batch(run, facts, now),
            false => self.begin_first(run, facts, now),
        };
        next.or_else(|| self.finished(facts, now))
    }

    /// Returns when to ask for steps again if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self, run: &RunLoop, now: Micros) -> Option<Micros> {
        if run.is_over() {
            return None;
        }
        let due = match self.stage {
            CourseStage::Finishing(_, until) => return Some(until),
            CourseStage::Throttled(until) => Some(until),
            _ => None,
        };
        let waited = run.age(now);
        let joined = (!run.has_begun() && waited <= Self::JOIN_PATIENCE)
            .then(|| now + Self::JOIN_PATIENCE.since(waited) + Micros(1));
        [due, joined, self.draining_until].into_iter().flatten().min()
    }

    /// Begins the first iteration once as many workers have answered as the run has local ones, so that they share its slots;
    /// rows do not depend on it. A resumed run may have nothing left to do.
    fn begin_first(&mut self, run: &RunLoop, facts: &RunFacts, now: Micros) -> Option<RunStep> {
        if self.is_finishing() {
            return None;
        }
        if self.is_stopping {
            // It was rolled back while it was consuming its last batch.
            return Some(RunStep::End(RunEnd::Stopped));
        }
        // The result of the evaluation decides whether the run continues at all.
        if facts.awaits_evaluation {
            return None;
        }
        if let Some(end) = run.end_reached(now) {
            self.finish(end, now);
            return None;
        }
        if self.turns == Turns::Awaited || run.is_draining() {
            return None;
        }
        let states = || run.group.workers(now).map(|worker| worker.state);
        let answered = states().filter(|state| *state != WorkerState::Unanswered).count();
        let is_late = || {
            let mut able = states().filter(|state| !matches!(state, WorkerState::Unanswered | WorkerState::Unable));
            run.age(now) > Self::JOIN_PATIENCE && able.next().is_some()
        };
        (answered >= facts.num_workers as usize || is_late()).then(|| self.begin())
    }

    /// Ends the run or begins the next iteration, but not before the evaluation that the run waits for.
    fn follow_batch(&mut self, run: &RunLoop, facts: &RunFacts, now: Micros) -> Option<RunStep> {
        if self.stage == CourseStage::Counted {
            if facts.awaits_evaluation && !self.is_stopping {
                return None;
            }
            if let Some(end) = run.end_reached(now) {
                self.finish(end, now);
                return None;
            }
            // The other ranks are notified first; the next batch ends the run.
            let is_last = self.is_stopping && !facts.has_ranks_to_notify;
            if is_last && !run.is_draining() {
                return Some(RunStep::End(RunEnd::Stopped));
            }
            let pause = run.throttle(now);
            self.stage = if pause > Micros(0) { CourseStage::Throttled(now + pause) } else { CourseStage::Due };
            if !facts.has_ranks_to_notify && !run.is_draining() {
                return Some(RunStep::Save);
            }
        }
        if matches!(self.stage, CourseStage::Throttled(until) if until <= now || run.is_draining()) {
            self.stage = CourseStage::Due;
        }
        let is_due = self.stage == CourseStage::Due;
        if is_due && run.is_draining() && !facts.has_ranks_to_notify {
            // It ends when all its leases have.
            self.stage = CourseStage::Sampling;
            return None;
        }
        (is_due && (self.turns != Turns::Awaited || facts.has_ranks_to_notify)).then(|| self.begin())
    }

    fn begin(&mut self) -> RunStep {
        self.stage = CourseStage::Sampling;
        RunStep::Begin
    }

    fn finish(&mut self, end: RunEnd, now: Micros) {
        self.set_stage(CourseStage::Finishing(end, now + Self::AUDIT_PATIENCE));
    }

    /// Returns the end of a run that has reached it, unless an audit may still change that.
    fn finished(&self, facts: &RunFacts, now: Micros) -> Option<RunStep> {
        let CourseStage::Finishing(end, until) = &self.stage else { return None };
        let is_in_doubt = facts.num_unaudited > 0 || self.roll_back_before.is_some();
        (!is_in_doubt || *until <= now).then(|| RunStep::End(end.clone()))
    }

    fn is_finishing(&self) -> bool {
        matches!(self.stage, CourseStage::Finishing(..))
    }

    /// Sets the stage, unless the run has reached its end.
    fn set_stage(&mut self, stage: CourseStage) {
        if !self.is_finishing() {
            self.stage = stage;
        }
    }
}

/// Returns how long to wait for the batch that a run's own worker makes; zero before the first one.
fn own_patience(run: &RunLoop) -> Micros {
    if run.iteration() == 0 { Micros(0) } else { RunCourse::DRAIN_PATIENCE }
}
