//! Parts that run leases, the same as those of a worker.

use super::{
    Clock, NeedsEpisodic, NewPolicy, RemoteEnvSpec, RemoteEnvs, RolloutWorkerBuilder, Shell, Workshop,
    assign::Assignment,
    capability::{lanes_need_episodic, views_only_states},
    conflict,
    sampler::WorkerEnvs,
};
use crate::{
    callbacks::{CallbackList, Callbacks as _, ObservationFn, PolicyMappingFn, WorkerInfo},
    column::DType,
    env::{AnyVectorEnv, BaseEnv, EnvContext, EnvError, EnvStart, EnvState, InProcess, Recorded, StepMark, SubEnv},
    filter::{FILTER_PREFIX, Filter, FilterKind},
    ids::{PolicyId, SlotId},
    kernels::Kernels,
    policy::{Policy, PolicyEntry, PolicyMap, Postprocessing},
    prelude::*,
    run::{Inference, RolloutConfig, RunConfig, RunConfigError},
    sampler::{
        AgentLayout, FragmentLayout, Horizon, RecurrentShape, SampleError, SamplerHost, SamplerOptions, SlotState,
    },
    time::Micros,
    worker::{RegisteredEnv, SetupError, WorkerPlace, config::PreprocessorPref},
};

/// Environments by slot, and the policies that act in them.
pub(in crate::worker) struct LeaseParts {
    pub(in crate::worker) envs: SlotEnvs,
    /// Whether user code may see which worker is the home of a slot.
    has_user_code: bool,
    /// The way in which open episodes move between workers.
    pub(in crate::worker) env_state: EnvState,
    pub(in crate::worker) options: SamplerOptions,
    pub(in crate::worker) layout: FragmentLayout,
    pub(in crate::worker) host: LeaseHost,
}

/// Makes the environments of slots.
pub(in crate::worker) struct SlotEnvs {
    source: RegisteredEnv,
    kernels: Kernels,
    config: RolloutConfig,
    /// Starts processes, if each environment has one of its own.
    processes: Option<Box<dyn Shell>>,
}

/// Policies and user code.
pub(in crate::worker) struct LeaseHost {
    pub(in crate::worker) policies: PolicyMap,
    mapping: PolicyMappingFn,
    observation_fn: Option<ObservationFn>,
    pub(in crate::worker) callbacks: CallbackList,
    pub(in crate::worker) info: WorkerInfo,
    clock: Clock,
}

impl LeaseHost {
    /// Lends everything to a sampler.
    pub(in crate::worker) fn lend(&mut self) -> SamplerHost<'_> {
        SamplerHost {
            worker: &self.info,
            policies: &mut self.policies,
            mapping: &self.mapping,
            observation_fn: self.observation_fn.as_ref(),
            callbacks: &mut self.callbacks,
            clock: &*self.clock,
            interrupt: None,
        }
    }
}

impl SlotEnvs {
    /// Makes single-agent environments for slots with these contexts, one lane each.
    pub(in crate::worker) fn make_lanes(&self, contexts: &[EnvContext]) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
        match &self.source {
            RegisteredEnv::SingleAgent(spec) => spec.make(contexts, self.kernels),
            RegisteredEnv::MultiAgent(_) | RegisteredEnv::Base(_) => {
                Err(EnvError::Failed("it has several agents".into()))
            }
        }
    }

    /// Makes separate environments for these slots, which can be restored from snapshots.
    pub(in crate::worker) fn make_base(
        &mut self,
        starts: Vec<EnvStart>,
        seed: u64,
    ) -> Result<Box<dyn BaseEnv>, SampleError> {
        if let (Some(shell), [start]) = (&mut self.processes, &starts[..]) {
            let request = RemoteEnvs {
                config: &self.config,
                specs: vec![RemoteEnvSpec::of(&self.config, start, seed)],
                batch_wait: Micros(0),
            };
            let needs = || EnvError::Failed("this worker cannot start processes for environments".into());
            let moved = shell.remote_envs(&request)?.ok_or_else(needs)?;
            return Ok(Box::new(Recorded::new(moved.envs, start.slot)?));
        }
        let no_slots = |_| EnvError::Failed("a BaseEnv has no slots".into());
        let maker = self.source.maker(self.kernels).map_err(no_slots)?;
        let envs = InProcess::new(maker, starts, seed)?;
        Ok(Box::new(envs.with_restarts(self.config.restart_failed_sub_environments).recording()))
    }

    /// Returns whether environments may get out of step, so that each is sampled separately.
    fn may_lag(&self) -> bool {
        self.processes.is_some() || self.config.restart_failed_sub_environments
    }
}

