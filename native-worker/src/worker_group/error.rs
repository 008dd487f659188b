//! Errors of worker groups.

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

use crate::{envs::PythonFingerprintError, hub::HubError, launch::LaunchError};

/// An error of a group's method.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The local worker cannot be created.
    #[error("the local worker cannot be made: {0}")]
    Setup(#[from] SetupError),
    /// A worker process was refused by the launcher or did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The hub for remote workers could not start.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The operating system refused a thread for a worker or for the hub.
    #[error("the system gives no thread: {0}")]
    Thread(io::Error),
    /// The host of a Python environment, whose bits remote workers have to match, fails.
    #[error(transparent)]
    Fingerprint(#[from] PythonFingerprintError),
    /// The hub has stopped.
    #[error("the group's hub has stopped")]
    HubExited,
    /// Workers did not join in time.
    #[error("{missing} of the group's workers did not come within {waited:?}{why}")]
    NotJoined {
        /// Their number.
        missing: usize,
        /// The time for which the group waited.
        waited: Duration,
        /// The known reason, after a colon.
        why: String,
    },
    /// A worker's call failed; the local worker has the number 0.
    #[error("worker {worker}: {error}")]
    Worker {
        /// The worker.
        worker: WorkerId,
        /// Its error.
        error: CommandError,
    },
    /// A worker could not be called.
    #[error("worker {worker}: {error}")]
    Call {
        /// The worker.
        worker: WorkerId,
        /// The reason.
        error: CallError,
    },
    /// The worker is unhealthy: it was not called.
    #[error("worker {0} is unhealthy: probe_unhealthy_workers restores it if it can be reached")]
    Unhealthy(WorkerId),
    /// No worker was called.
    #[error(transparent)]
    ForEach(#[from] ForEachError),
    /// Closures cannot be sent to other processes.
    #[error(
        "worker {0} is in another process, and closures stay in this one: register the function and ask for it by name"
    )]
    NotInProcess(WorkerId),
    /// The builder was given closures, but workers run in other processes.
    #[error(
        "environments, policies and checks that are closures cannot be used by workers in other processes: register \
         them by name, or place the workers on threads"
    )]
    ClosuresNeedThreads,
    /// Results can be taken later from remote workers only.
    #[error("results cannot be taken later from the local worker, which runs in this thread: leave it out")]
    LocalRefs,
    /// There is no local worker to sync from.
    #[error("there is no local worker to take {0} from: say where they come from")]
    NoSource(&'static str),
    /// The state of a lost worker cannot be restored completely.
    #[error(
        "what it had is lost: there is no local worker and no healthy worker to copy from, and no weights, or not weights \
         alone, were synced; sync them, or reset the group to begin anew"
    )]
    NoState,
    /// The method needs the local worker.
    #[error("the group has no local worker, which {0} needs")]
    NoLocalWorker(&'static str),
    /// A worker group does not support audits.
    #[error(
        "a worker group believes the workers that it lets in: to watch those that are not trusted, let a hub train or sample"
    )]
    Distrust,
    /// Both limits of a sample were given.
    #[error("give max_agent_steps or max_env_steps, not both")]
    BothLimits,
    /// Batches would be empty.
    #[error(transparent)]
    Mode(#[from] GroupConfigError),
    /// All workers are unhealthy.
    #[error("none of the {workers} remote workers is healthy{why}")]
    NoHealthyWorkers {
        /// The number of remote workers.
        workers: usize,
        /// The latest failure, after a colon.
        why: String,
    },
    /// The local worker failed.
    #[error("the local worker: {0}")]
    Local(#[from] RolloutError),
    /// A step of the local worker, which samples alone, makes no progress. The worker is lost with it.
    #[error("worker {worker} hangs: {why}")]
    LocalHangs {
        /// The worker.
        worker: WorkerId,
        /// The environment, the slot, the step, and what to do.
        why: String,
    },
    /// The filters of two workers have different shapes.
    #[error("the filter of policy '{policy}' of worker {worker}: {source}")]
    Filter {
        /// The worker.
        worker: WorkerId,
        /// The policy.
        policy: PolicyId,
        /// The mismatch.
        source: FilterError,
    },
    /// Batches cannot be concatenated.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A callback of the local worker failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// A worker's answer has the wrong type.
    #[error("worker {0} answered something that it was not asked")]
    OtherAnswer(WorkerId),
    /// The group was built without workers, or stopped.
    #[error("the group has no workers yet, or was stopped: set it up first")]
    NotSetUp,
}
