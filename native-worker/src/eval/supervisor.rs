//! The supervisor: it starts the engine, watches its progress and delivers results to handles.

use std::{
    collections::VecDeque,
    io,
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
    eval_worker::{EvalDesk, EvalMakers, EvalOrder, Polled},
    evaluation::{Earlier, EvalWorkerError, EvaluationRequest, Ticket},
    weights::Weights,
};
use tokio::sync::watch;

use super::engine::{self, Report};
#[cfg(unix)]
use super::process::ProcessEngine;

/// Time for an engine to stop a cancelled evaluation. After that it is replaced, like one whose environments take longer for
/// a step; only its start has to be repeated.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// State shared by handles and the supervising thread.
#[derive(Debug)]
pub(super) struct Shared {
    desk: Mutex<EvalDesk>,
    changed: Condvar,
    /// The same for asynchronous callers.
    notify: watch::Sender<()>,
    events: Sender<Event>,
}

#[derive(Debug)]
pub(super) enum Event {
    /// An evaluation was submitted or cancelled.
    Wake,
    /// A report of the engine with this number.
    Report(u64, Report),
    /// The engine with this number has ended; with the end of its standard error.
    Gone(u64, String),
}

/// How to make engines.
#[derive(Debug)]
pub(super) enum Source {
    Thread(EvalMakers),
    #[cfg(unix)]
    Process {
        program: std::path::PathBuf,
        run: Box<RunConfig>,
    },
}

