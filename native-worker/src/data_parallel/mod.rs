//! Ranks that learn together over TCP: [`AllReduce`](rollmesh_core::policy::AllReduce) between processes.
//!
//! Rank 0 listens, all others connect to it. It takes what they give in the order of ranks, sums up in that order, and
//! sends all the result, so that repetitions are equal bit for bit, whatever the timing. A message goes in pieces, and the
//! result of one is on its way while the next ones come.
//!
//! Of every connection a thread reads all the time and another one says every half a second that this rank is alive, so that a
//! rank that computes for long is not taken for one that hangs. Three seconds without a byte are a rank that is lost, a
//! closed connection at once; rank 0 tells all others. A group in which anything has gone wrong is over.
//!
//! Who joins proves with a token, compared in constant time, that it may; before that, 82 bytes are all that is read of it.
//! As the hub, ranks do not encrypt, and so use loopback addresses alone: other machines come in through a tunnel.
//!
//! Not here: what is summed up, which is the policies' matter.
//!
//! Everything is little-endian. A rank that joins sends a hello: `rmdp`, version (16 bits), token (64 hexadecimal digits), rank, number of
//! ranks, length of the policies (32 bits each), and the policies: of each the length of its id (16), the id, and the hashes
//! of its layout and its settings (16 bytes each). From then on both sides send frames: kind (8 bits), length (32), payload.
//!
//! | kind | payload |
//! |---|---|
//! | 0 alive | |
//! | 1 welcome: all are there | |
//! | 2 refused, the last one | what it is (8), two numbers (32 each), text |
//! | 3 begin: a call | its number (64), what it does (8), weight (64-bit float), bytes (64), its step as text |
//! | 4 data: the next piece of a message | at most 256 KiB |
//! | 5 over: the group is | why (8), rank (32), text |
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
const VERSION: u16 = 1;

/// How often a rank says that it is alive.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A rank of which nothing has come for so long is lost.
const SILENCE: Duration = Duration::from_secs(3);
