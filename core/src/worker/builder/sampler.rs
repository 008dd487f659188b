//! Environments, and the sampler that fits them.

use super::{
    MovedEnvs, NeedsEpisodic, RemoteEnvs, RolloutWorkerBuilder, SamplerChoice,
    capability::lanes_need_episodic,
    conflict, deepmind,
    envs::{agents_of_policy, spaces_of_policy},
};
use crate::{
    callbacks::{CallbackList, Callbacks as _, PolicyMappingFn, WorkerInfo},
    env::{AnyVectorEnv, BaseEnv, EnvContext, EnvSpaces, SubEnv, for_each_sub_env},
    ids::{AgentId, PolicyId},
    policy::PolicyMap,
    prelude::*,
    sampler::{Episodic, RewardClipping, SamplerOptions},
    time::Micros,
    worker::{
        RegisteredEnv, SetupError, WorkerPlace, config::PreprocessorPref, lockstep::LockstepSampler, rollout::Source,
    },
};

/// The environments of a worker.
pub(super) enum WorkerEnvs {
    None,
    Lanes(Box<dyn AnyVectorEnv>),
    Base(Box<dyn BaseEnv>),
}

/// The environments, and what was learned while they were made.
pub(super) struct MadeEnvs {
    pub(super) envs: WorkerEnvs,
    pub(super) source: Option<RegisteredEnv>,
    pub(super) pref: PreprocessorPref,
    pub(super) clip_rewards: RewardClipping,
    /// The reason why the lockstep sampler cannot sample them, as far as the settings determine it.
    pub(super) needs_episodic: Option<NeedsEpisodic>,
}

impl RolloutWorkerBuilder {
    /// Makes the environments, games in their wrappers. `plain` is false with callbacks or an observation function.
    pub(super) fn make_envs(&mut self, contexts: &[EnvContext], plain: bool) -> Result<MadeEnvs, SetupError> {
        let (pref, clip) = (self.config.preprocessor_pref, self.config.clip_rewards);
        let mut made =
            MadeEnvs { envs: WorkerEnvs::None, source: None, pref, clip_rewards: clip, needs_episodic: None };
        let Some(source) = self.env_source()? else { return Ok(made) };
        made.needs_episodic = self.settings_need_episodic(plain, source.is_single_agent());
        if self.config.remote_worker_envs {
            let moved = self.remote_envs(contexts)?;
            if moved.are_wrapped {
                made.in_wrappers();
            }
            made.envs = WorkerEnvs::Base(moved.envs);
            made.source = Some(source);
            return Ok(made);
        }
        let lanes = self.sampler != SamplerChoice::Episodic && made.needs_episodic.is_none();
        made.envs = self.make(&source, contexts, lanes)?;
        made.source = Some(source);
        let is_game = made.single_spaces().is_some_and(|spaces| deepmind::is_game(&spaces));
        let spec = match &made.source {
            Some(RegisteredEnv::SingleAgent(spec)) if is_game && pref.wraps(&spec.name) => spec.clone(),
            // A `BaseEnv` of the user's wraps its games itself.
            _ => return Ok(made),
        };
        // Never have two sets of games in memory: drop the unwrapped ones first.
        made.envs = WorkerEnvs::None;
        let options = deepmind::options(&self.config.model_config, &spec.name)?;
        let wrapped = RegisteredEnv::SingleAgent(spec.wrapped(options));
        made.in_wrappers();
        made.envs = self.make(&wrapped, contexts, lanes)?;
        made.source = Some(wrapped);
        Ok(made)
    }

    fn make(&self, source: &RegisteredEnv, contexts: &[EnvContext], lanes: bool) -> Result<WorkerEnvs, SetupError> {
        Ok(match lanes {
            true => WorkerEnvs::Lanes(self.make_lanes(source, contexts)?),
            false => WorkerEnvs::Base(self.make_base(source, contexts)?),
        })
    }

    fn remote_envs(&mut self, contexts: &[EnvContext]) -> Result<MovedEnvs, SetupError> {
        let request = RemoteEnvs {
            config: &self.config,
            specs: self.remote_specs(contexts),
            batch_wait: Micros::from_millis(self.config.remote_env_batch_wait_ms.into()),
        };
        let envs = self.shell.as_mut().map_or(Ok(None), |shell| shell.remote_envs(&request))?;
        let needs = "processes of their own for the environments";
        envs.ok_or(SetupError::Unsupported { setting: "remote_worker_envs", needs, fix: SetupError::LEAVE_OUT })
    }

