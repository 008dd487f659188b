//! Sampling by a hub's workers, without a learner.

use rollmesh_core::{
    config::Config,
    env::{EnvContext, EnvRegistry, EnvSpaces},
    group::SamplingMode,
    ids::SlotId,
    policy::MlpPolicySpec,
    run::{RunSpec, SpecError},
};

use super::{MAX_LOCAL_WORKERS, TrainConfigError, config::check_mode};

/// A run that learns nothing: its rows are handed over as they are.
///
/// In synchronous mode they depend on `env`, `env_config`, `seed`, `num_envs` and `hidden` alone; neither workers nor
/// fragments show in them. In other modes each slot's rows are the same as long as no weights are set, but how many there
/// are of which slot depends on who is how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleConfig {
    /// Registered name of the environment.
    pub env: String,
    /// Settings of the environment.
    pub env_config: Config,
    /// Seed of everything random.
    pub seed: u64,
    /// Local worker processes.
    pub num_workers: u32,
    /// Slots of the run, whoever works on them.
    pub num_envs: u32,
    /// Widths of the hidden layers of the policy and of the value network.
    pub hidden: Vec<u32>,
    /// Env steps of a slot per fragment, and so of a lease.
    pub rollout_fragment_length: u32,
    /// The run ends with the first batch that reaches so many env steps.
    pub env_steps: u64,
    /// Which fragments make a batch.
    pub mode: SamplingMode,
}

impl SampleConfig {
    /// Two workers with 64 environments between them.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        Self {
            env: env.into(),
            env_config: Config::new(),
            seed: 0,
            num_workers: 2,
            num_envs: 64,
            hidden: vec![64, 64],
            rollout_fragment_length: 200,
            env_steps: 1_000_000,
            mode: SamplingMode::Synchronous,
        }
    }

    /// What workers must know of the run. All slots have one home, so that no environment sees how many workers there are.
    #[must_use]
    pub fn spec(&self) -> RunSpec {
        RunSpec {
            env: self.env.clone(),
            seed: self.seed,
            num_slots: self.num_envs,
            num_envs_per_worker: self.num_envs,
            rollout_fragment_length: self.rollout_fragment_length,
            hidden: self.hidden.clone(),
            env_config: self.env_config.clone(),
        }
    }

    /// Checks everything that can be checked before the run begins; returns the environment's spaces.
    ///
    /// # Errors
    /// [`TrainConfigError`], which names what is wrong.
    pub fn check(&self, envs: &EnvRegistry) -> Result<EnvSpaces, TrainConfigError> {
        let env = envs.spec(&self.env)?;
        if self.env_steps == 0 {
            return Err(TrainConfigError::Zero("env_steps"));
        }
        check_mode(self.mode)?;
        if self.num_workers > MAX_LOCAL_WORKERS {
            let (what, max, found) = ("the number of local workers", MAX_LOCAL_WORKERS, self.num_workers);
            return Err(SpecError::OutOfRange { what, max, found }.into());
        }
        let run = self.spec();
        run.check()?;
        let spaces = env.spaces_in(&EnvContext::of_slot(&run, SlotId(0)))?;
        MlpPolicySpec::for_spaces(&spaces, &self.hidden)?;
        Ok(spaces)
    }
}
