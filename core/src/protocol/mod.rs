//! The protocol between the hub, workers, launchers, dashboards and clients that drive episodes, without sockets.
//!
//! A frame is a fixed header and a postcard body; [`Message`] is both, decoded. [`Outbox`] and [`Inbox`] are between
//! messages and a socket: they split and join large messages, enforce limits and credits, and check which role may send
//! what. A [`Connection`] is a peer's side of all this, over one socket after another; [`handshake`] is the hub's answer. [`convert`] converts bodies to the types that the rest of the crate trusts; bodies
//! are used nowhere else. `PROTOCOL.md` at the root of the repository describes the bytes.
//!
//! ```
//! use rollmesh_core::protocol::{DecodeError, Message, message::Credit};
//!
//! let frame = Message::Credit(Credit { bytes: 65_536 }).encode();
//! assert_eq!(&frame[..2], b"RM");
//! assert_eq!(Message::decode(&frame)?, Message::Credit(Credit { bytes: 65_536 }));
//! assert!(matches!(Message::decode(b"GET / HTTP/1.1"), Err(DecodeError::Magic(_))));
//! # Ok::<(), DecodeError>(())
//! ```

mod asks;
mod codec;
mod connection;
mod control;
pub mod convert;
mod dashboard;
mod episode_driver;
mod episode_fault;
mod external;
mod failure;
mod frame_bytes;
pub mod handshake;
mod header;
mod inability;
mod inbox;
mod inference;
mod kind;
mod launcher;
pub(crate) mod ledger;
pub mod message;
mod monitoring;
mod outbox;
mod phase;
mod reconnect;
mod requests;
mod role;
mod saved_runs;
mod table;
mod token;
mod wire_enum;

pub use codec::DecodeError;
pub use connection::{Connection, ConnectionEnd, Retry};
pub use episode_driver::EpisodeDriver;
pub(crate) use failure::MAX_ATTEMPTS;
pub use failure::{FailureKind, FatalFailure, FragmentFailure};
pub use frame_bytes::FrameBytes;
pub use header::{HEADER_BYTES, HEADER_VERSION, MAGIC};
pub use inability::{Inability, InabilityKind, printable};
pub use inbox::{ChunkPlace, Inbox, InboxError, Received, WeightsPiece};
pub use kind::{CHUNK_BYTES, DASHBOARD_FRAME_BYTES, MAX_FRAME_BYTES, PRE_AUTH_FRAME_BYTES};
pub use outbox::{MessageFrame, Outbox, TooLarge};
pub use phase::{AskOutcome, EpisodeCode, Phase, RefusalCode, TokenAction, WorkerState};
pub use reconnect::reconnect_delay;
pub use role::{Role, allow, expect};
pub use table::{Kind, Message};
pub use token::{Token, TokenGrant, TokenHash, TokenId, TokenIdError, TokenTable, TokenTextError, bytes_of_hex};
pub use wire_enum::UnknownValue;

/// Oldest protocol version that this build speaks.
pub const PROTOCOL_MIN: u16 = 1;
/// Newest protocol version that this build speaks.
pub const PROTOCOL_MAX: u16 = 1;

/// Initial credit: bytes of chunks that either side may send before the other grants more.
/// At least two chunks: the receiver grants when half of it is used, and the other half must hold a chunk.
pub const INITIAL_CREDIT: u32 = 4 * CHUNK_BYTES;
