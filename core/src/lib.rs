//! Rollouts for reinforcement learning, without IO.
//!
//! This crate defines the semantics of a rollout: columns and batches, environments, policies, the sampler, the worker, the
//! group that leases slots to workers, and their protocol. Shells add sockets, threads, a GPU or a web page. Time,
//! randomness and bytes always come from the caller, so the same seed gives the same bits on every machine and in every
//! browser.
//!
//! Settings, metadata and their schemas are JSON values: [`serde_json`] is the crate that they are from. Besides it and the
//! traits of `serde`, no dependency is in the public API.
//!
//! ```
//! use rollmesh_core::worker::{Registry, RolloutConfig, RolloutWorker, WorkerPlace};
//!
//! let config = RolloutConfig::new("CartPole-v1").num_envs(8).rollout_fragment_length(50).seed(7);
//! let mut worker = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL)?;
//! println!("{}", worker.sample()?.single()?); // SampleBatch(400: ['obs', 'actions', 'rewards', …])
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod action;
pub mod batch;
pub mod callbacks;
pub mod calls;
pub mod column;
pub mod config;
pub mod distribution;
pub mod encoding;
pub mod env;
pub mod episode;
pub mod estimate;
pub mod eval_worker;
pub mod evaluation;
pub mod filter;
pub mod group;
pub mod hash;
pub mod hub;
pub mod ids;
pub mod lease;
mod lists;
pub mod policy;
pub mod postprocess;
mod prelude;
pub mod preprocess;
pub mod protocol;
pub mod readers;
pub mod rng;
pub mod run;
pub mod sampler;
pub mod space;
pub mod time;
pub mod view;
pub mod weights;
pub mod worker;

pub use rollmesh_kernels::{self as kernels, math};
/// The crate that JSON values are from. A program that uses them needs no version of its own.
pub use serde_json;
