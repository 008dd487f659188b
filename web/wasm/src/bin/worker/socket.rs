//! The socket to the hub.

use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{BinaryType, MessageEvent, WebSocket};

/// Above this the browser is given no more to send: what waits in the session counts as its backlog, what waits in
/// the browser would count nowhere.
const MAX_BUFFERED_BYTES: u32 = 512 * 1024;

/// What a socket tells.
pub(crate) enum Heard {
    /// It is open.
    Open,
    /// A frame came.
    Frame(Vec<u8>),
    /// It is closed, or could not be opened.
    Closed,
}

/// An open or opening socket. Dropping it closes it, and nothing more is heard of it.
pub(crate) struct Socket {
    socket: WebSocket,
    _on_open: Closure<dyn FnMut()>,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_close: Closure<dyn FnMut()>,
}

impl Socket {
    /// Opens a socket. None for a URL that cannot be one.
    pub(crate) fn open(url: &str, hear: impl Fn(Heard) + Clone + 'static) -> Option<Self> {
        let socket = WebSocket::new(url).ok()?;
        socket.set_binary_type(BinaryType::Arraybuffer);
        let (opened, got, closed) = (hear.clone(), hear.clone(), hear);
        let on_open = Closure::<dyn FnMut()>::new(move || opened(Heard::Open));
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            // A text becomes an empty frame, which is no message: the session ends with that reason.
            let frame = event.data().dyn_into::<ArrayBuffer>().map(|buffer| Uint8Array::new(&buffer).to_vec());
            got(Heard::Frame(frame.unwrap_or_default()));
        });
        let on_close = Closure::<dyn FnMut()>::new(move || closed(Heard::Closed));
        socket.set_onopen(Some(on_open.as_ref().unchecked_ref()));
        socket.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        socket.set_onclose(Some(on_close.as_ref().unchecked_ref()));
        Some(Self { socket, _on_open: on_open, _on_message: on_message, _on_close: on_close })
    }

    /// Is there room for another frame now?
    pub(crate) fn has_room(&self) -> bool {
        self.socket.ready_state() == WebSocket::OPEN && self.socket.buffered_amount() < MAX_BUFFERED_BYTES
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        // Fails only while connecting; what is lost while closing is told by the close event.
        let _ = self.socket.send_with_u8_array(frame);
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
