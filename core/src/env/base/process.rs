//! Unexpected ends of the processes of sub-environments.

use crate::prelude::*;

/// The end of a sub-environment's process, see [`EnvError::Process`](crate::env::EnvError::Process).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessEnd {
    /// It could not be started.
    #[error("cannot be started: {0}")]
    NotStarted(String),
    /// It exited with this code.
    #[error("has ended with exit code {0}")]
    Exited(i32),
    /// A signal killed it: a crash, or a kill from outside.
    #[error("was ended by signal {0}{name}", name = signal_name(*.0))]
    Signal(i32),
    /// It missed its deadline and was killed.
    #[error(
        "took longer than {limit_ms} ms {doing} and was killed: see where it hangs, or raise remote_env_timeout_ms"
    )]
    Overdue {
        /// The operation, for example `for a step`.
        doing: &'static str,
        /// The deadline, in milliseconds.
        limit_ms: u32,
    },
    /// It sent an invalid or overlong answer and was killed.
    #[error("has sent {0} and was killed")]
    Nonsense(String),
}

/// Returns the names of the most frequent signals whose numbers are the same on all systems.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => " (interrupt)",
        4 => " (illegal instruction)",
        6 => " (abort)",
        8 => " (arithmetic)",
        9 => " (kill)",
        11 => " (memory access)",
        15 => " (terminate)",
        _ => "",
    }
}

/// Formats the last output of a process as part of a sentence.
pub(in crate::env) fn last_words(words: &str) -> String {
    let words = words.trim();
    if words.is_empty() { String::new() } else { format!("; its last words: {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::EnvError;

    #[test]
    fn error_names_the_environment_the_fault_and_the_last_output() {
        let error = |end, last_words: &str| EnvError::Process { env: 3, end, last_words: last_words.into() };
        assert_eq!(
            error(ProcessEnd::Signal(6), "memory allocation failed\n").to_string(),
            "environment 3: its process was ended by signal 6 (abort); its last words: memory allocation failed"
        );
        let text = error(ProcessEnd::Overdue { doing: "for a step", limit_ms: 500 }, "").to_string();
        assert!(text.starts_with("environment 3: its process took longer than 500 ms for a step and was killed: "));
    }
}
