//! The builder of a [`WorkerGroup`].

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rollmesh_core::{
    config::Config,
    env::{Env, EnvContext, EnvError, EnvSpec, SubEnv},
    group::{GroupConfigError, SamplingMode},
    ids::{HomeIndex, PolicyId, WorkerId},
    worker::{NewPolicy, PolicyConfig, Registry, RolloutConfig, RolloutWorkerBuilder},
};

use super::{FailureSettings, GroupError, WorkerGroup, thread::Factory};
use crate::{
    NativeWorker as _,
    envs::with_fingerprint,
    hub::{Distrust, SecurityConfig},
    launch::{Launcher, LocalLauncher, WorkerSpec},
    native,
};

/// The place where workers run.
#[derive(Clone, Debug, Default)]
pub enum Placement {
    /// On threads of this process, where closures can be used.
    #[default]
    Threads,
    /// In processes started by a launcher; without one, of the current executable, which has to begin with
    /// [`main_with`](crate::main_with).
    Processes(Option<Arc<dyn Launcher>>),
    /// On any machine where a user runs `rollmesh worker` with the group's [address and
    /// token](WorkerGroup::worker_url), or opens a [page of the group](WorkerGroupBuilder::page). Their samples are
    /// trusted.
    Remote,
}

impl Placement {
    /// Returns the placement in processes of a program: the current executable, or another one that begins with
    /// [`main_with`](crate::main_with) and has the same names registered.
    #[must_use]
    pub fn processes_of(program: impl Into<PathBuf>) -> Self {
        Self::Processes(Some(Arc::new(LocalLauncher::new(program))))
    }
}

/// Settings of a group for evaluation: by default it has only the local worker, and does not explore.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Number of remote workers; 0 to evaluate on the local worker.
    #[doc(alias = "evaluation_num_workers")]
    pub num_workers: u32,
    /// Settings of its environments, if different.
    #[doc(alias = "evaluation_config")]
    pub env_config: Option<Config>,
    /// True if actions are sampled. For the quality of a policy, the most likely actions are the better measure.
    pub explore: bool,
}

/// Callback for workers that have been recreated.
type Recreated = Arc<dyn Fn(&[WorkerId]) + Send + Sync>;

/// The settings that stay the same for a group's lifetime.
pub(super) struct Plan {
    pub(super) registry: Registry,
    pub(super) num_workers: u32,
    pub(super) local_worker: bool,
    pub(super) in_evaluation: bool,
    pub(super) placement: Placement,
    pub(super) worker_spec: WorkerSpec,
    pub(super) program: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) page: Option<PathBuf>,
    pub(super) dashboard: bool,
    pub(super) security: SecurityConfig,
    pub(super) failures: FailureSettings,
    pub(super) start_timeout: Duration,
    pub(super) validate: bool,
    pub(super) sampling_mode: SamplingMode,
    pub(super) tune_trial_id: Option<String>,
    pub(super) on_workers_recreated: Vec<Recreated>,
    /// True if the builder was given closures, which cannot be sent to other processes.
    pub(super) has_closures: bool,
}

type BuilderChange = Arc<dyn Fn(RolloutWorkerBuilder) -> RolloutWorkerBuilder + Send + Sync>;

/// Builds a [`WorkerGroup`], with the arguments of RLlib's `EnvRunnerGroup`.
///
/// A worker is configured by its [`RolloutConfig`] and registered names. For workers in this process, closures can be given
/// as well.
#[must_use]
#[doc(alias("EnvRunnerGroup", "WorkerSet"))]
pub struct WorkerGroupBuilder {
    config: RolloutConfig,
    plan: Plan,
    setup: bool,
    changes: Vec<BuilderChange>,
}

impl WorkerGroupBuilder {
    pub(super) fn new(config: RolloutConfig) -> Self {
        Self {
            config,
            plan: Plan {
                registry: Registry::builtin(),
                num_workers: 0,
                local_worker: true,
                in_evaluation: false,
                placement: Placement::Threads,
                worker_spec: WorkerSpec::default(),
                program: PathBuf::new(),
                listen: (Ipv4Addr::LOCALHOST, 0).into(),
                page: None,
                dashboard: false,
                security: SecurityConfig::default(),
                failures: FailureSettings::default(),
                start_timeout: Duration::from_secs(60),
                validate: true,
                sampling_mode: SamplingMode::Synchronous,
                tune_trial_id: None,
                on_workers_recreated: Vec::new(),
                has_closures: false,
            },
            setup: true,
            changes: Vec::new(),
        }
    }

