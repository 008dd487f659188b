//! The previous step as a part of recurrent states, for models that see it.

use super::{ModelSpec, ObsEncoder, PolicyError};
use crate::{env::RowsRef, prelude::*, space::Space};

/// Writes the step before the next one to the end of a policy's recurrent states, where a model with
/// `lstm_use_prev_action` or `lstm_use_prev_reward` finds it: first the action, encoded as observations are, then the reward.
///
/// Before an episode's first step there are zeros. [`compute_actions`](super::Policy::compute_actions) writes the chosen action
/// and a reward of 0. After the environment's step, the sampler writes the action that was taken and its reward; so does a
/// caller that steps an environment without a sampler.
///
/// ```
/// use rollmesh_core::{
///     env::{EnvRegistry, RowsRef},
///     policy::{ModelConfig, ModelSpec, PreviousStep},
/// };
///
/// let spaces = EnvRegistry::builtin().spec("CartPole-v1")?.spaces()?;
/// let model = r#"{"use_lstm": true, "lstm_cell_size": 1, "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#;
/// let spec = ModelSpec::for_spaces(&spaces, &serde_json::from_str(model)?)?;
/// let previous = PreviousStep::of(&spec, &spaces.action)?.expect("the model sees the previous step");
/// let mut state = [0.5; 5];
/// previous.write(RowsRef::I64(&[1]), 2.0, &mut state, &mut Vec::new())?;
/// assert_eq!(state, [0.5, 0.5, 0.0, 1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PreviousStep {
    /// Encodes actions, if the model sees them.
    action: Option<ObsEncoder>,
    reward: bool,
}

impl PreviousStep {
    /// Returns the writer of a model for actions of this space; `None` for a model that sees no previous step.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for invalid spaces.
    pub fn of(spec: &ModelSpec, action: &Space) -> Result<Option<Self>, PolicyError> {
        let inputs = spec.previous();
        let action = (inputs.action_len > 0).then(|| ObsEncoder::for_space(action)).transpose()?;
        Ok((inputs.len() > 0).then_some(Self { action, reward: inputs.reward }))
    }

    /// Returns the length of a step.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.action.as_ref().map_or(0, ObsEncoder::len) + usize::from(self.reward)
    }

    /// Writes an action and its reward to the end of a row of recurrent states. `scratch` grows to the size of an encoded
    /// action.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for an action of another space, [`PolicyError::BufferLength`] for a row that is too short.
    pub fn write(
        &self,
        action: RowsRef<'_>,
        reward: f32,
        state: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), PolicyError> {
        self.write_rows(1, Some(action), Some(&[reward]), state, scratch)
    }

    /// Writes the actions and rewards of `rows` rows to the ends of their recurrent states. Without actions or rewards,
    /// those that the states hold stay: the actions that the policy chose, and rewards of 0.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`PolicyError::Unsupported`] for another number of rewards.
    pub fn write_rows(
        &self,
        rows: usize,
        actions: Option<RowsRef<'_>>,
        rewards: Option<&[f32]>,
        states: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), PolicyError> {
        if rows == 0 {
            return Ok(());
        }
        let (len, width) = (self.len(), states.len() / rows);
        if width < len {
            let (wanted, found) = (rows * len, states.len());
            return Err(PolicyError::BufferLength { buffer: "state", wanted, found });
        }
        let rewards = rewards.filter(|_| self.reward);
        if let Some(rewards) = rewards.filter(|rewards| rewards.len() != rows) {
            let (wanted, found) = (format!("{rows} previous rewards"), rewards.len().to_string());
            return Err(PolicyError::Unsupported { wanted, found });
        }
        let actions = match self.action.as_ref().zip(actions) {
            Some((encoder, actions)) => Some(encoder.encode_as("previous actions", actions, rows, scratch)?),
            None => None,
        };
        for (row, state) in states.chunks_exact_mut(width).enumerate() {
            let (action, reward) = state[width - len..].split_at_mut(len - usize::from(self.reward));
            if let Some(actions) = actions {
                let len = action.len();
                action.copy_from_slice(&actions[row * len..(row + 1) * len]);
            }
            if let Some(rewards) = rewards {
                reward.fill(rewards[row]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{env::EnvSpaces, policy::ModelConfig};

    fn previous() -> PreviousStep {
        let spaces = EnvSpaces::with_usual_types(Space::vector(&[0.0], &[1.0]), Space::Discrete { n: 2 });
        let model: ModelConfig = serde_json::from_str(
            r#"{"use_lstm": true, "lstm_cell_size": 1, "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#,
        )
        .unwrap();
        PreviousStep::of(&ModelSpec::for_spaces(&spaces, &model).unwrap(), &spaces.action).unwrap().unwrap()
    }

    #[test]
    fn rows_keep_what_is_not_given() {
        let (mut states, mut scratch) = ([9.0, 0.0, 1.0, 0.0, 8.0, 1.0, 0.0, 0.0], Vec::new());
        previous().write_rows(2, None, Some(&[2.0, 3.0]), &mut states, &mut scratch).unwrap();
        assert_eq!(states, [9.0, 0.0, 1.0, 2.0, 8.0, 1.0, 0.0, 3.0]);
        previous().write_rows(2, Some(RowsRef::I64(&[0, 1])), None, &mut states, &mut scratch).unwrap();
        assert_eq!(states, [9.0, 1.0, 0.0, 2.0, 8.0, 0.0, 1.0, 3.0]);
        previous().write_rows(0, None, Some(&[]), &mut [], &mut scratch).unwrap();
    }

    #[test]
    fn errors_name_the_previous_step() {
        let write = |actions: &[i64], rewards: &[f32]| {
            let rewards = Some(rewards);
            let written =
                previous().write_rows(1, Some(RowsRef::I64(actions)), rewards, &mut [0.0; 3], &mut Vec::new());
            written.unwrap_err().to_string()
        };
        assert_eq!(
            write(&[2], &[0.0]),
            "the policy takes previous actions of Discrete(2), not 2 outside of Discrete(2)"
        );
        assert_eq!(write(&[0, 1], &[0.0]), "the policy takes 1 previous actions of Discrete(2), not 2 values of int64");
        assert_eq!(write(&[0], &[]), "the policy takes 1 previous rewards, not 0");
    }
}
