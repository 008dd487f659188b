//! Tests of the crates' guarantees together, without processes and sockets.

mod group;
#[path = "../../../core/tests/kinds/mod.rs"]
mod kinds;
mod rollouts;
mod wire;
