//! [`WorkerGroup`]: a local worker and any number of remote workers with one interface.
//!
//! Remote workers run on threads of this process, in processes that a [launcher](crate::launch) starts, or on any
//! machine where a user runs `rollmesh worker` or opens a page with the group's token. All are called the same way:
//! with a [`WorkerCommand`](rollmesh_core::worker::WorkerCommand) or a function that their program has registered by
//! name; a [`CallManager`] tracks their health and pending calls. Closures cannot leave this process: they are for the
//! local worker and for threads.
//!
//! All methods block the calling thread, in which the local worker runs; asynchronous I/O runs on an event loop in the
//! background, so the methods can be called from anywhere. Training by leases, which balances slots among workers and
//! loses none, is the [`hub`](crate::hub)'s.
//!
//! ```
//! use rollmesh::worker_group::{WorkerGroup, in_process};
//! use rollmesh_core::worker::{RolloutConfig, WorkerAnswer, WorkerCommand};
//!
//! let config = RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(50).seed(7);
//! let mut group = WorkerGroup::builder(config).num_workers(2).build()?;
//! // One round: 2 workers with 2 environments, 50 steps each.
//! let batches = group.synchronous_parallel_sample(Default::default())?;
//! assert_eq!(batches.iter().map(|batch| batch.env_steps()).sum::<usize>(), 200);
//!
//! // The local worker is asked first, and has no environments alongside others.
//! assert_eq!(group.foreach_worker(in_process(|worker| worker.num_envs()))?, [0, 2, 2]);
//! assert_eq!(group.foreach_worker(WorkerCommand::Ping)?, vec![WorkerAnswer::Pong; 3]);
//!
//! // All act with the local worker's weights.
//! group.sync_weights(Default::default())?;
//! group.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A group for evaluation has environments of its own, and acts without exploring:
//!
//! ```
//! use rollmesh::worker_group::{Evaluation, WorkerGroup};
//! use rollmesh_core::{config::Config, worker::RolloutConfig};
//!
//! let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(20);
//! let mut training = WorkerGroup::builder(config.clone()).num_workers(2).build()?;
//! let evaluation = Evaluation { num_workers: 1, env_config: Some(Config::new()), ..Evaluation::default() };
//! let mut evaluating = WorkerGroup::builder(config).evaluation(evaluation).build()?;
//! let weights = training.weights(None)?;
//! evaluating.sync_weights(rollmesh::worker_group::SyncWeights::from_weights(&weights))?;
//! assert_eq!(evaluating.synchronous_parallel_sample(Default::default())?[0].env_steps(), 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alone;
mod ask;
mod asynchronous;
mod builder;
mod counts;
mod dashboard;
mod envs;
mod error;
mod foreach;
mod health;
mod hub_start;
mod hub_thread;
mod members;
mod policies;
mod row_source;
mod sample;
mod sampling;
mod setup;
mod state;
mod stopper;
mod sync_filters;
mod sync_weights;
mod task;
mod thread;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, mpsc},
    time::Instant,
};

use rollmesh_core::{
    calls::{CallManager, CallResult},
    ids::{CallId, CallSetId, WorkerId},
    time::Micros,
    worker::{CommandError, RolloutConfig, RolloutWorker},
};

pub use asynchronous::Fetch;
pub use builder::{Evaluation, Placement, WorkerGroupBuilder};
pub use counts::SampleCounters;
pub use error::GroupError;
pub use foreach::{ForEachWorker, WorkerRefs, WorkerResult};
pub use health::FailureSettings;
pub use rollmesh_core::worker::NamedFn;
pub use sample::ParallelSample;
pub use stopper::GroupStopper;
pub use sync_filters::SyncFilters;
pub use sync_weights::{SyncWeights, WeightsSource};
pub use task::{
    EnvTask, InEnv, InPolicy, InProcess, PolicyTask, Request, TaskAnswer, WorkerTask, in_env, in_policy, in_process,
    in_process_with_id,
};

