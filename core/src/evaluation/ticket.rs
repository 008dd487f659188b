//! Tickets of evaluations.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a requested evaluation. Later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The effect of a new request on the same handle's earlier evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Earlier {
    /// They are cancelled, the running one included, and their results are dropped.
    #[default]
    Cancel,
    /// They are executed first.
    Keep,
}
