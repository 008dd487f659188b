//! Several callbacks as one.

use super::{CallbackError, Callbacks, EpisodeHook, TrajectoryHook, WorkerInfo};
use crate::{
    batch::{AnyBatch, SampleBatch},
    env::{EnvContext, EnvError, SubEnv},
    episode::RolloutMetrics,
    ids::PolicyId,
    policy::{LearnInfo, Policy},
    prelude::*,
};

/// Callbacks that are called sequentially; the first error stops the call.
#[derive(Default)]
#[doc(alias = "make_multi_callbacks")]
pub struct CallbackList(Vec<Box<dyn Callbacks>>);

impl CallbackList {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends callbacks.
    pub fn push(&mut self, callbacks: Box<dyn Callbacks>) {
        self.0.push(callbacks);
    }

    /// Returns true without callbacks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! forward {
    ($($hook:ident($($name:ident: $ty:ty),*)),* $(,)?) => {
        $(fn $hook(&mut self, $($name: $ty),*) -> Result<(), CallbackError> {
            self.0.iter_mut().try_for_each(|callbacks| callbacks.$hook($($name),*))
        })*
    };
}

impl Callbacks for CallbackList {
    forward! {
        on_algorithm_init(worker: &WorkerInfo),
        on_workers_recreated(worker_indices: &[u32]),
        on_checkpoint_loaded(worker: &WorkerInfo),
        on_create_policy(id: &PolicyId, policy: &mut dyn Policy),
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

    fn on_sub_environment_created(
        &mut self,
        worker: &WorkerInfo,
        mut env: SubEnv<'_>,
        context: &EnvContext,
    ) -> Result<(), CallbackError> {
        // Each callback borrows the environment separately.
        self.0.iter_mut().try_for_each(|callbacks| callbacks.on_sub_environment_created(worker, env.lend(), context))
    }
}
