//! Defines the interface of value models.

use super::EstimateError;
use crate::prelude::*;

/// Logged steps from which a model learns the values of actions under another policy. All arrays are row-major with one row
/// per step, and have the same number of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transitions {
    /// Length of an observation.
    pub obs_len: usize,
    /// Number of actions.
    pub num_actions: usize,
    /// Observations, `[rows, obs_len]`.
    pub obs: Vec<f32>,
    /// Actions, from 0 on, `[rows]`.
    pub actions: Vec<u32>,
    /// Rewards, `[rows]`.
    pub rewards: Vec<f32>,
    /// Whether the episode terminated, `[rows]`.
    pub terminateds: Vec<bool>,
    /// The next observations, `[rows, obs_len]`.
    pub new_obs: Vec<f32>,
    /// The policy's probability of each action at the next observation, `[rows, num_actions]`.
    pub new_probs: Vec<f32>,
}

impl Transitions {
    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Returns whether there are no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Checks that the numbers of rows are equal, every action is valid, and every number is finite.
    ///
    /// # Errors
    /// [`EstimateError::Model`].
    pub fn check(&self) -> Result<(), EstimateError> {
        let wrong = |what: &str| Err(EstimateError::Model(format!("the transitions {what}")));
        let (rows, [obs, probs]) = (self.len(), [self.obs_len, self.num_actions].map(|n| n.checked_mul(self.len())));
        if [self.rewards.len(), self.terminateds.len()] != [rows; 2]
            || [Some(self.obs.len()), Some(self.new_obs.len()), Some(self.new_probs.len())] != [obs, obs, probs]
        {
            return wrong("have columns of different lengths");
        }
        if self.actions.iter().any(|action| *action as usize >= self.num_actions) {
            return wrong("have actions that there are not");
        }
        let all = [&self.obs, &self.new_obs, &self.rewards, &self.new_probs];
        if all.into_iter().flatten().any(|number| !number.is_finite()) {
            return wrong("hold numbers that are not finite");
        }
        Ok(())
    }
}

/// A model of the values of actions under a policy, learned from another policy's actions: [`DirectMethod`] and
/// [`DoublyRobust`] need it.
///
/// [`DirectMethod`]: super::Estimator::DirectMethod
/// [`DoublyRobust`]: super::Estimator::DoublyRobust
#[doc(alias = "FQETorchModel")]
pub trait QModel: Send {
    /// Trains on steps, continuing from the current state. Returns the last loss.
    ///
    /// # Errors
    /// [`EstimateError::Model`], also for transitions with other sizes of observations or actions.
    #[doc(alias = "train")]
    fn fit(&mut self, transitions: &Transitions) -> Result<f64, EstimateError>;

    /// Computes the values of all actions in each observation: `q` is `[rows, num_actions]`.
    ///
    /// # Errors
    /// [`EstimateError::Model`].
    #[doc(alias("estimate_q", "estimate_v"))]
    fn q_values(&mut self, obs: &[f32], q: &mut [f32]) -> Result<(), EstimateError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_are_checked() {
        let good = Transitions {
            obs_len: 2,
            num_actions: 2,
            obs: vec![0.0; 2],
            actions: vec![1],
            rewards: vec![1.0],
            terminateds: vec![true],
            new_obs: vec![0.0; 2],
            new_probs: vec![0.5; 2],
        };
        good.check().unwrap();
        let refused = |change: &dyn Fn(&mut Transitions)| {
            let mut changed = good.clone();
            change(&mut changed);
            changed.check().unwrap_err().to_string()
        };
        assert!(refused(&|t| t.obs_len = usize::MAX).contains("different lengths"));
        assert!(refused(&|t| t.terminateds.clear()).contains("different lengths"));
        assert!(refused(&|t| t.actions[0] = 2).contains("actions that there are not"));
        assert!(refused(&|t| t.rewards[0] = f32::NAN).contains("not finite"));
    }
}
