//! What goes wrong with a group.

use std::{io, time::Duration};

use rollmesh_core::{
    batch::BatchError,
    callbacks::CallbackError,
    calls::{CallError, ForEachError},
    filter::FilterError,
    group::GroupConfigError,
    ids::{PolicyId, WorkerId},
    worker::{CommandError, RolloutError, SetupError},
};

use crate::{hub::HubError, launch::LaunchError};

/// Why a group could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The local worker cannot be made.
    #[error("the local worker cannot be made: {0}")]
    Setup(#[from] SetupError),
    /// A worker process was not granted or did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// There is no hub for workers to come to.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// There is no thread for a worker, or for the hub.
    #[error("the system gives no thread: {0}")]
    Thread(io::Error),
    /// The hub has stopped.
    #[error("the group's hub has stopped")]
    HubGone,
    /// Workers did not come in time.
    #[error("{missing} of the group's workers did not come within {waited:?}{why}")]
    NotJoined {
        /// How many.
        missing: usize,
        /// How long the group waited.
        waited: Duration,
        /// What is known of the reason, after a colon.
        why: String,
    },
    /// A worker failed in what it was asked; the local one has the number 0.
    #[error("worker {worker}: {error}")]
    Worker {
        /// The worker.
        worker: WorkerId,
        /// What it says.
        error: CommandError,
    },
    /// A worker could not be asked.
    #[error("worker {worker}: {error}")]
    Call {
        /// The worker.
        worker: WorkerId,
        /// Why.
        error: CallError,
    },
    /// Nobody was asked.
    #[error(transparent)]
    ForEach(#[from] ForEachError),
    /// Code does not travel.
    #[error(
        "worker {0} is in another process, and closures stay in this one: register the function and ask for it by name"
    )]
    NotInProcess(WorkerId),
    /// The builder was given code for workers of other processes.
    #[error(
        "environments, policies and checks that are closures cannot be used by workers in other processes: register \
         them by name, or place the workers on threads"
    )]
    ClosuresNeedThreads,
    /// Results that are taken later can be those of remote workers only.
    #[error("results cannot be taken later from the local worker, which runs in this thread: leave it out")]
    LocalRefs,
    /// There is nothing to be synced.
    #[error("there is no local worker to take {0} from: say where they come from")]
    NoSource(&'static str),
    /// A worker that was lost had more than anybody still knows.
    #[error(
        "what it had is lost: there is no local worker and nobody healthy to go on from, and no weights, or not weights \
         alone, were synced; sync them, or reset the group to begin anew"
    )]
    NoState,
    /// What was asked needs the local worker.
    #[error("the group has no local worker, which {0} needs")]
    NoLocalWorker(&'static str),
    /// Audits are for runs.
    #[error(
        "a worker group believes the workers that it lets in: to watch those that are not trusted, let a hub train or sample"
    )]
    Distrust,
    /// A limit too many.
    #[error("give max_agent_steps or max_env_steps, not both")]
    BothLimits,
    /// Batches would be empty.
    #[error(transparent)]
    Mode(#[from] GroupConfigError),
    /// All workers are unhealthy.
    #[error("none of the {workers} remote workers is healthy{why}")]
    NoHealthyWorkers {
        /// How many there are.
        workers: usize,
        /// What was last said of one, after a colon.
        why: String,
    },
    /// The local worker failed.
    #[error("the local worker: {0}")]
    Local(#[from] RolloutError),
    /// Filters of two workers do not go together.
    #[error("the filter of policy '{policy}' of worker {worker}: {source}")]
    Filter {
        /// The worker.
        worker: WorkerId,
        /// The policy.
        policy: PolicyId,
        /// What is wrong.
        source: FilterError,
    },
    /// Batches cannot be put together.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A callback of the local worker failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// A worker answered something else than it was asked.
    #[error("worker {0} answered something that it was not asked")]
    OtherAnswer(WorkerId),
    /// The group was made without workers, or stopped.
    #[error("the group has no workers yet, or was stopped: set it up first")]
    NotSetUp,
}
