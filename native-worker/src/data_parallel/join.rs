//! Joining a group of ranks.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    protocol::Token,
    worker::{DataParallelConfig, DataParallelError, JoinRequest},
};

use super::{
    VERSION,
    frame::{Frame, FrameError},
    hello::{Hello, Stranger},
    secure::{RankTls, is_other_token},
};

/// Polling interval of rank 0 for connections, and retry interval of the others.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time for a connection to send its hello.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// Maximum number of connections whose hello is being read.
const MAX_VISITORS: usize = 64;

/// Returns the connections to the other ranks: to all, in order, on rank 0, otherwise to rank 0.
pub(super) fn join(
    request: &JoinRequest,
    address: SocketAddr,
    tls: Option<RankTls>,
) -> Result<Vec<TcpStream>, DataParallelError> {
    let hello = Hello::of(request);
    let too_long =
        || DataParallelError::Policies { rank: hello.rank, reason: "their ids are too long together".into() };
    let bytes = hello.encode(&request.config.token).ok_or_else(too_long)?;
    let deadline = Instant::now() + Duration::from(request.config.join_timeout);
    match hello.rank {
        0 => wait_for_all(request, &hello, (address, tls), deadline),
        _ => come_in(request, &bytes, (address, tls), deadline).map(|stream| vec![stream]),
    }
}

/// Accepts ranks on rank 0 until all have joined.
fn wait_for_all(
    request: &JoinRequest,
    hello: &Hello,
    (address, tls): (SocketAddr, Option<RankTls>),
    deadline: Instant,
) -> Result<Vec<TcpStream>, DataParallelError> {
    let listen = || -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let failed =
        |error: std::io::Error| DataParallelError::Listen { address: address.to_string(), reason: error.to_string() };
    let mut listener = RankListener::new(listen().map_err(failed)?, (request.config.token, tls), deadline);
    let mut ranks: Vec<Option<TcpStream>> = (1..hello.world_size).map(|_| None).collect();
    let mut hint = "";
    loop {
        if ranks.iter().all(Option::is_some) {
            // Ranks that joined may have disconnected meanwhile.
            ranks.iter_mut().for_each(|place| _ = place.take_if(|stream| is_closed(stream)));
            if ranks.iter().all(Option::is_some) {
                break;
            }
        }
        if Instant::now() >= deadline {
            let missing: Vec<String> =
                (1..).zip(&ranks).filter(|(_, stream)| stream.is_none()).map(|(rank, _)| rank.to_string()).collect();
            let DataParallelConfig { join_timeout, .. } = request.config;
            let error = DataParallelError::Missing {
                missing: missing.join(", "),
                address: address.to_string(),
                seconds: join_timeout.0.div_ceil(1_000_000),
                hint,
            };
            return Err(send_away(ranks, error));
        }
        match listener.next() {
            None => {}
            Some(Err(Stranger::Token)) => hint = " (one with another token was turned away)",
            Some(Err(Stranger::Version { .. })) => hint = " (one of another version was turned away)",
            Some(Err(Stranger::Unknown)) => {}
            Some(Ok((visitor, stream))) => {
                if let Err(error) = hello.check(&visitor) {
                    refuse(&stream, &error);
                    return Err(send_away(ranks, error));
                }
                let place = (visitor.rank as usize).checked_sub(1).and_then(|i| ranks.get_mut(i));
                match place {
                    // A rank that has disconnected may join again.
                    Some(place) if place.as_ref().is_none_or(is_closed) => *place = Some(stream),
                    // The first connection of a rank is kept.
                    _ => refuse(&stream, &DataParallelError::Duplicate(visitor.rank)),
                }
            }
        }
    }
    let streams: Vec<TcpStream> = ranks.into_iter().flatten().collect();
    for (rank, mut stream) in (1..).zip(&streams) {
        if let Err(error) = Frame::Welcome.write(&mut stream) {
            let error = DataParallelError::Lost { rank, reason: error.to_string() };
            return Err(send_away(streams.into_iter().map(Some).collect(), error));
        }
    }
    Ok(streams)
}

