//! Policies in Python.

use std::collections::BTreeMap;

use pyo3::{prelude::*, pybacked::PyBackedBytes};
use rollmesh_core::{
    batch::SampleBatch,
    by_type,
    callbacks::CallbackError,
    column::{ColumnError, RowsMut, RowsRef},
    env::EnvSpaces,
    episode::{Episode, OtherAgent},
    policy::{Acted, ActionInput, ActionOutput, LearnInfo, Policy, PolicyContext, PolicyError, Postprocessing},
    weights::Weights,
};
use serde_json::json;

use crate::{
    batch::Batch,
    column,
    failure::{Failure, Kind},
    functions::call,
    policy::{self, Tensors, spaces_json},
};

/// A policy that calls a Python object.
pub(crate) struct PythonPolicy {
    object: Py<PyAny>,
    spaces: EnvSpaces,
    state_lens: Vec<usize>,
    /// The states at the start of an episode, one after the other.
    initial_state: Vec<f32>,
    postprocesses: bool,
    learns: bool,
    weights: Weights,
}

fn failed(error: CallbackError) -> PolicyError {
    PolicyError::Failed(error.to_string())
}

impl PythonPolicy {
    pub(crate) fn make(factory: &Py<PyAny>, context: &PolicyContext) -> Result<Self, PolicyError> {
        let about = json!({
            "spaces": spaces_json(&context.spaces),
            "config": context.config,
            "policy_id": context.id,
            "seed": context.seed,
        });
        let made = call("the policy's constructor", |py| {
            let object = factory.call1(py, (about.to_string(),))?;
            let initial: PyBackedBytes = object.getattr(py, "initial_state")?.extract(py)?;
            Ok(Self {
                state_lens: object.getattr(py, "state_lens")?.extract(py)?,
                initial_state: column::floats(&initial),
                postprocesses: object.getattr(py, "postprocesses")?.extract(py)?,
                learns: object.getattr(py, "learns")?.extract(py)?,
                spaces: context.spaces.clone(),
                weights: read_weights(py, &object)?,
                object,
            })
        });
        made.map_err(failed)
    }

    fn act(&self, obs: RowsRef<'_>, rows: usize, state: &[f32], explore: bool) -> Result<Acted, PolicyError> {
        let EnvSpaces { observation, action, action_type, .. } = &self.spaces;
        let answered = call("compute_actions", |py| {
            let obs = obs.to_column(observation.shape()).map_err(Failure::from)?;
            let arguments = (column::to_python(py, &obs)?, column::bytes_of(py, state), explore);
            let (actions, logp, vf_preds, state): (Bound<'_, PyAny>, PyBackedBytes, PyBackedBytes, PyBackedBytes) =
                self.object.call_method1(py, "act", arguments)?.extract(py)?;
            let actions = column::of_python(&actions)?;
            column::check_shape(Kind::Policy, "the actions", &actions, rows, &action.shape())?;
            if actions.dtype() != Some(*action_type) {
                let why = format!("the actions are not of the type {}", action_type.name());
                return Err(Failure::new(Kind::Policy, why).into());
            }
            let [logp, vf_preds, state] = [logp, vf_preds, state].map(|bytes| column::floats(&bytes));
            Ok(Acted { actions, logp, vf_preds, state })
        });
        answered.map_err(failed)
    }
}

fn read_weights(py: Python<'_>, object: &Py<PyAny>) -> PyResult<Weights> {
    let tensors: Tensors = object.call_method0(py, "tensors")?.extract(py)?;
    Ok(policy::weights_of(tensors)?)
}

fn fill(buffer: &'static str, values: &[f32], out: &mut [f32]) -> Result<(), PolicyError> {
    if values.len() != out.len() {
        return Err(PolicyError::BufferLength { buffer, wanted: values.len(), found: out.len() });
    }
    out.copy_from_slice(values);
    Ok(())
}

impl Policy for PythonPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let rows = input.moments.len();
        out.check(rows, self.spaces.action.shape().elements())?;
        out.check_optional(rows, self.state_lens.iter().sum(), 0)?;
        let answer = self.act(input.obs, rows, input.state, input.explore)?;
        fill("logp", &answer.logp, out.logp)?;
        fill("vf_preds", &answer.vf_preds, out.vf_preds)?;
        if !out.state.is_empty() {
            fill("state", &answer.state, out.state)?;
        }
        let (wanted, found) = (self.spaces.action_type, out.actions.dtype());
        if found != wanted {
            return Err(PolicyError::Unsupported { wanted: wanted.name().into(), found: found.name().into() });
        }
        let failed = |error: ColumnError| PolicyError::Failed(error.to_string());
        by_type!(RowsMut, out.actions, actions => {
            actions.copy_from_slice(answer.actions.typed().map_err(failed)?.values());
        });
        Ok(())
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        let answer = self.act(obs, values.len(), state, false)?;
        fill("vf_preds", &answer.vf_preds, values)
    }

    fn state_lens(&self) -> &[usize] {
        &self.state_lens
    }

    fn initial_state(&self, state: &mut [f32]) {
        state.copy_from_slice(&self.initial_state);
    }

    fn postprocessing(&self) -> Postprocessing {
        if self.postprocesses { Postprocessing::Custom } else { Postprocessing::None }
    }

    fn postprocess_trajectory(
        &mut self,
        trajectory: SampleBatch,
        _others: &[OtherAgent<'_>],
        _episode: &Episode,
    ) -> Result<SampleBatch, PolicyError> {
        let changed = call("postprocess_trajectory", |py| {
            let changed: Batch =
                self.object.call_method1(py, "postprocess", (Batch::from(trajectory),))?.extract(py)?;
            Ok(changed)
        });
        Ok(changed.map_err(failed)?.batch.single()?.clone())
    }

    fn learn_on_batch(&mut self, batch: &SampleBatch) -> Result<LearnInfo, PolicyError> {
        if !self.learns {
            return Err(PolicyError::NoLearner);
        }
        let learned = call("learn_on_batch", |py| {
            let info: BTreeMap<String, f64> =
                self.object.call_method1(py, "learn", (Batch::from(batch.clone()),))?.extract(py)?;
            Ok((info, read_weights(py, &self.object)?))
        });
        let (info, weights) = learned.map_err(failed)?;
        self.weights = weights;
        Ok(info)
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        let set = call("set_weights", |py| {
            self.object.call_method1(py, "set_tensors", (policy::tensors_of(py, weights),)).map(|_| ())
        });
        set.map_err(failed)?;
        self.weights = weights.clone();
        Ok(())
    }
}
