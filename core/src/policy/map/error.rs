//! Errors of a map of policies.

use core::fmt;

use super::PolicyId;
use crate::{
    policy::{StashError, StoreError},
    prelude::*,
};

/// The reason why a policy could not be added or found, stashed or restored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyMapError {
    /// The id is taken.
    #[error("policy '{0}' exists already; remove it first")]
    AlreadyExists(PolicyId),
    /// No policy has this id.
    #[error(transparent)]
    Unknown(#[from] UnknownPolicy),
    /// A policy could not be encoded or decoded.
    #[error("policy '{id}': {source}")]
    Stash {
        /// The policy.
        id: PolicyId,
        /// The cause.
        source: StashError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An unknown id, and some known ones.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct UnknownPolicy {
    /// The id.
    pub id: PolicyId,
    /// The first known ids.
    pub known: Vec<PolicyId>,
    /// The number of further ids.
    pub more: usize,
}

impl UnknownPolicy {
    /// The maximum number of ids that are named.
    pub const MAX_NAMED: usize = 8;

    /// Creates the error, with the first of the known ids.
    #[must_use]
    pub fn among<'a>(id: &PolicyId, mut ids: impl ExactSizeIterator<Item = &'a PolicyId>) -> Self {
        let known: Vec<PolicyId> = ids.by_ref().take(Self::MAX_NAMED).cloned().collect();
        Self { id: id.clone(), known, more: ids.len() }
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no policy '{}'", self.id)?;
        for (i, id) in self.known.iter().enumerate() {
            write!(f, "{} '{id}'", if i == 0 { "; there are" } else { "," })?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
