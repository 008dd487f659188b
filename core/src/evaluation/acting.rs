//! Calls of the policies for all agents that wait for an action.

use super::{
    EvaluationError, EvaluatorOptions,
    lane::{Agent, Lane, Phase},
};
use crate::{
    action::ActionTransform,
    callbacks::{PolicyMappingFn, WorkerInfo},
    env::{BaseEnv, EnvActions, EnvSpaces, Moment, RowsRef},
    ids::{AgentId, PolicyId, SlotId},
    policy::{ActionInput, ActionOutput, Policy},
    prelude::*,
    rng::{Purpose, Streams},
    sampler::RowBuffer,
};

/// Policies that act in an evaluation, and the function that gives them to agents.
pub struct EvalPolicies {
    /// The policies, with what their agents observe and do as the environments have it.
    pub policies: BTreeMap<PolicyId, (EnvSpaces, Box<dyn Policy>)>,
    /// Which policy an agent gets.
    pub mapping: PolicyMappingFn,
    /// Of the random numbers of the mapping.
    pub seed: u64,
}

impl EvalPolicies {
    /// One policy for all agents, which have these spaces.
    #[must_use]
    pub fn single(spaces: EnvSpaces, policy: Box<dyn Policy>) -> Self {
        let policies = [(PolicyId::DEFAULT, (spaces, policy))].into();
        Self { policies, mapping: Arc::new(|_, _, _, _| PolicyId::DEFAULT), seed: 0 }
    }
}

/// The policies of an evaluation, with what they choose in a round.
pub(super) struct Acting {
    actors: BTreeMap<PolicyId, Actor>,
    mapping: PolicyMappingFn,
    streams: Streams,
    answers: Vec<EnvActions>,
}

/// A policy, and the agents under it that act in a round, a row each, in memory that is used again.
struct Actor {
    policy: Box<dyn Policy>,
    spaces: EnvSpaces,
    transform: ActionTransform,
    obs_len: usize,
    action_len: usize,
    state_len: usize,
    /// Lane, and place of the agent there.
    who: Vec<(usize, usize)>,
    moments: Vec<Moment>,
    obs: RowBuffer,
    actions: RowBuffer,
    states: Vec<f32>,
    next_states: Vec<f32>,
    logp: Vec<f32>,
    vf_preds: Vec<f32>,
    /// Rows that are answered.
    answered: usize,
}

impl Acting {
    pub(super) fn new(policies: EvalPolicies, options: &EvaluatorOptions) -> Self {
        let EvalPolicies { policies, mapping, seed } = policies;
        let actor = |(id, (spaces, policy)): (PolicyId, (EnvSpaces, Box<dyn Policy>))| {
            (id, Actor::new(spaces, policy, options))
        };
        Self {
            actors: policies.into_iter().map(actor).collect(),
            mapping,
            streams: Streams::new(seed, Purpose::Mapping),
            answers: Vec::new(),
        }
    }

    /// The policies, in the order of their ids.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&PolicyId, &dyn Policy)> {
        self.actors.iter().map(|(id, actor)| (id, &*actor.policy))
    }

    pub(super) fn policy_mut(&mut self, id: &PolicyId) -> Option<&mut (dyn Policy + 'static)> {
        self.actors.get_mut(id).map(|actor| &mut *actor.policy)
    }

    /// Lets the policies choose for all lanes that wait for actions.
    pub(super) fn choose(
        &mut self,
        lanes: &mut [Lane],
        env: &dyn BaseEnv,
        info: &WorkerInfo,
        explore: bool,
    ) -> Result<(), EvaluationError> {
        self.actors.values_mut().for_each(Actor::clear);
        for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.phase == Phase::Acting) {
            let turn = core::mem::take(&mut lane.turn);
            for (agent, row) in turn.obs().iter().filter(|(agent, _)| !turn.outcome(agent).is_done()) {
                let place = self.place(agent, lane, env, info)?;
                let slot = SlotId(u32::try_from(index).unwrap_or(u32::MAX));
                let number = u16::try_from(place).unwrap_or(u16::MAX);
                let moment = Moment { slot, episode: lane.episode(), t: lane.t(), agent: number };
                let Some(agent) = lane.agents.get(place) else { continue };
                let Some(actor) = self.actors.get_mut(&agent.policy) else { continue };
                actor.add((index, place), agent, row, moment)?;
            }
            lane.turn = turn;
        }
        self.actors.values_mut().try_for_each(|actor| actor.choose(explore))
    }

    /// The place of an agent, which appears under the policy that the mapping gives it if it has not.
    fn place(
        &self,
        agent: &AgentId,
        lane: &mut Lane,
        env: &dyn BaseEnv,
        info: &WorkerInfo,
    ) -> Result<usize, EvaluationError> {
        if let Some(place) = lane.record.agent_index(agent) {
            return Ok(place);
        }
        let (slot, place) = (lane.record.slot(), lane.agents.len());
        let number = u16::try_from(place).unwrap_or(u16::MAX);
        let policy = (self.mapping)(agent, &lane.record, info, &mut self.streams.at(slot, lane.episode(), 0, number));
        let unknown = || EvaluationError::UnknownPolicy { agent: agent.to_string(), policy: policy.to_string() };
        let actor = self.actors.get(&policy).ok_or_else(unknown)?;
        // Those that were not known beforehand have shown nothing yet.
        if env.spaces(agent).is_some_and(|own| own != actor.spaces) {
            return Err(EvaluationError::OtherSpaces { agent: agent.to_string() });
        }
        lane.record.enter(agent, policy.clone());
        lane.agents.push(Agent { id: agent.clone(), policy, state: Vec::new() });
        Ok(place)
    }

    /// The choices, for the environments that wait for them; an entry without actions where no agent acts.
    pub(super) fn answers(&mut self, lanes: &mut [Lane]) -> Result<&[EnvActions], EvaluationError> {
        self.actors.values_mut().try_for_each(Actor::transform)?;
        let mut count = 0;
        for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.phase == Phase::Acting) {
            if count == self.answers.len() {
                self.answers.push(EnvActions::default());
            }
            let Some(answer) = self.answers.get_mut(count) else { continue };
            count += 1;
            answer.env = index;
            answer.actions.clear();
            self.actors.values_mut().for_each(|actor| actor.answer(index, lane, answer));
            lane.phase = Phase::Stepping;
        }
        Ok(self.answers.get(..count).unwrap_or_default())
    }
}

