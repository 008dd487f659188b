//! How open episodes move.

/// How an open episode is continued in another instance of its environment: in another process, after a kill, or on another
/// machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnvState {
    /// From a snapshot of everything that the rest of the episode depends on.
    Snapshot,
    /// From its actions, which the other instance takes once more after the same reset. The environment is deterministic,
    /// given the random numbers and the actions.
    #[default]
    Replay,
    /// Not at all: its rest depends on something else, such as a clock or a server. If an instance is lost, its episode ends
    /// after the last row that was committed, and a new one begins. Such a run is not reproducible.
    Opaque,
}

impl EnvState {
    /// Of a wrapper that carries something over from one episode to the next, around an environment with this state: actions
    /// since the last reset do not bring that back.
    #[must_use]
    pub const fn across_episodes(self) -> Self {
        match self {
            Self::Replay => Self::Opaque,
            other => other,
        }
    }
}
