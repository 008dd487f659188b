//! Evaluation: how good a policy is, in episodes of its own, beside whatever else is going on.
//!
//! An [`Evaluator`] plays with environments and a policy that it was given, round by round, so that its caller can stop it
//! between any two of them, draw breath or look at a clock. What it is to do, an [`EvaluationRequest`] says; what it has
//! found is an [`Evaluation`]: the mean **episode** return, never a mean of steps, and never NaN. An [`EvaluationQueue`]
//! knows who waits for what.
//!
//! The same weights and the same request give the same bits, however often and wherever: each evaluation begins with
//! episode 0 of each sub-environment.
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
//! let env = InProcess::new(EnvMaker::single_agent(spec, Kernels::PORTABLE), starts.collect(), 7)?;
//! let options = EvaluatorOptions { max_episode_steps: spec.max_episode_steps, ..EvaluatorOptions::default() };
//! let mut evaluator = Evaluator::new(Box::new(env), Box::new(RandomPolicy::new(2, 7)), options)?;
//!
//! evaluator.begin(EvaluationRequest { break_when_any_done: false, ..EvaluationRequest::new(200) })?;
//! let found = loop {
//!     if let Some(found) = evaluator.advance(10)? {
//!         break found; // `cancel` would give it up instead
//!     }
//! };
//! assert_eq!((found.env_steps, found.unfinished), (800, 4));
//! assert!(found.episodes.len() > 20 && found.reward() > 10.0);
//! assert_eq!(found.frames.map(|frames| frames.shape()), Some([200, 200, 300, 3]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: processes, threads, deadlines.

mod acting;
mod lane;
mod outcome;
mod queue;
mod reward_key;
#[cfg(test)]
mod tests;

pub use outcome::{EpisodeTrace, EvaluatedEpisode, Evaluation, EvaluationRequest, Frames};
pub use queue::{Asker, Earlier, EvaluationQueue, QueueFull, Ticket};
pub use reward_key::{BadRewardKey, RewardKey};

use serde::{Deserialize, Serialize};

pub use self::acting::EvalPolicies;
use self::{
    acting::Acting,
    lane::{Lane, Phase},
};
use crate::{
    action::ActionTransform,
    batch::OBS,
    callbacks::{CallbackError, CallbackList, Callbacks as _, WorkerInfo},
    env::{BaseEnv, EnvError, EnvSpaces, Frame, News, Reset},
    episode::RolloutMetrics,
    ids::{PolicyId, WeightsVersion},
    policy::{Policy, PolicyError},
    prelude::*,
    space::PointError,
    view::{Shift, ViewRequirement},
    weights::Weights,
};

/// How an evaluator plays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluatorOptions {
    /// The signal that returns are sums of, where a [request](EvaluationRequest::reward_key) has none of its own.
    pub reward_key: RewardKey,
    /// Env steps after which an episode is truncated.
    #[doc(alias = "horizon")]
    pub max_episode_steps: Option<u32>,
    /// The policy's actions lie between -1 and 1 where the action space is a bounded box, see
    /// [`ActionTransform`].
    pub normalize_actions: bool,
    /// Otherwise: they are clamped to the action space.
    pub clip_actions: bool,
    /// The most bytes of an evaluation's pictures.
    pub max_frame_bytes: usize,
}

impl Default for EvaluatorOptions {
    /// What RLlib does with actions; 256 MiB of pictures.
    fn default() -> Self {
        Self {
            reward_key: RewardKey::Reward,
            max_episode_steps: None,
            normalize_actions: true,
            clip_actions: false,
            max_frame_bytes: 256 << 20,
        }
    }
}

