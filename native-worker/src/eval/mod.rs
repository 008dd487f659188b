//! Asynchronous evaluation: a worker that plays with given weights, in a process or thread of its own.
//!
//! An [`EvalWorker`] gets weights with [`submit`](EvalWorker::submit) and returns the mean episode return with
//! [`poll`](EvalWorker::poll); neither waits unless requested. If the evaluation's environment or policy hangs, crashes
//! or panics, that is one typed error, and the next evaluation uses another process.
//!
//! ```
//! use std::time::Duration;
//!
//! use rollmesh::{eval::{EvalMakers, EvalWorker}, kernels};
//! use rollmesh_core::{
//!     env::{EnvContext, EnvMaker, EnvRegistry, EnvStart, InProcess},
//!     ids::{HomeIndex, SlotId},
//!     policy::RandomPolicy,
//! };
//!
//! let makers = EvalMakers::new(
//!     || {
//!         let registry = EnvRegistry::builtin();
//!         let spec = registry.spec("CartPole-v1").expect("a built-in environment");
//!         let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
//!         let start = EnvStart { slot: SlotId(0), episode: 0, context };
//!         Ok(Box::new(InProcess::new(EnvMaker::single_agent(&spec, kernels::AUTO), vec![start], 7)?))
//!     },
//!     |spaces| Ok(Box::new(RandomPolicy::for_space(&spaces.action, 7)?)),
//! );
//! let mut worker = EvalWorker::in_thread(makers)?;
//! assert!(worker.poll(Duration::ZERO)?.is_none()); // nothing was submitted
//! worker.submit(None, 500, true, true)?;
//! let found = worker.poll(Duration::from_secs(30))?.expect("a result");
//! assert!(found.reward() > 5.0 && found.frames.is_some_and(|frames| frames.shape()[1..] == [200, 300, 3]));
//! worker.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In a process, environment and policy are given by name, in a [`RunConfig`]. Named workers outlive the program that
//! started them: [`EvalNames`]; named workers that joined a hub are found from other machines, too: [`EvalHub`].

mod engine;
#[cfg(unix)]
mod hub;
#[cfg(unix)]
mod names;
#[cfg(unix)]
mod process;
mod supervisor;
#[cfg(unix)]
mod there;

use std::{collections::VecDeque, fmt, num::NonZeroU32, path::Path, time::Duration};

pub use rollmesh_core::{
    eval_worker::EvalMakers,
    evaluation::EvalWorkerError,
    run::{EvaluationConfig, InitSpec},
};
use rollmesh_core::{
    evaluation::{Earlier, EvalOutcome, Evaluation, EvaluationRequest, RewardKey, Ticket},
    run::RunConfig,
    weights::Weights,
    worker::Registry,
};

pub(crate) use self::supervisor::{EngineSource, SupervisedWorker};
#[cfg(unix)]
pub use self::{hub::EvalHub, names::EvalNames};
#[cfg(unix)]
pub(crate) use self::{
    names::{Founding, Name, NameAddress, WORKER_COMMAND},
    process::{ENGINE_COMMAND, Pictures, serve_engine},
    supervisor::SharedDesk,
    there::ANSWER,
};
use crate::kernels::AUTO;

/// Maximum number of env steps of each sub-environment in an evaluation whose episodes have no limit.
pub(crate) const MAX_STEPS: u32 = 1_000_000;

/// Returns the makers of an evaluation of a run's policy over this many episodes, and the maximum number of env steps
/// in each sub-environment.
pub(crate) fn makers_of_episodes(
    run: &RunConfig,
    registry: &Registry,
    episodes: NonZeroU32,
) -> Result<(EvalMakers, u32), EvalWorkerError> {
    let mut run = run.clone();
    // Callbacks are for the run's own episodes.
    run.rollout.callbacks.clear();
    let num_envs = run.evaluation.num_envs.min(episodes.get());
    run.evaluation.num_envs = num_envs;
    let makers = EvalMakers::of_run(&run, registry, AUTO)?;
    let limit = makers.options().max_episode_steps;
    let steps = limit.map_or(MAX_STEPS, |limit| limit.saturating_mul(episodes.get().div_ceil(num_envs)));
    Ok((makers, steps))
}