impl LeaseParts {
    /// Returns whether slots may be sampled together: they stay in step whatever happens, their fragments are equally long,
    /// and no user code sees their home worker.
    pub(in crate::worker) fn keeps_step(&self) -> bool {
        !self.envs.may_lag() && !self.has_user_code && self.envs.config.has_equal_fragments()
    }
}

/// The policies of a run as its learner uses them.
pub struct LearningParts {
    /// The policies.
    pub policies: BTreeMap<PolicyId, Box<dyn Policy>>,
    /// The layout of the rows of its fragments.
    pub layout: FragmentLayout,
    /// The way in which open episodes move from one worker to another.
    pub env_state: EnvState,
    /// The user's callbacks around learning.
    pub callbacks: CallbackList,
    /// Their information about the process that learns: RLlib's local worker.
    pub info: WorkerInfo,
}

impl LearningParts {
    /// Returns true if fragments can be recomputed from their actions: rows of slots, and policies with networks, which
    /// compute the probabilities of given actions.
    #[must_use]
    pub fn can_replay_actions(&self) -> bool {
        matches!(self.layout, FragmentLayout::Lane { .. })
            && self.policies.values().all(|policy| policy.encoded_obs_len() > 0)
    }
}

/// Parts that workers and learners of a run share.
struct RunParts {
    policies: BTreeMap<PolicyId, PolicyEntry>,
    layout: FragmentLayout,
    source: RegisteredEnv,
    env_state: EnvState,
    options: SamplerOptions,
    mapping: PolicyMappingFn,
    info: WorkerInfo,
}

impl RolloutWorkerBuilder {
    /// Returns the parts that run the leases of a run. Its policies are made to act, not to learn.
    pub(in crate::worker) fn lease_parts(mut self, run: &RunConfig) -> Result<LeaseParts, SetupError> {
        let has_device = self.registry.policies.forward().is_some();
        if has_device && !run.device_rows {
            return Err(conflict(
                "this worker's policies act on a device, whose rows have other bits than those of CPUs: set device_rows = \
                 true for the run, or start the worker with --device cpu",
            ));
        }
        self.registry.policies = self.registry.policies.acting();
        if let Some(forward) = self.inference.take().filter(|_| !has_device && run.inference == Inference::Server) {
            self.registry.policies.act_with(forward);
        }
        let RunParts { policies: entries, layout, source, env_state, options, mapping, info } = self.run_parts(run)?;
        let mut callbacks = self.make_callbacks()?;
        let mut policies = PolicyMap::new();
        for (id, mut entry) in entries {
            callbacks.on_create_policy(&id, entry.policy.as_mut())?;
            policies.insert(id, entry)?;
        }
        let observation_fn = self.observation_function()?;
        let host = LeaseHost { policies, mapping, observation_fn, callbacks, info, clock: self.clock };
        let has_user_code =
            !host.callbacks.is_empty() || host.observation_fn.is_some() || self.config.policy_mapping_fn.is_some();
        let processes = match (run.rollout.remote_worker_envs, self.shell) {
            (false, _) => None,
            (true, Some(shell)) => Some(shell),
            (true, None) => {
                let needs = "processes of their own for the environments";
                return Err(SetupError::Unsupported {
                    setting: "remote_worker_envs",
                    needs,
                    fix: SetupError::LEAVE_OUT,
                });
            }
        };
        let envs = SlotEnvs { source, kernels: self.kernels, config: run.rollout.clone(), processes };
        Ok(LeaseParts { envs, has_user_code, env_state, options, layout, host })
    }

