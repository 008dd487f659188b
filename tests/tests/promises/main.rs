//! What the parts promise together, without processes and sockets.

mod group;
mod rollouts;
mod wire;
