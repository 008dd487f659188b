//! A worker that samples a few milliseconds at a time, for pages and whoever else must not be blocked.

use rollmesh_core::{
    time::Micros,
    worker::{RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};
use rollmesh_web_registry::registry;
use wasm_bindgen::prelude::*;

use crate::{batch, metrics};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
}

/// Samples batches of experience in slices, between which the page stays responsive.
///
/// ```js
/// const sampler = new Sampler(JSON.stringify({ env: "CartPole-v1", num_envs: 8, seed: 7 }));
/// function frame() {
///   const batch = sampler.step(4); // milliseconds
///   if (batch) learn(batch.policies.default_policy.columns);
///   requestAnimationFrame(frame);
/// }
/// frame();
/// ```
///
/// Same settings, same bits: whatever the budgets, and wherever this runs, the batches are those that `rollmesh sample`
/// makes natively.
#[wasm_bindgen]
pub struct Sampler {
    worker: RolloutWorker,
}

#[wasm_bindgen]
impl Sampler {
    /// `config` is a worker's configuration as JSON, as `rollmesh sample --config FILE` takes it; what it leaves out has
    /// RLlib's defaults. It may name whatever is registered.
    ///
    /// # Errors
    /// Throws an `Error` that says what is wrong with the settings and what there is.
    #[wasm_bindgen(constructor)]
    pub fn new(config: &str) -> Result<Self, JsError> {
        let config: RolloutConfig = serde_json::from_str(config).map_err(error)?;
        let builder = RolloutWorkerBuilder::new(registry()).config(config).clock(clock());
        Ok(Self { worker: builder.build().map_err(error)? })
    }

    /// Goes on sampling for `budgetMs` milliseconds; the batch once it is complete, else `undefined`.
    ///
    /// The next call goes on where this one ends. Every call takes one step of all environments at least, also with a
    /// budget of 0, and looks at the clock before each further one: it is late by one step at most, or by the time that
    /// it takes to put the batch together. With `Infinity` it goes on until there is a batch.
    ///
    /// # Errors
    /// Throws an `Error` for an environment or policy that fails. What was finished before is kept, and the next call
    /// goes on.
    pub fn step(
        &mut self,
        #[wasm_bindgen(js_name = budgetMs)] budget_ms: f64,
    ) -> Result<Option<batch::Batch>, JsError> {
        // What is no number of milliseconds, or a negative one, is no time.
        let sampled = self.worker.sample_within(Micros((budget_ms * 1_000.0) as u64)).map_err(error)?;
        sampled.map(|sampled| batch::to_js(&sampled).map_err(error)).transpose()
    }

    /// Episodes that have ended since the last call, and what went wrong.
    #[must_use]
    pub fn metrics(&mut self) -> metrics::Metrics {
        metrics::to_js(&self.worker.metrics())
    }

    /// Env steps that a batch has at least.
    #[wasm_bindgen(getter, js_name = stepsPerSample)]
    #[must_use]
    pub fn steps_per_sample(&self) -> usize {
        self.worker.steps_per_sample()
    }
}

/// The finest clock that there is.
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

fn error(error: impl std::fmt::Display) -> JsError {
    JsError::new(&error.to_string())
}
