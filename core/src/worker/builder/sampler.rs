//! Environments, and the sampler that fits them.

use super::{
    EnvSource, MovedEnvs, RemoteEnvs, RolloutWorkerBuilder, SamplerChoice, conflict, deepmind, envs::spaces_of_policy,
};
use crate::{
    action::ActionTransform,
    callbacks::{CallbackList, Callbacks as _, PolicyMappingFn, WorkerInfo},
    env::{AnyVectorEnv, BaseEnv, EnvContext, EnvSpaces, SubEnv, for_each_sub_env},
    filter::{Filter, FilterKind},
    ids::{AgentId, PolicyId},
    policy::{PolicyMap, Postprocessing},
    prelude::*,
    sampler::{BatchMode, CountStepsBy, Episodic, EpisodicOptions, RewardClipping},
    time::Micros,
    worker::{
        SetupError, WorkerPlace, config::PreprocessorPref, lane_set::takes_actions, lockstep::LockstepSampler,
        rollout::Source,
    },
};

/// The environments of a worker.
pub(super) enum Envs {
    None,
    Lanes(Box<dyn AnyVectorEnv>),
    Base(Box<dyn BaseEnv>),
}

/// What was found out while environments were made.
pub(super) struct Made {
    pub(super) envs: Envs,
    pub(super) source: Option<EnvSource>,
    pub(super) pref: PreprocessorPref,
    pub(super) clip_rewards: RewardClipping,
}

impl RolloutWorkerBuilder {
    /// Makes the environments, games in their wrappers. `plain` is false where only the general sampler will do.
    pub(super) fn make_envs(&mut self, contexts: &[EnvContext], plain: bool) -> Result<Made, SetupError> {
        let (pref, clip) = (self.config.preprocessor_pref, self.config.clip_rewards);
        let mut made = Made { envs: Envs::None, source: None, pref, clip_rewards: clip };
        let Some(source) = self.env_source()? else { return Ok(made) };
        if self.config.remote_worker_envs {
            let moved = self.remote_envs(contexts)?;
            if moved.are_wrapped {
                made.in_wrappers();
            }
            made.envs = Envs::Base(moved.envs);
            made.source = Some(source);
            return Ok(made);
        }
        let lanes = source.is_single_agent() && plain && self.may_be_lockstep();
        made.envs = self.make(&source, contexts, lanes)?;
        made.source = Some(source);
        let Some(spaces) = made.single_spaces().filter(|_| pref == PreprocessorPref::DeepMind) else { return Ok(made) };
        if !deepmind::is_game(&spaces) {
            return Ok(made);
        }
        // One game at a time: the unwrapped ones go first.
        made.envs = Envs::None;
        let Some(EnvSource::Single { factory, limit, name }) = made.source.take() else { return Ok(made) };
        let options = deepmind::options(&self.config.model_config, &name)?;
        let wrapped = EnvSource::Single { factory, limit, name }.wrapped(options);
        made.in_wrappers();
        made.envs = self.make(&wrapped, contexts, lanes && made.clip_rewards == RewardClipping::Off)?;
        made.source = Some(wrapped);
        Ok(made)
    }

