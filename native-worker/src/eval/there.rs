//! A handle of a named evaluation worker: its connection to the hub.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    evaluation::{EvalOutcome, EvalWorkerError, EvaluationRequest, Ticket},
    protocol::{
        AskOutcome, Connection, Message, Role,
        handshake::{Identity, PeerService},
        message::{Ask, AskCancel, Asked},
    },
    weights::Weights,
    worker::{CommandError, WorkerAnswer, WorkerCommand, core_fingerprint},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{EvalHub, EvalLink};
use crate::{
    kernels,
    net::{Linked, Route, connect},
};

/// Timeout of answers that do not wait for an evaluation.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// A handle of a named evaluation worker. The connection ends when this is dropped.
pub(super) struct There {
    name: String,
    latest: u64,
    /// Requests that the handle waits for, with the answers that have arrived.
    asked: BTreeMap<u64, Option<Asked>>,
    to_hub: UnboundedSender<Message>,
    /// Answers, and at last the reason that the connection has ended. Locked by the handle alone, which may be shared
    /// among threads.
    from_hub: Mutex<Receiver<Result<Asked, String>>>,
    /// The reason that the connection has ended.
    end: Option<String>,
}

impl There {
    /// Connects to the hub, and checks that there is such a worker.
    pub(super) fn find(hub: &EvalHub, name: &str) -> Result<Self, EvalWorkerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(EvalWorkerError::io)?;
        let (to_hub, requests) = unbounded_channel();
        let (answers, from_hub) = channel();
        let hub_there = hub.clone();
        let run = move || {
            let end = runtime.block_on(converse(&hub_there, requests, &answers));
            // The handle may have been dropped.
            let _ = answers.send(Err(end.err().unwrap_or_else(|| "the handle is closed".into())));
        };
        thread::Builder::new().name("eval-link".into()).spawn(run).map_err(EvalWorkerError::io)?;
        let (asked, from_hub) = (BTreeMap::new(), Mutex::new(from_hub));
        let mut there = Self { name: name.into(), latest: 0, asked, to_hub, from_hub, end: None };
        match there.ask_and_wait(Vec::new())? {
            AskOutcome::Done => Ok(there),
            _ => Err(EvalWorkerError::UnknownName { name: name.into(), place: hub.url.to_string() }),
        }
    }

    fn ask(&mut self, body: Vec<u8>) -> u64 {
        self.latest += 1;
        self.asked.insert(self.latest, None);
        self.say(Message::Ask(Ask { ask: self.latest, name: self.name.clone(), body }));
        self.latest
    }

    fn say(&self, message: Message) {
        // A connection that has ended reports that separately.
        let _ = self.to_hub.send(message);
    }

    /// Sends a request and waits for its answer, which comes soon.
    fn ask_and_wait(&mut self, body: Vec<u8>) -> Result<AskOutcome, EvalWorkerError> {
        let ask = self.ask(body);
        let asked = self.wait(Some(ask), Some(Instant::now() + ANSWER))?;
        let outcome = asked.ok_or_else(|| EvalWorkerError::io("the hub does not answer"))?.outcome;
        AskOutcome::try_from(outcome).map_err(EvalWorkerError::io)
    }

    /// Waits for an answer, at most until the deadline; `None` waits without a limit. Without a request it checks the
    /// connection.
    fn wait(&mut self, ask: Option<u64>, until: Option<Instant>) -> Result<Option<Asked>, EvalWorkerError> {
        loop {
            if let Some(ask) = ask
                && let Some(answer) = self.asked.get_mut(&ask).and_then(Option::take)
            {
                self.asked.remove(&ask);
                return Ok(Some(answer));
            }
            if let Some(end) = &self.end {
                return Err(EvalWorkerError::io(end));
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            match self.from_hub.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(left) {
                // Answers to cancelled requests are dropped.
                Ok(Ok(asked)) => {
                    if let Some(answer) = self.asked.get_mut(&asked.ask) {
                        *answer = Some(asked);
                    }
                }
                Ok(Err(reason)) => self.end = Some(reason),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => self.end = Some("the connection was lost".into()),
            }
        }
    }
}

impl EvalLink for There {
    fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError> {
        self.wait(None, Some(Instant::now()))?;
        let body = WorkerCommand::Evaluate { weights, request }.encode().map_err(EvalWorkerError::failed)?;
        Ok(Ticket(self.ask(body)))
    }

    fn cancel(&mut self, Ticket(ask): Ticket) {
        if self.asked.remove(&ask).is_some_and(|answer| answer.is_none()) {
            self.say(Message::AskCancel(AskCancel { ask }));
        }
    }

    fn poll(&mut self, awaited: Option<Ticket>, timeout: Duration) -> Option<(Option<Ticket>, EvalOutcome)> {
        let until = if awaited.is_some() { Instant::now().checked_add(timeout) } else { Some(Instant::now()) };
        match self.wait(awaited.map(|ticket| ticket.0), until) {
            Ok(asked) => Some((awaited, outcome(&asked?))),
            Err(error) => Some((None, Err(error))),
        }
    }

    fn end(mut self: Box<Self>) {
        // A worker that does not answer has ended already.
        let _ = WorkerCommand::Stop.encode().map(|body| self.ask_and_wait(body));
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

/// Runs a handle's connection until the handle is dropped, or returns the reason that it has ended before.
async fn converse(
    hub: &EvalHub,
    mut requests: UnboundedReceiver<Message>,
    answers: &Sender<Result<Asked, String>>,
) -> Result<(), String> {
    let mut socket = connect(Route::direct(hub.url.as_str(), &hub.trust)).await.map_err(|error| error.to_string())?;
    let identity = Identity::new(Role::Worker, hub.token, "native", "evaluation handle", "cpu");
    let core_fingerprint = core_fingerprint(kernels::AUTO);
    let mut connection = Connection::new(Identity { core_fingerprint, service: PeerService::Asks, ..identity });
    let mut link = Linked::new(&mut socket, &mut connection);
    link.admitted().await?;
    loop {
        // Messages that stay queued wait for credit, so for a frame of the hub.
        link.flush().await?;
        tokio::select! {
            // One message after the other: small ones must not overtake large ones.
            request = requests.recv(), if link.connection.queued_bytes() == 0 => match request {
                Some(request) => link.send(&request).await?,
                None => {
                    link.leave("the handle is closed").await;
                    return Ok(());
                }
            },
            message = link.next() => if let Some(Message::Asked(asked)) = message? {
                // The handle may be dropped at any time.
                let _ = answers.send(Ok(asked));
            },
        }
    }
}
