//! A handle of a named evaluation worker: its connection to the hub.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    eval_worker::Polled,
    evaluation::{Earlier, EvalOutcome, EvalWorkerError, EvaluationRequest, Ticket},
    protocol::{
        AskOutcome, Connection, Message,
        message::{Ask, AskCancel, Asked},
    },
    weights::Weights,
    worker::{CommandError, WorkerAnswer, WorkerCommand},
};
use tokio::sync::watch;

use super::EvalHub;
use crate::net::{Linked, connect};

/// Timeout of answers that do not wait for an evaluation.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// A handle of a named evaluation worker.
pub(super) struct There {
    shared: Arc<Shared>,
    name: String,
    latest: u64,
}

/// State shared by a handle and its connection.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the connection after changes.
    wake: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    to_say: VecDeque<Message>,
    /// Requests that the handle waits for, with the answers that have arrived.
    asked: BTreeMap<u64, Option<Asked>>,
    /// Why the connection has ended.
    end: Option<String>,
    is_dropped: bool,
}

impl There {
    /// Connects to the hub, and asks whether there is such a worker.
    pub(super) fn find(hub: &EvalHub, name: &str) -> Result<Self, EvalWorkerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(EvalWorkerError::io)?;
        let (wake, woken) = watch::channel(());
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), wake });
        let (hub_there, line) = (hub.clone(), shared.clone());
        let run = move || {
            let end = runtime.block_on(Line { shared: line.clone(), woken }.run(&hub_there));
            line.end(&end);
        };
        thread::Builder::new().name("eval-link".into()).spawn(run).map_err(EvalWorkerError::io)?;
        let mut there = Self { shared, name: name.into(), latest: 0 };
        match there.ask_and_wait(Vec::new()) {
            Ok(AskOutcome::Done) => Ok(there),
            Ok(_) => Err(EvalWorkerError::UnknownName { name: name.into(), place: hub.url.to_string() }),
            Err(error) => Err(error),
        }
    }

    fn ask(&mut self, body: Vec<u8>) -> u64 {
        self.latest += 1;
        self.shared.state().asked.insert(self.latest, None);
        self.say(Message::Ask(Ask { ask: self.latest, name: self.name.clone(), body }));
        self.latest
    }

    fn say(&self, message: Message) {
        // A connection that has ended reports that separately.
        self.shared.state().to_say.push_back(message);
        self.shared.wake.send_replace(());
    }

    /// Sends a request and waits for its answer, which comes soon.
    fn ask_and_wait(&mut self, body: Vec<u8>) -> Result<AskOutcome, EvalWorkerError> {
        let ask = self.ask(body);
        let until = Instant::now() + ANSWER;
        let asked = self.shared.until(Some(until), |state| state.take(ask));
        let late = || EvalWorkerError::io("the hub does not answer");
        let outcome = asked?.ok_or_else(late)?.outcome;
        AskOutcome::try_from(outcome).map_err(EvalWorkerError::io)
    }

    /// Requests an evaluation for a handle with these pending tickets.
    pub(super) fn submit(
        &mut self,
        pending: &mut VecDeque<Ticket>,
        (weights, request, earlier): (Option<Weights>, EvaluationRequest, Earlier),
    ) -> Result<Ticket, EvalWorkerError> {
        if let Some(end) = &self.shared.state().end {
            return Err(EvalWorkerError::io(end));
        }
        let body = WorkerCommand::Evaluate { weights, request }.encode().map_err(EvalWorkerError::failed)?;
        if earlier == Earlier::Cancel {
            pending.drain(..).for_each(|ticket| self.cancel(ticket));
        }
        if pending.len() >= EvalWorkerError::MAX_PENDING {
            return Err(EvalWorkerError::QueueFull);
        }
        let ticket = Ticket(self.ask(body));
        pending.push_back(ticket);
        Ok(ticket)
    }

    fn cancel(&self, Ticket(ask): Ticket) {
        let asked = self.shared.state().asked.remove(&ask);
        if asked.is_some_and(|answer| answer.is_none()) {
            self.say(Message::AskCancel(AskCancel { ask }));
        }
    }

    /// Waits for the outcome of a handle's first pending evaluation, at most for the timeout.
    pub(super) fn poll(&self, pending: &mut VecDeque<Ticket>, timeout: Duration) -> Polled {
        let first = pending.front().copied();
        let until = Instant::now().checked_add(timeout);
        // Without a pending evaluation it only checks the connection.
        let until = if first.is_some() { until } else { Some(Instant::now()) };
        match self.shared.until(until, |state| state.take(first?.0)) {
            Ok(Some(asked)) => Polled::Found(pending.pop_front(), outcome(&asked)),
            Ok(None) if first.is_some() => Polled::NotYet,
            Ok(None) => Polled::Nothing,
            Err(error) => Polled::Found(None, Err(error)),
        }
    }

    /// Ends the worker, for all its handles.
    pub(super) fn shutdown(&mut self) {
        // A worker that does not answer has ended already.
        let _ = WorkerCommand::Stop.encode().map(|body| self.ask_and_wait(body));
    }
}

