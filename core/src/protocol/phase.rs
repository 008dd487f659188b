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
    }
}

wire_enum! {
    /// What a worker is doing, as the hub sees it.
    "state of a worker" pub WorkerState {
        /// It waits for a lease.
        Idle = 0,
        /// It works on a lease and reports progress.
        Sampling = 1,
        /// Its lease ran out without progress.
        Hung = 2,
        /// It gets no more leases and is about to go.
        Leaving = 3,
        /// It gets no more leases: it lied, or failed too often in a row.
        Quarantined = 4,
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
    }
}
