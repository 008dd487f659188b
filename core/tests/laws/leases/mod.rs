//! Leases on one worker, without a hub.

mod agents;
mod devices;
mod failures;
