//! Policies: of a worker, or on their own.

use js_sys::{Float32Array, Object};
use rollmesh_core::{
    action::ActionTransform,
    column::{Column, DType},
    env::{EnvSpaces, Moment},
    filter::Filter,
    ids::{PolicyId, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, ModelConfig, NetPolicy, PolicyEntry},
    preprocess::Preprocessor,
    space::Space,
    weights::Weights,
};
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use crate::{
    Failure,
    columns::{self, by_dtype, set},
    worker::SharedWorker,
};

/// Describes a policy whose weights are given apart.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyDescription {
    observation_space: Space,
    action_space: Space,
    #[serde(default)]
    model: ModelConfig,
    normalize_actions: bool,
    clip_actions: bool,
    seed: u64,
    /// Those whose weights the file has.
    policies: Vec<PolicyId>,
    /// The one of them that acts.
    policy: PolicyId,
}

enum Acting {
    Own(Box<PolicyEntry>),
    Of { worker: SharedWorker, id: PolicyId },
}

/// Acts on observations as its environment gives them.
#[wasm_bindgen]
pub struct PolicyHandle {
    acting: Acting,
    /// The environment's.
    spaces: EnvSpaces,
    transform: ActionTransform,
    /// Calls so far, the address of their random numbers.
    calls: u32,
}

impl PolicyHandle {
    pub(crate) fn of(worker: SharedWorker, id: PolicyId) -> Result<Self, Failure> {
        let (spaces, transform) = worker.with(|worker| {
            worker.policy_mut(&id)?;
            let spaces =
                worker.spaces().remove(&id).ok_or_else(|| Failure::new("policy", "the policy has no spaces"))?;
            let config = worker.creation_args();
            let transform = ActionTransform::for_space(&spaces.action, config.normalize_actions, config.clip_actions);
            Ok((spaces, transform))
        })?;
        Ok(Self { acting: Acting::Of { worker, id }, spaces, transform, calls: 0 })
    }

    fn with_entry<R>(&mut self, f: impl FnOnce(&mut PolicyEntry) -> Result<R, Failure>) -> Result<R, Failure> {
        match &mut self.acting {
            Acting::Own(entry) => f(entry),
            Acting::Of { worker, id } => worker.with(|worker| {
                let entry = worker.policies().get_mut(id).map_err(|error| Failure::new("policy", error))?;
                f(entry)
            }),
        }
    }
}

#[wasm_bindgen]
impl PolicyHandle {
    /// A policy with the weights of a safetensors file, and what else it is as JSON.
    #[wasm_bindgen(constructor)]
    pub fn new(description: &str, weights: &[u8]) -> Result<Self, Failure> {
        let description: PolicyDescription = serde_json::from_str(description)?;
        let PolicyDescription { policies, policy, .. } = &description;
        let mut weights = Weights::from_safetensors(weights, WeightsVersion(0))?
            .of_policies(policies)
            .map_err(|error| Failure::new("policy", error))?;
        let none = || Failure::config(format!("the weights are of {policies:?}, not of '{policy}'"));
        let weights = weights.remove(policy).ok_or_else(none)?;
        let spaces = EnvSpaces::with_usual_types(description.observation_space, description.action_space);
        let PolicyDescription { normalize_actions, clip_actions, .. } = description;
        let transform = ActionTransform::for_space(&spaces.action, normalize_actions, clip_actions);
        let acting = EnvSpaces { action: transform.policy_space(&spaces.action), ..spaces.clone() };
        let net = NetPolicy::new(&acting, &description.model, weights, description.seed, Kernels::PORTABLE)?;
        Ok(Self {
            acting: Acting::Own(Box::new(PolicyEntry::new("", Box::new(net) as _))),
            spaces,
            transform,
            calls: 0,
        })
    }

    /// Spaces as JSON.
    #[wasm_bindgen(getter)]
    pub fn spaces(&self) -> Result<String, Failure> {
        crate::spaces_json(&self.spaces)
    }