use self::{
    alone::LocalThread, builder::Plan, hub_thread::HubThread, members::Member, sampling::Samples, state::Synced,
    thread::Factory,
};
use crate::hub::WorkerNotification;

/// The local worker's id. Remote ids count from 1 and are never reused.
pub const LOCAL_WORKER: WorkerId = WorkerId(0);

/// Maximum number of unread notices: beyond it the oldest are dropped.
const MAX_NOTICES: usize = 1_024;

/// A local worker and remote workers with one interface. See the [module](self).
///
/// Dropping it ends its workers.
#[doc(alias("WorkerSet", "EnvRunnerGroup"))]
pub struct WorkerGroup {
    plan: Plan,
    /// The configuration, with the spaces that the workers reported.
    config: RolloutConfig,
    factory: Factory,
    local: Option<RolloutWorker>,
    /// The thread on which it samples, once there is one.
    local_thread: Option<LocalThread>,
    /// True once the local worker has sampled.
    is_local_warm: bool,
    manager: CallManager<Request, TaskAnswer>,
    members: BTreeMap<WorkerId, Member>,
    notifications: mpsc::Receiver<GroupNotification>,
    notification_sender: mpsc::Sender<GroupNotification>,
    hub: Option<HubThread>,
    samples: Samples,
    /// Filters that were requested and have not been merged yet, by worker.
    filtering: BTreeMap<WorkerId, CallSetId>,
    /// Without a local worker: the state that was last synced.
    synced: Synced,
    /// Answers of asynchronous calls that arrived together with a failure.
    fetched: Vec<CallResult<TaskAnswer>>,
    /// Number of workers that joined for the first time, which are no restarts.
    arrivals: u64,
    notices: VecDeque<String>,
    /// The reason that local processes are no longer started.
    gave_up: Option<String>,
    is_stopped: bool,
    stopper: GroupStopper,
    epoch: Instant,
}

/// Notifications about workers.
#[derive(Debug)]
enum GroupNotification {
    /// A worker on a thread answered a call.
    Answer { worker: WorkerId, generation: u64, call: CallId, result: Result<TaskAnswer, CommandError> },
    /// A notification from the hub.
    Hub(WorkerNotification),
    /// A notice from the hub.
    Notice(String),
    /// Another thread asks the group to stop.
    Stop,
}

impl WorkerGroup {
    /// Returns a builder of a group, with the names registered by this crate.
    pub fn builder(config: RolloutConfig) -> WorkerGroupBuilder {
        WorkerGroupBuilder::new(config)
    }

    fn from_plan(plan: Plan, config: RolloutConfig, factory: Factory) -> Self {
        let (notification_sender, notifications) = mpsc::channel();
        Self {
            manager: CallManager::new(plan.failures.call_config(&config)),
            plan,
            config,
            factory,
            local: None,
            local_thread: None,
            is_local_warm: false,
            members: BTreeMap::new(),
            stopper: Self::new_stopper(notification_sender.clone()),
            notifications,
            notification_sender,
            hub: None,
            samples: Samples::default(),
            filtering: BTreeMap::new(),
            synced: Synced::default(),
            fetched: Vec::new(),
            arrivals: 0,
            notices: VecDeque::new(),
            gave_up: None,
            is_stopped: false,
            epoch: Instant::now(),
        }
    }

    /// Returns the workers' configuration, with the spaces that they reported.
    #[must_use]
    pub fn config(&self) -> &RolloutConfig {
        &self.config
    }

    fn now(&self) -> Micros {
        self.epoch.elapsed().into()
    }

    /// Returns the next notice for users and logs, oldest first.
    pub fn next_notice(&mut self) -> Option<String> {
        self.take_notifications();
        self.notices.pop_front()
    }

    fn notice(&mut self, text: impl fmt::Display) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(text.to_string());
    }
}

impl fmt::Debug for WorkerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerGroup")
            .field("tune_trial_id", &self.plan.tune_trial_id)
            .field("local", &self.local)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A request, shared by one or more workers.
type SharedRequest = Arc<Request>;
