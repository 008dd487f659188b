//! A network between workers and a hub with the faults that a test injects.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{broadcast, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// The transport of bytes in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Immediately.
    Clear,
    /// After this time.
    Late(Duration),
    /// One byte a second.
    Trickle,
    /// Not at all, without notice: sent bytes wait, possibly for ever.
    Held,
}

/// The transport of bytes, from workers to the hub and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weather {
    pub(crate) up: Way,
    pub(crate) down: Way,
}

impl Weather {
    pub(crate) const CLEAR: Self = Self { up: Way::Clear, down: Way::Clear };
}

/// A fault that is injected once into every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// It is closed in order.
    Cut,
    /// It is reset in the middle of the worker's next upload.
    ResetMidFrame,
    /// The worker's next upload arrives twice.
    Twice,
    /// The worker's next upload does not arrive; the connection is cut, and the upload comes with the next one.
    Replay,
    /// A bit of the worker's next bytes is flipped.
    FlipUp,
    /// A bit of the hub's next bytes is flipped.
    FlipDown,
}

/// Minimum size in bytes of a worker's frame that is an upload, and not a Hello or a progress report.
const UPLOAD: usize = 600;

/// Listens for workers, and connects each of them with the hub.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

struct Shared {
    hub: OnceLock<SocketAddr>,
    weather: watch::Sender<Weather>,
    injected: broadcast::Sender<InjectedFault>,
    connections: AtomicU64,
    /// Injected faults that have hit something.
    hits: AtomicU64,
    /// The upload to replay on the next connection.
    replay: Mutex<Option<Vec<u8>>>,
}

/// The end of a connection.
enum End {
    Closed,
    Reset,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            hub: OnceLock::new(),
            weather: watch::Sender::new(Weather::CLEAR),
            injected: broadcast::Sender::new(64),
            connections: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            replay: Mutex::new(None),
        });
        let carried = shared.clone();
        let listener = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(forward(near, carried.clone()));
            }
        });
        Self { address, shared, listener }
    }

    /// Sets the address to which the connections lead.
    pub(crate) fn lead_to(&self, hub: SocketAddr) {
        self.shared.hub.set(hub).expect("a proxy has one hub");
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
    }

    /// Injects a fault into all connections; returns whether there were any.
    pub(crate) fn hit(&self, fault: InjectedFault) -> bool {
        self.shared.injected.send(fault).is_ok()
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of injected faults that have hit something so far.
    pub(crate) fn hits(&self) -> u64 {
        self.shared.hits.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn forward(mut near: TcpStream, shared: Arc<Shared>) {
    let Some(&hub) = shared.hub.get() else { return };
    let Ok(mut far) = TcpStream::connect(hub).await else { return };
    shared.connections.fetch_add(1, Ordering::Relaxed);
    for socket in [&near, &far] {
        socket.set_nodelay(true).unwrap();
    }
    let end = {
        let ((near_read, near_write), (far_read, far_write)) = (near.split(), far.split());
        tokio::select! {
            end = up(near_read, far_write, &shared) => end,
            end = down(far_read, near_write, &shared) => end,
        }
    };
    if matches!(end, End::Reset) {
        for socket in [&near, &far] {
            socket.set_zero_linger().unwrap();
        }
    }
}

/// Waits for bytes to forward; returns none at the end of the connection.
async fn read(from: &mut ReadHalf<'_>, shared: &Shared, way: fn(Weather) -> Way) -> Option<Vec<u8>> {
    let mut weather = shared.weather.subscribe();
    let mut buffer = vec![0; 16 << 10];
    loop {
        weather.wait_for(|weather| way(*weather) != Way::Held).await.ok()?;
        tokio::select! {
            // A connection that is cut off is not closed either.
            held = weather.wait_for(|weather| way(*weather) == Way::Held) => { held.ok()?; }
            count = from.read(&mut buffer) => {
                let count = count.ok().filter(|&count| count > 0)?;
                buffer.truncate(count);
                return Some(buffer);
            }
        }
    }
}

async fn write(to: &mut WriteHalf<'_>, bytes: &[u8], shared: &Shared, way: fn(Weather) -> Way) -> Option<()> {
    let mut weather = shared.weather.subscribe();
    let mut rest = bytes;
    while !rest.is_empty() {
        let now = way(*weather.borrow_and_update());
        match now {
            Way::Clear => {
                to.write_all(rest).await.ok()?;
                return Some(());
            }
            Way::Late(by) => {
                sleep(by).await;
                to.write_all(rest).await.ok()?;
                return Some(());
            }
            Way::Trickle => {
                to.write_all(&rest[..1]).await.ok()?;
                rest = &rest[1..];
                // Until a second has passed, or the fault ends.
                let _ = timeout(Duration::from_secs(1), weather.changed()).await;
            }
            Way::Held => _ = weather.wait_for(|weather| way(*weather) != Way::Held).await.ok()?,
        }
    }
    Some(())
}

async fn up(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, shared: &Shared) -> End {
    let mut injected = shared.injected.subscribe();
    let (mut frames, mut due) = (Frames::default(), None);
    let mut frames_since_begin = 0;
    loop {
        let bytes = tokio::select! {
            bytes = read(&mut from, shared, |weather| weather.up) => bytes,
            fault = injected.recv() => {
                match fault {
                    Ok(InjectedFault::Cut) => return shared.struck(End::Closed),
                    Ok(InjectedFault::FlipDown) | Err(_) => {}
                    Ok(fault) => due = Some(fault),
                }
                continue;
            }
        };
        let Some(mut bytes) = bytes else { return End::Closed };
        if due == Some(InjectedFault::FlipUp) {
            flip(&mut bytes);
            shared.hits.fetch_add(1, Ordering::Relaxed);
            due = None;
        }
        frames.push(&bytes);
        while let Some(frame) = frames.next() {
            frames_since_begin += 1;
            // The request, the Hello and a later message: the peer is admitted.
            let replayed = if frames_since_begin == 4 { shared.replay.lock().unwrap().take() } else { None };
            let is_upload = frame.len() >= UPLOAD && frames_since_begin > 2;
            let strike = due.take_if(|_| is_upload);
            if strike.is_some() {
                shared.hits.fetch_add(1, Ordering::Relaxed);
            }
            let parts: Vec<&[u8]> = match strike {
                Some(InjectedFault::ResetMidFrame) => vec![&frame[..frame.len() / 2]],
                Some(InjectedFault::Replay) => {
                    *shared.replay.lock().unwrap() = Some(frame);
                    return End::Closed;
                }
                Some(InjectedFault::Twice) => vec![&frame, &frame],
                _ => replayed.iter().map(Vec::as_slice).chain([&*frame]).collect(),
            };
            for part in parts {
                if write(&mut to, part, shared, |weather| weather.up).await.is_none() {
                    return End::Closed;
                }
            }
            if strike == Some(InjectedFault::ResetMidFrame) {
                return End::Reset;
            }
        }
    }
}

async fn down(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, shared: &Shared) -> End {
    let mut injected = shared.injected.subscribe();
    while let Some(mut bytes) = read(&mut from, shared, |weather| weather.down).await {
        while let Ok(fault) = injected.try_recv() {
            if fault == InjectedFault::FlipDown {
                flip(&mut bytes);
                shared.hits.fetch_add(1, Ordering::Relaxed);
            }
        }
        if write(&mut to, &bytes, shared, |weather| weather.down).await.is_none() {
            break;
        }
    }
    End::Closed
}

impl Shared {
    fn struck(&self, end: End) -> End {
        self.hits.fetch_add(1, Ordering::Relaxed);
        end
    }
}

fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 1 << (middle % 8);
    }
}

