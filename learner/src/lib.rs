//! The learner: models, algorithms with their losses and schedules, the optimiser and its state, on candle's autograd.
//!
//! [`Learner::update`] takes a train batch and gives the next version of the weights, with which the acting policy in
//! [`rollmesh_core`] resumes. [`LearningPolicy`] acts and learns, for workers that learn where they sample, and
//! [`Learners`] are the policies of a run. Two invariants: published weights are always finite, and on a CPU they are a
//! function of configuration, seed, initial weights and batches alone. Every sum is computed on one thread in a fixed
//! order, for any number of cores, and shuffles are addressed by version and epoch. The bits are the same on every CPU,
//! in debug and release builds and in wasm.
//!
//! Every operation allocates a tensor, so the allocator matters: with glibc's an update takes nearly twice as long as
//! with mimalloc, which the `rollmesh` program sets and other programs should, too.
//!
//! Devices, tensors and their errors are types of candle: [`DeviceSpec::open`] returns a device, [`tensors`] makes tensors
//! of a batch, and [`tensors::candle_core`] is the crate that they are from. Other dependencies are not in the public API.
//!
//! Not here: advantages, which [`rollmesh_core`] computes when it joins fragments to a train batch, acting, and
//! everything that needs threads, sockets or files: this crate compiles to wasm.
#![warn(missing_docs, clippy::missing_errors_doc)]

mod algorithm;
mod columns;
mod device;
mod dist;
mod error;
mod fitted_q;
mod forward;
mod gradient;
mod inline_hub;
mod inline_run;
mod learners;
mod learning_start;
mod model;
mod onnx;
mod ops;
mod optimizer;
mod policy;
mod policy_file;
mod ranks;
mod rows;
mod stale;
mod state;
mod stats;
pub mod tensors;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
mod update;

pub use algorithm::*;
pub use device::{DeviceError, DeviceSpec};
pub use error::LearnError;
pub use fitted_q::{Fit, FittedQ, FittedQConfig};
pub use forward::forward_on;
pub use inline_hub::{HubOutput, InlineHub, PortId};
pub use inline_run::{InlineRun, InlineRunError, InlineWork};
pub use learners::{ENV_STEPS, Learned, Learners, Results, report_results};
pub use learning_start::{
    AlgorithmSettingsError, LearningStart, LearningStartError, filter_of, results_before, written_out,
};
pub use model::ModelError;
pub use onnx::{OnnxError, to_onnx};
pub use policy::{LearningPolicy, register_learning_policies, register_learning_policies_on};
pub use policy_file::{PolicyFile, gamma_of};
pub use rows::OldPolicy;
pub use stats::UpdateStats;
pub use update::Learner;
