//! The socket to the hub, which converts its messages into events. The reducer decides when to connect.

use js_sys::{ArrayBuffer, Uint8Array};
use leptos::prelude::document;
use rollmesh_core::protocol::{Message, Role, Token, handshake::Identity};
use wasm_bindgen::{JsCast as _, prelude::Closure};
use web_sys::{BinaryType, MessageEvent, WebSocket};

use crate::{shell::Store, state::Event};

/// An open or opening socket. Dropping it closes it, without further events.
pub(crate) struct Socket {
    socket: WebSocket,
    _on_open: Closure<dyn FnMut()>,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_close: Closure<dyn FnMut()>,
}

impl Socket {
    /// Opens a socket to the hub that served this page and begins the handshake with the token.
    pub(crate) fn open(store: Store, role: Role, token: Token) -> Option<Self> {
        let Ok(socket) = WebSocket::new(&hub_url()) else {
            store.dispatch(closed());
            return None;
        };
        socket.set_binary_type(BinaryType::Arraybuffer);

        let opened = socket.clone();
        let on_open = Closure::<dyn FnMut()>::new(move || send(&opened, &identity(role, token).hello()));
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event| store.dispatch(read(&event)));
        let on_close = Closure::<dyn FnMut()>::new(move || store.dispatch(closed()));
        socket.set_onopen(Some(on_open.as_ref().unchecked_ref()));
        socket.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        socket.set_onclose(Some(on_close.as_ref().unchecked_ref()));
        Some(Self { socket, _on_open: on_open, _on_message: on_message, _on_close: on_close })
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &Message) {
        send(&self.socket, message);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.socket.set_onopen(None);
        self.socket.set_onmessage(None);
        self.socket.set_onclose(None);
        // Fails only for codes and reasons that are not allowed, and there are none.
        let _ = self.socket.close();
    }
}

/// Returns the URL of the hub's WebSocket, at the page's address.
pub(crate) fn hub_url() -> String {
    let base = document().base_uri().ok().flatten().unwrap_or_default();
    let url = base.split(['#', '?']).next().unwrap_or_default();
    let folder = url.rsplit_once('/').map_or(url, |(folder, _)| folder);
    format!("{}/ws", folder.replacen("http", "ws", 1))
}

/// Returns the page's identity for the handshake with a hub.
pub(crate) fn identity(role: Role, token: Token) -> Identity {
    Identity::new(role, token, "dashboard", "dashboard", "browser")
}

fn send(socket: &WebSocket, message: &Message) {
    if socket.ready_state() == WebSocket::OPEN {
        // Fails only while connecting. The close event reports messages that are lost while closing.
        let _ = socket.send_with_u8_array(&message.encode());
    }
}

fn read(event: &MessageEvent) -> Event {
    let Ok(buffer) = event.data().dyn_into::<ArrayBuffer>() else {
        return Event::Unreadable("a text where bytes were expected".into());
    };
    match Message::decode(&Uint8Array::new(&buffer).to_vec()) {
        Ok(message) => Event::Received(message),
        Err(error) => Event::Unreadable(error.to_string()),
    }
}

fn closed() -> Event {
    Event::Closed { random: (js_sys::Math::random() * 4_294_967_296.0) as u32 }
}
