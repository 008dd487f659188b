//! Policies: batches of observations in, actions with log-probabilities and value estimates out.
//!
//! A policy computes into the caller's buffers and draws nothing by itself: the randomness of a row's action is
//! addressed by the row's [`Moment`]. So a row's action does not depend on which other rows are in its batch.
//!
//! A [`PolicyMap`] holds as many policies as there is room for, and puts the others aside in a [`PolicyStore`], from
//! which they come back equal:
//!
//! ```
//! use rollmesh_core::{
//!     kernels::Kernels,
//!     policy::{
//!         MemoryStore, MlpPolicy, MlpPolicySpec, Policy, PolicyEntry, PolicyId, PolicyMap, PolicyMapLimits, init_weights,
//!     },
//! };
//!
//! let spec = MlpPolicySpec { obs_len: 4, num_actions: 2, hidden: vec![8] };
//! let make = move |seed| -> Result<Box<dyn Policy>, _> {
//!     let policy = MlpPolicy::new(spec.clone(), init_weights(&spec, seed)?, 7, Kernels::PORTABLE)?;
//!     Ok::<_, rollmesh_core::policy::PolicyError>(Box::new(policy))
//! };
//! // How to make an object for a policy that comes back. Its weights are restored afterwards.
//! let again = make.clone();
//! let factory = move |_: &PolicyId, spec: &str| Ok(PolicyEntry::new(spec.to_owned(), again(0)?));
//! let limits = PolicyMapLimits { count: 1, ..PolicyMapLimits::UNLIMITED };
//! let mut policies = PolicyMap::bounded(limits, MemoryStore::default(), factory);
//!
//! let (main, rival) = (PolicyId::new("main"), PolicyId::new("rival"));
//! policies.insert(main.clone(), PolicyEntry::new("mlp", make(1)?))?;
//! let weights = policies.policy_mut(&main)?.weights().clone();
//! policies.insert(rival.clone(), PolicyEntry::new("mlp", make(2)?))?;
//! assert!(policies.stashed().eq([&main]) && policies.ids().eq([&main, &rival]));
//! assert_eq!(policies.policy_mut(&main)?.weights(), &weights);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entry;
mod init;
mod map;
mod mlp;
mod random;
mod stash;
mod store;

pub use crate::ids::PolicyId;
pub use entry::{PolicyEntry, PolicyState};
pub use init::init_weights;
pub use map::{PolicyMap, PolicyMapError, PolicyMapLimits, UnknownPolicy};
pub use mlp::{MlpPolicy, MlpPolicySpec};
pub use random::RandomPolicy;
pub use stash::{Stash, StashError, Stashed};
pub use store::{MemoryStore, PolicyStore, StoreError, TidyStore};

use crate::{
    env::{Moment, RowsMut, RowsRef},
    prelude::*,
    weights::{Weights, WeightsError},
};

/// Observations to act on.
#[derive(Clone, Copy, Debug)]
pub struct ActionInput<'a> {
    /// Observations, row-major.
    pub obs: RowsRef<'a>,
    /// The moment of each row.
    pub moments: &'a [Moment],
}

/// Where actions go, one row or entry per observation.
#[derive(Debug)]
pub struct ActionOutput<'a> {
    /// Chosen actions.
    pub actions: RowsMut<'a>,
    /// Their log-probabilities.
    pub logp: &'a mut [f32],
    /// Value estimates of the observations.
    pub vf_preds: &'a mut [f32],
}

impl ActionOutput<'_> {
    /// Checks that the buffers take that many rows, with that many elements in an action.
    ///
    /// # Errors
    /// [`PolicyError::BufferLength`].
    pub fn check(&self, rows: usize, action_len: usize) -> Result<(), PolicyError> {
        let elements = rows.saturating_mul(action_len);
        let buffers = [
            ("actions", elements, self.actions.len()),
            ("logp", rows, self.logp.len()),
            ("vf_preds", rows, self.vf_preds.len()),
        ];
        match buffers.into_iter().find(|(_, wanted, found)| wanted != found) {
            Some((buffer, wanted, found)) => Err(PolicyError::BufferLength { buffer, wanted, found }),
            None => Ok(()),
        }
    }
}

/// Why a policy could not act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The policy does not take these observations or give these actions.
    #[error("the policy takes {wanted}, not {found}")]
    Unsupported {
        /// What it takes.
        wanted: String,
        /// What it was given.
        found: String,
    },
    /// A buffer has room for more or fewer rows than there are.
    #[error("{buffer} has room for {found} values, {wanted} are wanted")]
    BufferLength {
        /// The buffer, as it is called in [`ActionOutput`].
        buffer: &'static str,
        /// How many values it must take.
        wanted: usize,
        /// How many it takes.
        found: usize,
    },
    /// These weights are not the policy's.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// Something that acts.
pub trait Policy {
    /// Chooses an action for every observation.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for rows of another type, [`PolicyError::BufferLength`] for buffers of other lengths.
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError>;

    /// Estimates the value of every observation, with the same bits as
    /// [`compute_actions`](Self::compute_actions) would.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for rows of another type.
    fn compute_values(&mut self, obs: RowsRef<'_>, values: &mut [f32]) -> Result<(), PolicyError>;

    /// What the policy acts with.
    fn weights(&self) -> &Weights;

    /// Acts with other weights from now on. On an error the old ones stay.
    ///
    /// # Errors
    /// [`PolicyError::Weights`] when they do not fit.
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError>;

    /// What the policy has besides weights and would miss after being put aside, for example an optimiser's moments or
    /// a schedule's place; in bytes that only the policy itself reads. Nothing by default.
    #[doc(alias = "get_state")]
    fn extra_state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Bytes that this state occupies in memory, for limits. Worth writing where making the bytes is not cheap.
    fn extra_state_bytes(&self) -> usize {
        self.extra_state().len()
    }

    /// Takes back what [`extra_state`](Self::extra_state) gave.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for bytes that are not the policy's.
    #[doc(alias = "set_state")]
    fn set_extra_state(&mut self, bytes: &[u8]) -> Result<(), PolicyError> {
        let unsupported = || PolicyError::Unsupported {
            wanted: "no state besides weights".into(),
            found: format!("{} bytes", bytes.len()),
        };
        if bytes.is_empty() { Ok(()) } else { Err(unsupported()) }
    }
}
