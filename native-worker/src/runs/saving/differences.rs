//! Differences of two configurations.

use std::fmt;

use rollmesh_core::run::{RunConfig, RunConfigError};
use serde_json::{Map, Value, json};

/// Settings without influence on a run's rows: its end, checkpoints, evaluation and workers; including all settings within
/// them.
const FREE: [&str; 6] = ["num_workers", "preset", "stop", "checkpoint_interval", "hung_worker_timeout_s", "evaluation"];

/// A setting with different values in two configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The setting, with dots between the names of tables.
    pub name: String,
    /// Its value in the run, as TOML; `None` if it is not set there.
    pub stored: Option<String>,
    /// The other value.
    pub other: Option<String>,
}

/// Settings with different values in two configurations, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Differences(pub Vec<Difference>);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".into());
        write!(f, "{} is {}, not {}", self.name, value(&self.stored), value(&self.other))
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(Difference::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

/// Returns the differences that affect the rows; `None` if one run can continue the other.
pub(super) fn between(stored: &RunConfig, other: &RunConfig) -> Result<Option<Differences>, RunConfigError> {
    let settings = |config: &RunConfig| match config.settings().map(|settings| json!(settings))? {
        Value::Object(settings) => Ok::<_, RunConfigError>(settings),
        _ => Ok(Map::new()),
    };
    let (stored, other) = (settings(stored)?, settings(other)?);
    let mut found = Vec::new();
    compare("", &stored, &other, &mut found);
    // Unlike with leases, the number of workers that read affects the rows.
    let reads = [&stored, &other].iter().any(|settings| settings.get("input").is_some_and(|input| input != "sampler"));
    let is_free =
        |name: &str| FREE.iter().any(|free| name.split('.').next() == Some(*free)) && !(reads && name == "num_workers");
    found.retain(|difference| !is_free(&difference.name));
    Ok((!found.is_empty()).then_some(Differences(found)))
}

fn compare(above: &str, stored: &Map<String, Value>, other: &Map<String, Value>, found: &mut Vec<Difference>) {
    let only_other = other.keys().filter(|key| !stored.contains_key(*key));
    for key in stored.keys().chain(only_other) {
        let name = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        let set = |settings: &Map<String, Value>| settings.get(key).filter(|value| !value.is_null()).cloned();
        match (&set(stored), &set(other)) {
            (a, b) if a == b => {}
            (Some(Value::Object(a)), Some(Value::Object(b))) => compare(&name, a, b, found),
            (a, b) => {
                found.push(Difference { name, stored: a.as_ref().map(text), other: b.as_ref().map(text) });
            }
        }
    }
}

/// Formats a value as TOML.
fn text(value: &Value) -> String {
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_named_with_both_values_and_ends_are_free() {
        let stored = RunConfig::new("CartPole-v1").stop_at_return(475.0);
        let mut longer = RunConfig { checkpoint_interval: 7, ..stored.clone().stop_after(7) };
        longer.stop.episode_return_mean = None;
        assert_eq!(between(&stored, &longer).unwrap(), None);
        let mut other = longer.seed(2).env_config(r#"{"a": 1}"#.parse().unwrap());
        other.rollout.env = Some("Acrobot-v1".into());
        other = other.policy_config(r#"{"lr": 0.5}"#.parse().unwrap());
        let text = between(&stored, &other).unwrap().unwrap().to_string();
        let wanted = [
            r#"env is "CartPole-v1", not "Acrobot-v1""#.to_owned(),
            "seed is 0, not 2".into(),
            "policy_config.lr is not set, not 0.5".into(),
            "env_config.a is not set, not 1".into(),
        ];
        assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(text.split("; ").count(), wanted.len());
    }
}
