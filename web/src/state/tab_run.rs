//! The run in this tab: the settings that reproduce it elsewhere, and the hash of its result.

use rollmesh_core::protocol::message::RunStatus;
use serde_json::Value;

use super::form::{GOAL, Texts, shown};

/// Data about the run in this tab that a hub's messages do not contain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TabRun {
    /// The settings with which it was started, by path; those left out have their defaults.
    pub settings: Vec<(String, Value)>,
    /// Number of the run that has ended, and the hash of its weights.
    pub weights_hash: Option<(u32, String)>,
}

impl TabRun {
    /// Returns the settings as the texts of a link. A run without a goal has an empty one: otherwise the environment's
    /// would apply.
    #[must_use]
    pub fn link(&self) -> Texts {
        let texts = self.settings.iter().map(|(path, value)| (path.clone(), shown(value)));
        [(GOAL.to_owned(), String::new())].into_iter().chain(texts).collect()
    }

    /// Returns the hash of the weights of a run that has ended.
    #[must_use]
    pub fn hash_of(&self, run: &RunStatus) -> Option<&str> {
        self.weights_hash.as_ref().filter(|(number, _)| *number == run.run).map(|(_, hash)| &**hash)
    }

    /// Returns the command with which the native program learns the same weights, from the same settings and number of
    /// env steps. A limit of wall time is left out, since it is not deterministic.
    #[must_use]
    pub fn command(&self, run: &RunStatus) -> String {
        const STEPS: &str = "stop.env_steps";
        let others = self.settings.iter().filter(|(path, _)| !matches!(&**path, STEPS | "stop.wall_s"));
        let settings = others.map(|(path, value)| format!("{path}={}", argument(value)));
        let steps = [format!("{STEPS}={}", run.env_steps)];
        let sets = settings.chain(steps).map(|setting| format!(" --set {}", quoted(&setting)));
        format!("rollmesh train{}", sets.collect::<String>())
    }
}

/// Returns a value as an argument of the command line: as JSON, or as plain text if that is not valid JSON.
fn argument(value: &Value) -> String {
    match value {
        Value::String(text) if serde_json::from_str::<Value>(text).is_err() => text.clone(),
        other => other.to_string(),
    }
}

/// Returns an argument, quoted for POSIX shells.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "=._-/:,+@%".contains(c);
    if text.chars().all(is_plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_command_has_the_settings_and_the_env_steps_that_were_learned_from() {
        let settings = [
            ("env", json!("CartPole-v1")),
            ("model_config.fcnet_hiddens", json!([32, 16])),
            ("policy_mapping_fn", json!("7")),
            ("env_config", json!({ "name": "it's" })),
            ("stop.env_steps", json!(100_000)),
            ("stop.wall_s", json!(60)),
        ];
        let settings = settings.map(|(path, value)| (path.to_owned(), value)).into();
        let tab = TabRun { settings, weights_hash: Some((2, "5a".into())) };
        let run = RunStatus { run: 2, env_steps: 2_048, ..RunStatus::default() };
        let wanted = "rollmesh train --set env=CartPole-v1 --set 'model_config.fcnet_hiddens=[32,16]' \
                      --set 'policy_mapping_fn=\"7\"' --set 'env_config={\"name\":\"it'\\''s\"}' --set stop.env_steps=2048";
        assert_eq!(tab.command(&run), wanted);
        assert_eq!((tab.hash_of(&run), tab.hash_of(&RunStatus::default())), (Some("5a"), None));
        let link = tab.link();
        assert_eq!((&*link["model_config.fcnet_hiddens"], &*link[GOAL]), ("[32,16]", ""));
    }
}
