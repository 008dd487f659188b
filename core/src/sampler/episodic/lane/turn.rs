//! Distributes a turn of the environment to its agents.

use super::{
    super::agent::{Agent, AgentIdentity, AgentOutcome},
    EpisodeLane, LanePhase, Round, number,
};
use crate::{
    env::{
        EnvError,
        multi_agent::{AgentRows, Turn},
    },
    ids::{AgentId, PolicyId},
    prelude::*,
    sampler::{Horizon, SampleError},
};

impl EpisodeLane {
    /// Handles the first observations of an episode, or the result of a step.
    pub(super) fn take_turn(
        &mut self,
        turn: &mut Turn,
        off_policy: &AgentRows,
        round: &mut Round<'_, '_>,
    ) -> Result<(), SampleError> {
        let mut end = None;
        match self.phase {
            LanePhase::Waiting => {
                self.phase = LanePhase::Running;
                self.hook(round, turn, |callbacks, hook| callbacks.on_episode_start(hook))?;
            }
            LanePhase::Running => {
                self.episode.add_step();
                self.open_env_steps += 1;
                self.steps = self.steps.saturating_add(1);
                // A time limit may coincide with the environment's own end, as in Gymnasium's wrapper.
                end = round.options.end_at(self.episode.length());
                end = end.filter(|end| *end == Horizon::Truncated || !turn.is_over());
            }
            LanePhase::New | LanePhase::Lost | LanePhase::Out => return Ok(()),
        }
        let all = Ends {
            terminated: turn.all_terminated() || end == Some(Horizon::LegacyHard),
            truncated: turn.all_truncated() || end == Some(Horizon::Truncated),
        };
        if all.any() {
            round.env.pay_out(self.env, turn);
        }
        if let Some(observation_fn) = round.host.observation_fn {
            self.hook(round, &Turn::new(), |_, hook| observation_fn(turn.obs_mut(), hook))?;
        }
        let mut order = core::mem::take(&mut self.order);
        order.clear();
        order.extend(turn.obs().iter().map(|(agent, _)| agent.clone()));
        if all.any() {
            // Agents that have acted and get no further observation get zeros at the end.
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
            self.hook(round, turn, |callbacks, hook| callbacks.on_episode_step(hook))?;
        }
        if all.any() {
            self.finish(turn, round)?;
            return self.reset(round, !turn.is_over());
        }
        if end == Some(Horizon::LegacySoft) {
            self.finish(turn, round)?;
            self.begin_without_reset(turn, round)?;
        }
        self.waits = true;
        Ok(())
    }

    /// Queues the agents that act in this round for their policies.
    pub(in super::super) fn queue(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        for at in 0..self.acting.len() {
            let place = self.acting[at];
            if !round.host.policies.contains(&self.agents[place].policy) {
                self.remap(place, round)?;
            }
            let agent = &self.agents[place];
            round.inference.queue(self.env, place, agent, self.moment(agent))?;
        }
        Ok(())
    }

    /// Handles an agent's observation, or zeros in its place.
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
            // An agent that appears at its end has no row.
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
        agent.training_enabled = round.options.keeps_rows && info.is_none_or(allows_training);
        if agent.has_started() {
            let recorded = if round.options.no_done_at_end { Ends::default() } else { ends };
            agent.add_row(AgentOutcome {
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

    /// Adds an agent to the episode.
    fn enter(&mut self, id: &AgentId, round: &mut Round<'_, '_>) -> Result<usize, SampleError> {
        let index = self.episode.agents().len();
        let policy = self.ask_mapping(id, index, round)?;
        let unknown = || EnvError::Failed(format!("there are no spaces for agent '{id}'"));
        let spaces = round.env.spaces(id).ok_or_else(unknown)?;
        let who = AgentIdentity { id: id.clone(), index, policy: policy.clone(), spaces };
        let agent = Agent::of(who, round)?;
        self.episode.enter(id, policy);
        self.agents.push(agent);
        Ok(self.agents.len() - 1)
    }

    /// Maps an agent to another policy, since its own was removed.
    pub(in super::super) fn remap(&mut self, place: usize, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let agent = &self.agents[place];
        let policy = self.ask_mapping(&agent.id, agent.index, round)?;
        let start = self.start(agent, self.episode.length());
        self.episode.remap(agent.index, policy.clone());
        let entry = round.host.policies.get_mut(&policy)?;
        let lost = self.agents[place].adopt(policy, &*entry.policy, start)?;
        self.open_agent_steps -= lost.min(self.open_agent_steps);
        round.losses.agent_steps += lost as u64;
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
}

/// The end of an agent's part of the episode.
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

/// Returns false for a JSON object with `"training_enabled": false`.
fn allows_training(info: &[u8]) -> bool {
    const NAME: &[u8] = b"\"training_enabled\"";
    if !info.starts_with(b"{") || !info.windows(NAME.len()).any(|window| window == NAME) {
        return true;
    }
    let info = serde_json::from_slice::<serde_json::Value>(info);
    info.map_or(true, |info| info.get("training_enabled") != Some(&serde_json::Value::Bool(false)))
}
