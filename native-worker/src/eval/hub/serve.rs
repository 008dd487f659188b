//! Serving under a name at a hub, for as long as the process lives.

use std::{
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread,
    time::Duration,
};

use rollmesh_core::{
    eval_worker::{EvalSession, FrameLimits},
    evaluation::EvalWorkerError,
    protocol::reconnect_delay,
};
use tokio::sync::Notify;

use super::{
    super::{connection::ANSWER, supervisor::Shared},
    EvalHub,
    carry::{End, carry, over},
    runtime,
};

impl EvalHub {
    /// Serves under a name from now on: whoever asks is answered at the desk, and when somebody wants the worker to end,
    /// `end` ends the process. Returns once the name is taken; a connection that is lost is made again.
    pub(in super::super) fn serve(
        self,
        name: &str,
        shared: Arc<Shared>,
        end: impl Fn() + Send + 'static,
    ) -> Result<(), EvalWorkerError> {
        let runtime = runtime()?;
        let (tell, told) = mpsc::channel();
        let name = name.to_owned();
        let serve = move || {
            let (mut tell, mut failed) = (Some(tell), 0);
            loop {
                let session = EvalSession::new(self.identity(&name), &name, FrameLimits::MAX);
                let (tell, shared) = (tell.take(), &*shared);
                let mut serving = Serving { session, shared, name: &name, end: &end, tell, is_wanted: true };
                runtime.block_on(carry(&self, &mut serving));
                let Serving { session, is_wanted, .. } = serving;
                let had_name = session.has_name() == Some(true);
                shared.at_desk(|desk, _| session.end(desk));
                if !is_wanted {
                    break;
                }
                failed = if had_name { 1 } else { failed + 1 };
                let pause = reconnect_delay(failed, getrandom::u32().unwrap_or(u32::MAX / 2));
                thread::sleep(Duration::from_micros(pause.0));
            }
        };
        thread::Builder::new().name("eval-hub".into()).spawn(serve).map_err(EvalWorkerError::io)?;
        told.recv_timeout(2 * ANSWER).unwrap_or_else(|_| Err(EvalWorkerError::io("the hub does not give names")))
    }
}

/// A connection under a name.
struct Serving<'a> {
    session: EvalSession,
    shared: &'a Shared,
    name: &'a str,
    end: &'a dyn Fn(),
    /// Who waits for the name, the first time.
    tell: Option<Sender<Result<(), EvalWorkerError>>>,
    /// The first time has not failed.
    is_wanted: bool,
}

impl End for Serving<'_> {
    fn handle_frame(&mut self, frame: &[u8]) {
        self.shared.at_desk(|desk, now| self.session.handle_frame(frame, desk, now));
        if self.session.wants_shutdown() {
            // Whoever wants that is told by the hub, once everything has ended.
            (self.end)();
        }
        if self.session.has_name() == Some(true)
            && let Some(tell) = self.tell.take()
            && tell.send(Ok(())).is_err()
        {
            self.is_wanted = false;
            self.session.leave("nobody waits for the name any more");
        }
    }

    fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.shared.at_desk(|desk, now| self.session.poll_frame(desk, now))
    }

    fn changes(&self) -> Arc<Notify> {
        self.shared.changes()
    }

    fn patience(&self) -> Option<Duration> {
        let deadline = self.session.deadline()?;
        Some(Duration::from_micros(deadline.since(self.shared.now()).0))
    }

    fn is_over(&self) -> Option<String> {
        over(self.session.state())
    }

    fn lost(&mut self, reason: &str) {
        if let Some(tell) = self.tell.take() {
            self.is_wanted = false;
            let is_taken = self.session.has_name() == Some(false);
            let error =
                if is_taken { EvalWorkerError::NameTaken(self.name.into()) } else { EvalWorkerError::io(reason) };
            // Whoever waits no more has given up.
            let _ = tell.send(Err(error));
        }
    }
}
