//! Reasons why a worker cannot run the leases of a run.

use core::fmt;

use super::{message::RunAnswer, wire_enum::wire_enum};
use crate::prelude::*;

/// Most characters of a reason.
const MAX_REASON_CHARS: usize = 512;

wire_enum! {
    /// The reason why a worker is unable to run the leases of a run. On the wire 0 means that it is able.
    "reason why a worker is unable" pub InabilityKind {
        /// The environment is not registered in the worker's program.
        UnknownEnv = 1,
        /// The kind of policy is not registered in the worker's program.
        UnknownPolicy = 2,
        /// The environment rejects its settings, or cannot be built with them.
        EnvConfig = 3,
        /// The run's description is invalid.
        Description = 4,
        /// Another reason, which the text gives.
        Other = 5,
        /// The worker acts for the others of a run with `inference = "server"`, and samples nothing.
        ActsForOthers = 6,
    }
}

impl fmt::Display for InabilityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownEnv => "unknown environment",
            Self::UnknownPolicy => "unknown kind of policy",
            Self::EnvConfig => "the environment refuses its settings",
            Self::Description => "the run's description is invalid",
            Self::Other => "it cannot run this",
            Self::ActsForOthers => "it acts for other workers",
        })
    }
}

/// The reason why a worker cannot run the leases of a run: a kind, and a printable reason of at most 512 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inability {
    kind: InabilityKind,
    reason: String,
}

impl Inability {
    /// Creates an inability; the reason may come from a peer and is made [`printable`].
    #[must_use]
    pub fn new(kind: InabilityKind, reason: &str) -> Self {
        Self { kind, reason: printable(reason) }
    }

    /// Returns the kind of the reason.
    #[must_use]
    pub fn kind(&self) -> InabilityKind {
        self.kind
    }
}

impl fmt::Display for Inability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, reason } = self;
        if reason.is_empty() { write!(f, "{kind}") } else { write!(f, "{kind}: {reason}") }
    }
}

impl RunAnswer {
    /// Creates a worker's answer to the announcement of a run.
    #[must_use]
    pub fn new(run: u32, answer: Result<(), &Inability>) -> Self {
        match answer {
            Ok(()) => Self { run, code: 0, reason: String::new() },
            Err(Inability { kind, reason }) => Self { run, code: kind.to_wire(), reason: reason.clone() },
        }
    }

    /// Returns the worker's answer, its text made [`printable`]. A code unknown to this version is [`InabilityKind::Other`].
    ///
    /// # Errors
    /// The [`Inability`] of a worker that is unable.
    pub fn read(&self) -> Result<(), Inability> {
        let kind = InabilityKind::try_from(self.code).unwrap_or(InabilityKind::Other);
        if self.code == 0 { Ok(()) } else { Err(Inability::new(kind, &self.reason)) }
    }
}

/// Makes a peer's text safe to show: replaces control characters by spaces, and truncates it to 512 characters.
#[must_use]
pub fn printable(text: &str) -> String {
    let chars = text.chars().take(MAX_REASON_CHARS);
    chars.map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_wire() {
        assert_eq!(RunAnswer::new(7, Ok(())).read(), Ok(()));
        for &kind in InabilityKind::ALL {
            let inability = Inability::new(kind, "no");
            let answer = RunAnswer::new(7, Err(&inability));
            assert_eq!((answer.run, answer.read()), (7, Err(inability)));
        }
    }

    #[test]
    fn a_peers_reason_is_clipped_and_printable() {
        let answer = RunAnswer { run: 1, code: 200, reason: format!("\x1b[2J\n{}", "ä".repeat(4_000)) };
        let inability = answer.read().unwrap_err();
        assert_eq!(inability.kind(), InabilityKind::Other);
        assert_eq!(inability.to_string(), format!("it cannot run this:  [2J {}", "ä".repeat(MAX_REASON_CHARS - 5)));
        let silent = RunAnswer { run: 1, code: 1, reason: String::new() };
        assert_eq!(silent.read().unwrap_err().to_string(), "unknown environment");
    }
}
