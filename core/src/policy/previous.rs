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
    /// Returns that of a model for actions of this space; `None` for a model that sees no previous step.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for invalid spaces.
    pub fn of(spec: &ModelSpec, action: &Space) -> Result<Option<Self>, PolicyError> {
        let inputs = spec.previous();
        let action = (inputs.action_len > 0).then(|| ObsEncoder::for_space(action)).transpose()?;
        Ok((inputs.len() > 0).then_some(Self { action, reward: inputs.reward }))
    }

    /// Numbers of a step.
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
        let (wanted, found) = (self.len(), state.len());
        let start = found.checked_sub(wanted).ok_or(PolicyError::BufferLength { buffer: "state", wanted, found })?;
        let (actions, rewards) = state[start..].split_at_mut(wanted - usize::from(self.reward));
        if let Some(encoder) = &self.action {
            actions.copy_from_slice(encoder.encode(action, 1, scratch)?);
        }
        rewards.fill(reward);
        Ok(())
    }
}
