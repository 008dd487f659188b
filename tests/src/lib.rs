//! Shared code of the tests across crates. Not published.

pub mod conformance;
pub mod fake_rows;
pub mod fake_worker;
pub mod history;
pub mod runsim;
pub mod scenario;
pub mod simnet;

use rollmesh_core::{
    group::{LeaseGroup, WorkerProfile},
    ids::WorkerId,
    time::Micros,
};

/// Adds a worker to a group and immediately answers that it can run the leases.
pub fn join(group: &mut LeaseGroup, worker: WorkerId, profile: WorkerProfile, now: Micros) {
    group.handle_joined(worker, profile, now);
    group.handle_answer(worker, Ok(()), now);
}
