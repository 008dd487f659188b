//! The listener's thread, at low priority. Unauthenticated peers and dashboards get the processor time that workers,
//! learner and actor do not use, so that they cannot slow down training.

use std::{io, sync::Arc, thread};

use tokio::{net::TcpListener, runtime::Builder, sync::oneshot};

use super::server::{self, ServerState};

/// Accepts connections until it is dropped.
#[derive(Debug)]
pub(super) struct ListenerThread {
    _open: oneshot::Sender<()>,
}

impl ListenerThread {
    pub(super) fn open(listener: TcpListener, shared: ServerState) -> io::Result<Self> {
        let listener = listener.into_std()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (open, closed) = oneshot::channel::<()>();
        thread::Builder::new().name("listener".into()).spawn(move || {
            give_way();
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = closed => {}
                    () = server::serve(listener, Arc::new(shared)) => {}
                }
            });
            // This does not wait for files that are being read for a request.
            runtime.shutdown_background();
        })?;
        Ok(Self { _open: open })
    }
}

/// Lowers this thread's scheduling priority.
fn give_way() {
    // On other systems this would affect the whole process.
    #[cfg(target_os = "linux")]
    {
        // A small increment: the cost of unauthenticated peers is bounded, and operators are served by this thread as well,
        // also where fifty local workers compete for the same processors.
        const NICER: i32 = 3;
        // If the system refuses, the priority stays as it is.
        let _ = rustix::process::getpriority_process(None)
            .and_then(|nice| rustix::process::setpriority_process(None, (nice + NICER).min(19)));
    }
}
