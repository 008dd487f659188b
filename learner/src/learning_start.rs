//! Builds the learner and the settings of the loop of a run over leases.

use rollmesh_core::{
    config::{Config, ConfigError},
    filter::{FilterError, FilterKind, FilterTensorError, RunFilter},
    hub::{BatchConsumer, RunLoop, RunLoopConfig},
    ids::{LeaseId, PolicyId},
    policy::Postprocessing,
    run::RunConfig,
    sampler::FragmentLayout,
    time::Micros,
    weights::Weights,
    worker::LearningParts,
};

use super::{
    algorithm::all_settings,
    error::LearnError,
    learners::{ENV_STEPS, Learners, Results},
};

/// The learner of a run, and the settings of its loop.
pub struct LearningStart {
    /// The policies that learn.
    pub learners: Learners,
    /// The loop: its number is 0, and it has no leases yet.
    pub config: RunLoopConfig,
    /// The postprocessing of rows of one agent per slot.
    pub postprocessing: Postprocessing,
}

/// An error that keeps a run from beginning to learn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearningStartError {
    /// The policies or their saved state.
    #[error("the learner's state: {0}")]
    Learner(#[from] LearnError),
    /// The observation filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The filter's statistics among the weights.
    #[error("the weights that the run resumes with: {0}")]
    FilterTensors(#[from] FilterTensorError),
}

/// A setting of an algorithm is unknown or out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", .error.at(.path))]
pub struct AlgorithmSettingsError {
    /// The group of settings: `policy_config` or `policies.ID.config`.
    pub path: String,
    /// The error of the setting.
    pub error: ConfigError,
}

impl LearningStart {
    /// Creates the learner of a run from the policies that its leases need. `saved` are weights and the state of the
    /// learner of a run that is resumed, or the weights that a new run begins with and an empty state.
    ///
    /// # Errors
    /// [`LearningStartError`] names the mismatch.
    pub fn new(
        config: &RunConfig,
        parts: LearningParts,
        saved: Option<(Weights, Vec<u8>)>,
    ) -> Result<Self, LearningStartError> {
        let can_replay_actions = parts.can_replay_actions();
        let LearningParts { policies, layout, env_state, callbacks, info } = parts;
        let rollout = &config.rollout;
        let postprocessing = Learners::postprocessing_of(&policies);
        let mut learners = Learners::new(policies, rollout.policies_to_train.clone(), callbacks, info)?;
        let ids = learners.ids();
        let is_new = saved.is_none();
        let (weights, state) = match saved {
            Some(saved) => saved,
            None => (learners.weights()?, Vec::new()),
        };
        let (weights, mut filter) = filter_of(rollout.observation_filter, &layout, &ids, weights)?;
        if !is_new {
            learners.restore(&weights, &state)?;
        }
        let weights = match &mut filter {
            None => weights,
            Some(filter) => filter.publish(&weights),
        };
        let config = RunLoopConfig {
            number: 0,
            config: config.clone(),
            run_dir: String::new(),
            algo: config.algorithm.clone().unwrap_or_default(),
            throttle: Micros(0),
            layout,
            env_state,
            can_replay_actions,
            policies: ids,
            weights,
            filter,
            consumer: BatchConsumer::Learner(postprocessing),
            group: None,
            first_lease: LeaseId(0),
        };
        Ok(Self { learners, config, postprocessing })
    }
}

/// Returns weights without statistics of observations, and the filter of a run, which continues from those statistics if there
/// are any, as in a run that is resumed.
///
/// # Errors
/// [`LearningStartError::Filter`], [`LearningStartError::FilterTensors`].
pub fn filter_of(
    kind: FilterKind,
    layout: &FragmentLayout,
    policies: &[PolicyId],
    weights: Weights,
) -> Result<(Weights, Option<RunFilter>), LearningStartError> {
    if kind == FilterKind::NoFilter {
        return Ok((weights, None));
    }
    let (weights, found) = RunFilter::split_from(&weights, policies)?;
    let new = || RunFilter::new(kind, &layout.filtered(), policies, weights.version());
    let filter = found.map_or_else(new, |found| Ok(Some(found)))?;
    Ok((weights, filter))
}

/// Returns the settings of a run with those of its algorithm, the number of its slots and the size of its batches written out.
///
/// # Errors
/// [`AlgorithmSettingsError`] for an unknown setting of the algorithm or a value out of range.
pub fn written_out(mut config: RunConfig) -> Result<RunConfig, AlgorithmSettingsError> {
    let RunConfig { rollout, algorithm, .. } = &mut config;
    let all_settings = |path: String, kind: &str, settings: &Config| {
        all_settings(kind, settings).map_err(|error| AlgorithmSettingsError { path, error })
    };
    if let Some(algorithm) = algorithm.as_deref() {
        if rollout.policies.is_empty() {
            rollout.policy_config = all_settings("policy_config".into(), algorithm, &rollout.policy_config)?;
        }
        // Policies of several kinds share the settings that were given, and each has the others of its own kind.
        for (id, policy) in &mut rollout.policies {
            let kind = if policy.policy == "net" { algorithm } else { &policy.policy };
            // An error of the policy's own settings comes first, and any other is one of those that policies share.
            all_settings(format!("policies.{id}.config"), kind, &policy.config)?;
            let merged = rollout.policy_config.merged(&policy.config);
            policy.config = all_settings("policy_config".into(), kind, &merged)?;
        }
    }
    config.num_slots = Some(config.num_slots());
    config.mode = config.sampling_mode();
    Ok(config)
}

/// Returns the metrics of an iteration before the learner has its batch, for callbacks.
#[must_use]
pub fn results_before(state: &RunLoop) -> Results {
    let episodes = state.episodes();
    let means = [
        ("episode_return_mean", episodes.return_mean()),
        ("episode_len_mean", episodes.len_mean()),
        ("training_iteration", Some((state.iteration() + 1) as f64)),
        (ENV_STEPS, Some((state.env_steps() + state.batch_env_steps()) as f64)),
    ];
    means.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
