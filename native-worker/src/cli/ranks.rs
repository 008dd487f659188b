//! Flags of processes that learn together.

use clap::Args;
use rollmesh_core::{
    policy::AllReduceError,
    protocol::Token,
    worker::{DataParallelConfig, RolloutError, RolloutWorker, WorkerPlace},
};

use super::exit::Failure;
use crate::hub::TOKEN_VARIABLE;

#[derive(Args, Clone, Debug)]
pub(super) struct RankFlags {
    /// Learn together with other processes: where rank 0 listens, and all others connect to. All need the same token, in
    /// the environment variable ROLLMESH_TOKEN [default: learn alone]
    #[arg(long, value_name = "HOST:PORT", requires_all = ["rank", "world_size"])]
    data_parallel: Option<String>,
    /// Which of them this one is, from 0
    #[arg(long, value_name = "R", requires = "data_parallel")]
    rank: Option<u32>,
    /// How many they are
    #[arg(long, value_name = "N", requires = "data_parallel")]
    world_size: Option<u32>,
}

impl RankFlags {
    /// How to join the others, if there are any.
    pub(super) fn config(&self) -> Result<Option<DataParallelConfig>, Failure> {
        let Some((url, (rank, world_size))) = self.data_parallel.as_ref().zip(self.numbers()) else { return Ok(None) };
        let text = std::env::var(TOKEN_VARIABLE).map_err(|_| {
            let how = "all ranks need the same 64 hexadecimal digits, for example from `openssl rand -hex 32`";
            Failure::usage(format!("{TOKEN_VARIABLE} is not set; {how}"))
        })?;
        let token =
            Token::from_hex(text.trim()).map_err(|error| Failure::usage(format!("{TOKEN_VARIABLE}: {error}")))?;
        let config = DataParallelConfig::new(url, rank, world_size, token);
        config.check().map_err(Failure::usage)?;
        Ok(Some(config))
    }

    /// What a person should know while the others have not come.
    pub(super) fn notice(&self) -> Option<String> {
        let (url, (rank, world_size)) = self.data_parallel.as_ref().zip(self.numbers())?;
        Some(format!("rank {rank} of {world_size} waits at {url} until all are there"))
    }

    /// The rank and how many there are.
    pub(super) fn numbers(&self) -> Option<(u32, u32)> {
        self.rank.zip(self.world_size)
    }

    /// Whether this process writes files: it has no rank, or the first.
    pub(super) fn is_first(&self) -> bool {
        self.rank.is_none_or(|rank| rank == 0)
    }

    /// The worker's place: every rank has other slots of one run.
    pub(super) fn place(&self) -> WorkerPlace {
        self.numbers().map_or(WorkerPlace::LOCAL, |(rank, n)| WorkerPlace::remote(rank.saturating_add(1), n))
    }

    /// What one rank does of something.
    pub(super) fn share_of(&self, whole: u32) -> u32 {
        whole.div_ceil(self.world_size.unwrap_or(1).max(1))
    }
}

/// Env steps of all ranks; none if any of them is interrupted.
pub(super) fn agree(
    worker: &mut RolloutWorker,
    steps: usize,
    is_interrupted: bool,
) -> Result<Option<u64>, RolloutError> {
    let own = (steps as u64).to_le_bytes();
    let Some(ranks) = worker.data_parallel() else { return Ok(Some(steps as u64).filter(|_| !is_interrupted)) };
    let own = [&own[..], &[u8::from(is_interrupted)]].concat();
    let mut sum = Some(0u64);
    for (rank, bytes) in (0..).zip(ranks.all_gather("env steps of an iteration", &own, own.len())?) {
        let protocol = || AllReduceError::Protocol { rank, reason: "env steps that are none".into() };
        let (steps, is_interrupted) = bytes.split_first_chunk().ok_or_else(protocol)?;
        let steps = Some(u64::from_le_bytes(*steps)).filter(|_| is_interrupted == [0]);
        sum = sum.zip(steps).map(|(sum, steps)| sum.saturating_add(steps));
    }
    Ok(sum)
}
