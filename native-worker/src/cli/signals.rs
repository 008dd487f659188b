//! Handling of Ctrl-C and SIGTERM.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tokio::sync::watch;

/// Records that the program was asked to end, for work that polls for it. A second request ends the program immediately.
#[derive(Clone)]
pub(super) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Works like [`watch_and`](Self::watch_and), for work that polls.
    #[cfg(feature = "offline-parquet")]
    pub(super) fn watch() -> Self {
        Self::watch_and(|| {})
    }

    /// Works like [`watch_and`](Self::watch_and); work that does not end within [`GRACE`] is ended with the process.
    pub(super) fn watch_and_end() -> Self {
        Self::watch_and(exit_after_grace)
    }

    /// Starts to listen; `act` ends work that does not poll. If the system refuses a thread, the first Ctrl-C ends the program as
    /// usual.
    pub(super) fn watch_and(act: impl FnOnce() + Send + 'static) -> Self {
        let noticed = Arc::new(AtomicBool::new(false));
        let flag = noticed.clone();
        let (ready, listening) = mpsc::channel();
        let wait = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let mut endings = Endings::listen();
                let _ = ready.send(());
                endings.first().await;
                flag.store(true, Ordering::Relaxed);
                act();
                eprintln!("{FINISHING}");
                // The second request ends the process.
                std::future::pending::<()>().await;
            });
        };
        // Without a thread the sender is dropped, which ends the wait below.
        let _ = thread::Builder::new().name("signals".into()).spawn(wait);
        let _ = listening.recv();
        Self(noticed)
    }

    /// Returns whether the program was asked to end.
    pub(super) fn is_noticed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The message of an interrupted program that saves its results.
pub(super) const FINISHING: &str =
    "finishing the work in progress; press Ctrl-C again to exit immediately without saving";

/// Time for pending work once the program was asked to end; an environment may hang.
pub(super) const GRACE: Duration = Duration::from_millis(1_500);

/// Ends the process, unless it exits by itself earlier.
pub(super) fn exit_after_grace() {
    let end = || {
        thread::sleep(GRACE);
        eprintln!(
            "interrupted: a step takes longer than {:.1} s, and what it would bring is lost",
            GRACE.as_secs_f32()
        );
        process::exit(3);
    };
    // Without a thread the second signal ends it.
    let _ = thread::Builder::new().name("grace".into()).spawn(end);
}

/// The request that the program end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndRequest {
    /// Ctrl-C: a user does not want to wait.
    Interrupt,
    /// SIGTERM: a service manager gives it time.
    Terminate,
}

impl EndRequest {
    /// Returns the conventional exit code of shells.
    fn code(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// The requests that the program end. The second one ends it immediately, whatever it is doing.
#[derive(Clone)]
pub(super) struct Endings(watch::Receiver<Option<EndRequest>>);

impl Endings {
    /// Listens until the event loop ends.
    pub(super) fn listen() -> Self {
        let (first, heard) = watch::channel(None);
        let mut wishes = SignalWishes::listen();
        tokio::spawn(async move {
            first.send_replace(Some(wishes.next().await));
            process::exit(wishes.next().await.code());
        });
        Self(heard)
    }

    /// Returns whether there was a request.
    pub(super) fn is_noticed(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits for the first request; returns immediately if there was one.
    pub(super) async fn first(&mut self) -> EndRequest {
        let heard = self.0.wait_for(Option::is_some).await.ok().and_then(|ending| *ending);
        match heard {
            Some(ending) => ending,
            // The event loop is ending.
            None => std::future::pending().await,
        }
    }
}

/// The signals, from the creation of this on.
struct SignalWishes {
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
}

impl SignalWishes {
    #[cfg(unix)]
    fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        // Without a handler the signal ends the program, as by default.
        let listen = |kind| signal(kind).ok();
        Self { interrupt: listen(SignalKind::interrupt()), terminate: listen(SignalKind::terminate()) }
    }

    #[cfg(not(unix))]
    fn listen() -> Self {
        Self {}
    }

    #[cfg(unix)]
    async fn next(&mut self) -> EndRequest {
        async fn heard(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => _ = signal.recv().await,
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = heard(&mut self.interrupt) => EndRequest::Interrupt,
            () = heard(&mut self.terminate) => EndRequest::Terminate,
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) -> EndRequest {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        EndRequest::Interrupt
    }
}

/// Returns when the program is asked to end.
pub(super) async fn interrupted() {
    SignalWishes::listen().next().await;
}
