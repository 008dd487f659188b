//! Losses of a sampler.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// The losses of a sampler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Env steps that were taken and will be in no batch: of episodes that were lost with their environment, or that were in
    /// progress when something else failed or when the sampler's state was set.
    pub env_steps: u64,
    /// Agents' rows in those env steps.
    pub agent_steps: u64,
    /// Env steps of a sampler whose batches are discarded, since only its metrics are used.
    pub blackholed_env_steps: u64,
    /// Agents' rows in those env steps.
    pub blackholed_agent_steps: u64,
    /// Lines of files that were skipped because they are not batches; counted each time they were read.
    pub corrupt_lines: u64,
    /// The sub-environments that are quarantined now, in the order of their indices.
    pub quarantined: Vec<Quarantined>,
}

/// A sub-environment that has failed repeatedly and is no longer stepped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Index of the sub-environment.
    pub env: usize,
    /// Its last failure.
    pub reason: String,
}

impl Losses {
    /// Adds later losses.
    pub fn add(&mut self, later: Self) {
        self.env_steps = self.env_steps.saturating_add(later.env_steps);
        self.agent_steps = self.agent_steps.saturating_add(later.agent_steps);
        self.blackholed_env_steps = self.blackholed_env_steps.saturating_add(later.blackholed_env_steps);
        self.blackholed_agent_steps = self.blackholed_agent_steps.saturating_add(later.blackholed_agent_steps);
        self.corrupt_lines = self.corrupt_lines.saturating_add(later.corrupt_lines);
        self.quarantined = later.quarantined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_and_the_latest_quarantine_counts() {
        let out = |env| Quarantined { env, reason: "no power".into() };
        let losses = |env_steps, agent_steps, blackholed, quarantined| Losses {
            env_steps,
            agent_steps,
            blackholed_env_steps: blackholed,
            blackholed_agent_steps: blackholed,
            corrupt_lines: env_steps,
            quarantined,
        };
        let mut sum = losses(1, 2, 3, vec![out(0), out(3)]);
        sum.add(losses(10, u64::MAX, 4, vec![out(3)]));
        assert_eq!(sum, losses(11, u64::MAX, 7, vec![out(3)]));
    }
}
