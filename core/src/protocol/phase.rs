//! States that travel as one byte.

use super::wire_enum::wire_enum;

wire_enum! {
    /// Where the hub's run stands.
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
        /// It could not go on; the status says why.
        Failed = 6,
        /// No more leases are granted; it ends when those that are out have.
        Draining = 7,
    }
}

impl Phase {
    /// True while there is a run that goes on.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused | Self::Draining)
    }
}

wire_enum! {
    /// What a worker is doing, as the hub sees it.
    "state of a worker" pub WorkerState {
        /// Waits for a lease.
        Idle = 0,
        /// Works on a lease, or has not yet answered that others were faster with it.
        Sampling = 1,
        /// Let a lease expire and has not been heard of since. Gets no lease until it speaks.
        Hung = 2,
        /// Gets no more leases and is dismissed when its lease has ended.
        Leaving = 3,
        /// Gets no more leases: it lied, or failed too often in a row.
        Quarantined = 4,
        /// Has not answered whether it can run the leases of this run. Gets none until it has.
        Unanswered = 5,
        /// Cannot run the leases of this run, so it gets none.
        Unable = 6,
    }
}

impl WorkerState {
    /// Its name, for people and programs.
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
    /// Why the hub refused a peer.
    "reason for a refusal" pub RefusalCode {
        /// No protocol version is common to both.
        ProtocolVersion = 1,
        /// The peer's core computes other rollouts than the hub's.
        Fingerprint = 2,
        /// The token is not known, or not for this role.
        Token = 3,
        /// The first message was no proper `Hello`.
        Malformed = 4,
        /// The hub has no room now; it may have later.
        Busy = 5,
        /// Another worker evaluates under this name.
        NameTaken = 6,
    }
}

wire_enum! {
    /// What came of something that was asked of a worker that evaluates.
    "outcome of an ask" pub AskOutcome {
        /// The worker has answered; or there is such a worker, if nothing else was asked.
        Done = 0,
        /// It could not be done.
        Failed = 1,
        /// There is no such worker.
        UnknownName = 2,
        /// The worker has left.
        Left = 3,
    }
}

wire_enum! {
    /// What an operator wants of the hub's tokens.
    "action on tokens" pub TokenAction {
        /// Name them all.
        List = 0,
        /// Make one.
        Create = 1,
        /// Make one invalid, and close the connections that were opened with it.
        Revoke = 2,
        /// Make one in place of another, which runs out.
        Rotate = 3,
    }
}

wire_enum! {
    /// How it went with what a client asked for.
    "code of an episode's reply" pub EpisodeCode {
        /// It was done.
        Done = 0,
        /// The episode is not open: it was never started, or it is over.
        NotOpen = 1,
        /// The sampler has given the episode up and begins anew.
        Lost = 2,
        /// The client has an episode of this number open, or waiting to begin.
        AlreadyOpen = 3,
        /// The bytes are no rows, returns or infos of these agents.
        BadRows = 4,
        /// An observation is not in its space.
        BadObservation = 5,
        /// An action is not in its space.
        BadAction = 6,
        /// It is not the time for this: an action was already asked for, for example.
        OutOfTurn = 7,
        /// The client has more episodes open or waiting than it may.
        TooMany = 8,
        /// Nobody samples any more.
        Stopped = 9,
        /// The client has said nothing of the episode for too long: the hub has given it up.
        TimedOut = 10,
    }
}
