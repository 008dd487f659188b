//! Evaluation workers without threads, processes and sockets: what they are made of, who asks them for what, and what is
//! said to them and by them.
//!
//! A [`RunConfig`](crate::run::RunConfig) names environment and policy, [`EvalMakers`] make them. An [`EvalEngine`] plays; an [`EvalDesk`] knows
//! who waits for what, and what the engine is to be told. Where there is one thread, as in a browser tab,
//! [`InlineEvalWorker`] is both; natively there is a supervisor between them.
//!
//! Askers elsewhere say an [`EvalAsk`] and hear an [`EvalAnswer`], over any stream of bytes: that is an
//! [`EvalConversation`]. Through a hub, an [`EvalSession`] serves under a name and carries one conversation per asker.
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

#[cfg(test)]
mod call_tests;
mod conversation;
mod desk;
mod engine;
mod framing;
mod from_run;
mod inline;
mod link;
mod makers;
mod message;
mod session;
#[cfg(test)]
mod tests;

pub use conversation::{AnswerBytes, EvalConversation, LONGEST_POLL};
pub use desk::{EvalDesk, Polled};
pub use engine::{EvalDone, EvalEngine, EvalOrder};
pub use framing::{FrameLimits, FrameReader, FramingError, frame_start};
pub use inline::InlineEvalWorker;
pub use link::EvaluatorLink;
pub use makers::EvalMakers;
pub use message::{EvalAnswer, EvalAsk, Found, weights_from_bytes, weights_to_bytes};
pub use session::EvalSession;
