//! Limits what a socket reads between two messages: the WebSocket layer has one limit for all peers, and unauthenticated
//! peers get less.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of bytes that may still be read.
#[derive(Clone, Debug)]
pub(super) struct ReadAllowance(Arc<AtomicUsize>);

impl ReadAllowance {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Sets how many bytes may be read from now on.
    pub(super) fn allow(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

/// A byte stream from which no more is read than its allowance.
pub(super) struct LimitedReads<T> {
    io: T,
    allowance: ReadAllowance,
}

impl<T> LimitedReads<T> {
    pub(super) fn new(io: T, allowance: ReadAllowance) -> Self {
        Self { io, allowance }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LimitedReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let allowed = self.allowance.0.load(Ordering::Relaxed);
        if allowed == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long")));
        }
        let before = buffer.filled().len();
        let came = Pin::new(&mut self.io).poll_read(context, buffer);
        // One read may exceed the allowance, by at most the reader's buffer; the next one does not.
        let bytes = buffer.filled().len() - before;
        self.allowance.0.store(allowed.saturating_sub(bytes), Ordering::Relaxed);
        came
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LimitedReads<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