    fn make(&self, source: &EnvSource, contexts: &[EnvContext], lanes: bool) -> Result<Envs, SetupError> {
        Ok(match lanes {
            true => Envs::Lanes(self.make_lanes(source, contexts)?),
            false => Envs::Base(self.make_base(source.clone(), contexts)?),
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

    /// Whether the settings allow all environments to be stepped together.
    fn may_be_lockstep(&self) -> bool {
        let config = &self.config;
        self.sampler != SamplerChoice::Episodic
            && config.batch_mode == BatchMode::TruncateEpisodes
            && config.count_steps_by == CountStepsBy::EnvSteps
            && config.observation_filter == FilterKind::NoFilter
            && config.horizon.is_none()
            && !config.no_done_at_end
            && !config.restart_failed_sub_environments
            && matches!(config.clip_rewards, RewardClipping::Auto | RewardClipping::Off)
            && config.explore
    }

    /// Environments that are to be stepped together stay so only if the policy allows it, too.
    pub(super) fn settle(
        &self,
        made: Made,
        contexts: &[EnvContext],
        policies: &mut PolicyMap,
    ) -> Result<Made, SetupError> {
        let lanes = matches!(made.envs, Envs::Lanes(_));
        if lanes && self.policy_allows_lockstep(&made, policies)? {
            return Ok(made);
        }
        if self.sampler == SamplerChoice::Lockstep {
            return Err(conflict(
                "this cannot be sampled in lockstep: it takes single agents without memory or infos, fragments of equal \
                 length, and rows that go to the policy and back as they are; leave the choice of the sampler out",
            ));
        }
        match (lanes, made.source) {
            (true, Some(source)) => {
                drop(made.envs);
                let envs = self.make(&source, contexts, false)?;
                Ok(Made { envs, source: Some(source), ..made })
            }
            (_, source) => Ok(Made { source, ..made }),
        }
    }

    fn policy_allows_lockstep(&self, made: &Made, policies: &mut PolicyMap) -> Result<bool, SetupError> {
        let Some(spaces) = made.single_spaces().filter(|_| !made.has_infos()) else { return Ok(false) };
        let (normalize, clip) = (self.config.normalize_actions, self.config.clip_actions);
        let entry = policies.get_mut(&PolicyId::DEFAULT)?;
        let policy = &entry.policy;
        Ok(entry.preprocessor.is_none()
            && entry.filter == Filter::NoFilter
            && policy.state_lens().is_empty()
            && policy.view_requirements().is_empty()
            && policy.postprocessing() != Postprocessing::Custom
            && takes_actions(spaces.action_type)
            && ActionTransform::for_space(&spaces.action, normalize, clip) == ActionTransform::None)
    }

    /// Shows every sub-environment to `validate_env` and to callbacks.
    pub(super) fn look_at_envs(
        &mut self,
        envs: &mut Envs,
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
        if let (Envs::Base(env), Some(validate)) = (envs, validate) {
            // Those that are made again later.
            env.validate_with(validate);
        }
        looked
    }

    pub(super) fn make_sampler(
        &mut self,
        made: Made,
        limit: Option<u32>,
        single_agent: bool,
    ) -> Result<Source, SetupError> {
        // An environment of the user's own shape may have more lanes than it was asked for.
        let lanes = match &made.envs {
            Envs::Base(env) => u32::try_from(env.num_envs()).unwrap_or(u32::MAX).min(WorkerPlace::MAX_ENVS),
            Envs::None | Envs::Lanes(_) => self.config.num_envs,
        };
        let each = lanes.max(self.config.num_envs);
        let slots: Vec<_> = (0..lanes).filter_map(|index| self.place.slot(each, index)).collect();
        let length = self.fragment_length();
        Ok(match made.envs {
            Envs::None => Source::None,
            Envs::Lanes(env) => {
                let sampler = LockstepSampler::new(env, &slots, self.seed(), limit, length);
                let mut sampler = sampler.map_err(|source| SetupError::Env { env: 0, source })?;
                sampler.check_size(length)?;
                Source::Lockstep(Box::new(sampler))
            }
            Envs::Base(env) => {
                let slots = slots.into_iter().map(|slot| (slot, 0)).collect();
                let config = &self.config;
                let options = EpisodicOptions {
                    fragment_length: length,
                    batch_mode: config.batch_mode,
                    count_steps_by: config.count_steps_by,
                    // As in RLlib: a horizon beyond the environment's own limit takes its place.
                    max_episode_steps: limit.filter(|limit| config.horizon.is_none_or(|horizon| horizon <= *limit)),
                    horizon: config.horizon,
                    horizon_means: config.horizon_means,
                    no_done_at_end: config.no_done_at_end,
                    clip_rewards: made.clip_rewards,
                    clip_actions: config.clip_actions,
                    normalize_actions: config.normalize_actions,
                    explore: config.explore,
                    seed: self.seed(),
                    single_agent,
                    ..EpisodicOptions::new(slots)
                };
                Source::Reader(Box::new(Episodic::new(options, env)?))
            }
        })
    }
}

impl Envs {
    /// Shows every sub-environment, or all together where they cannot be reached one by one.
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

impl Made {
    /// They are games in DeepMind's wrappers: there is nothing left to preprocess.
    fn in_wrappers(&mut self) {
        self.pref = PreprocessorPref::None;
        if self.clip_rewards == RewardClipping::Auto {
            self.clip_rewards = RewardClipping::Sign;
        }
    }

    /// One context per sub-environment, also where those of the user's own shape are not as many as were asked for.
    pub(super) fn fitting(&self, contexts: Vec<EnvContext>) -> Result<Vec<EnvContext>, SetupError> {
        let (Envs::Base(env), Some(first)) = (&self.envs, contexts.first()) else { return Ok(contexts) };
        let num_envs = u32::try_from(env.num_envs()).ok().filter(|num_envs| *num_envs <= WorkerPlace::MAX_ENVS);
        let num_envs = num_envs.ok_or_else(|| conflict("a worker has at most 65536 sub-environments: make fewer"))?;
        Ok((0..num_envs).map(|index| first.with_vector_index(index)).collect())
    }

    /// Whether each environment has one agent: made so, or of the user's own shape with [`AgentId::SINGLE`] alone.
    pub(super) fn is_single_agent(&self) -> bool {
        match (&self.source, &self.envs) {
            (Some(EnvSource::Base(_)), Envs::Base(env)) => env.agents() == [AgentId::SINGLE],
            (source, _) => source.as_ref().is_some_and(EnvSource::is_single_agent),
        }
    }

    /// Whether lanes have infos, of which lockstep knows nothing.
    fn has_infos(&self) -> bool {
        matches!(&self.envs, Envs::Lanes(env) if env.info_at(0, &mut Vec::new()))
    }

    fn single_spaces(&self) -> Option<EnvSpaces> {
        match &self.envs {
            Envs::None => None,
            Envs::Lanes(env) => Some(EnvSpaces::of(env.as_ref())),
            Envs::Base(env) => env.spaces(&AgentId::SINGLE),
        }
    }

    /// Spaces of the agents that the mapping gives a policy, if there are any and they are the same.
    pub(super) fn known_spaces(
        &self,
        id: &PolicyId,
        mapping: &PolicyMappingFn,
        info: &WorkerInfo,
        seed: u64,
    ) -> Result<Option<EnvSpaces>, SetupError> {
        let env = match (&self.envs, &self.source) {
            (Envs::None, _) => return Ok(None),
            (Envs::Lanes(_), _) | (_, Some(EnvSource::Single { .. })) => return Ok(self.single_spaces()),
            (Envs::Base(env), _) => env,
        };
        spaces_of_policy(env.as_ref(), id, mapping, info, seed)
    }
}
