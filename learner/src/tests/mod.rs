//! Promises of all algorithms and models.

mod gradients;
mod imitation;
mod learning;
mod policy;
mod sequences;
mod stale;
mod traffic_grid;
mod updates;
mod worker;
