//! The thread at the door. Strangers, and those who only watch, get the processor time that workers, learner and actor
//! leave: however many come, and whatever they say, training goes on.

use std::{io, sync::Arc, thread};

use tokio::{net::TcpListener, runtime::Builder, sync::oneshot};

use super::server::{self, Shared};

/// Listens until it is dropped.
#[derive(Debug)]
pub(super) struct Door {
    _open: oneshot::Sender<()>,
}

impl Door {
    pub(super) fn open(listener: TcpListener, shared: Shared) -> io::Result<Self> {
        let listener = listener.into_std()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (open, closed) = oneshot::channel::<()>();
        thread::Builder::new().name("door".into()).spawn(move || {
            give_way();
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = closed => {}
                    () = server::serve(listener, Arc::new(shared)) => {}
                }
            });
            // A file that is being read for somebody is not worth waiting for.
            runtime.shutdown_background();
        })?;
        Ok(Self { _open: open })
    }
}

/// Lets other threads go first.
fn give_way() {
    // Elsewhere this would be about the whole process.
    #[cfg(target_os = "linux")]
    {
        // Little: what strangers may cost is bounded, and operators come by this thread, too, also where fifty local
        // workers want the same processors.
        const NICER: i32 = 3;
        // A system that refuses treats strangers as well as everybody else.
        let _ = rustix::process::getpriority_process(None)
            .and_then(|nice| rustix::process::setpriority_process(None, (nice + NICER).min(19)));
    }
}
