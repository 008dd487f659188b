//! A policy with a constant action.

use rollmesh_core::{
    config::ConfigError,
    env::{RowsMut, RowsRef},
    ids::WeightsVersion,
    policy::{ActionInput, ActionOutput, Policy, PolicyContext, PolicyError},
    space::Space,
    weights::Weights,
};

/// A policy that always chooses the action in the setting `action`.
#[derive(Clone, Debug)]
pub struct Steady {
    action: i64,
    weights: Weights,
}

impl Steady {
    /// Creates the policy for discrete actions.
    ///
    /// # Errors
    /// [`PolicyError::Config`] for an action outside the space, [`PolicyError::Unsupported`] for other spaces.
    pub fn new(context: &PolicyContext) -> Result<Self, PolicyError> {
        let Space::Discrete { n } = context.spaces.action else {
            let found = context.spaces.action.to_string();
            return Err(PolicyError::Unsupported { wanted: "discrete actions".into(), found });
        };
        let action = context.config.get::<u32>("action")?.unwrap_or(0);
        if action >= n {
            let reason = format!("there is no action {action}, they are 0..{n}");
            return Err(ConfigError::BadValue { name: "action".into(), reason }.into());
        }
        Ok(Self { action: i64::from(action), weights: Weights::new(WeightsVersion(0), Vec::new())? })
    }
}

impl Policy for Steady {
    fn compute_actions(&mut self, input: ActionInput<'_>, mut out: ActionOutput<'_>) -> Result<(), PolicyError> {
        out.check(input.moments.len(), 1)?;
        match &mut out.actions {
            RowsMut::I64(actions) => actions.fill(self.action),
            other => {
                let found = other.dtype().to_string();
                return Err(PolicyError::Unsupported { wanted: "int64 actions".into(), found });
            }
        }
        // Each action has the probability 1.
        out.logp.fill(0.0);
        out.vf_preds.fill(0.0);
        Ok(())
    }

    fn compute_values(&mut self, _obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.weights = weights.clone();
        Ok(())
    }
}
