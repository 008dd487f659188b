//! One call of the policy for all agents that wait for an action.

use super::{
    EvaluationError,
    lane::{Lane, Phase},
};
use crate::{
    action::ActionTransform,
    env::{BaseEnv, EnvActions, EnvSpaces, Moment},
    ids::SlotId,
    policy::{ActionInput, ActionOutput, Policy},
    prelude::*,
    sampler::RowBuffer,
    space::Space,
};

/// The agents that act in a round, a row each, in memory that is used again.
pub(super) struct Acting {
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
    answers: Vec<EnvActions>,
}

impl Acting {
    pub(super) fn new(spaces: &EnvSpaces, state_len: usize) -> Self {
        Self {
            obs_len: spaces.observation.shape().elements(),
            action_len: spaces.action.shape().elements(),
            state_len,
            who: Vec::new(),
            moments: Vec::new(),
            obs: RowBuffer::default(),
            actions: RowBuffer::default(),
            states: Vec::new(),
            next_states: Vec::new(),
            logp: Vec::new(),
            vf_preds: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Lets the policy choose for all lanes that wait for actions.
    pub(super) fn choose(
        &mut self,
        lanes: &mut [Lane],
        env: &dyn BaseEnv,
        spaces: &EnvSpaces,
        policy: &mut dyn Policy,
        explore: bool,
    ) -> Result<(), EvaluationError> {
        self.who.clear();
        self.moments.clear();
        self.states.clear();
        self.obs.start(spaces.observation_type);
        for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.phase == Phase::Acting) {
            self.add(index, lane, env, spaces, policy)?;
        }
        let rows = self.who.len();
        if rows == 0 {
            return Ok(());
        }
        self.actions.start(spaces.action_type);
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
        Ok(policy.compute_actions(input, output)?)
    }

    fn add(
        &mut self,
        index: usize,
        lane: &mut Lane,
        env: &dyn BaseEnv,
        spaces: &EnvSpaces,
        policy: &dyn Policy,
    ) -> Result<(), EvaluationError> {
        let turn = core::mem::take(&mut lane.turn);
        for (agent, row) in turn.obs().iter().filter(|(agent, _)| !turn.outcome(agent).is_done()) {
            let known = lane.agents.len();
            let place = lane.agent(agent);
            let is_new = place == known;
            // Those that were not known beforehand have shown nothing yet.
            let is_other = is_new && env.spaces(agent).is_some_and(|own| own != *spaces);
            if is_other || row.len() != self.obs_len || !self.obs.push(row) {
                return Err(EvaluationError::OtherSpaces { agent: agent.to_string() });
            }
            let start = self.states.len();
            match lane.agents.get(place).filter(|agent| agent.state.len() == self.state_len) {
                Some(agent) => self.states.extend_from_slice(&agent.state),
                None => {
                    self.states.resize(start + self.state_len, 0.0);
                    policy.initial_state(self.states.get_mut(start..).unwrap_or_default());
                }
            }
            let slot = SlotId(u32::try_from(index).unwrap_or(u32::MAX));
            let number = u16::try_from(place).unwrap_or(u16::MAX);
            self.moments.push(Moment { slot, episode: lane.episode(), t: lane.t(), agent: number });
            self.who.push((index, place));
        }
        lane.turn = turn;
        Ok(())
    }

    /// The choices, for the environments that wait for them; an entry without actions where nobody acts.
    pub(super) fn answers(
        &mut self,
        lanes: &mut [Lane],
        transform: ActionTransform,
        space: &Space,
    ) -> Result<&[EnvActions], EvaluationError> {
        if !self.who.is_empty() {
            self.actions.transform(transform, space)?;
        }
        let mut rows = self.who.iter().enumerate().peekable();
        let mut count = 0;
        for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.phase == Phase::Acting) {
            if count == self.answers.len() {
                self.answers.push(EnvActions::default());
            }
            let Some(answer) = self.answers.get_mut(count) else { continue };
            count += 1;
            answer.env = index;
            answer.actions.clear();
            while let Some((row, &(_, place))) = rows.next_if(|(_, (lane, _))| *lane == index) {
                let Some(agent) = lane.agents.get_mut(place) else { continue };
                answer.actions.set(&agent.id, self.actions.part(row * self.action_len..(row + 1) * self.action_len));
                agent.state.clear();
                let state = self.next_states.get(row * self.state_len..(row + 1) * self.state_len);
                agent.state.extend_from_slice(state.unwrap_or_default());
            }
            lane.phase = Phase::Stepping;
        }
        Ok(self.answers.get(..count).unwrap_or_default())
    }
}