    /// Returns the policies of a run as its learner uses them, and the layout of the rows that they learn from.
    ///
    /// # Errors
    /// [`SetupError`] if workers could not run its leases.
    pub fn learning_parts(mut self, run: &RunConfig) -> Result<LearningParts, SetupError> {
        let RunParts { policies, layout, env_state, info, .. } = self.run_parts(run)?;
        let policies = policies.into_iter().map(|(id, entry)| (id, entry.policy)).collect_ordered();
        let info = WorkerInfo { worker_index: 0, ..info };
        Ok(LearningParts { policies, layout, env_state, callbacks: self.make_callbacks()?, info })
    }

    fn run_parts(&mut self, run: &RunConfig) -> Result<RunParts, SetupError> {
        // The statistics of a run's filter are among the weights, with which its policies normalise by themselves. Spaces
        // are read from an environment of this process, even if those of slots run elsewhere.
        self.config = RolloutConfig {
            observation_filter: FilterKind::NoFilter,
            remote_worker_envs: false,
            remote_env_batch_wait_ms: 0,
            // The hub records episodes, by recomputing fragments.
            monitor_path: None,
            ..run.rollout.clone()
        };
        self.place = WorkerPlace::remote(1, run.num_home_workers());
        run.check_leased()?;
        self.check()?;
        let plain = self.config.callbacks.is_empty() && self.config.observation_fn.is_none();
        let mut made = self.make_envs(&[run.env_context(SlotId(0))], plain)?;
        let env_state = env_state(&mut made.envs);
        let Some(source) = made.source.clone() else {
            return Err(RunConfigError::NotLeased { path: "env", reason: "a run needs one: name it".into() }.into());
        };
        if matches!(source, RegisteredEnv::Base(_)) {
            return Err(not_leased(
                "env",
                "a BaseEnv is sampled as a whole, by the run's own process: set num_workers to 0, or register an Env or a MultiAgentEnv",
            ));
        }
        let is_replayed = matches!(source, RegisteredEnv::MultiAgent(_)) || run.rollout.remote_worker_envs;
        let env_state = match env_state {
            EnvState::Snapshot if is_replayed => EnvState::Replay,
            state => state,
        };
        if is_replayed && run.rollout.horizon.is_some() && run.rollout.horizon_means == Horizon::LegacySoft {
            let reason = "slots are brought back by the actions since the last reset, of which there is none after a soft \
                          horizon: use another";
            return Err(not_leased("horizon_means", reason));
        }
        if run.rollout.monitor_path.is_some() && (env_state == EnvState::Opaque || run.device_rows) {
            let reason = "the hub records episodes by recomputing fragments, and those of opaque environments and of policies on \
                          GPUs cannot be recomputed: use evaluation.render";
            return Err(not_leased("monitor_path", reason));
        }
        let limit = [source.max_episode_steps(), run.rollout.horizon].into_iter().flatten().min();
        if env_state == EnvState::Replay {
            check_recording(limit, &made.envs)?;
        }
        let info = self.info();
        let base = if let WorkerEnvs::Base(env) = &made.envs { Some(env.as_ref()) } else { None };
        let Assignment { policies: ids, mapping } = self.assignment(base)?;
        let workshop = Workshop { pref: PreprocessorPref::None, whole_batches: true, ..self.workshop(made.pref) };
        let (mut policies, mut layouts) = (BTreeMap::new(), BTreeMap::new());
        for id in ids {
            let known = made.known_spaces(&id, &mapping, &info, workshop.seed)?;
            let (entry, recipe) = workshop.make(&id, NewPolicy::from(&run.policy(&id)), known)?;
            recipe.check_filter(&id, run.rollout.observation_filter)?;
            let spaces = workshop.acting_spaces(&id, &recipe)?;
            let postprocessing = entry.policy.postprocessing();
            let layout = AgentLayout {
                spaces,
                recurrent: RecurrentShape::of(entry.policy.as_ref()),
                views: entry.policy.view_requirements(),
                has_advantages: matches!(postprocessing, Postprocessing::Advantages(_)),
                is_exact: self.config.callbacks.is_empty()
                    && postprocessing != Postprocessing::Custom
                    && views_only_states(entry.policy.as_ref()),
                agents: made.agents_of(&id, &mapping, &info, workshop.seed),
            };
            policies.insert(id.clone(), entry);
            layouts.insert(id, layout);
        }
        let reason = match (&made.envs, policies.get(&PolicyId::DEFAULT)) {
            (WorkerEnvs::Lanes(env), Some(entry)) => lanes_need_episodic(env.as_ref(), entry.policy.as_ref()),
            (WorkerEnvs::Lanes(_) | WorkerEnvs::None | WorkerEnvs::Base(_), _) => made.needs_episodic,
        };
        // Uploads contain no infos.
        let reason = reason.filter(|reason| *reason != NeedsEpisodic::Infos);
        let reason = if run.rollout.remote_worker_envs { Some(NeedsEpisodic::RemoteEnvs) } else { reason };
        let lane = layouts.get(&PolicyId::DEFAULT).zip(policies.get(&PolicyId::DEFAULT));
        let layout = match (reason, lane) {
            (None, Some((layout, entry))) if policies.len() == 1 => FragmentLayout::Lane {
                spaces: layout.spaces.clone(),
                recurrent: RecurrentShape::of(entry.policy.as_ref()),
            },
            _ => FragmentLayout::Agents(layouts),
        };
        check_filter(run.rollout.observation_filter, &layout, &mut policies)?;
        let options = SamplerOptions {
            fragment_length: run.fragment_length(),
            mark: Some(StepMark::default()),
            ..self.sampler_options(source.max_episode_steps(), made.clip_rewards)
        };
        Ok(RunParts { policies, layout, source, env_state, options, mapping, info })
    }
}

