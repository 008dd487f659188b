//! Evaluation of a policy: episodes apart from training, alongside other work.
//!
//! An [`Evaluator`] samples given environments with a given policy, round by round, so that its caller can pause it between
//! any two rounds. An [`EvaluationRequest`] describes it; the result is an [`Evaluation`]: the mean **episode** return,
//! never a mean of steps, and never NaN. Workers execute evaluations as calls, through [`Evaluates`].
//!
//! The same weights and the same request give bit-identical results, on any machine and however often: each evaluation
//! begins with episode 0 of each sub-environment.
//!
//! ```
//! use rollmesh_core::{
//!     env::{EnvContext, EnvMaker, EnvRegistry, EnvStart, InProcess},
//!     evaluation::{EvaluationRequest, Evaluator, EvaluatorOptions},
//!     ids::{HomeIndex, SlotId},
//!     kernels::Kernels,
//!     policy::RandomPolicy,
//! };
//!
//! let registry = EnvRegistry::builtin();
//! let spec = registry.spec("CartPole-v1")?;
//! let starts = (0..4).map(|index| {
//!     let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: index });
//!     EnvStart { slot: SlotId(index), episode: 0, context }
//! });
//! let env = InProcess::new(EnvMaker::single_agent(&spec, Kernels::PORTABLE), starts.collect(), 7)?;
//! let options = EvaluatorOptions { max_episode_steps: spec.max_episode_steps, ..EvaluatorOptions::default() };
//! let mut evaluator = Evaluator::new(Box::new(env), Box::new(RandomPolicy::new(2, 7)), options)?;
//!
//! evaluator.begin(EvaluationRequest { break_when_any_done: false, ..EvaluationRequest::new(200) })?;
//! let found = loop {
//!     if let Some(found) = evaluator.advance(10)? {
//!         break found; // `cancel` would drop it instead
//!     }
//! };
//! assert_eq!((found.env_steps, found.unfinished), (800, 4));
//! assert!(found.episodes.len() > 20 && found.reward() > 10.0);
//! assert_eq!(found.frames.map(|frames| frames.shape()), Some([200, 200, 300, 3]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: processes, threads, deadlines.

mod desk;
mod error;
mod evaluates;
mod lane;
mod outcome;
mod reward_key;
#[cfg(test)]
mod tests;
mod ticket;
mod watch;

pub use desk::{EvalCommand, EvalDesk, EvalDone, Polled};
pub use error::{EvalWorkerError, check_name};
pub use evaluates::{EvalOutcome, Evaluates};
pub use outcome::{EpisodeTrace, EvaluatedEpisode, Evaluation, EvaluationRequest, Frames};
pub use reward_key::{BadRewardKey, RewardKey};
pub use ticket::{Earlier, Ticket};

use serde::{Deserialize, Serialize};

use self::{
    lane::EvaluationLane,
    watch::{RunningEvaluation, Watch},
};
use crate::{
    action::ActionTransform,
    callbacks::{CallbackError, CallbackList, Callbacks as _, ObservationFn, PolicyMappingFn, WorkerInfo},
    env::{BaseEnv, EnvError, EnvSpaces},
    episode::RolloutMetrics,
    ids::{PolicyId, SlotId, WeightsVersion},
    policy::{Policy, PolicyError, PolicyMap},
    prelude::*,
    sampler::{Episodic, InputReader as _, SampleError, SampleProgress, SamplerHost, SamplerOptions, set_weights},
    time::Micros,
    weights::Weights,
};

/// Options of an evaluator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluatorOptions {
    /// The signal whose sum is the return, if a [request](EvaluationRequest::reward_key) names none.
    pub reward_key: RewardKey,
    /// Env steps after which an episode is truncated.
    #[doc(alias = "horizon")]
    pub max_episode_steps: Option<u32>,
    /// Whether the policy's actions are between -1 and 1 where the action space is a bounded box, see [`ActionTransform`].
    pub normalize_actions: bool,
    /// Whether actions are clipped to the action space otherwise.
    pub clip_actions: bool,
    /// Most bytes of an evaluation's pictures.
    pub max_frame_bytes: usize,
    /// Most pictures of an evaluation.
    pub max_frames: usize,
    /// Seed of mapping functions' random numbers.
    pub seed: u64,
}

impl Default for EvaluatorOptions {
    /// Returns RLlib's defaults for actions; 256 MiB of pictures.
    fn default() -> Self {
        Self {
            reward_key: RewardKey::Reward,
            max_episode_steps: None,
            normalize_actions: true,
            clip_actions: false,
            max_frame_bytes: 256 << 20,
            max_frames: usize::MAX,
            seed: 0,
        }
    }
}

