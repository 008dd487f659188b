//! The supervisor: it starts the engine, watches its progress and delivers results to handles.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

#[cfg(unix)]
use rollmesh_core::run::RunConfig;
use rollmesh_core::{
    eval_worker::{EvalCommand, EvalDesk, EvalMakers, Polled},
    evaluation::{EvalOutcome, EvalWorkerError, EvaluationRequest, Ticket},
    weights::Weights,
};
use tokio::sync::watch;

#[cfg(unix)]
use super::process::{EvalProcess, Pictures};
use super::{
    EvalLink,
    engine::{self, EngineReport},
};
use crate::envs::catch_panics;

/// Time for an engine to stop a cancelled evaluation. After that it is replaced, like one whose environments take longer for
/// a step; only its start has to be repeated.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// State shared by handles and the supervising thread.
#[derive(Debug)]
pub(crate) struct SharedDesk {
    desk: Mutex<EvalDesk>,
    changed: Condvar,
    /// The same for asynchronous callers.
    notify: watch::Sender<()>,
    events: Sender<EvalEvent>,
}

#[derive(Debug)]
enum EvalEvent {
    /// An evaluation was submitted or cancelled.
    Wake,
    /// A report of the engine with this number.
    Report(u64, EngineReport),
    /// The engine with this number has ended; with the end of its standard error.
    Gone(u64, String),
}

/// The way to start an engine.
#[derive(Debug)]
pub(crate) enum EngineSource {
    Thread(EvalMakers),
    #[cfg(unix)]
    Process {
        program: PathBuf,
        run: Box<RunConfig>,
        pictures: Pictures,
    },
}

/// A worker that this process supervises. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SupervisedWorker {
    pub(crate) shared: Arc<SharedDesk>,
    supervisor: Option<thread::JoinHandle<()>>,
}

impl SupervisedWorker {
    /// Starts the supervisor and the first engine. An engine may make no progress for this long.
    pub(crate) fn start(source: EngineSource, timeout: Duration) -> Result<Self, EvalWorkerError> {
        let (events, heard) = mpsc::channel();
        let shared = Arc::new(SharedDesk {
            desk: Mutex::default(),
            changed: Condvar::new(),
            notify: watch::channel(()).0,
            events,
        });
        let supervisor = Supervisor { shared: shared.clone(), source, timeout, engine: None, number: 0 };
        let thread = thread::Builder::new().name("eval-supervisor".into()).spawn(move || supervisor.run(&heard));
        let thread = thread.map_err(|error| EvalWorkerError::setup("thread", error))?;
        Ok(Self { shared, supervisor: Some(thread) })
    }

    /// Evaluates the policies of a run in a process of this program.
    #[cfg(unix)]
    pub(crate) fn in_process(program: &Path, run: &RunConfig, pictures: Pictures) -> Result<Self, EvalWorkerError> {
        let timeout = Duration::from_secs(run.evaluation.timeout_s.get().into());
        Self::start(EngineSource::Process { program: program.into(), run: Box::new(run.clone()), pictures }, timeout)
    }
}

impl Drop for SupervisedWorker {
    fn drop(&mut self) {
        self.shared.stop();
        self.supervisor.take().into_iter().for_each(|supervisor| _ = supervisor.join());
    }
}

impl EvalLink for SupervisedWorker {
    fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError> {
        self.shared.at_desk(|desk| desk.submit(weights, request))
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.shared.at_desk(|desk| desk.cancel(ticket));
    }