    /// Acts on rows of observations in a typed array, and gives actions as the environment takes them. `state` is empty or has
    /// the states before the rows; the actions and rewards before them may be left out.
    pub fn act(
        &mut self,
        observations: &JsValue,
        explore: bool,
        state: Vec<f32>,
        prev_action: &JsValue,
        prev_reward: Option<Vec<f32>>,
    ) -> Result<JsValue, Failure> {
        let EnvSpaces { observation, observation_type, action, action_type } = self.spaces.clone();
        let obs = columns::of_array(observation_type, observation.shape(), observations)
            .map_err(|reason| Failure::new("policy", format!("observations: {reason}")))?;
        let (rows, t, transform) = (obs.rows(), self.calls, self.transform);
        let prev_action = if prev_action.is_undefined() {
            None
        } else {
            let mut taken = columns::of_array(action_type, action.shape(), prev_action)
                .map_err(|reason| Failure::new("policy", format!("prevAction: {reason}")))?;
            by_dtype!(action_type, Of => {
                let rows = taken.typed_mut::<Of>()?.values_mut();
                transform.undo_rows(&action, rows).map_err(|error| Failure::new("policy", error))?;
            });
            Some(taken)
        };
        let moments: Vec<Moment> =
            (0..rows as u32).map(|row| Moment { slot: SlotId(row), episode: 0, t, agent: 0 }).collect();
        let acted = self.with_entry(|entry| {
            let obs = seen(&obs, entry)?;
            let state_len: usize = entry.policy.state_lens().iter().sum();
            let mut before = state;
            if before.is_empty() {
                before.resize(rows * state_len, 0.0);
                before.chunks_exact_mut(state_len.max(1)).for_each(|state| entry.policy.initial_state(state));
            }
            if let Some(step) = entry.policy.previous_step() {
                let actions = prev_action.as_ref().map(columns::rows).transpose()?;
                step.write_rows(rows, actions, prev_reward.as_deref(), &mut before, &mut Vec::new())?;
            }
            let mut after = vec![0.0; rows * state_len];
            let (mut logp, mut vf_preds) = (vec![0.0; rows], vec![0.0; rows]);
            let mut actions = columns::zeros(action_type, action.shape(), rows)?;
            let out = ActionOutput::new(columns::rows_mut(&mut actions)?, &mut logp, &mut vf_preds);
            let input = ActionInput { obs: columns::rows(&obs)?, moments: &moments, state: &before, explore };
            entry.policy.compute_actions(input, ActionOutput { state: &mut after, ..out })?;
            by_dtype!(action_type, Of => {
                let rows = actions.typed_mut::<Of>()?.values_mut();
                transform.apply_rows(&action, rows).map_err(|error| Failure::new("policy", error))?;
            });
            let object = Object::new();
            set(&object, "actions", &columns::array(&actions)?);
            set(&object, "logp", &Float32Array::from(&logp[..]));
            set(&object, "vfPreds", &Float32Array::from(&vf_preds[..]));
            if state_len > 0 {
                set(&object, "state", &Float32Array::from(&after[..]));
            }
            Ok(object.into())
        })?;
        self.calls = t.wrapping_add(1);
        Ok(acted)
    }

    /// The weights as a safetensors file.
    pub fn weights(&mut self) -> Result<Vec<u8>, Failure> {
        self.with_entry(|entry| Ok(entry.policy.weights().to_safetensors()?))
    }

    /// Acts with the weights of a safetensors file from now on; those of a worker from its next sample on.
    #[wasm_bindgen(js_name = setWeights)]
    pub fn set_weights(&mut self, weights: &[u8]) -> Result<(), Failure> {
        let weights = Weights::from_safetensors(weights, WeightsVersion(0))?;
        match &mut self.acting {
            Acting::Own(entry) => Ok(entry.policy.set_weights(&weights)?),
            Acting::Of { worker, id } => {
                let weights = [(id.clone(), weights)].into();
                worker.with(|worker| Ok(worker.set_weights(&weights, None, None)?))
            }
        }
    }
}

/// What the policy sees of observations, without any influence on its filter.
fn seen(obs: &Column, entry: &mut PolicyEntry) -> Result<Column, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new("policy", error);
    let mut seen = match &entry.preprocessor {
        Some(preprocessor) if !preprocessor.is_identity() => preprocessed(obs, preprocessor)?,
        _ => obs.clone(),
    };
    if entry.filter != Filter::NoFilter {
        let width = seen.shape().elements().max(1);
        let filter = &mut entry.filter;
        match seen.dtype() {
            Some(DType::F32) => {
                let mut rows = seen.typed_mut::<f32>()?.values_mut().chunks_exact_mut(width);
                rows.try_for_each(|row| filter.filter_rows(row, false)).map_err(|error| failed(&error))?;
            }
            Some(DType::F64) => {
                let mut rows = seen.typed_mut::<f64>()?.values_mut().chunks_exact_mut(width);
                rows.try_for_each(|row| filter.filter_rows(row, false)).map_err(|error| failed(&error))?;
            }
            // Observations that are no floats have no mean.
            _ => {}
        }
    }
    Ok(seen)
}

fn preprocessed(obs: &Column, preprocessor: &Preprocessor) -> Result<Column, Failure> {
    let (from, to) = (obs.shape().elements().max(1), preprocessor.output_len());
    let mut out = columns::zeros(DType::F32, preprocessor.output_shape(), obs.rows())?;
    let rows = out.typed_mut::<f32>()?.values_mut().chunks_exact_mut(to.max(1));
    let dtype = obs.dtype().unwrap_or(DType::F32);
    by_dtype!(dtype, Of => {
        let mut rows = obs.typed::<Of>()?.values().chunks_exact(from).zip(rows);
        rows.try_for_each(|(row, out)| preprocessor.transform_row(row, out))
    })
    .map_err(|error| Failure::new("policy", error))?;
    Ok(out)
}
