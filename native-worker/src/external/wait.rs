//! Blocking a thread on a poll function.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: Waker = Arc::new(Unpark(thread::current())).into();
}

/// Polls until the value is ready or the timeout is over. The thread sleeps in between.
pub(super) fn block_on<T>(timeout: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let start = Instant::now();
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(value) = poll(&mut context) {
                return Some(value);
            }
            // Compares durations, since the largest timeout would overflow a deadline.
            let left = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())?;
            thread::park_timeout(left);
        }
    })
}