/// Returns whether the peer has closed its connection.
fn is_closed(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let is_closed = match looked {
        // It sends nothing until all ranks have joined.
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    is_closed || stream.set_nonblocking(false).is_err()
}

/// Refuses the ranks that have joined, after an error.
fn send_away(ranks: Vec<Option<TcpStream>>, error: DataParallelError) -> DataParallelError {
    let reason = format!("rank 0 waits no longer: {error}");
    let reported = match &error {
        DataParallelError::Missing { .. } => &DataParallelError::Lost { rank: 0, reason },
        other => other,
    };
    ranks.iter().flatten().for_each(|stream| refuse(stream, reported));
    error
}

fn refuse(mut stream: &TcpStream, error: &DataParallelError) {
    // It may have disconnected already.
    let _ = Frame::Refused(error.clone()).write(&mut stream);
    let _ = stream.shutdown(Shutdown::Write);
}

/// The listener of rank 0. Each connection's hello is read on a thread of its own, so that none delays the others.
struct RankListener {
    listener: TcpListener,
    token: Token,
    tls: Option<RankTls>,
    deadline: Instant,
    visitors: Arc<AtomicUsize>,
    known: mpsc::Sender<Result<(Hello, TcpStream), Stranger>>,
    next: mpsc::Receiver<Result<(Hello, TcpStream), Stranger>>,
}

impl RankListener {
    fn new(listener: TcpListener, (token, tls): (Token, Option<RankTls>), deadline: Instant) -> Self {
        let (known, next) = mpsc::channel();
        Self { listener, token, tls, deadline, visitors: Arc::default(), known, next }
    }

    /// Returns the next hello, if one has arrived.
    fn next(&mut self) -> Option<Result<(Hello, TcpStream), Stranger>> {
        // Connections above the limit are dropped; an accept error is that of a connection that was closed already.
        while let Ok((stream, _)) = self.listener.accept() {
            if self.visitors.load(Ordering::Relaxed) < MAX_VISITORS {
                self.listen_to(stream);
            }
        }
        self.next.recv_timeout(PATIENCE).ok()
    }

    fn listen_to(&self, stream: TcpStream) {
        let (token, tls, known, visitors) = (self.token, self.tls.clone(), self.known.clone(), self.visitors.clone());
        let deadline = self.deadline.min(Instant::now() + INTRODUCTION);
        visitors.fetch_add(1, Ordering::Relaxed);
        let listen = move || {
            let met = meet(stream, &token, tls, deadline);
            visitors.fetch_sub(1, Ordering::Relaxed);
            // Rank 0 may have all its ranks and no longer receive.
            let _ = known.send(met);
        };
        // Without a thread the connection is dropped, and the rank retries.
        if thread::Builder::new().name("visitor".into()).spawn(listen).is_err() {
            self.visitors.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads the hello of a connection, and refuses one of another version or with another token.
fn meet(
    stream: TcpStream,
    token: &Token,
    tls: Option<RankTls>,
    deadline: Instant,
) -> Result<(Hello, TcpStream), Stranger> {
    let unknown = |_: std::io::Error| Stranger::Unknown;
    // On some systems the stream inherits the listener's non-blocking mode.
    stream.set_nonblocking(false).map_err(unknown)?;
    let mut stream = match tls {
        Some(tls) => tls.accept(stream).map_err(|error| match is_other_token(&error) {
            true => Stranger::Token,
            false => Stranger::Unknown,
        })?,
        None => stream,
    };
    stream.set_write_timeout(Some(INTRODUCTION)).map_err(unknown)?;
    let hello = Hello::read(&mut stream, token, deadline);
    match &hello {
        Err(Stranger::Version { rank, found }) => {
            turn_away(&mut stream, &DataParallelError::Version { rank: *rank, found: *found, wanted: VERSION })
        }
        Err(Stranger::Token) => turn_away(&mut stream, &DataParallelError::Token),
        Ok(_) | Err(Stranger::Unknown) => {}
    }
    hello.map(|hello| (hello, stream))
}

/// Refuses a connection that is still sending: if it were closed before everything was read, the answer could be lost.
fn turn_away(stream: &mut TcpStream, error: &DataParallelError) {
    refuse(stream, error);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let (mut rest, mut buffer) = (64, [0; 4096]);
    while rest > 0 && stream.read(&mut buffer).is_ok_and(|n| n > 0) {
        rest -= 1;
    }
}

/// Connects to rank 0, which may not be listening yet, and waits until all ranks have joined.
fn come_in(
    request: &JoinRequest,
    hello: &[u8],
    (address, tls): (SocketAddr, Option<RankTls>),
    deadline: Instant,
) -> Result<TcpStream, DataParallelError> {
    let mut reason = String::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = request.config.join_timeout.0.div_ceil(1_000_000);
            return Err(DataParallelError::Unreachable { address: address.to_string(), seconds, reason });
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) if is_own(&stream) => reason = "no rank listens".into(),
            Ok(stream) => {
                let stream = match &tls {
                    Some(tls) => tls.connect(stream),
                    None => Ok(stream),
                };
                match stream {
                    // A rank 0 that has all its ranks stops listening, and closes the connections in its backlog.
                    Ok(stream) => match introduce(stream, hello, deadline)? {
                        Some(stream) => return Ok(stream),
                        None => reason = "the connection was closed".into(),
                    },
                    Err(error) if is_other_token(&error) => return Err(DataParallelError::Token),
                    Err(error) => reason = error.to_string(),
                }
            }
            Err(error) => reason = error.to_string(),
        }
        thread::sleep(PATIENCE.min(left));
    }
}

/// Returns whether a connection is connected to itself: if nothing listens on the port, the system may choose that very
/// port as its own.
fn is_own(stream: &TcpStream) -> bool {
    stream.local_addr().ok() == stream.peer_addr().ok()
}

/// Sends the hello and waits for the welcome. `None` if the connection was closed.
fn introduce(mut stream: TcpStream, hello: &[u8], deadline: Instant) -> Result<Option<TcpStream>, DataParallelError> {
    let lost = |reason: String| DataParallelError::Lost { rank: 0, reason };
    // Rank 0 waits as long as this rank, and then sends its reason.
    let left = deadline.saturating_duration_since(Instant::now()) + INTRODUCTION;
    let timeouts = stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)));
    timeouts.map_err(|error| lost(error.to_string()))?;
    // If rank 0 does not read all of it, it sends the reason.
    let _ = stream.write_all(hello);
    match Frame::read(&mut stream) {
        Ok(Frame::Welcome) => Ok(Some(stream)),
        Ok(Frame::Refused(error)) => Err(error),
        Ok(_) | Err(FrameError::Bad(_)) => Err(lost("it does not speak the ranks' protocol".into())),
        Err(FrameError::Io(error))
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
        {
            Err(lost("it has admitted no rank, since not all ranks have come".into()))
        }
        Err(FrameError::Io(_)) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_itself_is_none() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let itself = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let own = socket.local_addr().unwrap();
            socket.connect(own).await.unwrap().into_std().unwrap()
        });
        assert!(is_own(&itself));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_own(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }
}
