//! Who sees to it that there is an engine, that it moves, and that everybody gets what is theirs.

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

/// How long an engine may take to stop an evaluation that nobody wants any more. One whose environments take longer for a
/// step is replaced, too, and loses nothing but its beginning.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// What handles and the supervising thread share.
#[derive(Debug)]
pub(super) struct Shared {
    desk: Mutex<EvalDesk>,
    changed: Condvar,
    /// The same for who waits without a thread.
    notify: watch::Sender<()>,
    events: Sender<Event>,
}

#[derive(Debug)]
pub(super) enum Event {
    /// Something was submitted, or is not wanted any more.
    Wake,
    /// Of the engine with this number.
    Report(u64, Report),
    /// The engine with this number is gone; its last words.
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
    /// Starts to supervise, and with it the first engine.
    pub(super) fn start(source: Source, timeout: Duration) -> io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let (events, heard) = mpsc::channel();
        let shared =
            Arc::new(Self { desk: Mutex::default(), changed: Condvar::new(), notify: watch::channel(()).0, events });
        let supervisor = Supervisor { shared: shared.clone(), source, timeout, engine: None, number: 0 };
        let thread = thread::Builder::new().name("eval-supervisor".into()).spawn(move || supervisor.run(&heard))?;
        Ok((shared, thread))
    }

    fn desk(&self) -> MutexGuard<'_, EvalDesk> {
        // Nobody panics while holding it.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at the desk, and lets the supervisor look what there is to be done.
    #[cfg(unix)]
    pub(super) fn at_desk<T>(&self, work: impl FnOnce(&mut EvalDesk) -> T) -> T {
        let done = work(&mut self.desk());
        self.wake();
        done
    }

    /// Tells of everything that changes at the desk.
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

    /// The next outcome of a handle, waiting for it at most so long.
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

    /// No more evaluations. The supervising thread ends, and with it the engine.
    pub(super) fn stop(&self) {
        self.desk().stop();
        self.tell_all();
        self.wake();
    }

    /// Something has changed for whoever waits.
    fn tell_all(&self) {
        self.changed.notify_all();
        self.notify.send_replace(());
    }

    fn wake(&self) {
        // Without a supervisor everything is over.
        let _ = self.events.send(Event::Wake);
    }
}

struct Supervisor {
    shared: Arc<Shared>,
    source: Source,
    timeout: Duration,
    engine: Option<Engine>,
    /// Of the latest engine.
    number: u64,
}

struct Engine {
    hands: Hands,
    is_ready: bool,
    last_heard: Instant,
    /// Since when it has been on its way out of what it is doing.
    cancelled: Option<Instant>,
}

/// How an engine is told something.
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

    /// How long the engine may still be silent, if it has anything to do.
    fn patience(&self) -> Option<Duration> {
        let engine = self.engine.as_ref().filter(|engine| !engine.is_ready || self.shared.desk().is_busy())?;
        let patience = self.timeout.saturating_sub(engine.last_heard.elapsed());
        // One that has not begun does so for whoever asks next.
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

    /// The engine is gone. One that had nothing to do is replaced when there is something.
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
        // Whatever it says from now on is of another engine's time.
        self.number += 1;
        // Nobody is told of an evaluation that is cancelled.
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
    /// An engine that does not hear is gone, which is told another way.
    fn tell(&mut self, order: EvalOrder) {
        match &mut self.hands {
            Hands::Thread(orders) => drop(orders.send(order)),
            #[cfg(unix)]
            Hands::Process(process) => process.tell(order),
        }
    }
}
