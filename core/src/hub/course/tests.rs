use super::*;
use crate::{
    group::{GroupCommand, WorkerProfile},
    hub::{BatchConsumer, BatchWork, Observed, RunLoopConfig},
    ids::{WeightsVersion, WorkerId},
    kernels::Kernels,
    policy::Postprocessing,
    run::RunConfig,
    worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
};

const WORKER: WorkerId = WorkerId(1);
const FACTS: RunFacts = RunFacts {
    num_workers: 1,
    keeps_last_batch: true,
    has_ranks: false,
    has_ranks_to_notify: false,
    awaits_evaluation: false,
    num_unaudited: 0,
    may_be_undone: false,
};

/// A run of three iterations with a worker that has answered, and what makes its rows.
struct Course {
    course: RunCourse,
    run: RunLoop,
    runner: SlotRunner,
    now: Micros,
}

impl Course {
    fn new(throttle: Micros) -> Self {
        let config =
            RunConfig::sampling("CartPole-v1", 1).rollout_fragment_length(4).fcnet_hiddens(&[1]).stop_after(12);
        let builder = || RolloutWorkerBuilder::new(Registry::builtin()).kernels(Kernels::PORTABLE);
        let parts = builder().learning_parts(&config).unwrap();
        let runner = SlotRunner::new(&config, builder()).unwrap();
        let consumer = BatchConsumer::Learner(Postprocessing::None);
        let parts = RunLoopConfig { consumer, throttle, ..RunLoopConfig::sampling(1, config, &parts).unwrap() };
        let mut run = RunLoop::new(parts, Micros(0)).unwrap();
        run.group.handle_joined(WORKER, WorkerProfile::NATIVE, Micros(0));
        run.group.handle_answer(WORKER, Ok(()), Micros(0));
        Self { course: RunCourse::default(), run, runner, now: Micros(0) }
    }

    fn poll(&mut self, facts: RunFacts) -> Option<RunStep> {
        self.course.poll(&self.run, &facts, self.now)
    }

    fn stop(&mut self) -> Option<RunStep> {
        self.course.stop(&self.run, &FACTS, self.now)
    }

    /// Executes a step to begin an iteration, and samples its batch.
    fn take_batch(&mut self) {
        assert_eq!(self.poll(FACTS), Some(RunStep::Begin));
        assert!(self.course.may_take_batch(&self.run));
        self.run.begin_iteration(self.now).unwrap();
        let Some(GroupCommand::Grant { lease, .. }) = self.run.group.poll_command() else { panic!("no lease") };
        let id = lease.id;
        self.runner.set_weights(self.run.weights()).unwrap();
        self.runner.begin(lease).unwrap();
        let Advance::Done { fragments, .. } = self.runner.advance(4) else { panic!("4 steps are a fragment") };
        self.run.group.handle_fragments(WORKER, id, fragments, self.now);
        assert!(matches!(self.run.poll_batch(), Some(Ok(BatchWork::Learn(_)))));
        assert!(!self.course.may_take_batch(&self.run));
    }

    fn count_batch(&mut self) {
        let version = WeightsVersion(self.run.weights().version().0 + 1);
        self.run.handle_learned(self.run.weights().with_version(version), Observed::default(), self.now);
        self.course.handle_counted();
    }

    fn iterate(&mut self) {
        self.take_batch();
        self.count_batch();
    }
}

#[test]
fn batch_is_followed_by_a_checkpoint_then_the_next_iteration_and_the_last_one_by_the_end() {
    let mut it = Course::new(Micros(0));
    for _ in 0..2 {
        it.iterate();
        assert!(!it.course.may_take_batch(&it.run), "what follows is not decided");
        assert_eq!(it.poll(FACTS), Some(RunStep::Save));
    }
    it.iterate();
    assert_eq!(it.poll(FACTS), Some(RunStep::End(RunEnd::Finished)));
    assert_eq!(it.course.end(RunEnd::Stopped), RunEnd::Finished, "a late request to stop changes nothing");
}

#[test]
fn rollback_comes_before_draining_and_that_before_the_end() {
    let mut it = Course::new(Micros(0));
    it.iterate();
    it.course.roll_back(FragmentNo(2));
    it.course.roll_back(FragmentNo(0));
    it.course.roll_back(FragmentNo(1));
    it.run.drain();
    it.course.drain(&it.run, it.now);
    assert_eq!(it.poll(FACTS), None, "rows are in doubt");
    assert_eq!(it.poll(RunFacts { may_be_undone: true, ..FACTS }), Some(RunStep::RollBack(FragmentNo(0))));
    assert_eq!(it.course.roll_back_before(), None);
    assert_eq!(it.poll(RunFacts { num_unaudited: 1, ..FACTS }), None);
    let until = it.course.poll_timeout(&it.run, it.now).unwrap();
    assert_eq!(until, it.now + RunCourse::AUDIT_PATIENCE);
    assert_eq!(it.poll(FACTS), Some(RunStep::End(RunEnd::Drained)));
    it.now = until;
    assert_eq!(it.poll(RunFacts { num_unaudited: 1, ..FACTS }), Some(RunStep::End(RunEnd::Drained)));
}

#[test]
fn stopped_run_ends_with_the_batch_that_is_being_consumed_or_immediately() {
    let mut it = Course::new(Micros(0));
    it.take_batch();
    assert_eq!(it.stop(), None);
    assert_eq!(it.poll(FACTS), None);
    it.count_batch();
    assert_eq!(it.poll(RunFacts { awaits_evaluation: true, ..FACTS }), Some(RunStep::End(RunEnd::Stopped)));
    let mut it = Course::new(Micros(0));
    it.take_batch();
    assert_eq!((it.stop(), it.stop()), (None, Some(RunStep::End(RunEnd::Stopped))));
    let mut it = Course::new(Micros(0));
    it.iterate();
    assert_eq!(it.stop(), Some(RunStep::End(RunEnd::Stopped)), "nothing is being consumed");
}

#[test]
fn next_iteration_waits_for_evaluation_throttle_and_turn() {
    let mut it = Course::new(Micros::from_millis(50));
    it.course.set_stepwise(true);
    assert_eq!(it.poll(FACTS), None, "the program has not asked for it");
    it.course.take_turn();
    it.iterate();
    assert_eq!(it.poll(RunFacts { awaits_evaluation: true, ..FACTS }), None);
    assert_eq!((it.poll(FACTS), it.poll(FACTS)), (Some(RunStep::Save), None));
    it.now = it.course.poll_timeout(&it.run, it.now).unwrap();
    assert_eq!(it.now, Micros::from_millis(50));
    assert_eq!(it.poll(FACTS), None, "the program has not asked for it");
    assert_eq!(it.course.poll_timeout(&it.run, it.now), None, "time changes nothing");
    it.course.take_turn();
    it.take_batch();
}

#[test]
fn first_iteration_waits_for_local_workers_but_not_for_ever() {
    let mut it = Course::new(Micros(0));
    let two = RunFacts { num_workers: 2, ..FACTS };
    assert_eq!(it.poll(two), None);
    it.now = it.course.poll_timeout(&it.run, it.now).unwrap();
    assert_eq!(it.poll(two), Some(RunStep::Begin));
}
