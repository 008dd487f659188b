//! Weights as named arrays, and acting.

use std::collections::BTreeMap;

use pyo3::{prelude::*, pybacked::PyBackedBytes, types::PyTuple};
use rollmesh_core::{
    action::ActionTransform,
    column::{Column, ColumnData, DType},
    env::{EnvSpaces, Moment},
    ids::{PolicyId, SlotId, WeightsVersion},
    policy::{ActionInput, ActionOutput, PolicyEntry},
    weights::{Tensor, Weights},
    worker::RolloutWorker,
};
use serde_json::{Value, json};

use crate::{
    column::{self, by_dtype},
    failure::{Failure, Kind},
};

/// Tensors of a policy: name, shape and little-endian 32-bit floats.
pub(crate) type Tensors = Vec<(String, Vec<u32>, PyBackedBytes)>;

pub(crate) type Acted<'py> = Bound<'py, PyTuple>;

pub(crate) fn ids(policies: Option<Vec<String>>) -> Option<Vec<PolicyId>> {
    policies.map(|ids| ids.into_iter().map(PolicyId::new).collect())
}

/// Spaces and their element types.
pub(crate) fn spaces_json(spaces: &EnvSpaces) -> Value {
    json!({
        "observation": spaces.observation,
        "observation_type": spaces.observation_type.name(),
        "action": spaces.action,
        "action_type": spaces.action_type.name(),
    })
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

/// The actions of a policy on rows of observations.
pub(crate) struct Actions {
    pub(crate) actions: Column,
    pub(crate) logp: Vec<f32>,
    pub(crate) vf_preds: Vec<f32>,
    pub(crate) state: Vec<f32>,
}

impl Actions {
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Acted<'_>> {
        let floats = |values: Vec<f32>| column::to_python(py, &ColumnData::scalars(values).into());
        let Self { actions, logp, vf_preds, state } = self;
        (column::to_python(py, &actions)?, floats(logp)?, floats(vf_preds)?, floats(state)?).into_pyobject(py)
    }
}

/// Python's recurrent states, previous actions and previous rewards, as [`Before`] has them.
pub(crate) type BeforeArgs<'py> = (Option<Vec<f32>>, Option<Bound<'py, PyAny>>, Option<Vec<f32>>);

/// What a policy with memory knows of the steps before its rows.
pub(crate) struct Before {
    state: Option<Vec<f32>>,
    /// As the environment takes them.
    actions: Option<Column>,
    rewards: Option<Vec<f32>>,
}

impl Before {
    pub(crate) fn of_python((state, actions, rewards): BeforeArgs<'_>) -> PyResult<Self> {
        Ok(Self { state, actions: actions.map(|actions| column::of_python(&actions)).transpose()?, rewards })
    }
}

/// Acts on rows of observations as the environment gives them, and returns actions as it takes them. Without states the
/// episodes begin.
pub(crate) fn act(
    worker: &mut RolloutWorker,
    id: &PolicyId,
    obs: Column,
    Before { state, actions: mut prev_actions, rewards: prev_rewards }: Before,
    explore: bool,
    t: u32,
) -> Result<Actions, Failure> {
    worker.policy_mut(id)?;
    let config = worker.creation_args();
    let (normalize, clip) = (config.normalize_actions, config.clip_actions);
    let spaces = worker.spaces().remove(id);
    let EnvSpaces { observation, action, action_type, .. } =
        spaces.ok_or_else(|| Failure::new(Kind::Policy, format!("policy '{id}' has no spaces")))?;
    let transform = ActionTransform::for_space(&action, normalize, clip);
    let rows = obs.rows();
    column::check_shape(Kind::Policy, "obs_batch", &obs, rows, &observation.shape())?;
    if let Some(actions) = &mut prev_actions {
        column::check_shape(Kind::Policy, "prev_action_batch", actions, rows, &action.shape())?;
        by_dtype!(action_type, Of => {
            let rows = actions.typed_mut::<Of>()?.values_mut();
            transform.undo_rows(&action, rows).map_err(|error| Failure::new(Kind::Policy, error))?;
        });
    }
    let moments: Vec<Moment> =
        (0..rows as u32).map(|row| Moment { slot: SlotId(row), episode: 0, t, agent: 0 }).collect();
    let entry = worker.policies().get_mut(id)?;
    let obs = seen(obs, entry)?;
    let state_len: usize = entry.policy.state_lens().iter().sum();
    let mut before = match state {
        Some(state) if state.len() != rows * state_len => {
            let why = format!("state_batches[0] has {} numbers, not {state_len} for each of {rows} rows", state.len());
            return Err(Failure::new(Kind::Policy, why));
        }
        Some(state) => state,
        None => {
            let mut state = vec![0.0; rows * state_len];
            state.chunks_exact_mut(state_len.max(1)).for_each(|row| entry.policy.initial_state(row));
            state
        }
    };
    if let Some(step) = entry.policy.previous_step() {
        let actions = prev_actions.as_ref().map(column::rows).transpose()?;
        step.write_rows(rows, actions, prev_rewards.as_deref(), &mut before, &mut Vec::new())?;
    }
    let mut after = vec![0.0; rows * state_len];
    let (mut logp, mut vf_preds) = (vec![0.0; rows], vec![0.0; rows]);
    let mut actions = column::zeros(action_type, action.shape(), rows)?;
    let out = ActionOutput::new(column::rows_mut(&mut actions, 0..rows)?, &mut logp, &mut vf_preds);
    let input = ActionInput { obs: column::rows(&obs)?, moments: &moments, state: &before, explore };
    entry.policy.compute_actions(input, ActionOutput { state: &mut after, ..out })?;
    by_dtype!(action_type, Of => {
        let rows = actions.typed_mut::<Of>()?.values_mut();
        transform.apply_rows(&action, rows).map_err(|error| Failure::new(Kind::Policy, error))?;
    });
    Ok(Actions { actions, logp, vf_preds, state: after })
}

/// Preprocesses and filters observations without updating the filter.
fn seen(obs: Column, entry: &mut PolicyEntry) -> Result<Column, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Kind::Policy, error);
    let mut seen = match &entry.preprocessor {
        Some(preprocessor) if !preprocessor.is_identity() => {
            let (from, to) = (obs.shape().elements().max(1), preprocessor.output_len());
            let mut out = column::zeros(DType::F32, preprocessor.output_shape(), obs.rows())?;
            let rows = out.typed_mut::<f32>()?.values_mut().chunks_exact_mut(to.max(1));
            by_dtype!(obs.dtype().unwrap_or(DType::F32), Of => {
                let mut rows = obs.typed::<Of>()?.values().chunks_exact(from).zip(rows);
                rows.try_for_each(|(row, out)| preprocessor.transform_row(row, out))
            })
            .map_err(|error| failed(&error))?;
            out
        }
        _ => obs,
    };
    let width = seen.shape().elements().max(1);
    let filter = &mut entry.filter;
    if let Ok(rows) = seen.typed_mut::<f32>() {
        let mut rows = rows.values_mut().chunks_exact_mut(width);
        rows.try_for_each(|row| filter.filter_rows(row, false)).map_err(|error| failed(&error))?;
    } else if let Ok(rows) = seen.typed_mut::<f64>() {
        let mut rows = rows.values_mut().chunks_exact_mut(width);
        rows.try_for_each(|row| filter.filter_rows(row, false)).map_err(|error| failed(&error))?;
    }
    Ok(seen)
}
