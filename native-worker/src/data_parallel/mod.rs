//! Data-parallel learning over TCP: [`AllReduce`](rollmesh_core::policy::AllReduce) between processes.
//!
//! Rank 0 listens, all others connect to it. It receives their values in the order of ranks, adds them in that order, and
//! sends the result to all, so that repetitions are bit-identical, whatever the timing. A message is sent in pieces, and the
//! result of a piece is sent while later pieces arrive.
//!
//! Each connection has a thread that reads and a thread that sends a heartbeat every half second, so that a rank that
//! computes for long is not taken for a hung one. After three seconds without a byte a rank is lost, as it is immediately when
//! its connection is closed; rank 0 notifies all others. Any error ends the group.
//!
//! A rank that joins authenticates with a token, compared in constant time; before that, only 78 bytes are read of it. As with
//! the hub, connections are encrypted unless the address is one of the loopback device (`secure.rs`).
//!
//! The policies define what is reduced.
//!
//! A rank that joins sends a hello: `rmdp`, version (16 bits), token (64 hexadecimal digits), rank and length of the rest (32
//! bits each), little-endian; the rest is the number of ranks and the policies in postcard's encoding. From then on both sides
//! send frames: kind (8 bits), length (32) and payload. Kind 1 is a piece of a message, at most 256 KiB; kind 0 is everything
//! else, at most 4 KiB in postcard's encoding: heartbeats, the welcome when all ranks have joined, a refusal, the begin of a
//! call, the end of the group, and the goodbye.

mod address;
mod frame;
mod group;
mod hello;
mod join;
mod links;
mod secure;
#[cfg(test)]
mod tests;

pub(crate) use address::resolve;
pub use group::TcpAllReduce;

use std::time::Duration;

/// Version of the protocol between ranks.
const VERSION: u16 = 3;

/// Interval between heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A rank is lost after this long without a byte.
const SILENCE: Duration = Duration::from_secs(3);