/// The reason why there is no evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// The environments failed. They are restarted for the next evaluation.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The environment has pictures and cannot be rendered, although the request includes them.
    #[error("the environment cannot be rendered: {0}; evaluate it without pictures (`render=False`, no `--render`)")]
    Render(String),
    /// The policy failed, or rejects the weights.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An episode could not be sampled.
    #[error(transparent)]
    Sample(SampleError),
    /// The environments have no agents.
    #[error("the environments name no agent beforehand: evaluation needs one to know what a policy sees and does")]
    NoAgents,
    /// The agents' spaces differ, so one policy cannot act for all.
    #[error("agent {agent} has other spaces than the agents before it: one policy cannot act for both")]
    OtherSpaces {
        /// The agent.
        agent: String,
    },
    /// The signal did not occur in any step of the evaluation.
    #[error("no step brought the reward signal '{0}': see what the environment pays and puts into its infos")]
    NoSignal(RewardKey),
    /// User code failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
}

impl From<SampleError> for EvaluationError {
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::Env(error) => Self::Env(error),
            SampleError::Callback(error) => Self::Callback(error),
            SampleError::Policy { id, source } if id == PolicyId::DEFAULT => Self::Policy(source),
            error => Self::Sample(error),
        }
    }
}

/// Executes evaluations with environments and policies, one at a time.
#[doc(alias = "RayEvalWorker")]
pub struct Evaluator {
    sampler: Episodic,
    policies: PolicyMap,
    mapping: PolicyMappingFn,
    observation_fn: Option<ObservationFn>,
    /// The spaces of all agents, if one policy acts for all.
    spaces: Option<EnvSpaces>,
    version: WeightsVersion,
    options: EvaluatorOptions,
    running: Option<RunningEvaluation>,
    callbacks: CallbackList,
    info: WorkerInfo,
    /// Whether an environment failed: then all are restarted before the next evaluation.
    is_broken: bool,
}

impl Evaluator {
    /// Creates an evaluator of a policy that acts for all agents, in [`policy_spaces`](Self::policy_spaces).
    ///
    /// # Errors
    /// [`EvaluationError::NoAgents`], [`EvaluationError::OtherSpaces`].
    pub fn new(
        env: Box<dyn BaseEnv>,
        policy: Box<dyn Policy>,
        options: EvaluatorOptions,
    ) -> Result<Self, EvaluationError> {
        let spaces = Some(common_spaces(env.as_ref())?);
        let version = policy.weights().version();
        let evaluator =
            Self::of_policies(env, PolicyMap::single(policy), Arc::new(|_, _, _, _| PolicyId::DEFAULT), options)?;
        Ok(Self { spaces, version, ..evaluator })
    }

    /// Creates an evaluator of policies that a mapping function assigns to agents. Returns are summed over all agents.
    ///
    /// # Errors
    /// [`EvaluationError::Env`] without an environment.
    pub fn of_policies(
        env: Box<dyn BaseEnv>,
        policies: PolicyMap,
        mapping: PolicyMappingFn,
        options: EvaluatorOptions,
    ) -> Result<Self, EvaluationError> {
        let sampler = Episodic::new(options.sampler(env.num_envs(), false), env)?;
        Ok(Self {
            sampler,
            policies,
            mapping,
            observation_fn: None,
            spaces: None,
            version: WeightsVersion(0),
            options,
            running: None,
            callbacks: CallbackList::new(),
            info: WorkerInfo::default(),
            is_broken: false,
        })
    }

    /// Calls [`on_evaluate_start`](crate::callbacks::Callbacks::on_evaluate_start) when an evaluation begins, and
    /// [`on_evaluate_end`](crate::callbacks::Callbacks::on_evaluate_end) with its episodes when it is complete.
    #[must_use]
    pub fn with_callbacks(self, callbacks: CallbackList, info: WorkerInfo) -> Self {
        Self { callbacks, info, ..self }
    }

    /// Sets an observation function, as in sampling.
    #[must_use]
    pub fn with_observation_fn(self, observation_fn: Option<ObservationFn>) -> Self {
        Self { observation_fn, ..self }
    }

    /// Returns the spaces of a policy for these environments.
    ///
    /// # Errors
    /// [`EvaluationError::NoAgents`], [`EvaluationError::OtherSpaces`].
    pub fn policy_spaces(env: &dyn BaseEnv, options: &EvaluatorOptions) -> Result<EnvSpaces, EvaluationError> {
        let spaces = common_spaces(env)?;
        let action = options.transform(&spaces).policy_space(&spaces.action);
        Ok(EnvSpaces { action, ..spaces })
    }