/// The timeout of a worker in a thread that makes no progress.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Evaluates weights asynchronously.
///
/// A worker does one evaluation at a time. A second submission before the first result was polled cancels the first
/// evaluation; an environment that does not return from its step within a second is replaced. With [`Earlier::Keep`] the
/// first one is completed instead. Other handles of the same worker, in any process, are not affected.
///
/// A worker without a name ends when this is dropped.
#[doc(alias = "RayEvalWorker")]
#[derive(Debug)]
pub struct EvalWorker {
    /// The worker; `None` once it has ended.
    link: Option<Box<dyn EvalLink>>,
    /// This handle's evaluations that have not been polled.
    pending: VecDeque<Ticket>,
    /// The reward signal of this handle's evaluations.
    reward_key: Option<RewardKey>,
}

/// A handle's connection to its worker: one that this process supervises, or one found by its name.
trait EvalLink: fmt::Debug + Send + Sync {
    /// Requests an evaluation.
    fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError>;
    /// Cancels an evaluation.
    fn cancel(&mut self, ticket: Ticket);
    /// Waits for the outcome of an evaluation, at most for the timeout; without one, for errors of the worker only.
    fn poll(&mut self, awaited: Option<Ticket>, timeout: Duration) -> Option<(Option<Ticket>, EvalOutcome)>;
    /// Ends the worker, for all its handles.
    fn end(self: Box<Self>);
}

impl EvalWorker {
    /// Evaluates in a thread of this process. Its init function, environment and policy are made there, in this order; the
    /// first poll reports errors. A thread that hangs for a minute is abandoned and replaced by another one.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`] if the thread cannot be started.
    pub fn in_thread(makers: EvalMakers) -> Result<Self, EvalWorkerError> {
        Self::in_thread_with(makers, TIMEOUT)
    }

    /// Works like [`in_thread`](Self::in_thread), with another timeout for a thread without progress.
    ///
    /// # Errors
    /// As there.
    pub fn in_thread_with(makers: EvalMakers, timeout: Duration) -> Result<Self, EvalWorkerError> {
        Ok(Self::over(SupervisedWorker::start(EngineSource::Thread(makers), timeout)?))
    }

    /// Evaluates the policy of a run in a process of its own, see [`EvalMakers::of_run`]: the current executable, which
    /// begins with [`main_with`](crate::main_with) or [`child_process`](crate::child_process). There the init function runs first, before any
    /// thread is started, then the environment is made, then the policy. The first poll reports errors. The process
    /// ends when this one does, in any way.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`] if the process cannot be started.
    #[cfg(unix)]
    pub fn in_process(run: &RunConfig) -> Result<Self, EvalWorkerError> {
        let program = crate::program().map_err(|error| EvalWorkerError::setup("process", error))?;
        Self::in_process_of(&program, run)
    }

    /// Works like [`in_process`](Self::in_process), with another program that begins in the same way.
    ///
    /// # Errors
    /// As there.
    #[cfg(unix)]
    pub fn in_process_of(program: &Path, run: &RunConfig) -> Result<Self, EvalWorkerError> {
        Self::with_pictures(program, run, Pictures::All)
    }

    /// Works like [`in_process_of`](Self::in_process_of), with these pictures.
    #[cfg(unix)]
    pub(crate) fn with_pictures(program: &Path, run: &RunConfig, pictures: Pictures) -> Result<Self, EvalWorkerError> {
        process::check_not_started_as_one()?;
        Ok(Self::over(SupervisedWorker::in_process(program, run, pictures)?))
    }

    /// Starts a worker that outlives this process, under a name of this user: see [`EvalNames::create`].
    ///
    /// # Errors
    /// As there.
    #[cfg(unix)]
    #[doc(alias = "name")]
    pub fn named(name: &str, run: &RunConfig) -> Result<Self, EvalWorkerError> {
        EvalNames::of_user().create(name, run)
    }

    /// Returns a handle of a worker that was started under a name, by this process or another one: see [`EvalNames::find`].
    ///
    /// # Errors
    /// As there.
    #[cfg(unix)]
    pub fn from_name(name: &str) -> Result<Self, EvalWorkerError> {
        EvalNames::of_user().find(name)
    }

    fn over(link: impl EvalLink + 'static) -> Self {
        Self { link: Some(Box::new(link)), pending: VecDeque::new(), reward_key: None }
    }

