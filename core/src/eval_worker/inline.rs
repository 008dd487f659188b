//! An evaluation worker in the caller's thread.

use super::{EvalDesk, EvalDone, EvalEngine, EvalMakers};
use crate::{
    evaluation::{EvalOutcome, EvalWorkerError, Evaluates, EvaluationRequest, Ticket},
    prelude::*,
    weights::Weights,
    worker::{Guard, unguarded},
};

/// Desk and engine together: evaluates in slices of the caller's thread. An environment that hangs blocks the thread.
#[derive(Debug)]
pub struct InlineEvalWorker {
    makers: Result<EvalMakers, EvalWorkerError>,
    engine: Option<EvalEngine>,
    /// The queue.
    pub desk: EvalDesk,
    guard: Guard,
    is_initialised: bool,
    evaluations: u64,
    env_steps: u64,
}

impl InlineEvalWorker {
    /// Creates a worker. Environments and policy are created in the first slice of work; an error there is the outcome of
    /// the first evaluation.
    #[must_use]
    pub fn new(makers: EvalMakers) -> Self {
        Self::of(Ok(makers))
    }

    /// Creates a worker that is known to be unable to evaluate: each evaluation fails with this error.
    #[must_use]
    pub fn failing(error: EvalWorkerError) -> Self {
        Self::of(Err(error))
    }

    fn of(makers: Result<EvalMakers, EvalWorkerError>) -> Self {
        Self {
            makers,
            engine: None,
            desk: EvalDesk::new(),
            guard: unguarded,
            is_initialised: false,
            evaluations: 0,
            env_steps: 0,
        }
    }

    /// Sets a guard that catches panics of user code, which the core cannot do itself.
    #[must_use]
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }

    /// Runs the init function now instead of with the first slice of work.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`].
    pub fn init(&mut self) -> Result<(), EvalWorkerError> {
        let makers = self.makers.as_ref().map_err(Clone::clone)?;
        caught(self.guard, "init function", || makers.init())?;
        self.is_initialised = true;
        Ok(())
    }

    /// Returns true while an evaluation is running.
    #[must_use]
    pub fn is_playing(&self) -> bool {
        self.desk.is_busy()
    }

    /// Returns the number of successful evaluations.
    #[must_use]
    pub fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Returns the number of env steps, those of unsuccessful evaluations included.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.env_steps
    }

    fn finish(&mut self, done: EvalDone) {
        self.evaluations += u64::from(matches!(done.result, Ok(Some(_))));
        if self.desk.finish(done) {
            self.engine = None;
        }
    }
}

/// Runs a closure under the guard: a panic becomes an error.
fn caught<T>(
    guard: Guard,
    part: &str,
    mut work: impl FnMut() -> Result<T, EvalWorkerError>,
) -> Result<T, EvalWorkerError> {
    let mut result = None;
    let panicked = guard(&mut || result = Some(work())).err();
    let words = panicked.unwrap_or_else(|| "was not done".into());
    result.unwrap_or_else(|| Err(EvalWorkerError::failed(format!("the {part} {words}"))))
}

impl Evaluates for InlineEvalWorker {
    fn begin(&mut self) -> Result<(), EvalWorkerError> {
        if self.engine.is_none() {
            if !self.is_initialised {
                self.init()?;
            }
            // A new engine runs the init function again.
            self.is_initialised = false;
            let makers = self.makers.as_ref().map_err(Clone::clone)?;
            self.engine = Some(caught(self.guard, "evaluation worker", || makers.evaluator().map(EvalEngine::new))?);
        }
        self.desk.engine_ready();
        Ok(())
    }

    fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError> {
        self.desk.submit(weights, request)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.desk.cancel(ticket);
    }

    fn take(&mut self, ticket: Ticket) -> Option<EvalOutcome> {
        self.desk.take(ticket)
    }

    fn stop(&mut self) {
        self.desk.stop();
        if let Some(mut engine) = self.engine.take() {
            // Resources that cannot be released are dropped all the same.
            let _ = caught(self.guard, "environment", || engine.stop());
        }
    }

    fn has_work(&self) -> bool {
        !self.desk.is_stopped() && (self.desk.is_busy() || self.desk.has_waiting())
    }

    fn work(&mut self, max_rounds: u32) {
        if !self.has_work() {
            return;
        }
        if let Err(error) = self.begin() {
            // Begin the evaluation, so that the error is its outcome.
            let _ = self.desk.next_order();
            return self.desk.engine_failed(error);
        }
        // Take an order only if there is an engine, else it would be lost.
        while let Some(engine) = &mut self.engine
            && let Some(order) = self.desk.next_order()
        {
            let ticket = order.ticket();
            let mut order = Some(order);
            let obeyed = caught(self.guard, "evaluation", || Ok(order.take().and_then(|order| engine.obey(order))));
            let over = obeyed.unwrap_or_else(|error| Some(EvalDone { ticket, result: Err(error) }));
            over.into_iter().for_each(|done| self.finish(done));
        }
        let Some(engine) = &mut self.engine else { return };
        let Some(ticket) = engine.playing() else { return };
        let before = engine.env_steps();
        let advanced = caught(self.guard, "evaluation", || Ok(engine.advance(max_rounds)));
        let over = advanced.unwrap_or_else(|error| Some(EvalDone { ticket, result: Err(error) }));
        let after = match &over {
            None => engine.env_steps(),
            Some(EvalDone { result: Ok(Some(found)), .. }) => found.env_steps,
            Some(_) => before,
        };
        self.env_steps += after.saturating_sub(before);
        over.into_iter().for_each(|done| self.finish(done));
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{
        callbacks::{CallbackError, Callbacks, WorkerInfo},
        env::EnvError,
        ids::WeightsVersion,
        kernels::Kernels,
        run::{RolloutConfig, RunConfig},
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
        let mut worker = InlineEvalWorker::new(makers).with_guard(guard);
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
