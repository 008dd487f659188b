//! Reinforcement-learning rollouts on every machine with a CPU, a GPU or a browser tab.
//!
//! This crate adds sockets, threads and a learner to [`rollmesh_core`]: the hub, native workers and the command line. A
//! program with custom environments registers them and becomes command line, hub and worker in one:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     rollmesh::main_with(rollmesh::Registry::builtin())
//! }
//! ```
//!
//! That program is the feature `cli`. A library that samples in its own process, in threads or in [child
//! processes](child_process) for environments, compiles without it: `default-features = false`.
#![warn(missing_docs, clippy::missing_errors_doc)]
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports, reason = "the command line alone calls some parts"))]

pub mod checkpoint;
mod child;
mod children;
#[cfg(feature = "cli")]
mod cli;
pub mod control;
pub mod data_parallel;
pub mod envs;
pub mod eval;
#[cfg(unix)]
mod evaluator;
pub mod external;
mod files;
pub mod hub;
pub mod kernels;
pub mod launch;
pub mod learner;
mod lines;
mod machine;
pub mod monitor;
mod net;
pub mod offline;
mod panics;
pub mod policies;
mod private_file;
mod program;
mod pulse;
mod registry;
mod relay;
mod rllink;
mod runs;
mod shell;
mod terminal;
pub mod train;
mod worker;
pub mod worker_group;

pub use children::child_process;
#[cfg(feature = "cli")]
pub use cli::{main_with, main_with_args};
pub use program::{program, set_program};
pub use registry::native;
/// The named parts of a program: environments, policies and everything else that users' crates register.
pub use rollmesh_core::worker::Registry;
pub use rollmesh_learner::tensors;
pub use shell::{AsyncSampler, NativeHost, NativeShell, NativeWorker};
pub use worker_group::WorkerGroup;

/// Runs the examples of the documents as tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/evaluation.md")]
#[doc = include_str!("../../docs/how-to/library.md")]
#[doc = include_str!("../../docs/tutorials/own-environment-rust.md")]
struct Documents;
