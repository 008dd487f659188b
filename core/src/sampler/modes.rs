//! Modes of batches: length, ends of episodes, and clipping of rewards.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::prelude::*;

/// Whether episodes may be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchMode {
    /// Fragments of equal length; episodes continue in the next one.
    #[default]
    TruncateEpisodes,
    /// Whole episodes, until they have at least as many steps.
    CompleteEpisodes,
}

/// The unit of a fragment's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountStepsBy {
    /// Steps of the environment, however many agents act.
    #[default]
    EnvSteps,
    /// Rows: steps of agents. Checked after whole env steps.
    AgentSteps,
}

impl CountStepsBy {
    /// Returns the number that is counted.
    #[must_use]
    pub const fn of(self, env_steps: usize, agent_steps: usize) -> usize {
        match self {
            Self::EnvSteps => env_steps,
            Self::AgentSteps => agent_steps,
        }
    }
}

/// The end of an episode at the horizon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Horizon {
    /// The episode is truncated, and bootstrapped with the policy's value estimate.
    #[default]
    Truncated,
    /// As in old versions of RLlib: the episode counts as terminated, without bootstrapping. This biases values.
    LegacyHard,
    /// As in old versions of RLlib: a new episode begins in the metrics, the last row has no flag, and the environment
    /// continues without a reset.
    #[doc(alias = "soft_horizon")]
    LegacySoft,
}

/// The clipping of rewards: `null`, `true`, `false` or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RewardClipping {
    /// To their sign for games in DeepMind's wrappers, else not at all. Written `null`.
    #[default]
    Auto,
    /// Not at all. Written `false`.
    Off,
    /// To their sign: 0.3 becomes 1. Written `true`.
    Sign,
    /// Between minus and plus a number.
    Limit(f64),
}

impl RewardClipping {
    /// Returns whether it changes rewards. [`Auto`](Self::Auto), which only a worker's builder resolves, does not.
    pub(super) const fn is_on(self) -> bool {
        matches!(self, Self::Sign | Self::Limit(_))
    }

    /// Clips rewards. Zero and NaN are unchanged.
    pub(super) fn clip(self, rewards: &mut [f32]) {
        match self {
            Self::Auto | Self::Off => {}
            Self::Sign => {
                for reward in rewards.iter_mut().filter(|reward| **reward != 0.0 && !reward.is_nan()) {
                    *reward = if *reward > 0.0 { 1.0 } else { -1.0 };
                }
            }
            Self::Limit(limit) => {
                let limit = limit as f32;
                for reward in rewards {
                    *reward = match *reward {
                        high if high > limit => limit,
                        low if low < -limit => -limit,
                        within => within,
                    };
                }
            }
        }
    }
}

impl Serialize for RewardClipping {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_none(),
            Self::Off => serializer.serialize_bool(false),
            Self::Sign => serializer.serialize_bool(true),
            Self::Limit(limit) => serializer.serialize_f64(*limit),
        }
    }
}

impl<'de> Deserialize<'de> for RewardClipping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "rewards are clipped by null, true, false or a number above 0")]
        enum RewardClippingForm {
            Sign(bool),
            Limit(f64),
        }
        match Option::<RewardClippingForm>::deserialize(deserializer)? {
            None => Ok(Self::Auto),
            Some(RewardClippingForm::Sign(false)) => Ok(Self::Off),
            Some(RewardClippingForm::Sign(true)) => Ok(Self::Sign),
            Some(RewardClippingForm::Limit(limit)) if limit > 0.0 && limit.is_finite() => Ok(Self::Limit(limit)),
            Some(RewardClippingForm::Limit(limit)) => {
                Err(serde::de::Error::custom(format!("rewards are clipped to a positive number, not {limit}")))
            }
        }
    }
}
