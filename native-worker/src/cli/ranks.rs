//! The flags of data-parallel ranks.

use clap::Args;
use rollmesh_core::{protocol::Token, worker::DataParallelConfig};

use super::exit::Failure;
use crate::{data_parallel::resolve, net::TOKEN_VARIABLE};

#[derive(Args, Clone, Debug)]
pub(super) struct RankFlags {
    /// Learn together with other processes
    ///
    /// Where rank 0 listens and all others connect. All need the same token in the environment variable ROLLMESH_TOKEN,
    /// and all are resumed together [default: learn alone]
    #[arg(long, hide_short_help = true, value_name = "HOST:PORT", requires_all = ["rank", "world_size"])]
    data_parallel: Option<String>,
    /// Rank of this process, from 0
    #[arg(long, hide_short_help = true, value_name = "R", requires = "data_parallel")]
    rank: Option<u32>,
    /// Number of ranks
    #[arg(long, hide_short_help = true, value_name = "N", requires = "data_parallel")]
    world_size: Option<u32>,
}

impl RankFlags {
    /// Returns the settings with which to join the other ranks, if there are any.
    pub(super) fn config(&self) -> Result<Option<DataParallelConfig>, Failure> {
        let Some((url, (rank, world_size))) = self.data_parallel.as_ref().zip(self.rank.zip(self.world_size)) else {
            return Ok(None);
        };
        let text = std::env::var(TOKEN_VARIABLE).map_err(|_| {
            let how = "all ranks need the same 64 hexadecimal digits, for example from `openssl rand -hex 32`";
            Failure::usage(format!("{TOKEN_VARIABLE} is not set; {how}"))
        })?;
        let token =
            Token::from_hex(text.trim()).map_err(|error| Failure::usage(format!("{TOKEN_VARIABLE}: {error}")))?;
        let config = DataParallelConfig::new(url, rank, world_size, token);
        config.check().map_err(Failure::usage)?;
        resolve(&config.url).map_err(Failure::usage)?;
        Ok(Some(config))
    }
}