impl Shared {
    /// Starts the supervisor and the first engine.
    pub(super) fn start(source: Source, timeout: Duration) -> io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let (events, heard) = mpsc::channel();
        let shared =
            Arc::new(Self { desk: Mutex::default(), changed: Condvar::new(), notify: watch::channel(()).0, events });
        let supervisor = Supervisor { shared: shared.clone(), source, timeout, engine: None, number: 0 };
        let thread = thread::Builder::new().name("eval-supervisor".into()).spawn(move || supervisor.run(&heard))?;
        Ok((shared, thread))
    }

    fn desk(&self) -> MutexGuard<'_, EvalDesk> {
        // No code panics while holding the lock.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accesses the desk, and wakes the supervisor.
    #[cfg(unix)]
    pub(super) fn at_desk<T>(&self, work: impl FnOnce(&mut EvalDesk) -> T) -> T {
        let done = work(&mut self.desk());
        self.wake();
        done
    }

    /// Returns a receiver that is notified of every change at the desk.
    #[cfg(unix)]
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.notify.subscribe()
    }

    /// Queues an evaluation of a handle.
    pub(super) fn submit(
        &self,
        pending: &mut VecDeque<Ticket>,
        job: (Option<Weights>, EvaluationRequest, Earlier),
    ) -> Result<Ticket, EvalWorkerError> {
        let ticket = self.desk().submit_for(pending, job);
        self.wake();
        ticket
    }

    /// Waits for the next outcome of a handle, at most for the timeout.
    pub(super) fn poll(&self, pending: &mut VecDeque<Ticket>, timeout: Duration) -> Polled {
        let until = Instant::now().checked_add(timeout);
        let mut desk = self.desk();
        loop {
            let polled = desk.poll(pending);
            let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
            if polled != Polled::NotYet || left.is_zero() {
                return polled;
            }
            (desk, _) = self.changed.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stops all evaluations. The supervising thread and the engine end.
    pub(super) fn stop(&self) {
        self.desk().stop();
        self.tell_all();
        self.wake();
    }

    /// Notifies all waiting callers.
    fn tell_all(&self) {
        self.changed.notify_all();
        self.notify.send_replace(());
    }

    fn wake(&self) {
        // If the supervisor has ended, there is nothing to wake.
        let _ = self.events.send(Event::Wake);
    }
}

struct Supervisor {
    shared: Arc<Shared>,
    source: Source,
    timeout: Duration,
    engine: Option<Engine>,
    /// Number of the latest engine.
    number: u64,
}

struct Engine {
    hands: Hands,
    is_ready: bool,
    last_heard: Instant,
    /// Since when it has been cancelling its evaluation.
    cancelled: Option<Instant>,
}

/// How orders reach the engine.
enum Hands {
    Thread(Sender<EvalOrder>),
    #[cfg(unix)]
    Process(ProcessEngine),
}

impl Supervisor {
    fn run(mut self, events: &Receiver<Event>) {
        self.engine = self.start_engine().map_err(|error| self.fail(error)).ok();
        loop {
            while let Some(order) = self.next_order() {
                self.order(order);
            }
            if self.shared.desk().is_stopped() {
                break;
            }
            let event = match self.patience() {
                Some(patience) => events.recv_timeout(patience),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Wake) => {}
                Ok(Event::Report(number, report)) if number == self.number => self.hear(report),
                Ok(Event::Gone(number, words)) if number == self.number => self.lost(words),
                Ok(Event::Report(..) | Event::Gone(..)) => {}
                Err(RecvTimeoutError::Timeout) => self.overdue(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    fn next_order(&self) -> Option<EvalOrder> {
        self.shared.desk().next_order()
    }

    fn order(&mut self, order: EvalOrder) {
        if self.engine.is_none() {
            match self.start_engine() {
                Ok(engine) => self.engine = Some(engine),
                Err(error) => return self.fail(error),
            }
        }
        if let Some(engine) = &mut self.engine {
            let now = Instant::now();
            match order {
                EvalOrder::Evaluate { .. } => (engine.last_heard, engine.cancelled) = (now, None),
                EvalOrder::Cancel(_) => engine.cancelled = Some(now),
            }
            engine.tell(order);
        }
    }

    fn start_engine(&mut self) -> Result<Engine, EvalWorkerError> {
        self.number += 1;
        let (number, events) = (self.number, self.shared.events.clone());
        let hands = match &self.source {
            Source::Thread(makers) => {
                let (orders, told) = mpsc::channel();
                let makers = makers.clone();
                let work = move || {
                    engine::run(&makers, &told, |report| events.send(Event::Report(number, report)).is_ok());
                    let _ = events.send(Event::Gone(number, "its thread has ended".into()));
                };
                let spawned = thread::Builder::new().name("evaluation".into()).spawn(work);
                spawned.map_err(|error| EvalWorkerError::setup("thread", error))?;
                Hands::Thread(orders)
            }
            #[cfg(unix)]
            Source::Process { program, run } => {
                let engine = ProcessEngine::start(program, run, move |event| {
                    let _ = events.send(match event {
                        Ok(report) => Event::Report(number, report),
                        Err(words) => Event::Gone(number, words),
                    });
                });
                Hands::Process(engine.map_err(|error| EvalWorkerError::setup("process", error))?)
            }
        };
        Ok(Engine { hands, is_ready: false, last_heard: Instant::now(), cancelled: None })
    }

    /// Returns how long the engine may still be silent, if it has anything to do.
    fn patience(&self) -> Option<Duration> {
        let engine = self.engine.as_ref().filter(|engine| !engine.is_ready || self.shared.desk().is_busy())?;
        let patience = self.timeout.saturating_sub(engine.last_heard.elapsed());
        // An engine that is still starting is kept for the next request.
        let cancelled = engine.cancelled.filter(|_| engine.is_ready);
        let grace = cancelled.map(|since| CANCEL_GRACE.saturating_sub(since.elapsed()));
        Some(grace.map_or(patience, |grace| patience.min(grace)))
    }

    fn hear(&mut self, report: Report) {
        let Some(engine) = &mut self.engine else { return };
        engine.last_heard = Instant::now();
        match report {
            Report::Progress => {}
            Report::Ready => {
                engine.is_ready = true;
                engine.cancelled = engine.cancelled.map(|_| engine.last_heard);
                self.shared.desk().engine_ready();
                self.shared.tell_all();
            }
            Report::Broken(error) => {
                self.engine = None;
                self.fail(error);
            }
            Report::Done(done) => {
                if self.shared.desk().finish(done) {
                    self.engine = None;
                }
                self.shared.tell_all();
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
            self.shared.desk().engine_gone();
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
        self.shared.tell_all();
    }
}

impl Engine {
    /// Sends an order. If the engine has ended, that is reported separately.
    fn tell(&mut self, order: EvalOrder) {
        match &mut self.hands {
            Hands::Thread(orders) => drop(orders.send(order)),
            #[cfg(unix)]
            Hands::Process(process) => process.tell(order),
        }
    }
}
