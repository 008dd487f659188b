//! A rank's hello.

use std::{
    io::{self, Read as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use rollmesh_core::{
    encoding,
    protocol::{Token, printable},
    worker::{DataParallelError, JoinRequest, JoiningPolicy},
};

use super::VERSION;

const MAGIC: [u8; 4] = *b"rmdp";
const TOKEN_BYTES: usize = 64;
const HEAD_BYTES: usize = 4 + 2 + TOKEN_BYTES + 2 * 4;
/// Maximum size of the body after the head, in bytes.
const BODY_BYTES: usize = 1 << 20;

/// A rank's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    policies: Vec<JoiningPolicy>,
}

/// The reason that a connection is refused as a rank of the group.
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
        let JoinRequest { config, policies, .. } = request;
        Self { rank: config.rank, world_size: config.world_size, policies: policies.clone() }
    }

    /// Encodes the hello; `None` if its policies are too many or their ids too long.
    pub(super) fn encode(&self, token: &Token) -> Option<Vec<u8>> {
        let body = encoding::encode(&(self.world_size, &self.policies));
        let version = VERSION.to_le_bytes();
        let (rank, length) = (self.rank.to_le_bytes(), (body.len() as u32).to_le_bytes());
        let head = [&MAGIC[..], &version, token.to_hex().as_bytes(), &rank, &length].concat();
        (body.len() <= BODY_BYTES).then(|| [head, body].concat())
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
        let length = number(74) as usize;
        if length > BODY_BYTES {
            return Err(Stranger::Unknown);
        }
        let mut body = vec![0; length];
        read_until(stream, &mut body, deadline).map_err(|_| Stranger::Unknown)?;
        let (world_size, policies) = encoding::decode(&body).ok_or(Stranger::Unknown)?;
        Ok(Self { rank, world_size, policies })
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
}

/// Describes the first policy that differs, and the difference.
fn difference(first: &[JoiningPolicy], other: &[JoiningPolicy]) -> String {
    let name = |policy: &JoiningPolicy| printable(policy.id.as_str());
    match first.iter().zip(other).find(|(a, b)| a != b) {
        Some((a, b)) if a.id != b.id => format!("it trains '{}' where rank 0 trains '{}'", name(b), name(a)),
        Some((a, b)) if a.layout != b.layout => format!("names or shapes of the weights of '{}' differ", name(a)),
        Some((a, _)) => format!("settings of '{}' differ", name(a)),
        None => match first.get(other.len()) {
            Some(missing) => format!("it does not train '{}'", name(missing)),
            None => format!("it trains '{}' as well", other.last().map(name).unwrap_or_default()),
        },
    }
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
