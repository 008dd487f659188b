//! A worker's callbacks, called from two threads.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    callbacks::{CallbackError, CallbackList, Callbacks, EpisodeHook, TrajectoryHook, WorkerInfo},
    env::{EnvContext, EnvError, SubEnv},
    episode::RolloutMetrics,
    ids::PolicyId,
    policy::{LearnInfo, Policy},
};

/// A handle to callbacks behind a lock: hooks never run concurrently, whichever thread calls them.
///
/// After a hook has panicked, further hooks are called nevertheless and see the state after the panic.
#[derive(Clone)]
pub(super) struct SharedCallbacks(Arc<Mutex<CallbackList>>);

impl SharedCallbacks {
    pub(super) fn new(callbacks: CallbackList) -> Self {
        Self(Arc::new(Mutex::new(callbacks)))
    }

    fn lock(&self) -> MutexGuard<'_, CallbackList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

macro_rules! forward {
    ($($hook:ident($($name:ident: $ty:ty),*)),* $(,)?) => {
        $(fn $hook(&mut self, $($name: $ty),*) -> Result<(), CallbackError> {
            self.lock().$hook($($name),*)
        })*
    };
}

impl Callbacks for SharedCallbacks {
    forward! {
        on_algorithm_init(worker: &WorkerInfo),
        on_workers_recreated(worker_indices: &[u32]),
        on_checkpoint_loaded(worker: &WorkerInfo),
        on_create_policy(id: &PolicyId, policy: &mut dyn Policy),
        on_sub_environment_created(worker: &WorkerInfo, env: SubEnv<'_>, context: &EnvContext),
        on_episode_created(hook: &mut EpisodeHook<'_>),
        on_episode_start(hook: &mut EpisodeHook<'_>),
        on_episode_step(hook: &mut EpisodeHook<'_>),
        on_episode_end(hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>),
        on_postprocess_trajectory(hook: &mut TrajectoryHook<'_>),
        on_sample_end(worker: &WorkerInfo, samples: &mut AnyBatch),
        on_learn_on_batch(id: &PolicyId, batch: &mut SampleBatch, info: &mut LearnInfo),
        on_evaluate_start(worker: &WorkerInfo),
        on_evaluate_end(worker: &WorkerInfo, episodes: &[RolloutMetrics]),
        on_train_result(results: &mut BTreeMap<String, f64>),
    }
}
