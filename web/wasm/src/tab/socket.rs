//! The connection to the hub: a WebSocket, or a port of a hub in a page.

use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{BinaryType, MessageEvent, MessagePort, WebSocket};

use super::page::HubAddress;

/// The limit of the browser's send buffer, above which frames stay in the session: these count as its backlog, bytes in
/// the browser's buffer do not.
const MAX_BUFFERED_BYTES: u32 = 512 * 1024;

/// An event of a connection.
pub(crate) enum SocketEvent {
    /// The connection is open.
    Open,
    /// A frame has arrived.
    Frame(Vec<u8>),
    /// The connection is closed, or could not be opened.
    Closed,
}

/// An open or opening connection. Dropping it closes it, without further events.
pub(crate) struct Socket {
    channel: Channel,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
}

enum Channel {
    Web { socket: WebSocket, _on_open: Closure<dyn FnMut()>, _on_close: Closure<dyn FnMut()> },
    Port(MessagePort),
}

impl Socket {
    /// Opens a connection.
    ///
    /// # Errors
    /// The URL is not valid for a WebSocket.
    pub(crate) fn open(hub: &HubAddress, hear: impl Fn(SocketEvent) + Clone + 'static) -> Result<Self, String> {
        let (opened, got, closed) = (hear.clone(), hear.clone(), hear);
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            got(SocketEvent::Frame(bytes_of(&event.data())));
        });
        let hears = Some(on_message.as_ref().unchecked_ref());
        let channel = match hub {
            HubAddress::Port(port) => {
                port.set_onmessage(hears);
                Channel::Port(port.clone())
            }
            HubAddress::Url(url) => {
                let socket = WebSocket::new(url).map_err(|_| format!("{url} is no address of a hub"))?;
                socket.set_binary_type(BinaryType::Arraybuffer);
                socket.set_onmessage(hears);
                let on_open = Closure::<dyn FnMut()>::new(move || opened(SocketEvent::Open));
                let on_close = Closure::<dyn FnMut()>::new(move || closed(SocketEvent::Closed));
                socket.set_onopen(Some(on_open.as_ref().unchecked_ref()));
                socket.set_onclose(Some(on_close.as_ref().unchecked_ref()));
                Channel::Web { socket, _on_open: on_open, _on_close: on_close }
            }
        };
        Ok(Self { channel, _on_message: on_message })
    }

    /// Returns whether the socket accepts another frame now.
    pub(crate) fn takes_frames(&self) -> bool {
        match &self.channel {
            Channel::Web { socket, .. } => {
                socket.ready_state() == WebSocket::OPEN && socket.buffered_amount() < MAX_BUFFERED_BYTES
            }
            Channel::Port(_) => true,
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        let _ = match &self.channel {
            // Fails only while connecting; the close event reports what is lost while closing.
            Channel::Web { socket, .. } => socket.send_with_u8_array(frame),
            // Bytes can always be posted.
            Channel::Port(port) => port.post_message(&Uint8Array::from(frame)),
        };
    }
}

/// Returns the bytes of a frame. Anything else becomes an empty frame, which is not a message: the session ends with
/// that reason.
pub(crate) fn bytes_of(data: &JsValue) -> Vec<u8> {
    match data.dyn_ref::<Uint8Array>() {
        Some(bytes) => bytes.to_vec(),
        None => data.dyn_ref::<ArrayBuffer>().map(|buffer| Uint8Array::new(buffer).to_vec()).unwrap_or_default(),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        match &self.channel {
            Channel::Web { socket, .. } => {
                socket.set_onopen(None);
                socket.set_onmessage(None);
                socket.set_onclose(None);
                // Fails only for codes and reasons that are not allowed, and there are none.
                let _ = socket.close();
            }
            Channel::Port(port) => {
                port.set_onmessage(None);
                port.close();
            }
        }
    }
}
