//! What the parts promise together, without processes and sockets.

mod group;
#[path = "../../../core/tests/kinds/mod.rs"]
mod kinds;
mod rollouts;
mod wire;
