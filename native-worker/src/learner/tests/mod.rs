//! Promises of all algorithms and models.

mod gradients;
mod imitation;
mod learning;
mod policy;
mod ranks;
mod sequences;
mod traffic_grid;
mod updates;
mod worker;
