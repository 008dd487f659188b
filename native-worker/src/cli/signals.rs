//! Ctrl-C and its relatives.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

/// Notices that the program is asked to end, for work that asks now and then. Asked a second time, the program ends at
/// once.
pub(super) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Notices it from now on. Where the system gives no thread, the first Ctrl-C ends the program as ever.
    pub(super) fn watch() -> Self {
        Self::watch_and(|| {})
    }

    /// As [`watch`](Self::watch); `act` ends what would never ask.
    pub(super) fn watch_and(act: impl FnOnce() + Send + 'static) -> Self {
        let noticed = Arc::new(AtomicBool::new(false));
        let flag = noticed.clone();
        let (ready, listening) = mpsc::channel();
        let wait = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                // It listens from the first poll on.
                tokio::join!(biased; interrupted(), async { _ = ready.send(()) });
                flag.store(true, Ordering::Relaxed);
                act();
                eprintln!("ending after what is going on; Ctrl-C again ends at once, and keeps nothing");
                interrupted().await;
                process::exit(130);
            });
        };
        // Without it nobody notices, and nobody says so.
        let _ = thread::Builder::new().name("signals".into()).spawn(wait);
        let _ = listening.recv();
        Self(noticed)
    }

    /// Was the program asked to end?
    pub(super) fn is_noticed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns when the program is asked to end.
pub(super) async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                // Without a handler for Ctrl-C the system ends the program anyway.
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
