//! How workers come together to learn, and why they do not.

use crate::{hash::Hash128, ids::PolicyId, prelude::*, protocol::Token, time::Micros};

/// What a worker must know to learn together with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataParallelConfig {
    /// Where rank 0 listens and all others connect to: `HOST:PORT`, with `tcp://` before it or not.
    pub url: String,
    /// This worker's number, from 0.
    pub rank: u32,
    /// Number of workers.
    pub world_size: u32,
    /// What lets ranks in, the same on all.
    pub token: Token,
    /// How long to wait until all are there.
    pub join_timeout: Micros,
}

impl DataParallelConfig {
    /// The most workers.
    pub const MAX_WORLD_SIZE: u32 = 256;

    /// To wait for a minute.
    #[must_use]
    pub fn new(url: impl Into<String>, rank: u32, world_size: u32, token: Token) -> Self {
        Self { url: url.into(), rank, world_size, token, join_timeout: Micros::from_secs(60) }
    }

    /// Checks the numbers.
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

/// What a shell must know to join the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Where, who and how many.
    pub config: DataParallelConfig,
    /// What learns, in the order of ids; it must be the same on all ranks.
    pub policies: Vec<JoiningPolicy>,
    /// The longest message that may be wanted, in bytes.
    pub max_message: usize,
}

/// A policy whose gradients are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoiningPolicy {
    /// Its id.
    pub id: PolicyId,
    /// Hash of names, shapes and type of its weights.
    pub layout: Hash128,
    /// Hash of what it [says of its settings](crate::policy::Policy::data_parallel).
    pub settings: Hash128,
}

/// Why a worker could not join the other ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataParallelError {
    /// There are no sockets.
    #[error(
        "data parallelism needs sockets, which the core has not: set up the worker with the `rollmesh` crate's shell"
    )]
    NoShell,
    /// Too many ranks, or none.
    #[error("there are {found} ranks; it must be 1 to {most}")]
    WorldSize {
        /// As it was given.
        found: u32,
        /// The most.
        most: u32,
    },
    /// There is no such rank.
    #[error("there is no rank {rank} of {world_size}: they count from 0")]
    Rank {
        /// As it was given.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// No policy is trained.
    #[error("no policy is trained, so there are no gradients to share; see policies_to_train")]
    NothingTrained,
    /// The address cannot be understood.
    #[error("'{url}' is no address for ranks: {reason}; write HOST:PORT, for example 127.0.0.1:29500")]
    Address {
        /// As it was given.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The address is not this machine's own.
    #[error("{0} can be reached from other machines, and ranks do not speak TLS; take 127.0.0.1 and an SSH tunnel")]
    NotLoopback(String),
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen on {address}: {reason}; choose another port, or end the rank 0 that has it")]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// Rank 0 is not there.
    #[error("no rank 0 listened on {address} for {seconds} s: {reason}; start it with the same address")]
    Unreachable {
        /// The address.
        address: String,
        /// How long it was tried.
        seconds: u64,
        /// What the system says.
        reason: String,
    },
    /// Some ranks have not come.
    #[error("rank {missing} has not come to {address} within {seconds} s{hint}; start every rank from 0 to the last")]
    Missing {
        /// Those that were waited for, separated by commas.
        missing: String,
        /// The address.
        address: String,
        /// How long.
        seconds: u64,
        /// What else was noticed.
        hint: &'static str,
    },
    /// Ranks are of different versions.
    #[error(
        "rank {rank} speaks version {found} of the ranks' protocol, rank 0 version {wanted}: take the same program"
    )]
    Version {
        /// The rank.
        rank: u32,
        /// What it speaks.
        found: u16,
        /// What rank 0 speaks.
        wanted: u16,
    },
    /// Not the token of rank 0.
    #[error("rank 0 has another token: give all ranks the same ROLLMESH_TOKEN")]
    Token,
    /// Ranks do not agree on how many they are.
    #[error("rank {rank} thinks there are {found} ranks, rank 0 {wanted}: give all the same world size")]
    OtherWorldSize {
        /// The rank.
        rank: u32,
        /// Its number of ranks.
        found: u32,
        /// That of rank 0.
        wanted: u32,
    },
    /// There is such a rank already.
    #[error("there is a rank {0} already: give every worker a rank of its own")]
    Duplicate(u32),
    /// Ranks do not learn the same.
    #[error("rank {rank} does not learn what rank 0 does: {reason}; give all ranks the same policies and settings")]
    Policies {
        /// The rank.
        rank: u32,
        /// Which policy, and what of it differs.
        reason: String,
    },
    /// A rank went while the others came.
    #[error("rank {rank} was lost while the ranks came together: {reason}; start all again")]
    Lost {
        /// The rank.
        rank: u32,
        /// What was noticed.
        reason: String,
    },
}
