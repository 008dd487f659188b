//! Environments with several agents.

use std::any::Any;

use rollmesh_core::{
    by_type,
    column::{Element, RowBuffer, RowsRef},
    env::{
        EnvError, EnvSpaces, Frame, MultiAgentEnv, Rng,
        multi_agent::{AgentRows, Turn},
    },
    ids::AgentId,
};

use super::Instance;

/// One environment. An answer consists of the flags of all agents and, for each agent of the step, its number, whether
/// it observes something, a reward, flags, and the observation. Actions are pairs of an agent's number and its action.
pub(super) struct Agents {
    instance: Instance,
    actions: Vec<f64>,
}

impl Agents {
    pub(super) fn new(instance: Instance) -> Self {
        Self { instance, actions: Vec::new() }
    }

    fn answer(&self, turn: &mut Turn) -> Result<(), EnvError> {
        let garbled = || self.instance.garbled();
        let (flags, mut rest) = self.instance.values.split_first().ok_or_else(garbled)?;
        let (terminated, truncated) = of_flags(*flags);
        while let [index, observes, reward, flags, row @ ..] = rest {
            let (agent, spaces) = self.instance.agents.get(*index as usize).ok_or_else(garbled)?;
            rest = row;
            if *observes != 0.0 {
                let len = spaces.observation.shape().elements();
                let (row, after) = row.split_at_checked(len).ok_or_else(garbled)?;
                rest = after;
                let mut buffer = RowBuffer::zeros(spaces.observation_type, len);
                by_type!(RowBuffer, &mut buffer, values => {
                    values.iter_mut().zip(row).for_each(|(to, value)| *to = Element::from_f64(*value));
                });
                turn.observe(agent, buffer.all());
            }
            let (is_terminated, is_truncated) = of_flags(*flags);
            // A reset gives no rewards.
            if *reward != 0.0 {
                turn.reward(agent, *reward);
            }
            if is_terminated {
                turn.terminate(agent);
            }
            if is_truncated {
                turn.truncate(agent);
            }
        }
        if terminated {
            turn.terminate_all();
        }
        if truncated {
            turn.truncate_all();
        }
        if rest.is_empty() { Ok(()) } else { Err(garbled()) }
    }
}

fn of_flags(flags: f64) -> (bool, bool) {
    let flags = flags as u8;
    (flags & 1 != 0, flags & 2 != 0)
}

impl MultiAgentEnv for Agents {
    fn agents(&self) -> Vec<AgentId> {
        let mut agents: Vec<AgentId> = self.instance.agents.iter().map(|(agent, _)| agent.clone()).collect();
        agents.sort();
        agents
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.instance.agents.iter().find(|(of, _)| of == agent).map(|(_, spaces)| spaces.clone())
    }

    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.instance.call(rng, |env| env.reset())?;
        self.answer(turn)
    }

    fn step(&mut self, actions: &AgentRows, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.actions.clear();
        for (index, (agent, _)) in self.instance.agents.iter().enumerate() {
            let Some(row) = actions.get(agent) else { continue };
            self.actions.push(index as f64);
            by_type!(RowsRef, row, row => self.actions.extend(row.iter().map(|value| value.to_f64())));
        }
        let actions = &self.actions;
        self.instance.call(rng, |env| env.step(actions))?;
        self.answer(turn)
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.instance.render(frame)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
