//! A hub of one page whose messages a test chooses.

use std::net::SocketAddr;

use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use rollmesh_core::protocol::{
    Message,
    message::{LedgerReport, Welcome},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite};

use super::{dashboard::Dashboard, front::Front};

type Socket = WebSocketStream<TcpStream>;

/// The hub's end of the page's connection.
pub(crate) struct MadeHub {
    sink: SplitSink<Socket, tungstenite::Message>,
}

/// Binds a hub's socket to a free port.
pub(crate) async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    (listener, address)
}

/// Opens the page with a hub at this address. The page stays as long as what is returned.
pub(crate) async fn open(page: &Dashboard, address: SocketAddr) -> Front {
    let front = Front::start(&address.to_string()).await;
    front.bring_hub_in_reach(true);
    page.go_to(&format!("{}#token={}", front.url(), "5a".repeat(32))).await;
    front
}

impl MadeHub {
    /// Waits for the page, and welcomes it as peer 1,000.
    pub(crate) async fn accept(listener: TcpListener) -> Self {
        let (stream, _) = listener.accept().await.expect("the page connects");
        let (sink, mut from_page) = accept_async(stream).await.expect("it wants a socket").split();
        from_page.next().await.expect("it greets").expect("with a frame");
        tokio::spawn(ignore(from_page));
        let server = "rollmesh".to_owned();
        let welcome = Welcome { protocol: 1, peer: 1_000, resume_id: [0; 16], credit: 0, server };
        let mut hub = Self { sink };
        hub.send(&Message::Welcome(welcome)).await;
        hub.send(&Message::LedgerReport(LedgerReport::default())).await;
        hub
    }

    pub(crate) async fn send(&mut self, message: &Message) {
        // It fails once the page is closed, and with it the test is over.
        let _ = self.sink.send(tungstenite::Message::Binary(message.encode().into())).await;
    }
}

/// Reads the requests of the page and answers none.
async fn ignore(mut from_page: SplitStream<Socket>) {
    while from_page.next().await.is_some() {}
}
