//! One environment: its episode, the agents in it, and what happens to them at each step.

use super::{
    EpisodicOptions, Output,
    agent::{Agent, Identity, Outcome},
    builder::Builder,
    inference::Inference,
};
use crate::{
    batch::AnyBatch,
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    env::{
        BaseEnv, EnvError, EnvNews, Moment, Reset,
        multi_agent::{AgentRows, Turn},
    },
    episode::{Episode, RolloutMetrics},
    ids::{AgentId, PolicyId, SlotId, unroll_id},
    prelude::*,
    rng::Streams,
    sampler::{BatchMode, Horizon, SampleError, SamplerHost},
    view::TrajectoryStart,
};

/// What all lanes share while a step is taken.
pub(super) struct Round<'a, 'h> {
    pub(super) env: &'a mut dyn BaseEnv,
    pub(super) host: &'a mut SamplerHost<'h>,
    pub(super) options: &'a EpisodicOptions,
    /// Randomness of the mapping function.
    pub(super) mapping: Streams,
    pub(super) inference: &'a mut Inference,
    pub(super) outputs: &'a mut VecDeque<Output>,
    pub(super) extra_batches: &'a mut Vec<AnyBatch>,
    /// What resets bring.
    pub(super) turn: &'a mut Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has happened.
    New,
    /// An episode is there, its first observations are not.
    Waiting,
    /// An episode goes on.
    Running,
    /// What was begun is lost, the environment must be reset.
    Lost,
}

/// An environment and what has come of it.
#[derive(Debug)]
pub(super) struct Lane {
    env: usize,
    slot: SlotId,
    next_episode: u32,
    phase: Phase,
    pub(super) episode: Episode,
    /// In order of appearance.
    pub(super) agents: Vec<Agent>,
    /// Places of the agents that act in this round.
    acting: Vec<usize>,
    /// The environment waits for an answer, with actions or without.
    waits: bool,
    pub(super) builder: Builder,
    /// Steps of the episode that have not been postprocessed.
    open_env_steps: usize,
    open_agent_steps: usize,
    /// True once the episode has had a row.
    has_rows: bool,
    /// Env steps of the slot, and how many of them there were before the open ones.
    steps: u64,
    first_open_step: u64,
    order: Vec<AgentId>,
}

impl Lane {
    pub(super) fn new(env: usize, slot: SlotId, first_episode: u32) -> Self {
        Self {
            env,
            slot,
            next_episode: first_episode,
            phase: Phase::New,
            episode: Episode::default(),
            agents: Vec::new(),
            acting: Vec::new(),
            waits: false,
            builder: Builder::default(),
            open_env_steps: 0,
            open_agent_steps: 0,
            has_rows: false,
            steps: 0,
            first_open_step: 0,
            order: Vec::new(),
        }
    }

    /// The id of an agent's rows that are not postprocessed yet.
    pub(super) fn unroll_id(&self, agent: &Agent) -> i64 {
        unroll_id(self.slot, self.first_open_step, number(agent.index))
    }

    /// The open steps are in the builder.
    pub(super) fn close_steps(&mut self) {
        self.first_open_step = self.steps;
        self.builder.env_steps += core::mem::take(&mut self.open_env_steps);
        self.builder.agent_steps += core::mem::take(&mut self.open_agent_steps);
    }

    pub(super) fn env(&self) -> usize {
        self.env
    }

    pub(super) fn is_new(&self) -> bool {
        self.phase == Phase::New
    }

    pub(super) fn is_lost(&self) -> bool {
        self.phase == Phase::Lost
    }

    pub(super) fn agent_mut(&mut self, place: usize) -> Option<&mut Agent> {
        self.agents.get_mut(place)
    }

    /// The agents that act in this round, or nothing if the environment waits for no answer.
    pub(super) fn answer(&self) -> Option<impl Iterator<Item = &Agent>> {
        self.waits.then(|| self.acting.iter().filter_map(|&place| self.agents.get(place)))
    }

