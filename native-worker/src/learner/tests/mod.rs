//! Promises of all algorithms and models.

mod gradients;
mod learning;
mod policy;
mod sequences;
mod traffic_grid;
mod worker;
