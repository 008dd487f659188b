//! The signal of an environment that an evaluation sums up.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{env::multi_agent::Turn, ids::AgentId, prelude::*};

/// The signal whose sum over an episode is its return. As text, parts are joined by `/`:
///
/// - `reward`: the reward, summed over all agents;
/// - `reward/AGENT`: the reward of one agent;
/// - `infos/NAME`, or deeper `infos/NAME/NAME`: a number or boolean in the infos, which must be JSON objects, summed over
///   all agents and the environment as a whole.
///
/// The prefix `next/`, as in TorchRL, may be omitted.
///
/// ```
/// use rollmesh_core::evaluation::RewardKey;
///
/// let key: RewardKey = "infos/progress/metres".parse()?;
/// assert_eq!(key, RewardKey::Infos(vec!["progress".into(), "metres".into()]));
/// assert_eq!("next/reward".parse(), Ok(RewardKey::default()));
/// assert!("rewards".parse::<RewardKey>().is_err());
/// # Ok::<(), rollmesh_core::evaluation::BadRewardKey>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[doc(alias = "reward_keys")]
pub enum RewardKey {
    /// The reward, summed over all agents.
    #[default]
    Reward,
    /// The reward of the agent of this name or number.
    RewardOf(String),
    /// The path of the number in the infos.
    Infos(Vec<String>),
}

/// The text names no signal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no reward signal: use reward, reward/AGENT or infos/NAME")]
pub struct BadRewardKey(String);

impl RewardKey {
    /// Returns the signal of a turn; `None` if the signal is not in it.
    #[must_use]
    pub fn read(&self, turn: &Turn) -> Option<f64> {
        match self {
            Self::Reward => Some(sum(turn.outcomes().map(|(_, outcome)| outcome.reward)).unwrap_or(0.0)),
            Self::RewardOf(name) => {
                let is_meant = |agent: &AgentId| match agent {
                    AgentId::Index(index) => name.parse() == Ok(*index),
                    AgentId::Name(other) => **other == **name,
                };
                sum(turn.outcomes().filter(|(agent, _)| is_meant(agent)).map(|(_, outcome)| outcome.reward))
            }
            Self::Infos(path) => {
                let infos = turn.infos().map(|(_, info)| info).chain(turn.info_of_all());
                sum(infos.filter_map(|info| number_at(info, path)))
            }
        }
    }
}

/// Returns the sum; `None` for an empty iterator.
fn sum(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    numbers.fold(None, |sum, number| Some(sum.unwrap_or(0.0) + number))
}

fn number_at(info: &[u8], path: &[String]) -> Option<f64> {
    let info: Value = serde_json::from_slice(info).ok()?;
    match path.iter().try_fold(&info, |value, name| value.get(name))? {
        Value::Bool(is) => Some(f64::from(u8::from(*is))),
        value => value.as_f64(),
    }
}

impl fmt::Display for RewardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reward => f.write_str("reward"),
            Self::RewardOf(agent) => write!(f, "reward/{agent}"),
            Self::Infos(path) => write!(f, "infos/{}", path.join("/")),
        }
    }
}

impl FromStr for RewardKey {
    type Err = BadRewardKey;

    fn from_str(text: &str) -> Result<Self, BadRewardKey> {
        let key = text.strip_prefix("next/").unwrap_or(text);
        let bad = || BadRewardKey(text.chars().take(64).collect());
        let (what, rest) = key.split_once('/').map_or((key, None), |(what, rest)| (what, Some(rest)));
        match (what, rest) {
            ("reward", None) => Ok(Self::Reward),
            ("reward", Some(agent)) if !agent.is_empty() => Ok(Self::RewardOf(agent.into())),
            ("infos", Some(path)) if path.split('/').all(|name| !name.is_empty()) => {
                Ok(Self::Infos(path.split('/').map(Into::into).collect()))
            }
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for RewardKey {
    type Error = BadRewardKey;

    fn try_from(text: String) -> Result<Self, BadRewardKey> {
        text.parse()
    }
}

impl From<RewardKey> for String {
    fn from(key: RewardKey) -> Self {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_round_trips_as_text() {
        for text in ["reward", "reward/3", "reward/car_1", "infos/lives", "infos/a/b"] {
            let key: RewardKey = text.parse().unwrap();
            assert_eq!(key.to_string(), text);
            assert_eq!(serde_json::from_str::<RewardKey>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
        }
        for text in ["", "next/", "rewards", "reward/", "infos", "infos/", "infos//a", "info/a"] {
            assert!(text.parse::<RewardKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_key_reads_its_signal() {
        let mut turn = Turn::new();
        let [one, car] = [AgentId::Index(1), AgentId::name("car")];
        turn.reward(&one, 2.0);
        turn.reward(&car, 0.5);
        turn.info(&one, *br#"{"speed": 3, "goal": {"reached": true}}"#);
        turn.info(&car, *br#"{"speed": 1.5}"#);
        turn.common_info(*b"no object");
        let read = |key: &str| key.parse::<RewardKey>().unwrap().read(&turn);
        assert_eq!((read("reward"), read("reward/1"), read("reward/car")), (Some(2.5), Some(2.0), Some(0.5)));
        assert_eq!((read("infos/speed"), read("infos/goal/reached")), (Some(4.5), Some(1.0)));
        assert_eq!((read("reward/2"), read("infos/height"), read("infos/goal")), (None, None, None));
        assert_eq!(RewardKey::Reward.read(&Turn::new()), Some(0.0));
    }
}