    /// True if the environment waits for an answer.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self) {
        self.waits = false;
        self.acting.clear();
    }

    /// The slot, the number of its next episode, and its steps.
    pub(super) fn next(&self) -> (SlotId, u32, u64) {
        (self.slot, self.next_episode, self.steps)
    }

    /// Gives up what was begun, and goes on with these numbers.
    pub(super) fn begin_at(&mut self, episode: u32, steps: u64) {
        if !self.is_new() {
            self.abandon();
            self.builder = Builder::default();
        }
        (self.next_episode, self.steps, self.first_open_step) = (episode, steps, steps);
    }

    /// What was begun is lost.
    pub(super) fn abandon(&mut self) {
        self.begin_round();
        self.agents.clear();
        (self.open_env_steps, self.open_agent_steps) = (0, 0);
        self.phase = Phase::Lost;
    }

    /// Announces the next episode.
    pub(super) fn create_episode(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        self.episode = Episode::new(self.env, self.slot, self.next_episode);
        // A slot lives for 2^32 episodes; then numbers begin again, as every address of randomness would.
        self.next_episode = self.next_episode.wrapping_add(1);
        (self.open_env_steps, self.open_agent_steps, self.has_rows) = (0, 0, false);
        self.first_open_step = self.steps;
        self.phase = Phase::Waiting;
        self.hook(round, |callbacks, hook| callbacks.on_episode_created(hook))
    }

    /// Begins the next episode; `cut` tells that the environment has not ended the last one by itself.
    pub(super) fn reset(&mut self, round: &mut Round<'_, '_>, cut: bool) -> Result<(), SampleError> {
        self.agents.clear();
        self.create_episode(round)?;
        let mut turn = core::mem::take(round.turn);
        turn.clear();
        let began = match round.env.try_reset(self.env, &mut turn) {
            Ok(Reset::Done) => self.take_turn(&mut turn, &AgentRows::new(), round),
            Ok(Reset::Unsupported) if cut => Err(SampleError::HorizonWithoutReset),
            Ok(Reset::Later | Reset::Unsupported) => Ok(()),
            Err(error) => Err(error.into()),
        };
        *round.turn = turn;
        began
    }

    /// Takes what a poll brought.
    pub(super) fn take_news(&mut self, news: &mut EnvNews, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        if self.waits {
            return Err(EnvError::Failed(format!("a poll brought news of environment {} twice", self.env)).into());
        }
        match news.fault.take() {
            Some(fault) => self.take_fault(&fault, round),
            None => self.take_turn(&mut news.turn, &news.off_policy_actions, round),
        }
    }

    /// The episode was lost with its environment.
    fn take_fault(&mut self, fault: &EnvError, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        self.agents.clear();
        (self.open_env_steps, self.open_agent_steps) = (0, 0);
        self.hook(round, |callbacks, hook| callbacks.on_episode_end(hook, Some(fault)))?;
        round.extra_batches.extend(self.episode.take_extra_batches());
        let metrics = RolloutMetrics { faulty: Some(fault.to_string()), ..self.episode.metrics() };
        round.outputs.push_back(Output::Metrics(Box::new(metrics)));
        self.reset(round, false)
    }

    /// Takes the first observations of an episode, or what a step brought.
    fn take_turn(
        &mut self,
        turn: &mut Turn,
        off_policy: &AgentRows,
        round: &mut Round<'_, '_>,
    ) -> Result<(), SampleError> {
        let mut end = None;
        match self.phase {
            Phase::Waiting => {
                self.phase = Phase::Running;
                self.hook(round, |callbacks, hook| callbacks.on_episode_start(hook))?;
            }
            Phase::Running => {
                self.episode.add_step();
                self.open_env_steps += 1;
                self.steps += 1;
                // A time limit may coincide with the environment's own end, as in Gymnasium's wrapper.
                end = round.options.end_at(self.episode.length());
                end = end.filter(|end| *end == Horizon::Truncated || !turn.is_over());
            }
            Phase::New | Phase::Lost => return Ok(()),
        }
        let all = Ends {
            terminated: turn.all_terminated() || end == Some(Horizon::LegacyHard),
            truncated: turn.all_truncated() || end == Some(Horizon::Truncated),
        };
        if let Some(observation_fn) = round.host.observation_fn {
            self.hook(round, |_, hook| observation_fn(turn.obs_mut(), hook))?;
        }
        let mut order = core::mem::take(&mut self.order);
        order.clear();
        order.extend(turn.obs().iter().map(|(agent, _)| agent.clone()));
        if all.any() {
            // Who acted and hears nothing more sees zeros at the end.
            let silent = |agent: &&Agent| agent.has_started() && !agent.done && turn.obs().get(&agent.id).is_none();
            order.extend(self.agents.iter().filter(silent).map(|agent| agent.id.clone()));
        }
        order.sort_unstable();
        let taken = order.iter().try_for_each(|agent| self.take_obs(agent, turn, off_policy, all, round));
        self.order = order;
        taken?;
        for (agent, outcome) in turn.outcomes() {
            self.episode.add_reward(agent, outcome.reward);
        }
        if self.episode.length() > 0 {
            self.hook(round, |callbacks, hook| callbacks.on_episode_step(hook))?;
        }
        if all.any() {
            self.finish(round)?;
            return self.reset(round, !turn.is_over());
        }
        if end == Some(Horizon::LegacySoft) {
            self.finish(round)?;
            self.go_on(round)?;
        }
        self.waits = true;
        for &place in &self.acting {
            if let Some(agent) = self.agents.get(place) {
                round.inference.queue(self.env, place, agent, self.moment(agent))?;
            }
        }
        Ok(())
    }

    /// Takes an agent's observation, or zeros in its place.
    fn take_obs(
        &mut self,
        id: &AgentId,
        turn: &Turn,
        off_policy: &AgentRows,
        all: Ends,
        round: &mut Round<'_, '_>,
    ) -> Result<(), SampleError> {
        let outcome = turn.outcome(id);
        let ends =
            Ends { terminated: outcome.terminated || all.terminated, truncated: outcome.truncated || all.truncated };
        let place = match self.agents.iter().position(|agent| agent.id == *id) {
            Some(place) if self.agents[place].done => return Ok(()),
            Some(place) => place,
            // It would have no row.
            None if ends.any() => return Ok(()),
            None => self.enter(id, round)?,
        };
        if !round.host.policies.contains(&self.agents[place].policy) {
            self.remap(place, round)?;
        }
        let length = self.episode.length();
        let start = self.start(&self.agents[place], length);
        let agent = &mut self.agents[place];
        match turn.obs().get(id) {
            Some(obs) => agent.observe(obs, round.host.policies.get_mut(&agent.policy)?)?,
            None => agent.observe_zeros(),
        }
        let info = turn.info_of(id);
        agent.training_enabled = info.is_none_or(allows_training);
        if agent.has_started() {
            let recorded = if round.options.no_done_at_end { Ends::default() } else { ends };
            agent.add_row(Outcome {
                t: length.saturating_sub(1),
                reward: outcome.reward,
                terminated: recorded.terminated,
                truncated: recorded.truncated,
                info,
            })?;
            self.open_agent_steps += 1;
            self.has_rows = true;
        } else {
            agent.begin(start)?;
        }
        if ends.any() {
            agent.done = true;
        } else {
            if let Some(action) = off_policy.get(id) {
                agent.take_off_policy(action);
            }
            self.acting.push(place);
        }
        Ok(())
    }

    /// An agent appears.
    fn enter(&mut self, id: &AgentId, round: &mut Round<'_, '_>) -> Result<usize, SampleError> {
        let index = self.episode.agents().len();
        let policy = self.ask_mapping(id, index, round)?;
        let unknown = || EnvError::Failed(format!("there are no spaces for agent '{id}'"));
        let spaces = round.env.spaces(id).ok_or_else(unknown)?;
        let who = Identity { id: id.clone(), index, policy: policy.clone(), spaces };
        let entry = round.host.policies.get_mut(&policy)?;
        let options = round.options;
        let agent = Agent::new(who, &*entry.policy, options.record, options.normalize_actions, options.clip_actions)?;
        self.episode.enter(id, policy);
        self.agents.push(agent);
        Ok(self.agents.len() - 1)
    }

    /// An agent's policy is no longer there: it gets another one.
    pub(super) fn remap(&mut self, place: usize, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let Some(agent) = self.agents.get(place) else { return Ok(()) };
        let policy = self.ask_mapping(&agent.id, agent.index, round)?;
        let start = self.start(agent, self.episode.length());
        self.episode.remap(agent.index, policy.clone());
        let entry = round.host.policies.get_mut(&policy)?;
        let lost = self.agents[place].adopt(policy, &*entry.policy, start)?;
        self.open_agent_steps -= lost.min(self.open_agent_steps);
        Ok(())
    }

    fn ask_mapping(&self, id: &AgentId, index: usize, round: &Round<'_, '_>) -> Result<PolicyId, SampleError> {
        let host = &*round.host;
        let mut rng = round.mapping.at(self.slot, self.episode.number(), 0, number(index));
        let policy = (host.mapping)(id, &self.episode, host.worker, &mut rng);
        if host.policies.contains(&policy) {
            return Ok(policy);
        }
        let known: Vec<&str> = host.policies.ids().map(PolicyId::as_str).collect();
        Err(SampleError::UnknownPolicy { agent: id.clone(), id: policy, known: known.join(", ") })
    }

    /// The episode has ended.
    fn finish(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        if !self.has_rows {
            return Err(SampleError::NoAgentSteps(self.episode.id()));
        }
        self.postprocess(round)?;
        self.hook(round, |callbacks, hook| callbacks.on_episode_end(hook, None))?;
        round.extra_batches.extend(self.episode.take_extra_batches());
        round.outputs.push_back(Output::Metrics(Box::new(self.episode.metrics())));
        if round.options.batch_mode == BatchMode::CompleteEpisodes {
            let batch = self.builder.build(round.options.single_agent)?;
            round.outputs.push_back(Output::Batch(batch));
        }
        Ok(())
    }

    /// Cuts a full fragment.
    pub(super) fn cut_if_full(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let env_steps = self.builder.env_steps + self.open_env_steps;
        let agent_steps = self.builder.agent_steps + self.open_agent_steps;
        if round.options.is_full(env_steps, agent_steps) {
            self.postprocess(round)?;
            let batch = self.builder.build(round.options.single_agent)?;
            round.outputs.push_back(Output::Batch(batch));
        }
        Ok(())
    }

    /// Begins an episode in the books, while the environment goes on.
    fn go_on(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        self.create_episode(round)?;
        for place in 0..self.agents.len() {
            let start = self.start(&self.agents[place], 0);
            let agent = &mut self.agents[place];
            self.episode.enter(&agent.id, agent.policy.clone());
            agent.begin_again(start)?;
        }
        self.phase = Phase::Running;
        self.hook(round, |callbacks, hook| callbacks.on_episode_start(hook))
    }

    /// The address of what is random in an agent's next action.
    pub(super) fn moment(&self, agent: &Agent) -> Moment {
        Moment { slot: self.slot, episode: self.episode.number(), t: self.episode.length(), agent: number(agent.index) }
    }

    fn start(&self, agent: &Agent, t: u32) -> TrajectoryStart {
        TrajectoryStart {
            eps_id: self.episode.id(),
            agent_index: agent.index as i64,
            env_id: self.env as i64,
            t: i64::from(t),
        }
    }

    fn hook(
        &mut self,
        round: &mut Round<'_, '_>,
        call: impl FnOnce(&mut dyn Callbacks, &mut EpisodeHook<'_>) -> Result<(), CallbackError>,
    ) -> Result<(), SampleError> {
        let SamplerHost { worker, policies, callbacks, .. } = &mut *round.host;
        let mut hook = EpisodeHook { worker, env: &mut *round.env, policies, episode: &mut self.episode };
        Ok(call(&mut **callbacks, &mut hook)?)
    }
}

/// How an agent's part of the episode ends.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    terminated: bool,
    truncated: bool,
}

impl Ends {
    fn any(self) -> bool {
        self.terminated || self.truncated
    }
}

/// Agents beyond the last number share its random numbers.
fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

/// False for a JSON object that says `"training_enabled": false`.
fn allows_training(info: &[u8]) -> bool {
    const NAME: &[u8] = b"\"training_enabled\"";
    if !info.starts_with(b"{") || !info.windows(NAME.len()).any(|window| window == NAME) {
        return true;
    }
    let info = serde_json::from_slice::<serde_json::Value>(info);
    info.map_or(true, |info| info.get("training_enabled") != Some(&serde_json::Value::Bool(false)))
}
