//! Transfer of open episodes between instances.

/// The way in which an open episode continues in another instance of its environment: in another process, after a kill,
/// or on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnvState {
    /// From a snapshot of the state from which the rest of the episode follows.
    Snapshot,
    /// By replaying its actions after the same reset. The environment is deterministic, given the random numbers and the
    /// actions.
    #[default]
    Replay,
    /// Not at all: it depends on something outside, such as a clock or a server. If an instance is lost, its episode ends
    /// after the last committed row, and a new one begins. Such a run is not reproducible.
    Opaque,
}

impl EnvState {
    /// Returns the state of a wrapper that keeps something across episodes, around an environment with this state: the
    /// actions since the last reset cannot restore that.
    #[must_use]
    pub const fn across_episodes(self) -> Self {
        match self {
            Self::Replay => Self::Opaque,
            other => other,
        }
    }
}