/// Finds the ends of a worker's WebSocket messages, so that faults hit whole messages or the middle of one; other bytes
/// pass unchanged.
#[derive(Default)]
struct Frames {
    waiting: Vec<u8>,
    has_begun: bool,
    is_opaque: bool,
}

impl Frames {
    fn push(&mut self, bytes: &[u8]) {
        if !self.has_begun && self.waiting.is_empty() && !bytes.starts_with(b"GET ") {
            self.is_opaque = true;
        }
        self.waiting.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let len = match (self.is_opaque, self.has_begun) {
            (true, _) => self.waiting.len(),
            (false, false) => self.waiting.windows(4).position(|end| end == b"\r\n\r\n")? + 4,
            (false, true) => self.message_len()?,
        };
        if len == 0 || len > self.waiting.len() {
            return None;
        }
        self.has_begun = true;
        Some(self.waiting.drain(..len).collect())
    }

    /// Returns the length of the next message: a browser sends one in several frames, with control frames in between.
    fn message_len(&self) -> Option<usize> {
        let (mut len, mut is_open) = (0, false);
        loop {
            let frame = self.waiting.get(len..)?;
            let (is_last, is_control) = (frame.first()? & 0x80 != 0, frame.first()? & 0x08 != 0);
            len += Self::frame_len(frame)?;
            if (is_last && !is_control) || (is_control && !is_open) {
                return Some(len);
            }
            is_open = true;
        }
    }

    fn frame_len(frame: &[u8]) -> Option<usize> {
        let short = usize::from(frame.get(1)? & 0x7f);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
        let (head, body) = match short {
            126 => (4, number(frame.get(2..4)?)),
            127 => (10, number(frame.get(2..10)?)),
            body => (2, body),
        };
        // A client's frames are masked.
        Some(head + 4 + body)
    }
}
