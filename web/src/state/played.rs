//! A policy that plays in this tab.

use serde::Deserialize;

/// Status of the policy and of its current episode.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Played {
    /// The environment; empty before the policy has been read.
    pub env: String,
    /// Number of discrete actions; 0 for other action spaces.
    pub actions: u32,
    /// Number of the episode.
    pub episode: u32,
    /// Its steps so far.
    pub steps: u32,
    /// Its return so far.
    pub total: f64,
    /// The return of the previous episode.
    pub last: Option<f64>,
    /// True if the user has chosen the latest action.
    pub taken: bool,
    /// True if the environment has a picture.
    pub picture: bool,
    /// The file of the policy that is still missing; empty if none is.
    pub missing: String,
    /// The reason why the policy does not play; empty if it does.
    pub error: String,
}

impl Played {
    /// Returns the action that a key stands for.
    #[must_use]
    pub fn action_of(&self, key: &str) -> Option<u32> {
        let action = match key {
            "ArrowLeft" => 0,
            "ArrowRight" => self.actions.checked_sub(1)?,
            digit => digit.parse().ok().filter(|_| digit.len() == 1)?,
        };
        (action < self.actions).then_some(action)
    }

    /// Returns the status in a sentence.
    #[must_use]
    pub fn say(&self) -> String {
        if !self.error.is_empty() {
            return format!("It does not play: {}.", self.error);
        }
        if !self.missing.is_empty() {
            return format!("Drop {}, too: the two files are one policy.", self.missing);
        }
        if self.env.is_empty() {
            return "Loading".into();
        }
        let who = if self.taken { "you play" } else { "the policy plays" };
        let last = self.last.map_or_else(String::new, |last| format!("; the last one returned {last}"));
        format!("{}: {who} episode {}, step {}, return {}{last}.", self.env, self.episode, self.steps, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_for_actions_that_there_are() {
        let game = Played { actions: 4, ..Played::default() };
        let actions = ["ArrowLeft", "ArrowRight", "2", "4", "12", "a", "Tab"].map(|key| game.action_of(key));
        assert_eq!(actions, [Some(0), Some(3), Some(2), None, None, None, None]);
        assert_eq!(Played::default().action_of("ArrowLeft"), None);
    }

    #[test]
    fn sentence_names_missing_inputs_and_the_playing_policy() {
        let file = Played { missing: "policy.json".into(), ..Played::default() };
        assert!(file.say().contains("policy.json"));
        let game = Played { env: "A".into(), episode: 2, steps: 3, total: 4.5, last: Some(9.0), taken: true, ..file };
        assert_eq!(
            Played { missing: String::new(), ..game }.say(),
            "A: you play episode 2, step 3, return 4.5; the last one returned 9."
        );
    }
}
