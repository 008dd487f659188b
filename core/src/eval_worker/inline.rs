//! An evaluation worker where there is one thread.

use super::{EvalDesk, EvalDone, EvalEngine, EvalMakers, EvalWorkerError};

/// Desk and engine together: plays between everything else that its thread does. Nobody sees to it that environments
/// move: one that hangs hangs the thread.
#[derive(Debug)]
pub struct InlineEvalWorker {
    makers: EvalMakers,
    engine: Option<EvalEngine>,
    /// Who asks for what.
    pub desk: EvalDesk,
    evaluations: u64,
    env_steps: u64,
}

impl InlineEvalWorker {
    /// Environments and policy are made with the first slice of work; what goes wrong is told by the first poll.
    #[must_use]
    pub fn new(makers: EvalMakers) -> Self {
        Self { makers, engine: None, desk: EvalDesk::new(), evaluations: 0, env_steps: 0 }
    }

    /// True if [`work`](Self::work) has something to do now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.desk.wants_engine()
    }

    /// True while an evaluation is going on.
    #[must_use]
    pub fn is_playing(&self) -> bool {
        self.desk.is_busy()
    }

    /// Evaluations that came to a result.
    #[must_use]
    pub fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Env steps that were counted, also for evaluations that came to none.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.env_steps
    }

    /// Goes on for so many rounds, in each of which every sub-environment takes a step.
    pub fn work(&mut self, max_rounds: u32) {
        if self.engine.is_none() && self.desk.wants_engine() {
            match self.make() {
                Ok(engine) => self.engine = Some(engine),
                // Whoever waits is told, instead of being played for.
                Err(error) => return self.refuse(error),
            }
            self.desk.engine_ready();
        }
        // An order that no engine hears would be lost.
        while let Some(engine) = &mut self.engine
            && let Some(order) = self.desk.next_order()
        {
            let over = engine.obey(order);
            over.into_iter().for_each(|done| self.finish(done));
        }
        let Some(engine) = &mut self.engine else { return };
        let before = engine.env_steps();
        let over = engine.advance(max_rounds);
        let after = match &over {
            None => engine.env_steps(),
            Some(EvalDone { result: Ok(Some(found)), .. }) => found.env_steps,
            Some(_) => before,
        };
        self.env_steps += after.saturating_sub(before);
        over.into_iter().for_each(|done| self.finish(done));
    }

    fn make(&self) -> Result<EvalEngine, EvalWorkerError> {
        self.makers.init()?;
        self.makers.evaluator().map(EvalEngine::new)
    }

    fn refuse(&mut self, error: EvalWorkerError) {
        // What was asked for is begun, to be told.
        let _ = self.desk.next_order();
        self.desk.engine_failed(error);
    }

    fn finish(&mut self, done: EvalDone) {
        self.evaluations += u64::from(matches!(done.result, Ok(Some(_))));
        if self.desk.finish(done) {
            self.engine = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{
        callbacks::{CallbackError, Callbacks, WorkerInfo},
        env::EnvError,
        eval_worker::Polled,
        evaluation::{Earlier, EvaluationRequest},
        ids::WeightsVersion,
        kernels::Kernels,
        prelude::*,
        run::{RolloutConfig, RunConfig},
        weights::Weights,
        worker::Registry,
    };

    fn worker(env: &str) -> InlineEvalWorker {
        let mut run = RunConfig::new(env);
        run.evaluation.num_envs = 1;
        InlineEvalWorker::new(EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE).unwrap())
    }

    fn until_idle(worker: &mut InlineEvalWorker) {
        while worker.has_work() {
            worker.work(1);
        }
    }

    fn request(steps: u32) -> EvaluationRequest {
        EvaluationRequest { render: false, ..EvaluationRequest::new(steps) }
    }

    #[test]
    fn a_later_question_cancels_the_earlier_one_in_the_middle() {
        let mut worker = worker("Pendulum-v1");
        let me = worker.desk.asker();
        let first = worker.desk.submit(me, None, request(200), Earlier::Cancel).unwrap();
        (0..5).for_each(|_| worker.work(1));
        assert_eq!((worker.is_playing(), worker.env_steps(), worker.desk.poll(me)), (true, 5, Polled::NotYet));
        let second = worker.desk.submit(me, None, request(7), Earlier::Cancel).unwrap();
        assert!(second > first);
        until_idle(&mut worker);
        let Polled::Found(ticket, Ok(found)) = worker.desk.poll(me) else { panic!("a result") };
        assert_eq!((ticket, found.env_steps, worker.desk.poll(me)), (Some(second), 7, Polled::Nothing));
        assert_eq!((worker.evaluations(), worker.env_steps()), (1, 5 + 7));
    }

    #[test]
    fn weights_that_are_not_taken_are_told_once_and_forgotten() {
        let mut worker = worker("CartPole-v1");
        let (me, other) = (worker.desk.asker(), worker.desk.asker());
        let none = Weights::new(WeightsVersion(9), Vec::new()).unwrap();
        let ticket = worker.desk.submit(me, Some(none), request(5), Earlier::Cancel).unwrap();
        until_idle(&mut worker);
        let Polled::Found(of, Err(EvalWorkerError::Weights(_))) = worker.desk.poll(me) else { panic!("an error") };
        assert_eq!((of, worker.desk.poll(me)), (Some(ticket), Polled::Nothing));
        worker.desk.submit(other, None, request(5), Earlier::Cancel).unwrap();
        until_idle(&mut worker);
        assert!(matches!(worker.desk.poll(other), Polled::Found(_, Ok(found)) if found.env_steps == 5));
    }

    #[test]
    fn what_cannot_begin_says_so_to_whoever_asks_and_is_tried_again() {
        let makers = EvalMakers::new(|| Err(EnvError::Failed("closed today".into())), |_| unreachable!());
        let mut worker = InlineEvalWorker::new(makers);
        let me = worker.desk.asker();
        assert_eq!(worker.desk.poll(me), Polled::NotYet);
        let fails = |worker: &mut InlineEvalWorker| {
            until_idle(worker);
            let Polled::Found(ticket, Err(EvalWorkerError::Setup { part, .. })) = worker.desk.poll(me) else {
                panic!("an error")
            };
            assert_eq!((part.as_str(), worker.desk.poll(me)), ("environment", Polled::Nothing));
            ticket
        };
        assert_eq!(fails(&mut worker), None);
        let ticket = worker.desk.submit(me, None, request(5), Earlier::Cancel).unwrap();
        assert_eq!(fails(&mut worker), Some(ticket));
        worker.desk.stop();
        assert!(!worker.has_work() && worker.desk.poll(me) == Polled::Nothing);
        assert_eq!(worker.desk.submit(me, None, request(5), Earlier::Cancel), Err(EvalWorkerError::Stopped));
    }

    struct Begins(Arc<AtomicU32>, u32);

    impl Callbacks for Begins {
        fn on_evaluate_start(&mut self, worker: &WorkerInfo) -> Result<(), CallbackError> {
            assert_eq!(worker.config.get("by"), Ok(Some(self.1)));
            self.0.fetch_add(self.1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn registered_callbacks_are_made_with_the_policys_settings() {
        let seen = Arc::new(AtomicU32::new(0));
        let registry = Registry::builtin().with_callbacks("begins", {
            let seen = seen.clone();
            move |config| Ok(Box::new(Begins(seen.clone(), config.get("by")?.unwrap_or(0))))
        });
        let rollout = RolloutConfig {
            policy_config: r#"{"by": 5}"#.parse().unwrap(),
            callbacks: vec!["begins".into(), "begins".into()],
            ..RolloutConfig::new("CartPole-v1").single_policy("random")
        };
        let mut run = RunConfig { rollout, ..RunConfig::default() };
        run.evaluation.num_envs = 1;
        let mut worker = InlineEvalWorker::new(EvalMakers::of_run(&run, &registry, Kernels::PORTABLE).unwrap());
        let me = worker.desk.asker();
        worker.desk.submit(me, None, request(5), Earlier::Cancel).unwrap();
        until_idle(&mut worker);
        assert_eq!((seen.load(Ordering::Relaxed), worker.evaluations()), (10, 1));
        let error = EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE).unwrap_err();
        assert!(error.to_string().contains("there is no callback 'begins'"), "{error}");
    }
}