    fn poll(&mut self, awaited: Option<Ticket>, timeout: Duration) -> Option<(Option<Ticket>, EvalOutcome)> {
        let until = Instant::now().checked_add(timeout);
        let mut desk = self.shared.desk();
        loop {
            let polled = desk.poll(awaited);
            let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
            match polled {
                Polled::Found(ticket, outcome) => return Some((ticket, outcome)),
                Polled::NotYet if !left.is_zero() => {}
                Polled::NotYet | Polled::Nothing => return None,
            }
            (desk, _) = self.shared.changed.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(self: Box<Self>) {}
}

impl SharedDesk {
    fn desk(&self) -> MutexGuard<'_, EvalDesk> {
        // No code panics while holding the lock.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accesses the desk, and wakes the supervisor.
    pub(crate) fn at_desk<T>(&self, work: impl FnOnce(&mut EvalDesk) -> T) -> T {
        let done = work(&mut self.desk());
        // If the supervisor has ended, there is nothing to wake.
        let _ = self.events.send(EvalEvent::Wake);
        done
    }

    /// Returns a receiver that is notified of every change at the desk.
    #[cfg(unix)]
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.notify.subscribe()
    }

    /// Stops all evaluations. The supervising thread and the engine end.
    pub(crate) fn stop(&self) {
        self.at_desk(EvalDesk::stop);
        self.notify_all_callers();
    }

    /// Notifies all waiting callers.
    fn notify_all_callers(&self) {
        self.changed.notify_all();
        self.notify.send_replace(());
    }
}

struct Supervisor {
    shared: Arc<SharedDesk>,
    source: EngineSource,
    timeout: Duration,
    engine: Option<RunningEngine>,
    /// Number of the latest engine.
    number: u64,
}

struct RunningEngine {
    /// An engine that has ended reports that separately.
    commands: Sender<EvalCommand>,
    #[cfg(unix)]
    _process: Option<EvalProcess>,
    is_ready: bool,
    last_contact: Instant,
    /// The time from which on it has been cancelling its evaluation.
    cancelled: Option<Instant>,
}

impl Supervisor {
    fn run(mut self, events: &Receiver<EvalEvent>) {
        self.engine = self.start_engine().map_err(|error| self.fail(error)).ok();
        loop {
            while let Some(command) = self.next_command() {
                self.execute(command);
            }
            if self.shared.desk().is_stopped() {
                break;
            }
            let event = match self.patience() {
                Some(patience) => events.recv_timeout(patience),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(EvalEvent::Wake) => {}
                Ok(EvalEvent::Report(number, report)) if number == self.number => self.handle(report),
                Ok(EvalEvent::Gone(number, words)) if number == self.number => self.lost(words),
                Ok(EvalEvent::Report(..) | EvalEvent::Gone(..)) => {}
                Err(RecvTimeoutError::Timeout) => self.overdue(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    fn next_command(&self) -> Option<EvalCommand> {
        self.shared.desk().next_command()
    }

    fn execute(&mut self, command: EvalCommand) {
        if self.engine.is_none() {
            match self.start_engine() {
                Ok(engine) => self.engine = Some(engine),
                Err(error) => return self.fail(error),
            }
        }
        if let Some(engine) = &mut self.engine {
            let now = Instant::now();
            match command {
                EvalCommand::Evaluate { .. } => (engine.last_contact, engine.cancelled) = (now, None),
                EvalCommand::Cancel(_) => engine.cancelled = Some(now),
            }
            let _ = engine.commands.send(command);
        }
    }

    fn start_engine(&mut self) -> Result<RunningEngine, EvalWorkerError> {
        self.number += 1;
        let (number, events) = (self.number, self.shared.events.clone());
        let send_report = move |report: Result<EngineReport, String>| {
            let event =
                report.map_or_else(|words| EvalEvent::Gone(number, words), |report| EvalEvent::Report(number, report));
            events.send(event).is_ok()
        };
        let (commands, received) = mpsc::channel();
        #[cfg(unix)]
        let mut process = None;
        match &self.source {
            EngineSource::Thread(makers) => {
                let makers = makers.clone().with_guard(catch_panics);
                let work = move || {
                    engine::run(makers.init().map(|()| makers), &received, |report| send_report(Ok(report)));
                    send_report(Err("its thread has ended".into()));
                };
                let spawned = thread::Builder::new().name("evaluation".into()).spawn(work);
                spawned.map_err(|error| EvalWorkerError::setup("thread", error))?;
            }
            #[cfg(unix)]
            EngineSource::Process { program, run, pictures } => {
                let started = EvalProcess::start(program, (run, *pictures), received, send_report);
                process = Some(started.map_err(|error| EvalWorkerError::setup("process", error))?);
            }
        }
        Ok(RunningEngine {
            commands,
            #[cfg(unix)]
            _process: process,
            is_ready: false,
            last_contact: Instant::now(),
            cancelled: None,
        })
    }

    /// Returns the time for which the engine may still be silent, if it has anything to do.
    fn patience(&self) -> Option<Duration> {
        let engine = self.engine.as_ref().filter(|engine| !engine.is_ready || self.shared.desk().is_busy())?;
        let patience = self.timeout.saturating_sub(engine.last_contact.elapsed());
        // An engine that is still starting is kept for the next request.
        let cancelled = engine.cancelled.filter(|_| engine.is_ready);
        let grace = cancelled.map(|since| CANCEL_GRACE.saturating_sub(since.elapsed()));
        Some(grace.map_or(patience, |grace| patience.min(grace)))
    }

    fn handle(&mut self, report: EngineReport) {
        let Some(engine) = &mut self.engine else { return };
        engine.last_contact = Instant::now();
        match report {
            EngineReport::Progress(_) => {}
            EngineReport::Ready => {
                engine.is_ready = true;
                engine.cancelled = engine.cancelled.map(|_| engine.last_contact);
                self.shared.desk().engine_ready();
                self.shared.notify_all_callers();
            }
            EngineReport::Broken(error) => {
                self.engine = None;
                self.fail(error);
            }
            EngineReport::Done(done) => {
                if self.shared.desk().finish(done) {
                    self.engine = None;
                }
                self.shared.notify_all_callers();
            }
        }
    }

    /// Handles the end of an engine. An idle one is replaced when there is another request.
    fn lost(&mut self, words: String) {
        let Some(engine) = self.engine.take() else { return };
        if !engine.is_ready {
            self.fail(EvalWorkerError::setup("process", words));
        } else if self.shared.desk().is_busy() {
            self.fail(EvalWorkerError::Ended(words));
        } else {
            self.shared.desk().engine_exited();
        }
    }

    fn overdue(&mut self) {
        if self.patience().is_none_or(|patience| !patience.is_zero()) {
            return;
        }
        let Some(engine) = self.engine.take() else { return };
        // Later reports with the old number are ignored.
        self.number += 1;
        // A cancelled evaluation is not reported.
        let doing = if engine.is_ready { "evaluating" } else { "beginning" }.to_owned();
        let limit_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        drop(engine);
        self.fail(EvalWorkerError::Overdue { doing, limit_ms });
    }

    fn fail(&self, error: EvalWorkerError) {
        self.shared.desk().engine_failed(error);
        self.shared.notify_all_callers();
    }
}
