//! Guarantees of the core for environments, leases and rollouts.

mod envs;
#[path = "../kinds/mod.rs"]
mod kinds;
mod leases;
mod same_bits;
mod zero_allocation;
