//! Action masks: which actions a policy may choose, as a part of its observations.

use crate::{
    distribution::{ActionDistribution, Distribution as _},
    policy::PolicyError,
    prelude::*,
    space::Space,
};

/// The part of an observation that is the mask.
const MASK: &str = "action_mask";

/// The accepted names of the other part.
const OBSERVATIONS: [&str; 3] = ["observations", "obs", "observation"];

/// The logit of an action that may not be chosen. Its exponential is 0, and differences of such logits are finite.
pub const MASKED_LOGIT: f32 = -1e30;

/// The mask and the rest of observations with an action mask, by RLlib's convention: a dict of `action_mask` and
/// `observations` (or `obs`, or PettingZoo's `observation`), and no other part. The mask has a number for each value of
/// a `Discrete` action, and of each component of a `MultiDiscrete` one; the policy may choose those whose number is not
/// 0.
///
/// ```
/// use rollmesh_core::{policy::MaskedObs, space::Space};
///
/// let cells = Space::multi_discrete(vec![3; 9])?;
/// let space = Space::dict([("action_mask", Space::multi_binary(9)?), ("observations", cells.clone())])?;
/// assert_eq!(MaskedObs::of(&space).map(|masked| masked.observations), Some(&cells));
/// assert!(MaskedObs::of(&cells).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskedObs<'a> {
    /// Space of the mask.
    pub mask: &'a Space,
    /// Space of the networks' observations.
    pub observations: &'a Space,
}

impl<'a> MaskedObs<'a> {
    /// Returns the parts of a space of observations; `None` if they have no action mask.
    #[doc(alias = "action_mask")]
    #[must_use]
    pub fn of(space: &'a Space) -> Option<Self> {
        let Space::Dict(parts) = space else { return None };
        let observations = OBSERVATIONS.iter().find_map(|name| parts.get(*name)).filter(|_| parts.len() == 2)?;
        Some(Self { mask: parts.get(MASK)?, observations })
    }
}

/// Takes the masks out of rows of observations, and excludes the actions that may not be chosen.
#[derive(Clone, Debug)]
pub(super) struct ActionMask {
    /// Values of each component of an action.
    nvec: Vec<u32>,
    masks: Vec<f32>,
    /// The observations without their masks, the inputs of the networks.
    rows: Vec<f32>,
}

impl ActionMask {
    /// Returns the mask among observations, if there is one.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a mask that does not fit the actions.
    pub(super) fn of(observation: &Space, action: &Space) -> Result<Option<Self>, PolicyError> {
        let Some(MaskedObs { mask, .. }) = MaskedObs::of(observation) else { return Ok(None) };
        let unsupported = |wanted: String, found: String| PolicyError::Unsupported { wanted, found };
        let nvec = match ActionDistribution::for_space(action) {
            Ok(ActionDistribution::Categorical(of)) => vec![of.input_len() as u32],
            Ok(ActionDistribution::MultiCategorical { distribution, .. }) => distribution.nvec().to_vec(),
            _ => return Err(unsupported("action_mask for discrete actions".into(), format!("for {action}"))),
        };
        let (wanted, found) = (nvec.iter().sum::<u32>() as usize, mask.shape().elements());
        if !matches!(mask, Space::Box(_) | Space::MultiBinary { .. }) || wanted != found {
            let wanted = format!("an action_mask of {wanted} numbers, one for each choice of {action}");
            return Err(unsupported(wanted, mask.to_string()));
        }
        Ok(Some(Self { nvec, masks: Vec::new(), rows: Vec::new() }))
    }

    /// Returns the length of a mask, which an encoded observation begins with: parts are sorted by name.
    pub(super) fn len(&self) -> usize {
        self.nvec.iter().map(|n| *n as usize).sum()
    }

    /// Takes the masks out of encoded rows of this many numbers.
    pub(super) fn split(&mut self, encoded: &[f32], width: usize) {
        let len = self.len();
        self.masks.clear();
        self.rows.clear();
        for row in encoded.chunks_exact(width) {
            let (mask, rest) = row.split_at(len);
            self.masks.extend_from_slice(mask);
            self.rows.extend_from_slice(rest);
        }
    }

    /// Returns the latest rows without their masks.
    pub(super) fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Excludes the actions whose number in the latest masks is 0.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a mask that allows no action.
    pub(super) fn apply(&self, logits: &mut [f32]) -> Result<(), PolicyError> {
        let mut rest = self.masks.iter().zip(logits);
        for row in 0..self.masks.len() / self.len().max(1) {
            for n in &self.nvec {
                let mut is_empty = true;
                for (mask, logit) in rest.by_ref().take(*n as usize) {
                    if *mask == 0.0 {
                        *logit = MASKED_LOGIT;
                    } else {
                        is_empty = false;
                    }
                }
                if is_empty {
                    let wanted = "action masks that allow at least one action".into();
                    return Err(PolicyError::Unsupported { wanted, found: format!("one of zeros in row {row}") });
                }
            }
        }
        Ok(())
    }
}