    /// Chooses the sampler: environments in lockstep stay so only if their policy allows it as well.
    pub(super) fn settle(
        &self,
        mut made: MadeEnvs,
        contexts: &[EnvContext],
        policies: &mut PolicyMap,
    ) -> Result<MadeEnvs, SetupError> {
        if let WorkerEnvs::Lanes(env) = &made.envs {
            made.needs_episodic = lanes_need_episodic(env.as_ref(), policies.policy_mut(&PolicyId::DEFAULT)?);
        }
        let Some(reason) = made.needs_episodic else { return Ok(made) };
        if self.sampler == SamplerChoice::Lockstep {
            return Err(reason.into());
        }
        match (made.envs, &made.source) {
            (WorkerEnvs::Lanes(lanes), Some(source)) => {
                drop(lanes);
                made.envs = self.make(source, contexts, false)?;
            }
            (envs, _) => made.envs = envs,
        }
        Ok(made)
    }

    /// Passes every sub-environment to `validate_env` and to callbacks.
    pub(super) fn look_at_envs(
        &mut self,
        envs: &mut WorkerEnvs,
        contexts: &[EnvContext],
        info: &WorkerInfo,
        callbacks: &mut CallbackList,
    ) -> Result<(), SetupError> {
        let mut validate = self.validate_env.take();
        if validate.is_none() && callbacks.is_empty() {
            return Ok(());
        }
        let mut contexts = contexts.iter();
        let mut looked = Ok(());
        envs.for_each(&mut |mut sub_env| {
            let (Some(context), Ok(())) = (contexts.next(), &looked) else { return };
            let env = context.home.vector_index;
            let valid = validate.as_mut().map_or(Ok(()), |validate| validate(sub_env.lend(), context));
            looked = valid
                .map_err(|source| SetupError::InvalidEnv { env, source })
                .and_then(|()| Ok(callbacks.on_sub_environment_created(info, sub_env, context)?));
        });
        if let (WorkerEnvs::Base(env), Some(validate)) = (envs, validate) {
            // Validates environments that are restarted later.
            env.validate_with(validate);
        }
        looked
    }

    pub(super) fn make_sampler(
        &mut self,
        made: MadeEnvs,
        limit: Option<u32>,
        single_agent: bool,
        policies: &mut PolicyMap,
    ) -> Result<Option<Source>, SetupError> {
        // An environment of the user's own shape may have more lanes than requested.
        let lanes = match &made.envs {
            WorkerEnvs::Base(env) => u32::try_from(env.num_envs()).unwrap_or(u32::MAX).min(WorkerPlace::MAX_ENVS),
            WorkerEnvs::None | WorkerEnvs::Lanes(_) => self.config.num_envs,
        };
        let each = lanes.max(self.config.num_envs);
        let slots = (0..lanes).filter_map(|index| self.place.slot(each, index)).map(|slot| (slot, 0)).collect();
        let mark = Some(self.mark.clone());
        let options = SamplerOptions { single_agent, slots, mark, ..self.sampler_options(limit, made.clip_rewards) };
        let length = options.fragment_length;
        Ok(match made.envs {
            WorkerEnvs::None => None,
            WorkerEnvs::Lanes(env) => {
                let sampler = LockstepSampler::new(env, options, policies.get_mut(&PolicyId::DEFAULT)?);
                let sampler = sampler.map_err(|source| SetupError::Env { env: 0, source })?;
                sampler.check_size(length)?;
                Some(Source::Lockstep(Box::new(sampler)))
            }
            WorkerEnvs::Base(env) => Some(Source::Reader(Box::new(Episodic::new(options, env)?))),
        })
    }
}