    /// Sets the configuration of all workers.
    #[doc(alias = "AlgorithmConfig")]
    pub fn config(self, config: RolloutConfig) -> Self {
        Self { config, ..self }
    }

    /// Sets the registry of names for settings and calls. Workers in other processes use their own program's registry.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.plan.registry = registry;
        self
    }

    /// Sets the number of remote workers; 0 by default. Without remote workers there is always a local one.
    #[doc(alias("num_env_runners", "num_rollout_workers"))]
    pub fn num_workers(mut self, num_workers: u32) -> Self {
        self.plan.num_workers = num_workers;
        self
    }

    /// Sets whether there is a local worker; true by default. It has environments if it is the only worker, or if
    /// [`create_env_on_local_worker`](RolloutConfig::create_env_on_local_worker) is set.
    #[doc(alias = "local_env_runner")]
    pub fn local_worker(mut self, local_worker: bool) -> Self {
        self.plan.local_worker = local_worker;
        self
    }

    /// Sets a function that makes single-agent environments, one per context, in this process.
    pub fn env_creator<E>(self, make: impl Fn(&EnvContext) -> Result<E, EnvError> + Send + Sync + 'static) -> Self
    where
        E: Env + 'static,
    {
        let make = Arc::new(make);
        self.worker_builder(move |builder| {
            let make = make.clone();
            builder.env_creator(move |context| make(context))
        })
    }

    /// Makes environments from a specification, in this process.
    pub fn env_spec(self, spec: EnvSpec) -> Self {
        self.worker_builder(move |builder| builder.env_spec(spec.clone()))
    }

    /// Sets a check of every new sub-environment, in this process; an error ends the construction.
    pub fn validate_env(
        self,
        validate: impl Fn(SubEnv<'_>, &EnvContext) -> Result<(), EnvError> + Send + Sync + 'static,
    ) -> Self {
        let validate = Arc::new(validate);
        self.worker_builder(move |builder| {
            let validate = validate.clone();
            builder.validate_env(move |env, context| validate(env, context))
        })
    }

    /// Sets the registered kind of the default policy, if the settings name no policies.
    pub fn default_policy_class(mut self, kind: impl Into<String>) -> Self {
        let default = PolicyConfig::new(kind);
        self.config.policies.entry(PolicyId::DEFAULT).or_insert(default);
        self
    }

    /// Adds a function that makes a policy in this process, once per worker.
    pub fn policy(self, id: PolicyId, make: impl Fn() -> NewPolicy + Send + Sync + 'static) -> Self {
        self.worker_builder(move |builder| builder.policy(id.clone(), make()))
    }

    /// Changes the builder of each worker in this process, for callbacks, mapping functions and other code.
    pub fn worker_builder(
        mut self,
        change: impl Fn(RolloutWorkerBuilder) -> RolloutWorkerBuilder + Send + Sync + 'static,
    ) -> Self {
        self.plan.has_closures = true;
        self.changes.push(Arc::new(change));
        self
    }

    /// Sets the directory for logs, and for outputs without a directory.
    pub fn logdir(mut self, logdir: impl Into<String>) -> Self {
        self.config.log_dir = Some(logdir.into());
        self
    }

    /// Sets whether [`build`](Self::build) creates the workers; true by default. Otherwise [`WorkerGroup::setup`] does.
    #[doc(alias = "_setup")]
    pub fn setup(self, setup: bool) -> Self {
        Self { setup, ..self }
    }

    /// Sets the name of the trial that the group belongs to, for users and their logs.
    pub fn tune_trial_id(mut self, id: impl Into<String>) -> Self {
        self.plan.tune_trial_id = Some(id.into());
        self
    }

    /// Sets the place where the workers run; on threads by default.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.plan.placement = placement;
        self
    }

    /// Sets the resources that each process needs on its machine.
    #[doc(alias = "as_remote")]
    pub fn worker_spec(mut self, spec: WorkerSpec) -> Self {
        self.plan.worker_spec = spec;
        self
    }

    /// Sets the address on which the group listens for workers of other processes; by default any free port of the loopback
    /// interface.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.plan.listen = address;
        self
    }

    /// Sets the group's security: beyond this machine it needs a certificate. It trusts all authenticated workers, browser
    /// tabs included: settings of `distrust`, which are for a hub's runs, are an [error](GroupError::Distrust).
    pub fn security(mut self, security: SecurityConfig) -> Self {
        self.plan.security = security;
        self
    }

    /// Sets the timeout for workers to join and to be set up; a minute by default.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.plan.start_timeout = timeout;
        self
    }

    /// Sets whether new workers are validated; true by default.
    #[doc(alias = "validate_workers_after_construction")]
    pub fn validate_workers(mut self, validate: bool) -> Self {
        self.plan.validate = validate;
        self
    }

    /// Sets which samples make a [batch](WorkerGroup::sample), and how stale their weights may be; by default one sample of
    /// every worker.
    #[doc(alias("sample_async", "max_sample_age", "broadcast_interval"))]
    pub fn sampling_mode(mut self, mode: SamplingMode) -> Self {
        self.plan.sampling_mode = mode;
        self
    }

    /// Sets the handling of failures.
    #[doc(alias = "fault_tolerance")]
    pub fn failures(mut self, failures: FailureSettings) -> Self {
        self.plan.failures = failures;
        self
    }

    /// Serves the files of a directory at the group's address, for browsers: the output of `trunk build`, whose tabs join the group
    /// by a [link](WorkerGroup::invite).
    pub fn page(mut self, directory: impl Into<PathBuf>) -> Self {
        self.plan.page = Some(directory.into());
        self
    }

    /// Sets whether the group serves a dashboard, at [`WorkerGroup::dashboard_url`]; false by default. It shows the remote workers
    /// with their calls under way, health, env steps and logs, and restarts processes; the number of workers, and everything
    /// else, is the program's. Its page is the usual one, or that in the directory of [`page`](Self::page). A library without the
    /// feature `embed`, and the Python wheel, have no page: `page` names the folder that `cargo xtask page` has written.
    pub fn dashboard(mut self, dashboard: bool) -> Self {
        self.plan.dashboard = dashboard;
        self
    }

    /// Adds a callback for workers that were lost and recreated; it is called after they have the group's state. The local
    /// worker's callbacks are called first.
    pub fn on_workers_recreated(mut self, f: impl Fn(&[WorkerId]) + Send + Sync + 'static) -> Self {
        self.plan.on_workers_recreated.push(Arc::new(f));
        self
    }

    /// Makes this a group for evaluation: its episodes differ from those of training, whatever the seed.
    pub fn evaluation(mut self, evaluation: Evaluation) -> Self {
        self.plan.in_evaluation = true;
        self.plan.num_workers = evaluation.num_workers;
        self.config.explore = evaluation.explore;
        if let Some(env_config) = evaluation.env_config {
            self.config.env_config = env_config;
        }
        self
    }

    /// Creates the group and its workers.
    ///
    /// # Errors
    /// [`GroupError`]; if a worker could not be created, with its error message.
    pub fn build(self) -> Result<WorkerGroup, GroupError> {
        let Self { mut config, mut plan, setup, changes } = self;
        if matches!(plan.sampling_mode, SamplingMode::Asynchronous { batch_env_steps: 0, .. }) {
            return Err(GroupConfigError::EmptyBatches.into());
        }
        if plan.security.distrust != Distrust::default() {
            return Err(GroupError::Distrust);
        }
        plan.registry = native(plan.registry);
        let registry = plan.registry.clone();
        let factory: Factory = Arc::new(move || {
            let builder = RolloutWorkerBuilder::new(registry.clone()).native();
            changes.iter().fold(builder, |builder, change| change(builder))
        });
        // Workers on other machines must compute the same bits.
        if let (Placement::Remote, Some(env)) = (&plan.placement, config.env.clone()) {
            let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
            let context = context.with_config(config.env_config.clone());
            config.env_config = with_fingerprint(&env, &context)?.unwrap_or(config.env_config);
        }
        let mut group = WorkerGroup::from_plan(plan, config, factory);
        if setup {
            group.setup()?;
        }
        Ok(group)
    }
}

impl fmt::Debug for WorkerGroupBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerGroupBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
