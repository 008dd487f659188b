//! An evaluation worker in the caller's thread.

use alloc::rc::Rc;
use core::cell::RefCell;

use super::{EvalDesk, EvalEngine, EvalMakers};
use crate::evaluation::{EvalWorkerError, Evaluates};

/// Desk and engine together: evaluates in slices of the caller's thread. An environment that hangs blocks the thread. Clones
/// are the same worker, which outlives the sessions that use it.
#[derive(Clone, Debug)]
pub struct InlineEvalWorker(Rc<RefCell<Inline>>);

#[derive(Debug)]
struct Inline {
    makers: EvalMakers,
    engine: Option<EvalEngine>,
    desk: EvalDesk,
    evaluations: u64,
    env_steps: u64,
}

impl InlineEvalWorker {
    /// Creates a worker. Environments and policy are created in the first slice of work; an error there is the outcome of
    /// the first evaluation.
    #[must_use]
    pub fn new(makers: EvalMakers) -> Self {
        let desk = EvalDesk::new();
        Self(Rc::new(RefCell::new(Inline { makers, engine: None, desk, evaluations: 0, env_steps: 0 })))
    }

    /// Returns true while an evaluation is running.
    #[must_use]
    pub fn is_playing(&self) -> bool {
        self.0.borrow().desk.is_busy()
    }

    /// Returns true once it is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.borrow().desk.is_stopped()
    }

    /// Returns the number of successful evaluations.
    #[must_use]
    pub fn evaluations(&self) -> u64 {
        self.0.borrow().evaluations
    }

    /// Returns the number of env steps, those of unsuccessful evaluations included.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.0.borrow().env_steps
    }
}

impl Inline {
    fn begin(&mut self) -> Result<(), EvalWorkerError> {
        if self.engine.is_none() {
            self.makers.init()?;
            self.engine = Some(EvalEngine::start(&self.makers)?);
        }
        self.desk.engine_ready();
        Ok(())
    }

    fn work(&mut self, max_rounds: u32) {
        if let Err(error) = self.begin() {
            // Begin the evaluation, so that the error is its outcome.
            let _ = self.desk.next_command();
            return self.desk.engine_failed(error);
        }
        // Take an order only if there is an engine, else it would be lost.
        while let Some(engine) = &mut self.engine {
            let order = self.desk.next_command();
            let (is_ordered, before) = (order.is_some(), engine.env_steps());
            let done = engine.work(order, max_rounds);
            if !is_ordered {
                let found = done.as_ref().and_then(|done| done.result.as_ref().ok()?.as_ref());
                let after = found.map_or_else(|| engine.env_steps(), |found| found.env_steps);
                self.env_steps += after.saturating_sub(before);
            }
            if let Some(done) = done {
                self.evaluations += u64::from(matches!(done.result, Ok(Some(_))));
                self.engine.take_if(|_| self.desk.finish(done));
            }
            if !is_ordered {
                return;
            }
        }
    }
}

impl Evaluates for InlineEvalWorker {
    fn begin(&mut self) -> Result<(), EvalWorkerError> {
        self.0.borrow_mut().begin()
    }

    fn at_desk(&mut self, work: &mut dyn FnMut(&mut EvalDesk)) {
        work(&mut self.0.borrow_mut().desk);
    }

    fn stop(&mut self) {
        let mut inline = self.0.borrow_mut();
        inline.desk.stop();
        inline.engine = None;
    }

    fn has_work(&self) -> bool {
        let desk = &self.0.borrow().desk;
        !desk.is_stopped() && (desk.is_busy() || desk.has_waiting())
    }

    fn work(&mut self, max_rounds: u32) {
        if self.has_work() {
            self.0.borrow_mut().work(max_rounds);
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
        evaluation::EvaluationRequest,
        ids::WeightsVersion,
        kernels::Kernels,
        prelude::*,
        run::{RolloutConfig, RunConfig},
        weights::Weights,
        worker::{Guard, Registry},
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
    fn evaluation_is_cancelled_in_the_middle() {
        let mut worker = worker("Pendulum-v1");
        let first = worker.submit(None, request(200)).unwrap();
        (0..5).for_each(|_| worker.work(1));
        assert_eq!((worker.is_playing(), worker.env_steps(), worker.take(first)), (true, 5, None));
        worker.cancel(first);
        let second = worker.submit(None, request(7)).unwrap();
        until_idle(&mut worker);
        assert_eq!((worker.take(first), worker.take(second).unwrap().unwrap().env_steps), (None, 7));
        assert_eq!((worker.evaluations(), worker.env_steps()), (1, 5 + 7));
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_and_forgotten() {
        let mut worker = worker("CartPole-v1");
        let none = Weights::new(WeightsVersion(9), Vec::new()).unwrap();
        let [first, second] = [Some(none), None].map(|weights| {
            let ticket = worker.submit(weights, request(5)).unwrap();
            until_idle(&mut worker);
            worker.take(ticket).unwrap()
        });
        assert!(matches!(first, Err(EvalWorkerError::Weights(_))));
        assert_eq!(second.unwrap().env_steps, 5);
    }

    #[test]
    fn environments_that_cannot_be_made_fail_each_evaluation() {
        let makers = EvalMakers::new(|| Err(EnvError::Failed("closed today".into())), |_| unreachable!());
        let mut worker = InlineEvalWorker::new(makers);
        for _ in 0..2 {
            let ticket = worker.submit(None, request(5)).unwrap();
            until_idle(&mut worker);
            let outcome = worker.take(ticket).unwrap();
            assert!(matches!(outcome, Err(EvalWorkerError::Setup { part, .. }) if part == "environment"));
        }
        worker.stop();
        assert_eq!(worker.submit(None, request(5)), Err(EvalWorkerError::Stopped));
    }

    #[test]
    fn panics_fail_the_evaluation_and_its_engine() {
        let guard: Guard =
            |work| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|_| "panicked".into());
        let makers = EvalMakers::new(|| panic!("a mouse"), |_| unreachable!());
        let mut worker = InlineEvalWorker::new(makers.with_guard(guard));
        let ticket = worker.submit(None, request(5)).unwrap();
        until_idle(&mut worker);
        assert_eq!(worker.take(ticket), Some(Err(EvalWorkerError::failed("the evaluation worker panicked"))));
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
        worker.submit(None, request(5)).unwrap();
        until_idle(&mut worker);
        assert_eq!((seen.load(Ordering::Relaxed), worker.evaluations()), (10, 1));
        let error = EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE).unwrap_err();
        assert!(error.to_string().contains("there is no callback 'begins'"), "{error}");
    }
}