impl Drop for There {
    fn drop(&mut self) {
        self.shared.state().is_dropped = true;
        self.shared.wake.send_replace(());
    }
}

impl fmt::Debug for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("There").field("name", &self.name).finish_non_exhaustive()
    }
}

fn outcome(asked: &Asked) -> EvalOutcome {
    match AskOutcome::try_from(asked.outcome) {
        Ok(AskOutcome::Done) => match WorkerAnswer::decode(&asked.body) {
            Ok(WorkerAnswer::Evaluated(outcome)) => *outcome,
            Ok(_) => Err(EvalWorkerError::io("the worker answers something else")),
            Err(error) => Err(EvalWorkerError::io(error)),
        },
        Ok(AskOutcome::Failed) => Err(EvalWorkerError::failed(CommandError::decode(&asked.body))),
        Ok(AskOutcome::UnknownName | AskOutcome::Left) => Err(EvalWorkerError::io("the worker has left")),
        Err(error) => Err(EvalWorkerError::io(error)),
    }
}

impl State {
    fn take(&mut self, ask: u64) -> Option<Asked> {
        let answer = self.asked.get_mut(&ask)?.take()?;
        self.asked.remove(&ask);
        Some(answer)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, reason: &str) {
        self.state().end.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }

    /// Waits until `take` returns a value, or for the deadline; `None` waits without a limit.
    fn until<T>(
        &self,
        until: Option<Instant>,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, EvalWorkerError> {
        let mut state = self.state();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(Some(found));
            }
            if let Some(end) = &state.end {
                return Err(EvalWorkerError::io(end));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

/// The connection's side.
struct Line {
    shared: Arc<Shared>,
    woken: watch::Receiver<()>,
}

impl Line {
    /// Runs the connection and returns why it has ended.
    async fn run(mut self, hub: &EvalHub) -> String {
        let mut socket = match connect(hub.url.as_str(), &hub.trust).await {
            Ok(socket) => socket,
            Err(error) => return error.to_string(),
        };
        let mut connection = Connection::new(hub.identity());
        match self.converse(Linked { socket: &mut socket, connection: &mut connection }).await {
            Ok(()) => "the handle is closed".into(),
            Err(reason) => reason,
        }
    }

    async fn converse(&mut self, mut link: Linked<'_>) -> Result<(), String> {
        link.admitted().await?;
        loop {
            // One message after the other: small ones must not overtake large ones.
            if link.connection.queued_bytes() == 0 {
                let (next, is_dropped) = {
                    let mut state = self.shared.state();
                    (state.to_say.pop_front(), state.is_dropped)
                };
                match next {
                    Some(next) => {
                        link.send(&next).await?;
                        continue;
                    }
                    None if is_dropped => {
                        link.leave("the handle is closed").await;
                        return Ok(());
                    }
                    None => {}
                }
            }
            tokio::select! {
                // The sender lives as long as the handle, so this cannot fail.
                _ = self.woken.changed() => {}
                message = link.receive() => if let Some(Message::Asked(asked)) = message? {
                    // Answers to cancelled requests are dropped.
                    if let Some(answer) = self.shared.state().asked.get_mut(&asked.ask) {
                        *answer = Some(asked);
                    }
                    self.shared.changed.notify_all();
                },
            }
        }
    }
}