/// Why there is no evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EvaluationError {
    /// The environments failed. They are made again for the next evaluation.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy failed, or does not take the weights.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The environments have nothing for a policy to do.
    #[error("the environments name no agent beforehand: evaluation needs one to know what a policy sees and does")]
    NoAgents,
    /// One policy cannot act for all of its agents.
    #[error("agent {agent} has other spaces than other agents of its policy: one policy cannot act for both")]
    OtherSpaces {
        /// The agent.
        agent: String,
    },
    /// The mapping gives an agent a policy that the evaluation does not have.
    #[error("agent {agent} is mapped to policy '{policy}', which the evaluation does not have")]
    UnknownPolicy {
        /// The agent.
        agent: String,
        /// Its policy.
        policy: String,
    },
    /// The policy wants to see what only a sampler keeps.
    #[error("the policy wants to see '{view}', and an evaluator shows observations and recurrent states only")]
    View {
        /// The view.
        view: String,
    },
    /// An action is not what the action space needs.
    #[error("an action cannot be handed over: {0}")]
    Action(#[from] PointError),
    /// In no step of the evaluation there was such a signal.
    #[error("no step brought the reward signal '{0}': see what the environment pays and puts into its infos")]
    NoSignal(RewardKey),
    /// Environments that begin their episodes by themselves.
    #[error("environment {0} begins its episodes by itself, so nobody can evaluate in it")]
    NoReset(usize),
    /// An environment that decides by itself when something happens did nothing.
    #[error("the environments have no news, and nothing that would bring some was left to do")]
    Idle,
    /// The user's code gave up.
    #[error(transparent)]
    Callback(#[from] CallbackError),
}

/// Plays evaluations with environments and a policy, one at a time.
#[doc(alias = "RayEvalWorker")]
pub struct Evaluator {
    env: Box<dyn BaseEnv>,
    options: EvaluatorOptions,
    lanes: Vec<Lane>,
    acting: Acting,
    news: News,
    frame: Frame,
    running: Option<Running>,
    callbacks: CallbackList,
    info: WorkerInfo,
    /// An environment failed: before the next evaluation all are made again.
    is_broken: bool,
}

/// The evaluation that is being done.
struct Running {
    request: EvaluationRequest,
    found: Evaluation,
    /// The signal was there.
    is_signalled: bool,
    /// An episode has ended.
    is_any_done: bool,
    /// Pictures are wanted, and there are some.
    has_picture: bool,
    /// The open episode of the first sub-environment, if its trace is wanted.
    trace: Option<EpisodeTrace>,
}

impl Evaluator {
    /// Evaluates a policy that acts for all agents. It chooses among the actions of
    /// [`policy_spaces`](Self::policy_spaces).
    ///
    /// # Errors
    /// [`EvaluationError::NoAgents`], [`EvaluationError::OtherSpaces`], [`EvaluationError::View`].
    pub fn new(
        env: Box<dyn BaseEnv>,
        policy: Box<dyn Policy>,
        options: EvaluatorOptions,
    ) -> Result<Self, EvaluationError> {
        let spaces = Self::common_spaces(env.as_ref())?;
        Self::of_policies(env, EvalPolicies::single(spaces, policy), options)
    }

    /// Evaluates several policies together, each acting for the agents that the mapping gives it.
    ///
    /// # Errors
    /// [`EvaluationError::View`].
    pub fn of_policies(
        env: Box<dyn BaseEnv>,
        policies: EvalPolicies,
        options: EvaluatorOptions,
    ) -> Result<Self, EvaluationError> {
        let is_shown = |name: &str, view: &ViewRequirement| {
            let is_obs = name == OBS.name() && view.shift == Shift::NONE && view.data_col.is_none();
            is_obs || name.starts_with("state_in_") || !view.used_for_compute_actions
        };
        for (_, policy) in policies.policies.values() {
            let views = policy.view_requirements();
            if let Some((view, _)) = views.iter().find(|(name, view)| !is_shown(name, view)) {
                return Err(EvaluationError::View { view: view.clone() });
            }
        }
        let lanes = (0..env.num_envs()).map(Lane::new).collect();
        Ok(Self {
            acting: Acting::new(policies, &options),
            env,
            options,
            lanes,
            news: News::new(),
            frame: Frame::new(),
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

    /// What a policy for these environments sees, and what it chooses from.
    ///
    /// # Errors
    /// [`EvaluationError::NoAgents`], [`EvaluationError::OtherSpaces`].
    pub fn policy_spaces(env: &dyn BaseEnv, options: &EvaluatorOptions) -> Result<EnvSpaces, EvaluationError> {
        let spaces = Self::common_spaces(env)?;
        let action = options.transform(&spaces).policy_space(&spaces.action);
        Ok(EnvSpaces { action, ..spaces })
    }

    /// The spaces of all agents that are known beforehand.
    pub(crate) fn common_spaces(env: &dyn BaseEnv) -> Result<EnvSpaces, EvaluationError> {
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

    /// Acts with other weights of all policies, see [`Weights::of_run`], from the next evaluation on.
    ///
    /// # Errors
    /// [`EvaluationError::Policy`] when they do not fit; the ones before stay.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), EvaluationError> {
        let before: Vec<(PolicyId, Weights)> =
            self.acting.policies().map(|(id, policy)| (id.clone(), policy.weights().clone())).collect();
        let ids: Vec<PolicyId> = before.iter().map(|(id, _)| id.clone()).collect();
        let new = weights.of_policies(&ids).map_err(PolicyError::from)?;
        let mut set = |id: &PolicyId, weights: &Weights| {
            self.acting.policy_mut(id).map_or(Ok(()), |policy| policy.set_weights(weights))
        };
        let result = new.iter().try_for_each(|(id, weights)| set(id, weights));
        if result.is_err() {
            before.iter().try_for_each(|(id, weights)| set(id, weights))?;
        }
        Ok(result?)
    }

    /// Version of the weights that act.
    #[must_use]
    pub fn weights_version(&self) -> WeightsVersion {
        self.acting.policies().map(|(_, policy)| policy.weights().version()).max().unwrap_or_default()
    }

    /// Begins an evaluation. One that was being done is given up.
    ///
    /// # Errors
    /// [`EvaluationError::Env`] if environments that failed cannot be made again, [`EvaluationError::Callback`].
    pub fn begin(&mut self, request: EvaluationRequest) -> Result<(), EvaluationError> {
        self.running = None;
        self.callbacks.on_evaluate_start(&self.info)?;
        if self.is_broken {
            (0..self.lanes.len()).try_for_each(|env| self.env.try_restart(env))?;
            self.is_broken = false;
        }
        let num_envs = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX).max(1);
        for (index, lane) in (0..).zip(&mut self.lanes) {
            let share = |episodes: u32| episodes / num_envs + u32::from(index < episodes % num_envs);
            lane.begin(request.episodes.map(|episodes| share(episodes.get())), request.max_steps);
        }
        let found = Evaluation { weights_version: self.weights_version(), ..Evaluation::default() };
        let (has_picture, trace) = (request.render, request.trace.then(EpisodeTrace::default));
        self.running = Some(Running { request, found, is_signalled: false, is_any_done: false, has_picture, trace });
        Ok(())
    }

    /// Gives up the evaluation that is being done.
    pub fn cancel(&mut self) {
        self.running = None;
    }

    /// True while an evaluation is being done.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Env steps of the evaluation that is being done.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.found.env_steps)
    }

    /// Goes on for so many rounds, in each of which every sub-environment takes a step; what was found if that was the end.
    /// Nothing without an evaluation.
    ///
    /// # Errors
    /// [`EvaluationError`]; the evaluation is then over.
    pub fn advance(&mut self, max_rounds: u32) -> Result<Option<Evaluation>, EvaluationError> {
        let Some(mut running) = self.running.take() else { return Ok(None) };
        for _ in 0..max_rounds {
            if running.is_over(&self.lanes) {
                return self.close(running).map(Some);
            }
            if let Err(error) = self.round(&mut running) {
                self.is_broken = true;
                return Err(error);
            }
        }
        if running.is_over(&self.lanes) {
            return self.close(running).map(Some);
        }
        self.running = Some(running);
        Ok(None)
    }

    /// Releases what the environments hold.
    ///
    /// # Errors
    /// [`EvaluationError::Env`].
    pub fn stop(&mut self) -> Result<(), EvaluationError> {
        self.running = None;
        Ok(self.env.stop()?)
    }

    fn close(&mut self, running: Running) -> Result<Evaluation, EvaluationError> {
        let Running { request, mut found, is_signalled, .. } = running;
        if found.env_steps > 0 && !is_signalled {
            return Err(EvaluationError::NoSignal(self.options.reward_key_of(&request).clone()));
        }
        let unfinished: Vec<f64> = self.lanes.iter().filter_map(Lane::unfinished_return).collect();
        found.close(&unfinished);
        if !self.callbacks.is_empty() {
            let episodes: Vec<RolloutMetrics> = found.episodes.iter().map(EvaluatedEpisode::metrics).collect();
            self.callbacks.on_evaluate_end(&self.info, &episodes)?;
        }
        Ok(found)
    }

    fn round(&mut self, running: &mut Running) -> Result<(), EvaluationError> {
        for (env, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.wants_reset()) {
            self.env.set_next_episode(env, lane.episode());
            lane.turn.clear();
            match self.env.try_reset(env, &mut lane.turn)? {
                Reset::Done => lane.begun(),
                Reset::Later => lane.phase = Phase::Beginning,
                Reset::Unsupported => return Err(EvaluationError::NoReset(env)),
            }
        }
        running.note(self.lanes.first());
        let explore = !running.request.deterministic;
        self.acting.choose(&mut self.lanes, self.env.as_ref(), &self.info, explore)?;
        let answers = self.acting.answers(&mut self.lanes)?;
        if !answers.is_empty() {
            self.env.send_actions(answers)?;
        }
        if self.lanes.iter().all(|lane| !lane.waits_for_news()) {
            return Err(EvaluationError::Idle);
        }
        self.news.clear();
        self.env.poll(&mut self.news)?;
        for at in 0..self.news.entries().len() {
            self.hear(at, running)?;
        }
        Ok(())
    }

    /// Takes in the news of one sub-environment.
    fn hear(&mut self, at: usize, running: &mut Running) -> Result<(), EvaluationError> {
        let Some(news) = self.news.entries_mut().get_mut(at) else { return Ok(()) };
        let Some(lane) = self.lanes.get_mut(news.env) else { return Ok(()) };
        if let Some(fault) = news.fault.take() {
            if matches!(fault, EnvError::GivenUp { .. }) {
                return Err(fault.into());
            }
            running.found.faulty = running.found.faulty.saturating_add(1);
            if let Some(trace) = running.trace.as_mut().filter(|_| news.env == 0) {
                *trace = EpisodeTrace::default();
            }
            lane.lost();
            return Ok(());
        }
        core::mem::swap(&mut lane.turn, &mut news.turn);
        if lane.phase == Phase::Beginning {
            lane.begun();
            return Ok(());
        }
        let limit = self.options.max_episode_steps;
        let is_cut = !lane.turn.is_over() && limit.is_some_and(|limit| lane.t() + 1 >= limit);
        if is_cut {
            self.env.pay_out(news.env, &mut lane.turn);
        }
        let reward = self.options.reward_key_of(&running.request).read(&lane.turn);
        if !lane.is_resting {
            running.is_signalled |= reward.is_some();
            running.found.env_steps += 1;
            if news.env == 0 && running.has_picture {
                running.has_picture = self.env.try_render(0, &mut self.frame);
                if running.has_picture {
                    let frames = running.found.frames.get_or_insert_default();
                    frames.add(&self.frame, self.options.max_frame_bytes);
                }
            }
        }
        if let Some(episode) = lane.stepped(reward.unwrap_or(0.0), is_cut, running.request.max_steps)? {
            running.is_any_done = true;
            if let Some(trace) = running.trace.as_mut().filter(|_| episode.env == 0) {
                let trace = core::mem::take(trace);
                running.found.trace = Some(EpisodeTrace { episode: episode.episode, ..trace });
            }
            running.found.episodes.push(episode);
        }
        Ok(())
    }
}

impl Running {
    /// Remembers what the first sub-environment acts on next.
    fn note(&mut self, lane: Option<&Lane>) {
        let Some(lane) = lane.filter(|lane| lane.phase == Phase::Acting && !lane.is_resting) else { return };
        if let (Some(trace), Some((_, row))) = (&mut self.trace, lane.turn.obs().iter().next()) {
            trace.add(row);
        }
    }

    fn is_over(&self, lanes: &[Lane]) -> bool {
        (self.request.break_when_any_done && self.is_any_done) || lanes.iter().all(|lane| lane.is_resting)
    }
}

impl EvaluatorOptions {
    fn reward_key_of<'a>(&'a self, request: &'a EvaluationRequest) -> &'a RewardKey {
        request.reward_key.as_ref().unwrap_or(&self.reward_key)
    }

    fn transform(&self, spaces: &EnvSpaces) -> ActionTransform {
        ActionTransform::for_space(&spaces.action, self.normalize_actions, self.clip_actions)
    }
}
