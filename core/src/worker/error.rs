//! Errors when a worker is set up or used.

use super::{DataParallelError, NeedsEpisodic, Unknown, WorkerStateError};
use crate::{
    batch::BatchError,
    callbacks::CallbackError,
    config::ConfigError,
    env::EnvError,
    estimate::EstimateError,
    filter::FilterError,
    ids::PolicyId,
    policy::{AllReduceError, JudgeError, PolicyError, PolicyMapError, StashError},
    prelude::*,
    run::RunConfigError,
    sampler::SampleError,
    space::SpaceError,
};

/// The reason why a worker could not be set up, and the required change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A name is not registered.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] RunConfigError),
    /// A setting has the wrong form.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Two settings conflict.
    #[error("{0}")]
    Conflict(&'static str),
    /// The lockstep sampler was chosen, but cannot sample this.
    #[error("this cannot be sampled in lockstep: {0}; leave the choice of the sampler out")]
    NeedsEpisodic(#[from] NeedsEpisodic),
    /// A setting needs a shell.
    #[error("'{setting}' needs {needs}, {fix}")]
    Unsupported {
        /// The setting.
        setting: &'static str,
        /// The part of the shell that it needs.
        needs: &'static str,
        /// The missing part, and the remedy.
        fix: &'static str,
    },
    /// An environment could not be created.
    #[error("sub-environment {env} cannot be made: {source}")]
    Env {
        /// Its index.
        env: u32,
        /// The environment's error.
        source: EnvError,
    },
    /// `validate_env` rejected an environment.
    #[error("sub-environment {env} is not valid: {source}")]
    InvalidEnv {
        /// Its index.
        env: u32,
        /// The cause.
        source: EnvError,
    },
    /// There are several policies for a single agent.
    #[error(
        "there are policies {policies}, but the environment has a single agent: name one policy 'default_policy', or \
         take an environment with several agents"
    )]
    SeveralPolicies {
        /// Their ids.
        policies: String,
    },
    /// A policy's spaces are neither given nor known from its agents.
    #[error(
        "policy '{0}' has no spaces: the environment has no agent that the mapping gives it; write its \
         observation_space and action_space"
    )]
    NoSpaces(PolicyId),
    /// Agents of one policy have different spaces.
    #[error(
        "policy '{policy}' acts for agents '{one}' and '{other}', whose spaces differ: write its observation_space and \
         action_space, or give them two policies"
    )]
    AmbiguousSpaces {
        /// The policy.
        policy: PolicyId,
        /// An agent.
        one: String,
        /// An agent with other spaces.
        other: String,
    },
    /// A policy to train does not exist.
    #[error("'{policy}' is among the policies to train, but there are only {known}")]
    UnknownTrained {
        /// Its id.
        policy: PolicyId,
        /// The existing policies.
        known: String,
    },
    /// A policy needs either a class or an object, and not both.
    #[error("policy '{0}' needs either a kind or an object that is a policy already, and not both")]
    KindOrObject(PolicyId),
    /// A policy's class is not registered.
    #[error("policy '{id}': {source}")]
    PolicyKind {
        /// The policy.
        id: PolicyId,
        /// The registered classes.
        source: Unknown,
    },
    /// A policy could not be created.
    #[error("policy '{id}': {source}")]
    Policy {
        /// The policy.
        id: PolicyId,
        /// The policy's error.
        source: PolicyError,
    },
    /// Observations of a policy cannot be preprocessed.
    #[error("policy '{id}': {source}")]
    Space {
        /// The policy.
        id: PolicyId,
        /// The fault of its space.
        source: SpaceError,
    },
    /// Observations of a policy cannot be filtered.
    #[error("policy '{id}': {source}")]
    Filter {
        /// The policy.
        id: PolicyId,
        /// The cause.
        source: FilterError,
    },
    /// A policy could not be added to the map.
    #[error(transparent)]
    PolicyMap(#[from] PolicyMapError),
    /// A policy's state does not fit.
    #[error("policy '{id}': {source}")]
    PolicyState {
        /// The policy.
        id: PolicyId,
        /// The cause.
        source: StashError,
    },
    /// User code failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// Sampler, input or output could not be opened.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl SetupError {
    /// Hint if there is no shell.
    pub(super) const TAKE_A_SHELL: &'static str =
        "which the core has not: set up the worker with the `rollmesh` crate's shell";
    /// Hint for environments of their own shape, which cannot run in other processes.
    pub(super) const OWN_SHAPE: &'static str = "environments of their own shape say themselves where they run: register a \
                                                single one, with one agent or several, or leave remote_worker_envs out";
    /// Hint if the shell does not support it.
    pub(super) const LEAVE_OUT: &'static str = "which this program's shell does not give: leave the setting out";
}

