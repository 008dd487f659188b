//! A hand-made peer, which may send any message.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh::kernels::AUTO;
use rollmesh_core::{
    protocol::{
        Message, PROTOCOL_MAX, PROTOCOL_MIN, Role, Token,
        message::{Hello, Refused, Reply, RunAnswer},
    },
    worker::core_fingerprint,
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, client_async, connect_async, connect_async_with_config,
    tungstenite::{self, client::IntoClientRequest as _},
};

pub(crate) use tungstenite::Message as Frame;

use super::soon;

/// A socket to a hub.
pub(crate) struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    request: u32,
}

/// Returns the Hello of a proper peer.
pub(crate) fn hello(role: Role, token: Token) -> Hello {
    Hello {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        role: role.to_wire(),
        token,
        capabilities: 0,
        resume_id: [0; 16],
        core_fingerprint: core_fingerprint(AUTO),
        kind: "native".into(),
        name: "by-hand".into(),
        device: "cpu".into(),
    }
}

impl Client {
    /// Connects and sends nothing.
    pub(crate) async fn connect(address: impl std::fmt::Display) -> Self {
        // Small messages are sent immediately, as every peer's should.
        let socket = connect_async_with_config(format!("ws://{address}/ws"), None, true);
        let (socket, _) = soon("a connection", socket).await.expect("a hub");
        Self { socket, request: 0 }
    }

    /// Connects as a page of the hub does, whose browser adds an `Origin`, and says nothing.
    pub(crate) async fn connect_as_page(address: SocketAddr) -> Self {
        let mut request = format!("ws://{address}/ws").into_client_request().expect("an address");
        request.headers_mut().insert("Origin", format!("http://{address}").parse().expect("an origin"));
        let (socket, _) = soon("a connection", connect_async(request)).await.expect("a hub");
        Self { socket, request: 0 }
    }

    /// Connects from one of this machine's addresses, 127.0.0.0/8, and sends nothing.
    pub(crate) async fn connect_from(from: Ipv4Addr, address: SocketAddr) -> Self {
        Self::try_connect_from(from, address).await.expect("a hub")
    }

    /// Works like [`connect_from`](Self::connect_from); returns an error if the hub does not accept it.
    pub(crate) async fn try_connect_from(from: Ipv4Addr, address: SocketAddr) -> Result<Self, tungstenite::Error> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = soon("a connection", socket.connect(address)).await?;
        stream.set_nodelay(true)?;
        Self::over(stream, address).await
    }

    /// Introduces itself over a stream that leads to the hub with this address.
    pub(crate) async fn over(stream: TcpStream, address: SocketAddr) -> Result<Self, tungstenite::Error> {
        let socket = client_async(format!("ws://{address}/ws"), MaybeTlsStream::Plain(stream));
        let (socket, _) = soon("an answer", socket).await?;
        Ok(Self { socket, request: 0 })
    }

    /// Connects from one of this machine's addresses, and is admitted.
    pub(crate) async fn join_from(from: Ipv4Addr, address: SocketAddr, role: Role, token: Token) -> Self {
        let client = Self::connect_from(from, address).await;
        client.introduced(role, token).await
    }

    /// Connects and is admitted.
    pub(crate) async fn join(address: impl std::fmt::Display, role: Role, token: Token) -> Self {
        Self::connect(address).await.introduced(role, token).await
    }

    pub(crate) async fn introduced(mut self, role: Role, token: Token) -> Self {
        self.say(&Message::Hello(hello(role, token))).await;
        let answer = self.receive().await;
        assert!(matches!(answer, Some(Message::Welcome(_))), "{answer:?}");
        self
    }

    pub(crate) async fn say(&mut self, message: &Message) {
        self.send(Frame::Binary(message.encode().into())).await.expect("the hub listens");
    }

    /// Sends a message to a hub that may have disconnected.
    pub(crate) async fn send_if_connected(&mut self, message: &Message) {
        let _ = self.send(Frame::Binary(message.encode().into())).await;
    }

    /// Sends a frame; returns an error once the hub has disconnected.
    pub(crate) async fn send(&mut self, frame: Frame) -> Result<(), tungstenite::Error> {
        soon("room for a frame", self.socket.send(frame)).await
    }

    /// Returns the hub's next message, as bytes; none once it has disconnected.
    pub(crate) async fn receive_frame(&mut self) -> Option<Vec<u8>> {
        loop {
            match soon("a frame of the hub", self.socket.next()).await {
                Some(Ok(Frame::Binary(bytes))) => return Some(bytes.into()),
                Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
                None | Some(Ok(Frame::Close(_)) | Err(_)) => return None,
                Some(Ok(other)) => panic!("{other:?}"),
            }
        }
    }

    /// Returns the hub's time to answer a ping.
    pub(crate) async fn ping(&mut self) -> Duration {
        let asked = Instant::now();
        self.send(Frame::Ping(Vec::new().into())).await.expect("the hub listens");
        loop {
            match soon("an answer", self.socket.next()).await {
                Some(Ok(Frame::Pong(_))) => return asked.elapsed(),
                Some(Ok(Frame::Ping(_) | Frame::Binary(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the hub disconnects; returns its status code.
    pub(crate) async fn close_code(mut self) -> Option<u16> {
        loop {
            match soon("the end of the connection", self.socket.next()).await {
                Some(Ok(Frame::Close(frame))) => return frame.map(|frame| frame.code.into()),
                Some(Ok(_)) => {}
                None | Some(Err(_)) => return None,
            }
        }
    }

    /// Returns the hub's next message; none once it has disconnected.
    pub(crate) async fn receive(&mut self) -> Option<Message> {
        self.receive_frame().await.map(|frame| Message::decode(&frame).expect("the hub speaks properly"))
    }

    /// Waits for the announcement of a run, and answers as a worker that can run it.
    pub(crate) async fn answer_able(&mut self) {
        let run = self.wait_for(|message| match message {
            Message::RunStart(start) => Some(start.run),
            _ => None,
        });
        let run = run.await;
        self.say(&Message::RunAnswer(RunAnswer::new(run, Ok(())))).await;
    }

    /// Waits for a message of the hub, and skips the others.
    pub(crate) async fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Message) -> Option<T>) -> T {
        soon("what the hub is to say", async {
            loop {
                let message = self.receive().await.expect("the hub has more to say");
                if let Some(found) = wanted(&message) {
                    return found;
                }
            }
        })
        .await
    }

    /// Waits until the hub disconnects; returns its refusal, if it sent one.
    pub(crate) async fn refusal(mut self) -> Option<Refused> {
        let mut refused = None;
        while let Some(message) = self.receive().await {
            if let Message::Refused(reason) = message {
                refused = Some(reason);
            }
        }
        refused
    }

    /// Sends a request; returns an empty text if it was executed, else the reason that it was not.
    pub(crate) async fn ask(&mut self, question: impl FnOnce(u32) -> Message) -> String {
        self.request += 1;
        let mine = self.request;
        self.say(&question(mine)).await;
        self.wait_for(|message| match message {
            Message::Reply(Reply { request, error, .. }) if *request == mine => Some(error.clone()),
            _ => None,
        })
        .await
    }
}
