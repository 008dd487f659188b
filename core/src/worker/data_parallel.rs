//! Joining workers for data-parallel learning.

use serde::{Deserialize, Serialize};

use crate::{hash::Hash128, ids::PolicyId, prelude::*, protocol::Token, time::Micros};

/// Settings of a worker for data-parallel learning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataParallelConfig {
    /// The address where rank 0 listens and all others connect: `HOST:PORT`, optionally with `tcp://` before it. Beyond the
    /// loopback device connections are encrypted.
    pub url: String,
    /// This worker's rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// The token that authenticates ranks, the same for all; the key of rank 0's certificate follows from it.
    pub token: Token,
    /// Timeout until all ranks have joined.
    pub join_timeout: Micros,
}

impl DataParallelConfig {
    /// Most ranks.
    pub const MAX_WORLD_SIZE: u32 = 256;

    /// Creates settings with a timeout of a minute.
    #[must_use]
    pub fn new(url: impl Into<String>, rank: u32, world_size: u32, token: Token) -> Self {
        Self { url: url.into(), rank, world_size, token, join_timeout: Micros::from_secs(60) }
    }

    /// Checks rank and world size.
    ///
    /// # Errors
    /// [`DataParallelError::WorldSize`], [`DataParallelError::Rank`].
    pub fn check(&self) -> Result<(), DataParallelError> {
        let Self { rank, world_size, .. } = *self;
        if world_size == 0 || world_size > Self::MAX_WORLD_SIZE {
            return Err(DataParallelError::WorldSize { found: world_size, most: Self::MAX_WORLD_SIZE });
        }
        if rank >= world_size { Err(DataParallelError::Rank { rank, world_size }) } else { Ok(()) }
    }
}

/// A request to a shell to join the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Address, rank and world size.
    pub config: DataParallelConfig,
    /// The policies that learn, in the order of ids; they must be the same on all ranks.
    pub policies: Vec<JoiningPolicy>,
    /// Largest message that may be sent, in bytes.
    pub max_message: usize,
}

/// A policy whose gradients are shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoiningPolicy {
    /// Its id.
    pub id: PolicyId,
    /// Hash of names, shapes and type of its weights.
    pub layout: Hash128,
    /// Hash of the [settings](crate::policy::Policy::data_parallel) that must agree.
    pub settings: Hash128,
}

/// The reason why a worker could not join the other ranks. The order is part of the protocol between ranks; variants
/// that are never sent come last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum DataParallelError {
    /// The rank is not below the world size.
    #[error("there is no rank {rank} of {world_size}: they count from 0")]
    Rank {
        /// The given rank.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// Ranks use different protocol versions.
    #[error(
        "rank {rank} speaks version {found} of the ranks' protocol, rank 0 version {wanted}: take the same program"
    )]
    Version {
        /// The rank.
        rank: u32,
        /// Its version.
        found: u16,
        /// The version of rank 0.
        wanted: u16,
    },
    /// The token is not that of rank 0.
    #[error("rank 0 has another token: give all ranks the same ROLLMESH_TOKEN")]
    Token,
    /// Ranks have different world sizes.
    #[error("rank {rank} thinks there are {found} ranks, rank 0 {wanted}: give all the same world size")]
    OtherWorldSize {
        /// The rank.
        rank: u32,
        /// Its world size.
        found: u32,
        /// That of rank 0.
        wanted: u32,
    },
    /// This rank has already joined.
    #[error("there is a rank {0} already: give every worker a rank of its own")]
    Duplicate(u32),
    /// Ranks train different policies.
    #[error("rank {rank} does not learn what rank 0 does: {reason}; give all ranks the same policies and settings")]
    Policies {
        /// The rank.
        rank: u32,
        /// The policy, and what differs.
        reason: String,
    },
    /// A rank disconnected while the others joined.
    #[error("rank {rank} was lost while the ranks came together: {reason}; start all again")]
    Lost {
        /// The rank.
        rank: u32,
        /// The observed failure.
        reason: String,
    },
    /// The program has no sockets.
    #[serde(skip)]
    #[error(
        "data parallelism needs sockets, which the core has not: set up the worker with the `rollmesh` crate's shell"
    )]
    NoShell,
    /// The world size is 0 or too large.
    #[serde(skip)]
    #[error("there are {found} ranks; it must be 1 to {most}")]
    WorldSize {
        /// The given world size.
        found: u32,
        /// The largest one.
        most: u32,
    },
    /// No policy is trained.
    #[serde(skip)]
    #[error("no policy is trained, so there are no gradients to share; see policies_to_train")]
    NothingTrained,
    /// The address cannot be parsed.
    #[serde(skip)]
    #[error("'{url}' is no address for ranks: {reason}; write HOST:PORT, for example 127.0.0.1:29500")]
    Address {
        /// The given address.
        url: String,
        /// The reason.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[serde(skip)]
    #[error("rank 0 cannot listen on {address}: {reason}; choose another port, or end the rank 0 that has it")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// Rank 0 cannot be reached.
    #[serde(skip)]
    #[error("no rank 0 listened on {address} for {seconds} s: {reason}; start it with the same address")]
    Unreachable {
        /// The address.
        address: String,
        /// The duration of the attempts, in seconds.
        seconds: u64,
        /// The system's error.
        reason: String,
    },
    /// Some ranks have not joined in time.
    #[serde(skip)]
    #[error("rank {missing} has not come to {address} within {seconds} s{hint}; start every rank from 0 to the last")]
    Missing {
        /// The missing ranks, separated by commas.
        missing: String,
        /// The address.
        address: String,
        /// The timeout in seconds.
        seconds: u64,
        /// A hint at the cause.
        #[serde(skip)]
        hint: &'static str,
    },
}
