//! Training for JavaScript, in the caller's thread.

use rollmesh_core::{kernels::Kernels, run::RunConfig, time::Micros};
use rollmesh_learner::{InlineRun, InlineRunError, InlineWork};
use wasm_bindgen::prelude::*;

use crate::{Failure, envs, scope::now};

/// The number of steps of all slots between two readings of the clock.
const VECTOR_STEPS: u32 = 16;

/// Trains policies in environments that are registered, built-in ones and JavaScript's.
#[wasm_bindgen]
pub struct AlgorithmHandle {
    run: InlineRun,
}

#[wasm_bindgen]
impl AlgorithmHandle {
    /// Creates a run with the given settings as JSON, as `rollmesh train --config FILE` takes them.
    #[wasm_bindgen(constructor)]
    pub fn new(settings: &str) -> Result<Self, Failure> {
        let config = RunConfig::of_wire_settings(settings).map_err(Failure::config)?;
        let run = InlineRun::new(1, config, &envs::registry(), Kernels::PORTABLE, now());
        Ok(Self { run: run.map_err(in_setup)? })
    }

    /// Samples and learns for `budgetMs` milliseconds at least. Returns the metrics of an iteration as JSON once it is
    /// complete, else `undefined`. Values that are not finite are null.
    pub fn work(&mut self, #[wasm_bindgen(js_name = budgetMs)] budget_ms: f64) -> Result<Option<String>, Failure> {
        // The cast turns NaN and negative budgets into 0.
        let (begun, span) = (now(), Micros((budget_ms * 1_000.0) as u64));
        loop {
            match self.run.work(VECTOR_STEPS, now()).map_err(at_work)? {
                InlineWork::Learned(point) => return Ok(Some(serde_json::to_string(&point)?)),
                InlineWork::Sampled if now().since(begun) < span => {}
                InlineWork::Sampled | InlineWork::Paused | InlineWork::Over => return Ok(None),
            }
        }
    }

    /// Returns whether the run has reached one of its stop criteria.
    #[wasm_bindgen(getter, js_name = isOver)]
    pub fn is_over(&self) -> bool {
        self.run.state().is_over()
    }

    /// Returns the weights of the policies as a safetensors file.
    pub fn weights(&self) -> Result<Vec<u8>, Failure> {
        Ok(self.run.state().weights().to_safetensors()?)
    }

    /// Returns the hash of the weights, as `rollmesh train` prints it.
    #[wasm_bindgen(js_name = weightsHash)]
    pub fn weights_hash(&self) -> String {
        self.run.state().weights_hash().to_string()
    }

    /// Returns `policy.json`, which describes the policies without their weights.
    #[wasm_bindgen(js_name = policyFile)]
    pub fn policy_file(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(&self.run.policy_file())?)
    }
}

fn in_setup(error: InlineRunError) -> Failure {
    match error {
        InlineRunError::Setup(error) => error.into(),
        error => Failure::config(error),
    }
}

fn at_work(error: InlineRunError) -> Failure {
    let kind = match error {
        InlineRunError::Failed { text, failure } => return (*failure, text).into(),
        InlineRunError::Learn(_) => "learner",
        InlineRunError::Batch(_) => "batch",
        _ => "sample",
    };
    Failure::new(kind, error)
}