/// The reason why a method of a worker failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// The worker, or what was to be added, could not be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The worker was stopped.
    #[error("the worker was stopped; make a new one")]
    Stopped,
    /// The worker has neither environments nor an input.
    #[error(
        "the worker has neither environments nor input: it cannot sample. Set create_env_on_local_worker, or an input"
    )]
    NoInput,
    /// Fragments exist only for vector environments in lockstep.
    #[error("fragments of slots are only there for plain single-agent sampling; call sample")]
    NoFragments,
    /// A sample of another length is in progress.
    #[error("a sample of {begun} steps has begun, not one of {wanted}: complete it first")]
    HasBegun {
        /// Steps of each environment in the sample in progress.
        begun: u32,
        /// Requested steps.
        wanted: u32,
    },
    /// The input returned only empty batches.
    #[error("the input gave a batch without rows {0} times in a row")]
    EmptyInput(u32),
    /// Sampling failed.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A policy failed or does not fit.
    #[error("policy '{id}': {source}")]
    Policy {
        /// The policy.
        id: PolicyId,
        /// The policy's error.
        source: PolicyError,
    },
    /// The policy does not exist, or cannot be restored from the store.
    #[error(transparent)]
    PolicyMap(#[from] PolicyMapError),
    /// Rows could not be joined or changed.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// User code failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// A name is not registered.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The sample has another number of steps than expected.
    #[error(
        "{found} steps were sampled where {expected} were expected: batch sizes are out of step. Nothing was learned"
    )]
    Count {
        /// Expected steps.
        expected: usize,
        /// Sampled steps.
        found: usize,
    },
    /// A filter is missing for an existing policy.
    #[error("there is no filter for policy '{0}'; give one for each policy of the worker. Nothing has changed")]
    MissingFilter(PolicyId),
    /// A filter does not fit.
    #[error("the filter of policy '{id}': {source}. Nothing has changed")]
    Filter {
        /// The policy.
        id: PolicyId,
        /// The cause.
        source: FilterError,
    },
    /// The last policy cannot be removed.
    #[error("policy '{0}' is the last one, and a worker needs one")]
    LastPolicy(PolicyId),
    /// A mapping function would never be called.
    #[error(
        "the environments have a single agent each and are stepped together, all under '{id}': choose \
         SamplerChoice::Episodic, or give the mapping function when the worker is set up",
        id = PolicyId::DEFAULT
    )]
    FixedMapping,
    /// An off-policy estimate failed.
    #[error("the policy cannot be estimated: {0}")]
    Estimate(#[from] EstimateError),
    /// The policy, or the batch, lacks what an estimator needs.
    #[error("the policy cannot be estimated: {0}")]
    Judge(#[from] JudgeError),
    /// Batches of this kind cannot be estimated.
    #[error("the policy cannot be estimated: {0}")]
    NoEstimate(&'static str),
    /// The worker's state could not be saved or restored.
    #[error(transparent)]
    State(#[from] WorkerStateError),
    /// It is locked already.
    #[error("the worker is locked already, and a lock is not taken twice; unlock it first")]
    Locked,
    /// It is not locked.
    #[error("the worker is not locked")]
    NotLocked,
    /// The shell does not provide this fact about the machine.
    #[error("'{0}' is not known here; it is the shell's to say")]
    UnknownHost(&'static str),
    /// A part is missing.
    #[error("the worker is not healthy: {0}")]
    Unhealthy(&'static str),
    /// The ranks could not be joined.
    #[error(transparent)]
    DataParallel(#[from] DataParallelError),
    /// The ranks have not agreed, or one has disconnected.
    #[error(transparent)]
    AllReduce(#[from] AllReduceError),
    /// A policy is trained now that was not trained when the ranks joined.
    #[error(
        "policy '{0}' is trained, but has not joined the other ranks: call setup_data_parallel again, on all of them"
    )]
    NotJoined(PolicyId),
    /// The slice is empty, or its step is too large.
    #[error("a slice of samples has a step from 1 to 1024, and starts below it")]
    BadSlice,
}

impl From<EnvError> for RolloutError {
    fn from(error: EnvError) -> Self {
        Self::Sample(error.into())
    }
}

impl RolloutError {
    /// Converts a policy's error.
    pub(super) fn of_policy(id: &PolicyId) -> impl FnOnce(PolicyError) -> Self {
        let id = id.clone();
        move |source| match source {
            PolicyError::AllReduce(error) => Self::AllReduce(error),
            source => Self::Policy { id, source },
        }
    }
}
