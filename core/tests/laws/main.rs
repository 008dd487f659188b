//! What the core promises of environments, leases and rollouts.

mod envs;
mod leases;
mod same_bits;
mod zero_allocation;