impl Actor {
    fn new(spaces: EnvSpaces, policy: Box<dyn Policy>, options: &EvaluatorOptions) -> Self {
        Self {
            transform: options.transform(&spaces),
            obs_len: spaces.observation.shape().elements(),
            action_len: spaces.action.shape().elements(),
            state_len: policy.state_lens().iter().sum(),
            policy,
            spaces,
            who: Vec::new(),
            moments: Vec::new(),
            obs: RowBuffer::default(),
            actions: RowBuffer::default(),
            states: Vec::new(),
            next_states: Vec::new(),
            logp: Vec::new(),
            vf_preds: Vec::new(),
            answered: 0,
        }
    }

    fn clear(&mut self) {
        self.who.clear();
        self.moments.clear();
        self.states.clear();
        self.obs.start(self.spaces.observation_type);
        self.answered = 0;
    }

    fn add(
        &mut self,
        who: (usize, usize),
        agent: &Agent,
        row: RowsRef<'_>,
        moment: Moment,
    ) -> Result<(), EvaluationError> {
        if row.len() != self.obs_len || !self.obs.push(row) {
            return Err(EvaluationError::OtherSpaces { agent: agent.id.to_string() });
        }
        let start = self.states.len();
        if agent.state.len() == self.state_len {
            self.states.extend_from_slice(&agent.state);
        } else {
            self.states.resize(start + self.state_len, 0.0);
            self.policy.initial_state(self.states.get_mut(start..).unwrap_or_default());
        }
        self.moments.push(moment);
        self.who.push(who);
        Ok(())
    }

    fn choose(&mut self, explore: bool) -> Result<(), EvaluationError> {
        let rows = self.who.len();
        if rows == 0 {
            return Ok(());
        }
        self.actions.start(self.spaces.action_type);
        self.actions.resize(rows.saturating_mul(self.action_len));
        let buffers = [(&mut self.logp, 1), (&mut self.vf_preds, 1), (&mut self.next_states, self.state_len)];
        for (values, len) in buffers {
            values.clear();
            values.resize(rows.saturating_mul(len), 0.0);
        }
        let input = ActionInput { obs: self.obs.all(), moments: &self.moments, state: &self.states, explore };
        let output = ActionOutput {
            state: &mut self.next_states,
            ..ActionOutput::new(self.actions.all_mut(), &mut self.logp, &mut self.vf_preds)
        };
        Ok(self.policy.compute_actions(input, output)?)
    }

    fn transform(&mut self) -> Result<(), EvaluationError> {
        if !self.who.is_empty() {
            self.actions.transform(self.transform, &self.spaces.action)?;
        }
        Ok(())
    }

    /// Puts the choices for the agents of a lane into its answer. Lanes come in order.
    fn answer(&mut self, index: usize, lane: &mut Lane, answer: &mut EnvActions) {
        let rows = self.who.iter().enumerate().skip(self.answered);
        for (row, &(_, place)) in rows.take_while(|(_, (lane, _))| *lane == index) {
            self.answered = row + 1;
            let Some(agent) = lane.agents.get_mut(place) else { continue };
            answer.actions.set(&agent.id, self.actions.part(row * self.action_len..(row + 1) * self.action_len));
            agent.state.clear();
            let state = self.next_states.get(row * self.state_len..(row + 1) * self.state_len);
            agent.state.extend_from_slice(state.unwrap_or_default());
        }
    }
}
