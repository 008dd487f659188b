//! What goes wrong with a map of policies.

use core::fmt;

use super::PolicyId;
use crate::{
    policy::{StashError, StoreError},
    prelude::*,
};

/// Why a policy could not be added or found, stashed or brought back.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyMapError {
    /// The id is taken.
    #[error("policy '{0}' exists already; remove it first")]
    AlreadyExists(PolicyId),
    /// No policy has this id.
    #[error(transparent)]
    Unknown(#[from] UnknownPolicy),
    /// A policy could not be made bytes, or bytes no policy.
    #[error("policy '{id}': {source}")]
    Stash {
        /// The policy.
        id: PolicyId,
        /// What is wrong with it.
        source: StashError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An id that is no policy's, and some that are.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct UnknownPolicy {
    /// The id.
    pub id: PolicyId,
    /// The first ids that there are.
    pub known: Vec<PolicyId>,
    /// How many more there are.
    pub more: usize,
}

impl UnknownPolicy {
    /// The most ids that are named.
    pub const MAX_NAMED: usize = 8;

    /// The error, with the first of the ids that there are.
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
