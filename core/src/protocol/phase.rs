//! Enums that are one byte on the wire.

use super::wire_enum::wire_enum;

wire_enum! {
    /// Phase of the hub's run.
    "phase of a run" pub Phase {
        /// No run yet.
        Idle = 0,
        /// Workers sample and the learner learns.
        Running = 1,
        /// An operator paused it.
        Paused = 2,
        /// The stop return was reached.
        Solved = 3,
        /// The env steps were used up before it was solved.
        Finished = 4,
        /// An operator ended it.
        Stopped = 5,
        /// It could not continue; the status has the reason.
        Failed = 6,
        /// No more leases are granted; it ends once the live ones have ended.
        Draining = 7,
        /// It was drained: its leases ended first, and all their rows are part of it.
        Drained = 8,
    }
}

impl Phase {
    /// Returns true while a run is active.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused | Self::Draining)
    }

    /// Returns its name in texts and machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Solved => "solved",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

wire_enum! {
    /// State of a worker, as the hub sees it.
    "state of a worker" pub WorkerState {
        /// Waits for a lease.
        Idle = 0,
        /// Works on a lease, or has not yet confirmed that others were faster with it.
        Sampling = 1,
        /// Its lease expired and it has sent nothing since. Gets no lease until it sends a message.
        Hung = 2,
        /// Gets no more leases and is dismissed when its lease has ended.
        Leaving = 3,
        /// Gets no more leases: it failed an audit, or too often in a row.
        Quarantined = 4,
        /// Has not answered yet whether it can run the leases of this run. Gets none before.
        Unanswered = 5,
        /// Cannot run the leases of this run, so it gets none.
        Unable = 6,
    }
}

impl WorkerState {
    /// Returns its name in texts and machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Sampling => "sampling",
            Self::Hung => "hung",
            Self::Leaving => "leaving",
            Self::Quarantined => "quarantined",
            Self::Unanswered => "unanswered",
            Self::Unable => "unable",
        }
    }
}

wire_enum! {
    /// The reason why the hub refused a peer.
    "reason for a refusal" pub RefusalCode {
        /// No protocol version is common to both.
        ProtocolVersion = 1,
        /// The peer's core computes other rollouts than the hub's.
        Fingerprint = 2,
        /// The token is unknown, or not valid for this role.
        Token = 3,
        /// The first message was not a valid `Hello`.
        Malformed = 4,
        /// The hub has reached a limit; retry later.
        Busy = 5,
        /// Another worker evaluates under this name.
        NameTaken = 6,
    }
}

wire_enum! {
    /// Outcome of a request to an evaluation worker.
    "outcome of an ask" pub AskOutcome {
        /// The worker has answered; or there is such a worker, if the request was empty.
        Done = 0,
        /// The request failed.
        Failed = 1,
        /// There is no such worker.
        UnknownName = 2,
        /// The worker disconnected.
        Left = 3,
    }
}

wire_enum! {
    /// An operator's action on the hub's tokens.
    "action on tokens" pub TokenAction {
        /// List them.
        List = 0,
        /// Create one.
        Create = 1,
        /// Revoke one, and close the connections that were opened with it.
        Revoke = 2,
        /// Create one as replacement of another, which expires.
        Rotate = 3,
    }
}

wire_enum! {
    /// Outcome of a client's message about an episode.
    "code of an episode's reply" pub EpisodeCode {
        /// Success.
        Done = 0,
        /// The episode is not open: it was never started, or it is over.
        NotOpen = 1,
        /// The sampler has abandoned the episode and begins the next one.
        Lost = 2,
        /// The client has an open or waiting episode of this number.
        AlreadyOpen = 3,
        /// The bytes are not rows, returns or infos of these agents.
        BadRows = 4,
        /// An observation is not in its space.
        BadObservation = 5,
        /// An action is not in its space.
        BadAction = 6,
        /// The message is out of order: an action was already requested, for example.
        OutOfTurn = 7,
        /// The client has too many open or waiting episodes.
        TooMany = 8,
        /// The sampler has stopped.
        Stopped = 9,
        /// The client has sent nothing for the episode for too long, so the hub has abandoned it.
        TimedOut = 10,
    }
}