impl RolloutWorkerBuilder {
    /// Returns the sampler's options for environments with this limit. Slots are up to the caller.
    pub(super) fn sampler_options(&self, limit: Option<u32>, clip_rewards: RewardClipping) -> SamplerOptions {
        let config = &self.config;
        SamplerOptions {
            fragment_length: self.fragment_length(),
            batch_mode: config.batch_mode,
            count_steps_by: config.count_steps_by,
            // As in RLlib: a horizon beyond the environment's own limit replaces it.
            max_episode_steps: limit.filter(|limit| config.horizon.is_none_or(|horizon| horizon <= *limit)),
            horizon: config.horizon,
            horizon_means: config.horizon_means,
            no_done_at_end: config.no_done_at_end,
            clip_rewards,
            clip_actions: config.clip_actions,
            normalize_actions: config.normalize_actions,
            explore: config.explore,
            seed: self.seed(),
            ..SamplerOptions::new(Vec::new())
        }
    }
}

impl WorkerEnvs {
    /// Passes every sub-environment to `f`, or all together if they cannot be reached individually.
    fn for_each(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        match self {
            Self::None => {}
            Self::Lanes(env) => {
                (0..env.num_envs()).for_each(|lane| f(SubEnv::Lane { env: env.as_mut(), lane }));
            }
            Self::Base(env) => for_each_sub_env(env.as_mut(), f),
        }
    }
}

impl MadeEnvs {
    /// Records that they are games in DeepMind's wrappers: no preprocessing is needed.
    fn in_wrappers(&mut self) {
        self.pref = PreprocessorPref::None;
        if self.clip_rewards == RewardClipping::Auto {
            self.clip_rewards = RewardClipping::Sign;
        }
    }

    /// Returns one context per sub-environment, even if those of the user's own shape are not as many as requested.
    pub(super) fn fitting(&self, contexts: Vec<EnvContext>) -> Result<Vec<EnvContext>, SetupError> {
        let (WorkerEnvs::Base(env), Some(first)) = (&self.envs, contexts.first()) else { return Ok(contexts) };
        let num_envs = u32::try_from(env.num_envs()).ok().filter(|num_envs| *num_envs <= WorkerPlace::MAX_ENVS);
        let num_envs = num_envs.ok_or_else(|| conflict("a worker has at most 65536 sub-environments: make fewer"))?;
        Ok((0..num_envs).map(|index| first.with_vector_index(index)).collect())
    }

    /// Returns whether each environment has one agent: made so, or of the user's own shape with [`AgentId::SINGLE`] alone.
    pub(super) fn is_single_agent(&self) -> bool {
        match (&self.source, &self.envs) {
            (Some(RegisteredEnv::Base(_)), WorkerEnvs::Base(env)) => env.agents() == [AgentId::SINGLE],
            (source, _) => source.as_ref().is_some_and(RegisteredEnv::is_single_agent),
        }
    }

    pub(super) fn single_spaces(&self) -> Option<EnvSpaces> {
        match &self.envs {
            WorkerEnvs::None => None,
            WorkerEnvs::Lanes(env) => Some(EnvSpaces::of(env.as_ref())),
            WorkerEnvs::Base(env) => env.spaces(&AgentId::SINGLE),
        }
    }

    /// Returns how many agents of one environment the mapping assigns to a policy, as far as they are known beforehand; at
    /// least 1.
    pub(super) fn agents_of(&self, id: &PolicyId, mapping: &PolicyMappingFn, info: &WorkerInfo, seed: u64) -> u32 {
        match &self.envs {
            WorkerEnvs::None | WorkerEnvs::Lanes(_) => 1,
            WorkerEnvs::Base(env) => agents_of_policy(env.as_ref(), id, mapping, info, seed).len().max(1) as u32,
        }
    }

    /// Returns the common spaces of the agents that the mapping assigns to a policy, if there are any.
    pub(super) fn known_spaces(
        &self,
        id: &PolicyId,
        mapping: &PolicyMappingFn,
        info: &WorkerInfo,
        seed: u64,
    ) -> Result<Option<EnvSpaces>, SetupError> {
        let env = match (&self.envs, &self.source) {
            (WorkerEnvs::None, _) => return Ok(None),
            (WorkerEnvs::Lanes(_), _) | (_, Some(RegisteredEnv::SingleAgent(_))) => return Ok(self.single_spaces()),
            (WorkerEnvs::Base(env), _) => env,
        };
        spaces_of_policy(env.as_ref(), id, mapping, info, seed)
    }
}
