//! What the tests across crates share. Not published.

pub mod conformance;
pub mod fake_rows;
pub mod fake_worker;
pub mod history;
pub mod scenario;
pub mod simnet;

use rollmesh_core::{
    group::{LeaseGroup, WorkerProfile},
    ids::WorkerId,
    time::Micros,
};

/// Lets a worker join a group and answer at once that it is able.
pub fn join(group: &mut LeaseGroup, worker: WorkerId, profile: WorkerProfile, now: Micros) {
    group.handle_joined(worker, profile, now);
    group.handle_answer(worker, Ok(()), now);
}
