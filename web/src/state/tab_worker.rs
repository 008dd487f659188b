//! This tab as a worker of the run.

/// What this tab does for the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TabWorker {
    /// Nothing.
    #[default]
    Out,
    /// A token was asked for.
    Joining,
    /// The Web Worker is at it.
    In(TabStatus),
}

/// What the Web Worker says of itself, a few times a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TabStatus {
    /// `connecting`, `waiting`, `idle`, `sampling`, or `ended`.
    pub state: String,
    /// Why it ended, else empty.
    pub reason: String,
    /// The id that the hub gave it, 0 before.
    pub worker: u32,
    /// Env steps done.
    pub env_steps: u64,
    /// Fragments delivered.
    pub fragments: u64,
    /// Version of the weights that act.
    pub weights_version: u64,
    /// Env steps per second over the last seconds.
    pub steps_per_s: f64,
}

impl TabStatus {
    /// Has it come to an end by itself?
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == "ended"
    }
}
