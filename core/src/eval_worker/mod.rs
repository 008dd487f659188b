//! Evaluation workers without threads, processes and sockets: their parts and their queue.
//!
//! A [`RunConfig`](crate::run::RunConfig) names environment and policy, [`EvalMakers`] create them. An [`EvalEngine`]
//! executes evaluations; an [`EvalDesk`] has the queue and gives the engine its orders. Where there is one thread, as in a
//! browser tab, [`InlineEvalWorker`] is both; a native supervisor can connect them across threads and processes.
//! With either a [`WorkerSession`](crate::worker::WorkerSession) evaluates for a hub.
//!
//! ```
//! use rollmesh_core::{
//!     eval_worker::{EvalMakers, InlineEvalWorker},
//!     evaluation::{Evaluates as _, EvaluationRequest},
//!     kernels::Kernels,
//!     run::{RolloutConfig, RunConfig},
//!     worker::Registry,
//! };
//!
//! let rollout = RolloutConfig::new("CartPole-v1").single_policy("random").seed(7);
//! let run = RunConfig { rollout, ..RunConfig::default() };
//! let mut worker = InlineEvalWorker::new(EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE)?);
//! let ticket = worker.submit(None, EvaluationRequest::new(500))?;
//! while worker.has_work() {
//!     worker.work(10); // and something else in between
//! }
//! let found = worker.take(ticket).expect("it is over")?;
//! assert!(found.reward() > 5.0 && found.frames.is_some_and(|frames| frames.shape()[1..] == [200, 300, 3]));
//! # Ok::<(), rollmesh_core::evaluation::EvalWorkerError>(())
//! ```

mod engine;
mod from_run;
mod inline;
mod makers;
#[cfg(test)]
mod tests;

pub use crate::evaluation::{EvalCommand, EvalDesk, EvalDone, Polled};
pub use engine::EvalEngine;
pub use inline::InlineEvalWorker;
pub use makers::EvalMakers;
