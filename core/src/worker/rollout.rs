//! A worker by itself: environments and a policy in, batches out.

use super::lane_set::LaneSet;
use crate::{
    batch::{BatchError, SampleBatch, SlotFragment},
    env::{EnvContext, EnvError, EnvRegistry, UnknownEnv},
    ids::{FragmentNo, SlotId},
    kernels::Kernels,
    policy::{MlpPolicy, MlpPolicySpec, PolicyError, PolicyId, PolicyMap, PolicyMapError, RandomPolicy, init_weights},
    prelude::*,
    run::{HomeIndex, RunSpec, SpecError},
    sampler::{DriveError, LaneStart},
    weights::Weights,
};

/// How a standalone worker is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutConfig {
    /// Registered name of the environment.
    pub env: String,
    /// Number of environments, stepped together.
    pub num_envs: u32,
    /// Env steps of each environment per [`sample`](RolloutWorker::sample).
    pub rollout_fragment_length: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// What acts.
    pub policy: PolicyKind,
}

/// The kinds of policy that a worker can make by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Every action with equal probability.
    Random,
    /// Two networks with these hidden layers, with first weights from the seed.
    Mlp {
        /// Widths of the hidden layers.
        hidden: Vec<u32>,
    },
}

impl RolloutConfig {
    /// One environment, fragments of 200 steps, seed 0, two hidden layers of 64.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        Self {
            env: env.into(),
            num_envs: 1,
            rollout_fragment_length: 200,
            seed: 0,
            policy: PolicyKind::Mlp { hidden: vec![64, 64] },
        }
    }

    /// Sets the number of environments.
    #[must_use]
    pub fn num_envs(mut self, num_envs: u32) -> Self {
        self.num_envs = num_envs;
        self
    }

    /// Sets the steps of each environment per sample.
    #[must_use]
    pub fn rollout_fragment_length(mut self, steps: u32) -> Self {
        self.rollout_fragment_length = steps;
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets what acts.
    #[must_use]
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }
}

/// Why a worker could not be made or could not sample.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RolloutError {
    /// The environment is not registered.
    #[error(transparent)]
    UnknownEnv(#[from] UnknownEnv),
    /// A number is out of its range.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy does not fit the environment, or failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// There is no such policy.
    #[error(transparent)]
    PolicyMap(#[from] PolicyMapError),
    /// The rows could not be put together.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl From<DriveError> for RolloutError {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Env(error) => Self::Env(error),
            DriveError::Policy(error) => Self::Policy(error),
        }
    }
}

/// Steps environments with a policy and returns what happened.
///
/// ```
/// use rollmesh_core::{env::EnvRegistry, kernels::Kernels, worker::{RolloutConfig, RolloutWorker}};
///
/// let config = RolloutConfig::new("CartPole-v1").num_envs(8).rollout_fragment_length(100).seed(7);
/// let mut worker = RolloutWorker::new(config, &EnvRegistry::builtin(), Kernels::PORTABLE)?;
/// let batch = worker.sample()?;
/// assert_eq!(batch.len(), 800);
/// # Ok::<(), rollmesh_core::worker::RolloutError>(())
/// ```
#[doc(alias = "EnvRunner")]
#[doc(alias = "PolicyEvaluator")]
pub struct RolloutWorker {
    lanes: LaneSet,
    policies: PolicyMap,
    rollout_fragment_length: u32,
    next: FragmentNo,
}

impl RolloutWorker {
    /// Makes environments and policy.
    ///
    /// # Errors
    /// [`RolloutError`] for what does not exist or does not fit.
    pub fn new(config: RolloutConfig, envs: &EnvRegistry, kernels: Kernels) -> Result<Self, RolloutError> {
        let spec = envs.spec(&config.env)?;
        let numbers = [
            ("num_envs", config.num_envs, RunSpec::MAX_SLOTS),
            ("rollout_fragment_length", config.rollout_fragment_length, RunSpec::MAX_FRAGMENT_LENGTH),
        ];
        for (what, found, max) in numbers {
            if found == 0 || found > max {
                return Err(SpecError::OutOfRange { what, max, found }.into());
            }
        }
        let contexts: Vec<EnvContext> = (0..config.num_envs)
            .map(|vector_index| EnvContext::new(HomeIndex { worker_index: 0, vector_index }))
            .collect();
        let starts: Vec<LaneStart> =
            (0..config.num_envs).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
        let spaces = spec.spaces()?;
        let policies = match &config.policy {
            PolicyKind::Random => PolicyMap::single(Box::new(RandomPolicy::for_space(&spaces.action, config.seed)?)),
            PolicyKind::Mlp { hidden } => {
                let spec = MlpPolicySpec::for_spaces(&spaces, hidden)?;
                let weights = init_weights(&spec, config.seed)?;
                PolicyMap::single(Box::new(MlpPolicy::new(spec, weights, config.seed, kernels)?))
            }
        };
        let lanes = LaneSet::open(spec, &contexts, &starts, config.seed, kernels)?;
        Ok(Self { lanes, policies, rollout_fragment_length: config.rollout_fragment_length, next: FragmentNo(0) })
    }

    /// The next `rollout_fragment_length` steps of every environment, one environment after the other.
    ///
    /// # Errors
    /// [`RolloutError`] when environment or policy fail.
    pub fn sample(&mut self) -> Result<SampleBatch, RolloutError> {
        let fragments = self.sample_fragments(self.rollout_fragment_length)?;
        let parts: Result<Vec<_>, _> = fragments.iter().map(SlotFragment::with_derived).collect();
        Ok(SampleBatch::concat(&parts?)?)
    }

    /// The next `steps` steps of every environment, with cuts and states. Copies nothing that it need not.
    ///
    /// # Errors
    /// [`RolloutError`] when environment or policy fail.
    pub fn sample_fragments(&mut self, steps: u32) -> Result<Vec<SlotFragment>, RolloutError> {
        if steps == 0 || steps > RunSpec::MAX_FRAGMENT_LENGTH {
            let max = RunSpec::MAX_FRAGMENT_LENGTH;
            return Err(SpecError::OutOfRange { what: "steps", max, found: steps }.into());
        }
        let policy = self.policies.policy_mut(&PolicyId::DEFAULT)?;
        self.lanes.begin(self.next, policy.weights().version(), steps);
        self.next.0 += 1;
        loop {
            if let (_, Some(fragments)) = self.lanes.advance(policy, u32::MAX)? {
                return Ok(fragments);
            }
        }
    }

    /// Weights of the default policy.
    ///
    /// # Errors
    /// [`RolloutError::PolicyMap`] if it was removed.
    #[doc(alias = "get_weights")]
    pub fn weights(&mut self) -> Result<Weights, RolloutError> {
        Ok(self.policies.policy_mut(&PolicyId::DEFAULT)?.weights().clone())
    }

    /// Lets the default policy act with other weights.
    ///
    /// # Errors
    /// [`RolloutError::Policy`] when they do not fit.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), RolloutError> {
        Ok(self.policies.policy_mut(&PolicyId::DEFAULT)?.set_weights(weights)?)
    }

    /// Number of environments.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.lanes.len()
    }
}
