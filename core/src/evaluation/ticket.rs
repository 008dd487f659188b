//! Evaluations that were asked for.

use core::fmt;

use serde::{Deserialize, Serialize};

/// An evaluation that was asked for. Later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What becomes of a handle's earlier evaluations when it asks for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Earlier {
    /// They are cancelled, also the one that is running, and their results are dropped.
    #[default]
    Cancel,
    /// They come first.
    Keep,
}
