//! Bodies of operators' commands for a whole hub, and of the ledger that dashboards show, as they are on the wire.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;

/// Sets the number of local workers: the hub starts some, or lets some finish their leases and exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
    /// Requested number of local workers.
    pub num_workers: u32,
}

/// The run's ledger, for dashboards: where every granted env step is. Sent after [`RunStatus`](super::message::RunStatus)
/// when anything in it changed; after `Welcome`, it is the last message of the initial state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Number of the run on this hub, 0 before the first.
    pub run: u32,
    /// The ledger, whose numbers come from a peer: it may be unbalanced.
    pub ledger: Ledger,
    /// Local workers that exited unexpectedly and were replaced, since the hub began.
    #[doc(alias = "num_remote_worker_restarts")]
    pub num_worker_restarts: u64,
}
