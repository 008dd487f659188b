//! Data-parallel learning over TCP: [`AllReduce`](rollmesh_core::policy::AllReduce) between processes.
//!
//! Rank 0 listens, all others connect to it. It receives their values in the order of ranks, adds them in that order, and
//! sends the result to all, so that repetitions are bit-identical, whatever the timing. A message is sent in pieces, and the
//! result of a piece is sent while later pieces arrive.
//!
//! Each connection has a thread that reads and a thread that sends a heartbeat every half second, so that a rank that
//! computes for long is not taken for a hung one. After three seconds without a byte a rank is lost, as it is at once when
//! its connection is closed; rank 0 notifies all others. Any error ends the group.
//!
//! A rank that joins authenticates with a token, compared in constant time; before that, only 82 bytes are read of it. Like
//! the hub, ranks do not encrypt, so only loopback addresses are allowed: other machines connect through a tunnel.
//!
//! Not here: what is reduced, which the policies define.
//!
//! Everything is little-endian. A rank that joins sends a hello: `rmdp`, version (16 bits), token (64 hexadecimal digits), rank, number of
//! ranks, length of the policies (32 bits each), and the policies: of each the length of its id (16), the id, and the hashes
//! of its layout and its settings (16 bytes each). From then on both sides send frames: kind (8 bits), length (32), payload.
//!
//! | kind | payload |
//! |---|---|
//! | 0 alive | |
//! | 1 welcome: all ranks have joined | |
//! | 2 refused; the last frame | kind of error (8), two numbers (32 each), text |
//! | 3 begin: a call | its number (64), action (8), weight (64-bit float), bytes (64), its step as text |
//! | 4 data: the next piece of a message | at most 256 KiB |
//! | 5 over: the group has ended | reason (8), rank (32), text |
//! | 6 leave | |

mod address;
mod frame;
mod group;
mod hello;
mod join;
mod links;
#[cfg(test)]
mod tests;

pub(crate) use address::resolve;
pub use group::TcpAllReduce;

use std::time::Duration;

/// Version of the protocol between ranks.
const VERSION: u16 = 2;

/// Interval between heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A rank is lost after this long without a byte.
const SILENCE: Duration = Duration::from_secs(3);
