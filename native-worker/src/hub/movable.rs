//! A socket that can move to another event loop: after admission a peer leaves the loop of the unauthenticated ones.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    runtime::Handle,
};

use crate::net::Io;

/// The socket at the bottom of the protocol stack.
pub(super) struct Movable {
    /// `None` if a move has failed.
    stream: Option<TcpStream>,
    control: SocketControl,
}

/// Changes a socket, at its next use.
#[derive(Clone, Default)]
pub(super) struct SocketControl(Arc<Due>);

#[derive(Default)]
struct Due {
    is_due: AtomicBool,
    wishes: Mutex<SocketWishes>,
}

#[derive(Default)]
struct SocketWishes {
    to: Option<Handle>,
    send_buffer: Option<usize>,
}

impl SocketControl {
    /// Moves the socket to this event loop; it has to be used there from then on.
    pub(super) fn go_to(&self, to: Handle) {
        self.wish(|wishes| wishes.to = Some(to));
    }

    /// Sets the system's send buffer to about this many bytes.
    pub(super) fn send_buffer(&self, bytes: usize) {
        self.wish(|wishes| wishes.send_buffer = Some(bytes));
    }

    fn wish(&self, change: impl FnOnce(&mut SocketWishes)) {
        change(&mut self.0.wishes());
        self.0.is_due.store(true, Ordering::Release);
    }
}

impl Due {
    fn wishes(&self) -> MutexGuard<'_, SocketWishes> {
        // No code panics while holding the lock.
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Movable {
    pub(super) fn new(stream: TcpStream, control: SocketControl) -> Self {
        Self { stream: Some(stream), control }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if self.control.0.is_due.load(Ordering::Acquire) {
            self.apply_wishes()?;
        }
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(stream))
    }

    fn apply_wishes(&mut self) -> io::Result<()> {
        self.control.0.is_due.store(false, Ordering::Relaxed);
        let SocketWishes { to, send_buffer } = std::mem::take(&mut *self.control.0.wishes());
        #[cfg(unix)]
        if let (Some(stream), Some(bytes)) = (&self.stream, send_buffer) {
            // If the system refuses, its default remains.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, bytes);
        }
        #[cfg(not(unix))]
        let _ = send_buffer;
        if let Some(to) = to {
            let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?.into_std()?;
            let _there = to.enter();
            self.stream = Some(TcpStream::from_std(stream)?);
        }
        Ok(())
    }
}

impl Io for Movable {}

impl AsyncRead for Movable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Movable {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        // As for every TCP socket.
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        runtime::Builder,
    };

    use super::*;

    #[test]
    fn socket_moves_to_another_event_loop_when_its_own_has_ended() {
        let new = || Builder::new_current_thread().enable_all().build().unwrap();
        let (here, there) = (new(), new());
        let control = SocketControl::default();
        let (mut movable, mut peer) = here.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut movable = Movable::new(listener.accept().await.unwrap().0, control.clone());
            peer.write_all(b"a").await.unwrap();
            assert_eq!(movable.read_u8().await.unwrap(), b'a');
            (movable, peer.into_std().unwrap())
        });
        control.go_to(there.handle().clone());
        // The first use moves it; its old event loop may end then.
        let mut here = Some(here);
        there.block_on(async {
            movable.write_all(b"b").await.unwrap();
            if let Some(runtime) = here.take() {
                runtime.shutdown_background();
            }
            std::io::Write::write_all(&mut peer, b"c").unwrap();
            assert_eq!(movable.read_u8().await.unwrap(), b'c');
            let mut peer = TcpStream::from_std(peer).unwrap();
            assert_eq!(peer.read_u8().await.unwrap(), b'b');
        });
    }
}