/// Returns how open episodes of these environments move.
fn env_state(envs: &mut WorkerEnvs) -> EnvState {
    match envs {
        WorkerEnvs::None => EnvState::default(),
        WorkerEnvs::Lanes(env) => env.state(),
        WorkerEnvs::Base(env) => env.sub_environments().first().map_or_else(EnvState::default, SubEnv::state),
    }
}

/// Checks that the recorded actions of an episode of `limit` steps fit into a slot's state, as far as that is known
/// beforehand.
fn check_recording(limit: Option<u32>, envs: &WorkerEnvs) -> Result<(), SetupError> {
    let bytes = |env: &dyn AnyVectorEnv| {
        let (_, action) = env.dtypes();
        // Integers take at least one byte each.
        let element = if matches!(action, DType::I32 | DType::I64) { 1 } else { action.size() };
        env.action_space().shape().elements() * element
    };
    let step = 1 + if let WorkerEnvs::Lanes(env) = envs { bytes(env.as_ref()) } else { 0 };
    let (steps, max) = (limit.unwrap_or(0) as usize, SlotState::MAX_BYTES);
    if steps.saturating_mul(step) <= max {
        return Ok(());
    }
    let reason = format!(
        "an open episode moves by its recorded actions, of which {steps} steps take more than {max} bytes: set a shorter \
         horizon, or give the environment a snapshot"
    );
    Err(not_leased("horizon", &reason))
}

/// Checks that the run's filter gets observations of 32-bit floats, and policies that normalise with the statistics among
/// their weights.
fn check_filter(
    kind: FilterKind,
    layout: &FragmentLayout,
    policies: &mut BTreeMap<PolicyId, PolicyEntry>,
) -> Result<(), SetupError> {
    let (path, shapes) = ("observation_filter", layout.filtered());
    if kind == FilterKind::NoFilter {
        return Ok(());
    }
    if shapes.is_empty() {
        let reason = "a filter takes float32 observations, which no policy of this run has: leave it out";
        return Err(not_leased(path, reason));
    }
    for (id, shape) in shapes {
        let filter = Filter::new(kind, shape).map_err(|source| SetupError::Filter { id: id.clone(), source })?;
        let Some(PolicyEntry { policy, .. }) = policies.get_mut(&id) else { continue };
        let plain = policy.weights().clone();
        let taken = policy.set_weights(&plain.with_filter(FILTER_PREFIX, &filter));
        taken.and_then(|()| policy.set_weights(&plain)).map_err(|error| {
            not_leased(path, &format!("policy '{id}' takes no statistics among its weights ({error}): leave it out"))
        })?;
    }
    Ok(())
}

fn not_leased(path: &'static str, reason: &str) -> SetupError {
    RunConfigError::NotLeased { path, reason: reason.into() }.into()
}
