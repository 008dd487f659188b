//! A worker: samples whole batches, or a few milliseconds at a time.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use rollmesh_core::{
    env::SubEnv,
    ids::{PolicyId, WeightsVersion},
    time::Micros,
    weights::Weights,
    worker::{NewPolicy, RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};
use wasm_bindgen::prelude::*;

use crate::{BatchHandle, Failure, PolicyHandle, envs, lanes, metrics};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
}

/// A worker that its handle and those of its policies share.
#[derive(Clone)]
pub(crate) struct SharedWorker(Rc<RefCell<RolloutWorker>>);

impl SharedWorker {
    /// Borrows the worker. Fails if it is borrowed already: its environments, written in JavaScript, may not call it.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut RolloutWorker) -> Result<R, Failure>) -> Result<R, Failure> {
        let busy =
            |_| Failure::new("busy", "the worker is at work: an environment cannot use the worker that steps it");
        f(&mut *self.0.try_borrow_mut().map_err(busy)?)
    }
}

/// A worker that samples batches of experience.
///
/// With the same settings the batches are bit-identical to those of a native `rollmesh sample`, for any budget of
/// slices and on any host.
#[wasm_bindgen]
pub struct WorkerHandle {
    worker: SharedWorker,
}

#[wasm_bindgen]
impl WorkerHandle {
    /// Creates a worker from a configuration as JSON, as `rollmesh sample --config FILE` takes it. Omitted settings
    /// have RLlib's defaults. All registered names are available.
    #[wasm_bindgen(constructor)]
    pub fn new(config: &str) -> Result<Self, Failure> {
        let config: RolloutConfig = config.parse()?;
        let worker = RolloutWorkerBuilder::new(envs::registry()).config(config).clock(clock()).build()?;
        Ok(Self { worker: SharedWorker(Rc::new(RefCell::new(worker))) })
    }

    /// Returns the next sample.
    pub fn sample(&self) -> Result<BatchHandle, Failure> {
        self.worker.with(|worker| Ok(BatchHandle::of(worker.sample()?)?))
    }

    /// Continues the sample for `budgetMs` milliseconds. Returns the batch once it is complete, else `undefined`. Every
    /// call takes at least one step of all environments, also with a budget of 0, and reads the clock before each
    /// further one.
    #[wasm_bindgen(js_name = sampleWithin)]
    pub fn sample_within(
        &self,
        #[wasm_bindgen(js_name = budgetMs)] budget_ms: f64,
    ) -> Result<Option<BatchHandle>, Failure> {
        // The cast turns NaN and negative budgets into 0.
        let span = Micros((budget_ms * 1_000.0) as u64);
        self.worker.with(|worker| {
            let sampled = worker.sample_within(span)?;
            Ok(sampled.map(BatchHandle::of).transpose()?)
        })
    }

    /// Returns the episodes that have ended since the last call, and the warnings and quarantined environments.
    pub fn metrics(&self) -> Result<JsValue, Failure> {
        self.worker.with(|worker| Ok(metrics::to_js(&worker.metrics())))
    }

    #[wasm_bindgen(getter, js_name = stepsPerSample)]
    pub fn steps_per_sample(&self) -> Result<usize, Failure> {
        self.worker.with(|worker| Ok(worker.steps_per_sample()))
    }

    #[wasm_bindgen(getter, js_name = numEnvs)]
    pub fn num_envs(&self) -> Result<usize, Failure> {
        self.worker.with(|worker| Ok(worker.num_envs()))
    }

    #[wasm_bindgen(js_name = policyIds)]
    pub fn policy_ids(&self) -> Result<Vec<String>, Failure> {
        self.worker.with(|worker| Ok(worker.policies().ids().map(ToString::to_string).collect()))
    }

    pub fn policy(&self, id: String) -> Result<PolicyHandle, Failure> {
        PolicyHandle::of(self.worker.clone(), PolicyId::new(id))
    }

    /// Adds a policy of a registered kind with settings as JSON, for the spaces of the others.
    #[wasm_bindgen(js_name = addPolicy)]
    pub fn add_policy(&self, id: String, kind: &str, config: &str) -> Result<(), Failure> {
        let new = NewPolicy { config: config.parse().map_err(Failure::config)?, ..NewPolicy::named(kind) };
        self.worker.with(|worker| Ok(worker.add_policy(PolicyId::new(id), new, None, None).map(|_| ())?))
    }

    #[wasm_bindgen(js_name = removePolicy)]
    pub fn remove_policy(&self, id: String) -> Result<(), Failure> {
        self.worker.with(|worker| Ok(worker.remove_policy(&PolicyId::new(id), None, None)?))
    }

    /// Returns a policy as bytes: its kind, settings, weights and filter.
    #[wasm_bindgen(js_name = exportPolicy)]
    pub fn export_policy(&self, id: String) -> Result<Vec<u8>, Failure> {
        self.worker.with(|worker| Ok(worker.export_policy(&PolicyId::new(id))?))
    }

    /// Imports a policy of [`export_policy`](Self::export_policy) under a new or existing id.
    #[wasm_bindgen(js_name = importPolicy)]
    pub fn import_policy(&self, id: String, state: &[u8]) -> Result<(), Failure> {
        self.worker.with(|worker| Ok(worker.import_policy(&PolicyId::new(id), state)?))
    }

    /// Sets the weights of policies from safetensors files, from the next sample on. If one fails, no weights change.
    #[wasm_bindgen(js_name = setWeights)]
    pub fn set_weights(&self, ids: Vec<String>, files: Vec<js_sys::Uint8Array>) -> Result<(), Failure> {
        let named = ids.into_iter().map(PolicyId::new).zip(files);
        let weights = named.map(|(id, file)| Ok((id, Weights::from_safetensors(&file.to_vec(), WeightsVersion(0))?)));
        let weights = weights.collect::<Result<BTreeMap<_, _>, Failure>>()?;
        self.worker.with(|worker| Ok(worker.set_weights(&weights, None, None)?))
    }

    /// Returns the worker's state as bytes: policies, filters, progress, and the position of each environment.
    pub fn save(&self) -> Result<Vec<u8>, Failure> {
        self.worker.with(|worker| Ok(worker.save()?))
    }

    /// Restores the state of [`save`](Self::save).
    pub fn restore(&self, state: &[u8]) -> Result<(), Failure> {
        self.worker.with(|worker| Ok(worker.restore(state)?))
    }

    /// Returns the picture of an environment, if it has one.
    pub fn picture(&self, env: u32) -> Result<JsValue, Failure> {
        self.worker.with(|worker| {
            lanes::picture(|frame| {
                let drawn = worker.foreach_env_with_context(|sub, context| {
                    // Environments in quarantine are not among the contexts.
                    context.home.vector_index == env
                        && match sub {
                            SubEnv::Lane { env, lane } => env.render_at(lane, frame),
                            SubEnv::MultiAgent(env) => env.render(frame),
                            SubEnv::Base(_) => false,
                        }
                });
                drawn.contains(&true)
            })
        })
    }
}

/// Returns the host's finest clock.
fn clock() -> fn() -> Micros {
    let performance = js_sys::Reflect::get(&js_sys::global(), &"performance".into());
    match performance {
        Ok(performance) if performance.is_object() => || micros(performance_now()),
        _ => || micros(js_sys::Date::now()),
    }
}

fn micros(ms: f64) -> Micros {
    Micros((ms * 1_000.0) as u64)
}