    /// Sets the reward signal whose sums are this handle's returns, unless a request says otherwise. Other handles of the
    /// same worker keep theirs; the default is the worker's own, [`EvaluatorOptions::reward_key`].
    ///
    /// ```no_run
    /// use rollmesh::eval::EvalWorker;
    ///
    /// let mut worker = EvalWorker::from_name("judge")?.with_reward_key("infos/distance".parse()?);
    /// worker.submit(None, 500, true, true)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`EvaluatorOptions::reward_key`]: rollmesh_core::evaluation::EvaluatorOptions::reward_key
    #[must_use]
    #[doc(alias = "reward_keys")]
    pub fn with_reward_key(mut self, reward_key: RewardKey) -> Self {
        self.reward_key = Some(reward_key);
        self
    }

    /// Requests an evaluation of at most `max_steps` steps of each sub-environment. Without weights it uses those that the
    /// worker got last, from any handle, or the policy's initial ones. With `deterministic` the most likely actions are
    /// taken; with `break_when_any_done` the evaluation ends with the first episode; otherwise sub-environments that are
    /// done begin their next episode. Does not wait.
    ///
    /// Cancels this handle's earlier requests, whose results are discarded.
    ///
    /// # Errors
    /// [`EvalWorkerError::Stopped`], [`EvalWorkerError::Io`] for a worker in another process that has exited.
    pub fn submit(
        &mut self,
        weights: Option<&Weights>,
        max_steps: u32,
        deterministic: bool,
        break_when_any_done: bool,
    ) -> Result<Ticket, EvalWorkerError> {
        let request = EvaluationRequest { deterministic, break_when_any_done, ..EvaluationRequest::new(max_steps) };
        self.submit_request(weights, request, Earlier::Cancel)
    }

    /// Requests an evaluation with all its settings, and decides what happens to this handle's earlier requests.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); [`EvalWorkerError::QueueFull`].
    pub fn submit_request(
        &mut self,
        weights: Option<&Weights>,
        request: EvaluationRequest,
        earlier: Earlier,
    ) -> Result<Ticket, EvalWorkerError> {
        let reward_key = request.reward_key.or_else(|| self.reward_key.clone());
        let request = EvaluationRequest { reward_key, ..request };
        let link = self.link.as_mut().ok_or(EvalWorkerError::Stopped)?;
        if earlier == Earlier::Cancel {
            self.pending.drain(..).for_each(|ticket| link.cancel(ticket));
        }
        if self.pending.len() >= EvalWorkerError::MAX_PENDING {
            return Err(EvalWorkerError::QueueFull);
        }
        let ticket = link.submit(weights.cloned(), request).inspect_err(|error| self.forget_if_lost(error))?;
        self.pending.push_back(ticket);
        Ok(ticket)
    }

    /// Returns the result, or `None` if there is none yet or nothing was requested. Waits at most for the timeout, and not
    /// at all without a request, except for the worker's start.
    ///
    /// # Errors
    /// The evaluation's error, once.
    pub fn poll(&mut self, timeout: Duration) -> Result<Option<Evaluation>, EvalWorkerError> {
        self.poll_ticket(timeout).map(|(_, outcome)| outcome).transpose()
    }

    /// Works like [`poll`](Self::poll), with the ticket of the request; `None` for an error that concerns the worker.
    pub fn poll_ticket(&mut self, timeout: Duration) -> Option<(Option<Ticket>, EvalOutcome)> {
        let (ticket, outcome) = self.link.as_mut()?.poll(self.pending.front().copied(), timeout)?;
        if ticket.is_some() {
            self.pending.pop_front();
        }
        outcome.as_ref().err().into_iter().for_each(|error| self.forget_if_lost(error));
        Some((ticket, outcome))
    }

    /// Forgets a worker that cannot be reached: that is reported once, and afterwards there are no results.
    fn forget_if_lost(&mut self, error: &EvalWorkerError) {
        self.link.take_if(|_| matches!(error, EvalWorkerError::Io(_)));
    }

    /// Ends the worker, for all its handles. Idempotent.
    pub fn shutdown(&mut self) {
        self.link.take().into_iter().for_each(|link| link.end());
    }
}
