//! What a run is: the part of its configuration that every worker must know.
//!
//! ```
//! use rollmesh_core::{ids::SlotId, run::RunSpec};
//!
//! let run = RunSpec {
//!     env: "FrozenLake-v1".into(),
//!     seed: 1,
//!     num_slots: 16,
//!     num_envs_per_worker: 8,
//!     rollout_fragment_length: 128,
//!     hidden: vec![64, 64],
//!     env_config: r#"{"map_name": "8x8"}"#.parse()?,
//! };
//! run.check()?;
//! // Wherever slot 9 runs, its environment is told the same place.
//! let home = run.home(SlotId(9));
//! assert_eq!((home.worker_index, home.vector_index), (2, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use serde::{Deserialize, Serialize};

use crate::{config::Config, ids::SlotId, prelude::*};

/// The meaning of a run. Two runs with equal specs and equal weights have equal rows, whatever works on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Registered name of the environment, for example `CartPole-v1`.
    pub env: String,
    /// Seed of every random stream of the run.
    pub seed: u64,
    /// Slots of the run, fixed for its life.
    pub num_slots: u32,
    /// Slots that share one home worker: slot `s` has worker index `s / num_envs_per_worker + 1`
    /// and vector index `s % num_envs_per_worker`, wherever it runs.
    pub num_envs_per_worker: u32,
    /// Env steps of a slot per fragment.
    pub rollout_fragment_length: u32,
    /// Widths of the hidden layers of the policy and of the value network.
    pub hidden: Vec<u32>,
    /// Settings of the environment. On the wire they are JSON text.
    pub env_config: Config,
}

/// The identity that an environment of a slot sees, wherever the slot runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeIndex {
    /// Index of the home worker, from 1.
    pub worker_index: u32,
    /// Index within the home worker.
    pub vector_index: u32,
}

/// A run that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A number is out of its range.
    #[error("{what} must be between 1 and {max}, not {found}")]
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// The largest that is allowed.
        max: u32,
        /// What it is.
        found: u32,
    },
    /// Too many hidden layers.
    #[error("a policy has at most {max} hidden layers, not {0}", max = RunSpec::MAX_LAYERS)]
    TooDeep(usize),
    /// The environment's settings are too much for a message.
    #[error("an environment's settings have at most {max} bytes as JSON, not {0}", max = RunSpec::MAX_ENV_CONFIG_BYTES)]
    EnvConfigTooLong(usize),
}

impl RunSpec {
    /// The most slots of a run.
    pub const MAX_SLOTS: u32 = 65_536;
    /// The longest fragment.
    pub const MAX_FRAGMENT_LENGTH: u32 = 65_536;
    /// The widest hidden layer.
    pub const MAX_HIDDEN: u32 = 256;
    /// The most hidden layers.
    pub const MAX_LAYERS: usize = 32;
    /// The most bytes of an environment's settings, as JSON text.
    pub const MAX_ENV_CONFIG_BYTES: usize = 16_384;

    /// Checks the numbers; a spec may come from anybody.
    ///
    /// # Errors
    /// [`SpecError`], which names the number.
    pub fn check(&self) -> Result<(), SpecError> {
        let numbers = [
            ("num_slots", self.num_slots, Self::MAX_SLOTS),
            ("num_envs_per_worker", self.num_envs_per_worker, Self::MAX_SLOTS),
            ("rollout_fragment_length", self.rollout_fragment_length, Self::MAX_FRAGMENT_LENGTH),
        ];
        let hidden = self.hidden.iter().map(|&width| ("the width of a hidden layer", width, Self::MAX_HIDDEN));
        for (what, found, max) in numbers.into_iter().chain(hidden) {
            if found == 0 || found > max {
                return Err(SpecError::OutOfRange { what, max, found });
            }
        }
        if self.hidden.len() > Self::MAX_LAYERS {
            return Err(SpecError::TooDeep(self.hidden.len()));
        }
        let bytes = self.env_config.to_string().len();
        if bytes > Self::MAX_ENV_CONFIG_BYTES {
            return Err(SpecError::EnvConfigTooLong(bytes));
        }
        Ok(())
    }

    /// Home workers of the run: those that its slots' indices speak of, however many work on it.
    #[must_use]
    pub fn num_home_workers(&self) -> u32 {
        self.num_slots.div_ceil(self.num_envs_per_worker.max(1))
    }

    /// Indices of a slot's home.
    #[must_use]
    pub fn home(&self, slot: SlotId) -> HomeIndex {
        let per_worker = self.num_envs_per_worker.max(1);
        HomeIndex { worker_index: slot.0 / per_worker + 1, vector_index: slot.0 % per_worker }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_no_message_could_carry_are_refused() {
        let spec = |text: &str| RunSpec {
            env: "FrozenLake-v1".into(),
            seed: 0,
            num_slots: 3,
            num_envs_per_worker: 2,
            rollout_fragment_length: 1,
            hidden: vec![],
            env_config: Config::new().with("desc", text).unwrap(),
        };
        assert_eq!((spec("SFFG").check(), spec("SFFG").num_home_workers()), (Ok(()), 2));
        // With {"desc":""} around it.
        let longest = RunSpec::MAX_ENV_CONFIG_BYTES - 11;
        assert_eq!(spec(&"F".repeat(longest)).check(), Ok(()));
        let error = spec(&"F".repeat(longest + 1)).check().unwrap_err().to_string();
        assert_eq!(error, "an environment's settings have at most 16384 bytes as JSON, not 16385");
    }
}
