//! A rank's hello.

use std::{
    io::{self, Read as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use rollmesh_core::{
    hash::Hash128,
    protocol::Token,
    worker::{DataParallelError, JoinRequest, JoiningPolicy},
};

use super::VERSION;

const MAGIC: [u8; 4] = *b"rmdp";
const TOKEN_BYTES: usize = 64;
const HEAD_BYTES: usize = 4 + 2 + TOKEN_BYTES + 3 * 4;
/// Maximum size of the policies in bytes.
const POLICIES_BYTES: usize = 1 << 20;

/// A rank's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Encoded; they are only compared.
    policies: Vec<u8>,
}

/// Why a connection is not a rank of the group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// It sent no valid hello, or not in time.
    Unknown,
    /// It uses another protocol version.
    Version { rank: u32, found: u16 },
    /// It has another token.
    Token,
}

impl Hello {
    pub(super) fn of(request: &JoinRequest) -> Self {
        let mut policies = Vec::new();
        for JoiningPolicy { id, layout, settings } in &request.policies {
            // Longer ids are cut: then only the hashes distinguish them.
            let id = id.as_str().as_bytes();
            policies.extend((id.len().min(usize::from(u16::MAX)) as u16).to_le_bytes());
            policies.extend(id.iter().take(usize::from(u16::MAX)));
            policies.extend(layout.0);
            policies.extend(settings.0);
        }
        Self { rank: request.config.rank, world_size: request.config.world_size, policies }
    }

    pub(super) fn encode(&self, token: &Token) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.policies.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(token.to_hex().as_bytes());
        for number in [self.rank, self.world_size, self.policies.len() as u32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(&self.policies);
        bytes
    }

    /// Reads a hello before the deadline. Without the right token, only the head is read.
    pub(super) fn read(stream: &mut TcpStream, token: &Token, deadline: Instant) -> Result<Self, Stranger> {
        let mut head = [0; HEAD_BYTES];
        read_until(stream, &mut head, deadline).map_err(|_| Stranger::Unknown)?;
        let number = |start: usize| u32::from_le_bytes(std::array::from_fn(|i| head[start + i]));
        if head[..4] != MAGIC {
            return Err(Stranger::Unknown);
        }
        let (rank, version) = (number(70), u16::from_le_bytes([head[4], head[5]]));
        if version != VERSION {
            return Err(Stranger::Version { rank, found: version });
        }
        let found = std::str::from_utf8(&head[6..6 + TOKEN_BYTES]).ok().and_then(|text| Token::from_hex(text).ok());
        if found != Some(*token) {
            return Err(Stranger::Token);
        }
        let length = number(78) as usize;
        if length > POLICIES_BYTES {
            return Err(Stranger::Unknown);
        }
        let mut policies = vec![0; length];
        read_until(stream, &mut policies, deadline).map_err(|_| Stranger::Unknown)?;
        Ok(Self { rank, world_size: number(74), policies })
    }

    /// Checks on rank 0 that another rank trains the same policies in a group of the same size.
    pub(super) fn check(&self, other: &Self) -> Result<(), DataParallelError> {
        let rank = other.rank;
        if other.world_size != self.world_size {
            let (found, wanted) = (other.world_size, self.world_size);
            return Err(DataParallelError::OtherWorldSize { rank, found, wanted });
        }
        if rank >= self.world_size {
            return Err(DataParallelError::Rank { rank, world_size: self.world_size });
        }
        if other.policies == self.policies {
            return Ok(());
        }
        Err(DataParallelError::Policies { rank, reason: difference(&self.policies, &other.policies) })
    }

    /// True if the policies fit into a hello.
    pub(super) fn is_short(&self) -> bool {
        self.policies.len() <= POLICIES_BYTES
    }
}

/// Describes which policy differs, and in what.
fn difference(mut first: &[u8], mut other: &[u8]) -> String {
    loop {
        match (policy(&mut first), policy(&mut other)) {
            (None, None) => return "its policies cannot be read".into(),
            (Some((id, ..)), None) => return format!("it does not train '{id}'"),
            (None, Some((id, ..))) => return format!("it trains '{id}' as well"),
            (Some(a), Some(b)) if a.0 != b.0 => return format!("it trains '{}' where rank 0 trains '{}'", b.0, a.0),
            (Some(a), Some(b)) if a.1 != b.1 => return format!("names or shapes of the weights of '{}' differ", a.0),
            (Some(a), Some(b)) if a.2 != b.2 => return format!("settings of '{}' differ", a.0),
            (Some(_), Some(_)) => {}
        }
    }
}

/// Splits off the next policy: its id, and the hashes of layout and settings.
fn policy(bytes: &mut &[u8]) -> Option<(String, Hash128, Hash128)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (id, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let (layout, rest) = rest.split_first_chunk()?;
    let (settings, rest) = rest.split_first_chunk()?;
    *bytes = rest;
    let id = String::from_utf8_lossy(id).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Some((id, Hash128(*layout), Hash128(*settings)))
}

/// Fills a buffer before the deadline, however slowly bytes arrive.
fn read_until(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
