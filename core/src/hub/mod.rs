//! A hub without I/O: time and messages come from the caller, and effects such as learning, saving and starting processes are
//! returned to the caller.
//!
//! [`Hub`] has the peers, the tokens and the run. It admits peers, handles their messages, expels those that break the rules,
//! audits fragments and shows dashboards what happens; [`Hub::poll_effect`] lists what follows from an event, and in which order.
//!
//! [`RunLoop`] is the loop of a run: it begins iterations over the leases of a [`LeaseGroup`](crate::group::LeaseGroup), turns
//! complete ones into train batches, publishes weights and decides when the run ends. A shell gives it a learner, files and
//! workers; a test gives it a clock of its own.
//!
//! ```
//! use rollmesh_core::{
//!     hub::{BatchWork, RunEnd, RunLoop, RunLoopConfig},
//!     kernels::Kernels,
//!     run::RunConfig,
//!     time::Micros,
//!     worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
//!     group::{GroupCommand, WorkerProfile},
//!     ids::WorkerId,
//! };
//!
//! let config = RunConfig::sampling("CartPole-v1", 2).rollout_fragment_length(8).fcnet_hiddens(&[4]).stop_after(16);
//! let builder = || RolloutWorkerBuilder::new(Registry::builtin());
//! let parts = builder().learning_parts(&config)?;
//! let (mut runner, now) = (SlotRunner::new(&config, builder())?, Micros(0));
//! let mut run = RunLoop::new(RunLoopConfig::sampling(1, config, &parts)?, now)?;
//!
//! // A worker joins and says that it can run the leases of this run.
//! let worker = WorkerId(1);
//! run.group.handle_joined(worker, WorkerProfile::NATIVE, now);
//! run.group.handle_answer(worker, Ok(()), now);
//! run.begin_iteration(now)?;
//! let Some(GroupCommand::Grant { lease, .. }) = run.group.poll_command() else { panic!("a lease is granted") };
//! let id = lease.id;
//! runner.begin(lease)?;
//! let Advance::Done { fragments, .. } = runner.advance(8) else { panic!("8 steps are a fragment") };
//! run.group.handle_fragments(worker, id, fragments, now);
//!
//! let Some(Ok(BatchWork::HandOver(fragments))) = run.poll_batch() else { panic!("the batch is complete") };
//! assert_eq!(fragments.len(), 2);
//! run.handle_taken(now);
//! assert_eq!(run.end_reached(now), Some(RunEnd::Finished));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`RunCourse`] determines the next step of a run: the next iteration, a checkpoint, a rollback, the end. The other
//! types are parts of a hub that outlive a run: its [tokens](HubTokens), its [queue](RunQueue), its [curves](Curve) for
//! dashboards, and limits on the [notices](NoticeRate) and [offences](Offences) of peers.

mod admission;
mod asks;
mod called;
mod clip;
mod course;
mod curve;
mod dashboards;
mod evaluations;
mod hub_state;
mod inference;
mod launchers;
pub mod limits;
mod local_workers;
mod logs;
mod messages;
mod notices;
mod peer;
mod recent_episodes;
mod recent_fragments;
mod record;
mod requests;
mod run_end;
mod run_loop;
mod run_queue;
mod run_starts;
mod stopwatch;
mod sweeps;
#[cfg(test)]
mod tests;
mod tokens;
mod transitions;

pub use admission::{Arrival, PeerEnd};
pub use clip::{ClipJob, Reel};
pub use course::{RunCourse, RunFacts, RunStep};
pub use curve::{Curve, push_thinned};
pub use dashboards::{Dashboards, IN_PROCESS, IN_PROCESS_SERVER};
pub use evaluations::{EvaluatedCandidate, EvaluationCandidate, EvaluationSchedule, EvaluationStart};
pub use hub_state::{ChildFate, Hub, HubEffect, HubRun, HubSetup};
pub use launchers::{LauncherKey, LauncherPeer, NoLaunch, PlacedLaunch, RemoteLaunchers};
pub use local_workers::{LocalDue, LocalEnd, LocalWorkers, Replacement};
pub use notices::{NoticeRate, Offences};
pub use peer::{CloseReason, Peer, PeerConnection};
pub use recent_episodes::RecentEpisodes;
pub use recent_fragments::RecentFragments;
pub use record::{Causer, Record};
pub use run_end::RunEnd;
pub use run_loop::{
    BatchConsumer, BatchWork, DecodedUpload, Observed, RunLoop, RunLoopConfig, RunLoopError, RunProgress, SyncError,
    TrainBatchError, TrainRows, UploadDecoder, UploadFault, WorkerUpload,
};
pub use run_queue::{RunQueue, WaitingRun};
pub use run_starts::{RunTurn, StartRefusal};
pub use stopwatch::Stopwatch;
pub use tokens::{HubTokens, TokensFull};
pub use transitions::RunAudits;