    /// Sets the weights from the next evaluation on.
    ///
    /// # Errors
    /// [`EvaluationError::Policy`], [`EvaluationError::Sample`] if they do not fit; the previous ones stay.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), EvaluationError> {
        set_weights(&mut self.policies, weights)?;
        self.version = weights.version();
        Ok(())
    }

    /// Returns the version of the present weights.
    #[must_use]
    pub fn weights_version(&self) -> WeightsVersion {
        self.version
    }

    /// Begins an evaluation. Drops one in progress.
    ///
    /// # Errors
    /// [`EvaluationError::Env`] if environments that failed cannot be restarted, [`EvaluationError::Callback`].
    pub fn begin(&mut self, request: EvaluationRequest) -> Result<(), EvaluationError> {
        self.running = None;
        self.callbacks.on_evaluate_start(&self.info)?;
        let num_envs = self.sampler.options().slots.len();
        let options = self.options.sampler(num_envs, !request.deterministic);
        self.sampler.restart(options, self.is_broken)?;
        self.is_broken = false;
        let found = Evaluation { weights_version: self.weights_version(), ..Evaluation::default() };
        self.running = Some(RunningEvaluation::new(request, found, num_envs));
        Ok(())
    }

    /// Drops the evaluation in progress.
    pub fn cancel(&mut self) {
        self.running = None;
    }

    /// Returns true while an evaluation is in progress.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the env steps of the evaluation in progress.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.found.env_steps)
    }

    /// Continues for at most `max_rounds` rounds, in each of which every sub-environment takes a step; returns the result if
    /// that was the end. Returns `None` without an evaluation.
    ///
    /// # Errors
    /// [`EvaluationError`]; the evaluation is then over.
    pub fn advance(&mut self, max_rounds: u32) -> Result<Option<Evaluation>, EvaluationError> {
        let Some(mut running) = self.running.take() else { return Ok(None) };
        for _ in 0..max_rounds {
            if running.is_over() {
                break;
            }
            if let Err(error) = self.round(&mut running) {
                self.is_broken = true;
                return Err(running.failure.unwrap_or(error));
            }
        }
        if running.is_over() {
            return self.close(running).map(Some);
        }
        self.running = Some(running);
        Ok(None)
    }

    /// Releases the environments' resources.
    ///
    /// # Errors
    /// [`EvaluationError::Env`].
    pub fn stop(&mut self) -> Result<(), EvaluationError> {
        self.running = None;
        Ok(self.sampler.stop()?)
    }

    fn close(&mut self, running: RunningEvaluation) -> Result<Evaluation, EvaluationError> {
        let RunningEvaluation { request, mut found, lanes, is_signalled, .. } = running;
        if found.env_steps > 0 && !is_signalled {
            return Err(EvaluationError::NoSignal(self.options.reward_key_of(&request).clone()));
        }
        let unfinished: Vec<f64> = lanes.iter().filter_map(EvaluationLane::unfinished_return).collect();
        found.close(&unfinished);
        if !self.callbacks.is_empty() {
            let episodes: Vec<RolloutMetrics> = found.episodes.iter().map(EvaluatedEpisode::metrics).collect();
            self.callbacks.on_evaluate_end(&self.info, &episodes)?;
        }
        Ok(found)
    }

    fn round(&mut self, running: &mut RunningEvaluation) -> Result<(), EvaluationError> {
        let is_first = running.found.env_steps == 0;
        let mut host = SamplerHost {
            worker: &self.info,
            policies: &mut self.policies,
            mapping: &self.mapping,
            observation_fn: self.observation_fn.as_ref(),
            callbacks: &mut Watch { running, options: &self.options, spaces: self.spaces.as_ref() },
            clock: &|| Micros(0),
            interrupt: None,
        };
        let may_be_idle = self.sampler.may_be_idle();
        if is_first && !may_be_idle {
            self.sampler.begin_episodes(&mut host)?;
        }
        if self.sampler.step(&mut host)? == SampleProgress::Idle && !may_be_idle {
            return Err(SampleError::no_update().into());
        }
        // Only the episodes' metrics are used, so discard the batches.
        while self.sampler.take().is_some() {}
        self.sampler.metrics();
        for (env, lane) in running.lanes.iter_mut().enumerate() {
            lane.stop_if_done(running.request.max_steps);
            if lane.is_at_last(&running.request) {
                self.sampler.rest(env);
            }
        }
        Ok(())
    }
}

impl EvaluatorOptions {
    fn reward_key_of<'a>(&'a self, request: &'a EvaluationRequest) -> &'a RewardKey {
        request.reward_key.as_ref().unwrap_or(&self.reward_key)
    }

    fn sampler(&self, num_envs: usize, explore: bool) -> SamplerOptions {
        SamplerOptions {
            max_episode_steps: self.max_episode_steps,
            normalize_actions: self.normalize_actions,
            clip_actions: self.clip_actions,
            explore,
            seed: self.seed,
            single_agent: false,
            fragment_length: 32,
            keeps_rows: false,
            ..SamplerOptions::new(
                (0..u32::try_from(num_envs).unwrap_or(u32::MAX)).map(|env| (SlotId(env), 0)).collect(),
            )
        }
    }

    fn transform(&self, spaces: &EnvSpaces) -> ActionTransform {
        ActionTransform::for_space(&spaces.action, self.normalize_actions, self.clip_actions)
    }
}

/// Returns the common spaces of all agents known beforehand.
fn common_spaces(env: &dyn BaseEnv) -> Result<EnvSpaces, EvaluationError> {
    let mut common: Option<EnvSpaces> = None;
    for agent in env.agents() {
        let spaces = env.spaces(&agent).ok_or_else(|| EnvError::UnknownAgent { env: 0, agent: agent.clone() })?;
        match &common {
            Some(common) if *common != spaces => {
                return Err(EvaluationError::OtherSpaces { agent: agent.to_string() });
            }
            Some(_) => {}
            None => common = Some(spaces),
        }
    }
    common.ok_or(EvaluationError::NoAgents)
}
