//! Policies of a worker, and policies without one.

use js_sys::{Float32Array, Object};
use rollmesh_core::{
    action::ActionTransform,
    env::EnvSpaces,
    ids::{PolicyId, WeightsVersion},
    kernels::Kernels,
    policy::{ActRequest, ModelConfig, NetPolicy, PolicyEntry},
    space::Space,
    weights::Weights,
};
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use crate::{
    Failure,
    columns::{self, set},
    worker::SharedWorker,
};

/// The description of a policy whose weights are given separately.
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
    /// The policies whose weights the file has.
    policies: Vec<PolicyId>,
    /// The policy that acts.
    policy: PolicyId,
}

enum Acting {
    Own(Box<PolicyEntry>),
    Of { worker: SharedWorker, id: PolicyId },
}

/// A policy that acts on observations as its environment returns them.
#[wasm_bindgen]
pub struct PolicyHandle {
    acting: Acting,
    /// The environment's spaces.
    spaces: EnvSpaces,
    transform: ActionTransform,
    /// The number of calls so far, which selects the random numbers of the next one.
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
    /// Creates a policy from the weights of a safetensors file and a description as JSON.
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

    /// Returns the spaces as JSON.
    #[wasm_bindgen(getter)]
    pub fn spaces(&self) -> Result<String, Failure> {
        crate::spaces_json(&self.spaces)
    }

    /// Acts on rows of observations in a typed array. Returns actions in the form that the environment takes. `state`
    /// is empty or has the states before the rows; the actions and rewards before them may be omitted.
    pub fn act(
        &mut self,
        observations: &JsValue,
        explore: bool,
        state: Vec<f32>,
        prev_action: &JsValue,
        prev_reward: Option<Vec<f32>>,
    ) -> Result<JsValue, Failure> {
        let spaces = self.spaces.clone();
        let obs = columns::of_array(spaces.observation_type, spaces.observation.shape(), observations)
            .map_err(|reason| Failure::new("policy", format!("observations: {reason}")))?;
        let prev_actions = if prev_action.is_undefined() {
            None
        } else {
            let taken = columns::of_array(spaces.action_type, spaces.action.shape(), prev_action);
            Some(taken.map_err(|reason| Failure::new("policy", format!("prevAction: {reason}")))?)
        };
        let state = Some(state).filter(|state| !state.is_empty());
        let (t, transform, prev_rewards) = (self.calls, self.transform, prev_reward.as_deref());
        let asked = ActRequest { obs, state, prev_actions, prev_rewards, explore, t };
        let acted = self.with_entry(|entry| Ok(entry.act(asked, &spaces, transform)?))?;
        let object = Object::new();
        set(&object, "actions", &columns::array(&acted.actions)?);
        set(&object, "logp", &Float32Array::from(&acted.logp[..]));
        set(&object, "vfPreds", &Float32Array::from(&acted.vf_preds[..]));
        if !acted.state.is_empty() {
            set(&object, "state", &Float32Array::from(&acted.state[..]));
        }
        self.calls = t.wrapping_add(1);
        Ok(object.into())
    }

    /// Returns the weights as a safetensors file.
    pub fn weights(&mut self) -> Result<Vec<u8>, Failure> {
        self.with_entry(|entry| Ok(entry.policy.weights().to_safetensors()?))
    }

    /// Replaces the weights by those of a safetensors file; a worker's policy uses them from its next sample on.
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
