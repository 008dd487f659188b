//! Bounds on runs: what a worker is ready to take on.

use crate::{protocol::handshake, run::RunSpec};

/// The most slots of a run.
const MAX_SLOTS: u32 = 1 << 16;
/// The most env steps of a slot per fragment.
const MAX_FRAGMENT_LENGTH: u32 = 1 << 16;
/// The most hidden layers.
const MAX_HIDDEN_LAYERS: usize = 8;
/// The widest hidden layer.
const MAX_HIDDEN_WIDTH: u32 = 4096;

/// Why a run cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name is empty, too long or not printable.
    #[error("the environment's name must have 1 to {max} printable ASCII characters", max = handshake::MAX_TEXT_BYTES)]
    Env,
    /// A number is out of its range.
    #[error("{name} is {value}, it must be from 1 to {max}")]
    Range {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The largest value.
        max: u32,
    },
    /// Too many hidden layers.
    #[error("{0} hidden layers are more than {MAX_HIDDEN_LAYERS}")]
    HiddenLayers(usize),
}

/// Checks the numbers of a run. Whether the environment exists is for the registry to say.
///
/// # Errors
/// [`SpecError`] names the first field that is out of its range.
pub fn check_spec(spec: &RunSpec) -> Result<(), SpecError> {
    if spec.env.is_empty() || !handshake::is_printable(&spec.env) {
        return Err(SpecError::Env);
    }
    if spec.hidden.len() > MAX_HIDDEN_LAYERS {
        return Err(SpecError::HiddenLayers(spec.hidden.len()));
    }
    let numbers = [
        ("num_slots", spec.num_slots, MAX_SLOTS),
        ("num_envs_per_worker", spec.num_envs_per_worker, MAX_SLOTS),
        ("rollout_fragment_length", spec.rollout_fragment_length, MAX_FRAGMENT_LENGTH),
    ];
    let widths = spec.hidden.iter().map(|&width| ("hidden", width, MAX_HIDDEN_WIDTH));
    for (name, value, max) in numbers.into_iter().chain(widths) {
        if value == 0 || value > max {
            return Err(SpecError::Range { name, value, max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    /// A change, and what is then said.
    type Case<'a> = (&'a dyn Fn(&mut RunSpec), &'a str);

    #[test]
    fn every_field_has_its_range() {
        let spec = RunSpec {
            env: "CartPole-v1".into(),
            seed: 1,
            num_slots: 16,
            num_envs_per_worker: 8,
            rollout_fragment_length: 32,
            hidden: vec![64, 64],
        };
        assert_eq!(check_spec(&spec), Ok(()));
        let cases: [Case<'_>; 6] = [
            (&|s| s.env.clear(), "the environment's name must have 1 to 64 printable ASCII characters"),
            (&|s| s.num_slots = 0, "num_slots is 0, it must be from 1 to 65536"),
            (&|s| s.num_envs_per_worker = 70_000, "num_envs_per_worker is 70000, it must be from 1 to 65536"),
            (&|s| s.rollout_fragment_length = 0, "rollout_fragment_length is 0, it must be from 1 to 65536"),
            (&|s| s.hidden = vec![1; 9], "9 hidden layers are more than 8"),
            (&|s| s.hidden[1] = 5000, "hidden is 5000, it must be from 1 to 4096"),
        ];
        for (change, message) in cases {
            let mut spec = spec.clone();
            change(&mut spec);
            assert_eq!(check_spec(&spec).unwrap_err().to_string(), message);
        }
    }
}
