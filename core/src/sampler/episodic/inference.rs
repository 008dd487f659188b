//! Batched inference: one call per policy for all agents under it.

use super::{agent::Agent, lane::EpisodeLane};
use crate::{
    column::{DType, RowBuffer},
    env::Moment,
    ids::PolicyId,
    policy::{ActionInput, ActionOutput, PolicyError},
    prelude::*,
    sampler::{SampleError, SamplerHost},
};

/// The agents that need actions, by policy.
#[derive(Debug, Default)]
pub(super) struct PolicyInference {
    groups: BTreeMap<PolicyId, Group>,
}

/// The agents of one policy: a row each.
#[derive(Debug, Default)]
struct Group {
    /// Lane, and index of the agent within the lane.
    who: Vec<(usize, usize)>,
    moments: Vec<Moment>,
    obs: RowBuffer,
    obs_len: usize,
    action_type: Option<DType>,
    action_len: usize,
    state: Vec<f32>,
    state_len: usize,
    dist_inputs: usize,
    out: InferenceOutputs,
}

#[derive(Debug, Default)]
struct InferenceOutputs {
    actions: RowBuffer,
    logp: Vec<f32>,
    vf_preds: Vec<f32>,
    state: Vec<f32>,
    dist_inputs: Vec<f32>,
}

impl PolicyInference {
    /// Clears the queue.
    pub(super) fn clear(&mut self) {
        self.groups.values_mut().for_each(Group::clear);
    }

    /// Queues an agent that needs an action.
    pub(super) fn queue(
        &mut self,
        lane: usize,
        place: usize,
        agent: &Agent,
        moment: Moment,
    ) -> Result<(), SampleError> {
        if !self.groups.contains_key(&agent.policy) {
            self.groups.insert(agent.policy.clone(), Group::default());
        }
        let Some(group) = self.groups.get_mut(&agent.policy) else { return Ok(()) };
        group.add(lane, place, agent, moment)
    }

    /// Lets the policies choose, and gives the agents their actions.
    pub(super) fn run(
        &mut self,
        lanes: &mut [EpisodeLane],
        host: &mut SamplerHost<'_>,
        explore: bool,
    ) -> Result<(), SampleError> {
        // Drop the buffers of removed policies.
        self.groups.retain(|id, _| host.policies.contains(id));
        for (id, group) in self.groups.iter_mut().filter(|(_, group)| !group.who.is_empty()) {
            let entry = host.policies.get_mut(id)?;
            group.choose(id, entry.policy.as_mut(), explore)?;
            for (row, (lane, place)) in group.who.iter().enumerate() {
                if let Some(agent) = lanes.get_mut(*lane).and_then(|lane| lane.agent_mut(*place)) {
                    group.set_choice(row, agent);
                }
            }
            group.clear();
        }
        Ok(())
    }
}

impl Group {
    fn clear(&mut self) {
        self.who.clear();
        self.moments.clear();
        self.state.clear();
        let dtype = self.obs.all().dtype();
        self.obs.start(dtype);
    }

    fn add(&mut self, lane: usize, place: usize, agent: &Agent, moment: Moment) -> Result<(), SampleError> {
        let before = self.obs.len();
        let fits = agent.show(&mut self.obs)?;
        let added = self.obs.len() - before;
        if self.who.is_empty() {
            self.obs_len = added;
            self.action_type = Some(agent.action_type());
            self.action_len = agent.action_len();
            self.state_len = agent.wants.state_len();
            self.dist_inputs = agent.wants.dist_inputs();
        }
        if !fits || added != self.obs_len {
            return Err(mixed(agent, "observations", self.obs.all().dtype(), self.obs_len));
        }
        if self.action_type != Some(agent.action_type()) || self.action_len != agent.action_len() {
            return Err(mixed(agent, "actions", self.action_type.unwrap_or(DType::F32), self.action_len));
        }
        self.state.extend_from_slice(agent.state());
        self.who.push((lane, place));
        self.moments.push(moment);
        Ok(())
    }

    fn choose(
        &mut self,
        id: &PolicyId,
        policy: &mut dyn crate::policy::Policy,
        explore: bool,
    ) -> Result<(), SampleError> {
        let (rows, out) = (self.who.len(), &mut self.out);
        out.actions.start(self.action_type.unwrap_or(DType::F32));
        out.actions.resize(rows * self.action_len);
        // Clear everything: a policy that leaves a value unwritten must not see another agent's.
        for (values, len) in [
            (&mut out.logp, rows),
            (&mut out.vf_preds, rows),
            (&mut out.state, rows * self.state_len),
            (&mut out.dist_inputs, rows * self.dist_inputs),
        ] {
            values.clear();
            values.resize(len, 0.0);
        }
        let input = ActionInput { obs: self.obs.all(), moments: &self.moments, state: &self.state, explore };
        let output = ActionOutput {
            actions: out.actions.all_mut(),
            logp: &mut out.logp,
            vf_preds: &mut out.vf_preds,
            state: &mut out.state,
            dist_inputs: &mut out.dist_inputs,
        };
        policy.compute_actions(input, output).map_err(|source| SampleError::Policy { id: id.clone(), source })
    }

    fn set_choice(&self, row: usize, agent: &mut Agent) {
        let part = |len: usize| row * len..(row + 1) * len;
        let choice = &mut agent.choice;
        choice.action.set(self.out.actions.part(part(self.action_len)));
        choice.logp = self.out.logp.get(row).copied().unwrap_or_default();
        choice.vf_pred = self.out.vf_preds.get(row).copied().unwrap_or_default();
        choice.state.clear();
        choice.state.extend_from_slice(self.out.state.get(part(self.state_len)).unwrap_or_default());
        choice.dist_inputs.clear();
        choice.dist_inputs.extend_from_slice(self.out.dist_inputs.get(part(self.dist_inputs)).unwrap_or_default());
        agent.chosen();
    }
}

/// Returns the error for agents of one policy with different spaces.
fn mixed(agent: &Agent, what: &str, dtype: DType, len: usize) -> SampleError {
    let source = PolicyError::Unsupported {
        wanted: format!("{what} of {len} {dtype} from all its agents: map others to a policy of their own"),
        found: format!("other {what} of agent '{}'", agent.id),
    };
    SampleError::Policy { id: agent.policy.clone(), source }
}
