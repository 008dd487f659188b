//! Weights as named arrays, and acting.

use std::collections::BTreeMap;

use pyo3::{prelude::*, pybacked::PyBackedBytes, types::PyTuple};
use rollmesh_core::{
    action::ActionTransform,
    column::{Column, ColumnData},
    env::EnvSpaces,
    ids::{PolicyId, WeightsVersion},
    policy::{ActRequest, Acted},
    weights::{Tensor, Weights},
    worker::RolloutWorker,
};
use serde_json::{Value, json};

use crate::{
    column,
    failure::{Failure, Kind},
};

/// Tensors of a policy: name, shape and little-endian 32-bit floats.
pub(crate) type Tensors = Vec<(String, Vec<u32>, PyBackedBytes)>;

pub(crate) type PyActed<'py> = Bound<'py, PyTuple>;

pub(crate) fn ids(policies: Option<Vec<String>>) -> Option<Vec<PolicyId>> {
    policies.map(|ids| ids.into_iter().map(PolicyId::new).collect())
}

/// Returns the spaces and their element types.
pub(crate) fn spaces_json(spaces: &EnvSpaces) -> Value {
    json!({
        "observation": spaces.observation,
        "observation_type": spaces.observation_type.name(),
        "action": spaces.action,
        "action_type": spaces.action_type.name(),
    })
}

/// Returns the spaces of policies by id.
pub(crate) fn all_spaces_json(spaces: &BTreeMap<PolicyId, EnvSpaces>) -> Value {
    spaces.iter().map(|(id, spaces)| (id.to_string(), spaces_json(spaces))).collect()
}

pub(crate) fn tensors_of(py: Python<'_>, weights: &Weights) -> Tensors {
    let bytes = |values: &[f32]| PyBackedBytes::from(column::bytes_of(py, values));
    let tensor = |tensor: &Tensor| (tensor.name.clone(), tensor.shape.clone(), bytes(&tensor.values));
    weights.tensors().iter().map(tensor).collect()
}

pub(crate) fn weights_of(tensors: Tensors) -> Result<Weights, Failure> {
    let tensor = |(name, shape, bytes): (String, Vec<u32>, PyBackedBytes)| Tensor {
        name,
        shape,
        values: column::floats(&bytes),
    };
    Ok(Weights::new(WeightsVersion(0), tensors.into_iter().map(tensor).collect())?)
}

pub(crate) fn of_weights(py: Python<'_>, weights: &BTreeMap<PolicyId, Weights>) -> Vec<(String, Tensors)> {
    weights.iter().map(|(id, weights)| (id.to_string(), tensors_of(py, weights))).collect()
}

pub(crate) fn to_weights(
    py: Python<'_>,
    weights: Vec<(String, Tensors)>,
) -> Result<BTreeMap<PolicyId, Weights>, Failure> {
    py.detach(|| {
        let weights = weights.into_iter().map(|(id, tensors)| Ok((PolicyId::new(id), weights_of(tensors)?)));
        weights.collect()
    })
}

/// Converts the choice of a policy to Python.
pub(crate) fn into_python(acted: Acted, py: Python<'_>) -> PyResult<PyActed<'_>> {
    let floats = |values: Vec<f32>| column::to_python(py, &ColumnData::scalars(values).into());
    let Acted { actions, logp, vf_preds, state } = acted;
    (column::to_python(py, &actions)?, floats(logp)?, floats(vf_preds)?, floats(state)?).into_pyobject(py)
}

/// Python's recurrent states, previous actions and previous rewards, from which [`Before`] is built.
pub(crate) type BeforeArgs<'py> = (Option<Vec<f32>>, Option<Bound<'py, PyAny>>, Option<Vec<f32>>);

/// The inputs of a policy with memory from the steps before its rows.
#[derive(Clone)]
pub(crate) struct Before {
    state: Option<Vec<f32>>,
    /// The previous actions, in the environment's form.
    actions: Option<Column>,
    rewards: Option<Vec<f32>>,
}

impl Before {
    pub(crate) fn of_python((state, actions, rewards): BeforeArgs<'_>) -> PyResult<Self> {
        Ok(Self { state, actions: actions.map(|actions| column::of_python(&actions)).transpose()?, rewards })
    }
}

/// Acts on rows of observations as the environment gives them, and returns actions as it takes them. Without states the
/// rows are the first ones of their episodes.
pub(crate) fn act(
    worker: &mut RolloutWorker,
    id: &PolicyId,
    obs: Column,
    Before { state, actions: prev_actions, rewards: prev_rewards }: Before,
    explore: bool,
    t: u32,
) -> Result<Acted, Failure> {
    worker.policy_mut(id)?;
    let config = worker.creation_args();
    let (normalize, clip) = (config.normalize_actions, config.clip_actions);
    let spaces = worker.spaces().remove(id);
    let spaces = spaces.ok_or_else(|| Failure::new(Kind::Policy, format!("policy '{id}' has no spaces")))?;
    let transform = ActionTransform::for_space(&spaces.action, normalize, clip);
    let rows = obs.rows();
    column::check_shape(Kind::Policy, "obs_batch", &obs, rows, &spaces.observation.shape())?;
    if let Some(actions) = &prev_actions {
        column::check_shape(Kind::Policy, "prev_action_batch", actions, rows, &spaces.action.shape())?;
    }
    let entry = worker.policies().get_mut(id)?;
    let state_len: usize = entry.policy.state_lens().iter().sum();
    if let Some(state) = state.as_ref().filter(|state| state.len() != rows * state_len) {
        let why = format!("state_batches[0] has {} numbers, not {state_len} for each of {rows} rows", state.len());
        return Err(Failure::new(Kind::Policy, why));
    }
    let asked = ActRequest { obs, state, prev_actions, prev_rewards: prev_rewards.as_deref(), explore, t };
    Ok(entry.act(asked, &spaces, transform)?)
}
