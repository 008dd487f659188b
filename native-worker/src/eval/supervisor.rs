//! Who sees to it that there is an engine, that it moves, and that everybody gets what is theirs.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    evaluation::{Asker, Earlier, Evaluation, EvaluationQueue, EvaluationRequest, Ticket},
    weights::Weights,
};

use super::{
    EvalMakers, EvalWorkerError,
    engine::{self, Order, Report},
};
#[cfg(unix)]
use super::{makers::EvalSpec, process::ProcessEngine};

/// An evaluation that waits.
#[derive(Debug)]
struct Job {
    weights: Option<Weights>,
    request: EvaluationRequest,
}

/// A result, or an error, once.
pub(super) type Outcome = Result<Evaluation, EvalWorkerError>;

#[derive(Debug, Default)]
struct State {
    queue: EvaluationQueue<Job, Outcome>,
    /// The engine failed while nobody waited for anything.
    trouble: Option<EvalWorkerError>,
    askers: u64,
    is_stopped: bool,
}

/// What handles and the supervising thread share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
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
        spec: Box<EvalSpec>,
    },
}

impl Shared {
    /// Starts to supervise, and with it the first engine.
    pub(super) fn start(source: Source, timeout: Duration) -> io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let (events, heard) = mpsc::channel();
        let shared = Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), events });
        let supervisor = Supervisor { shared: shared.clone(), source, timeout, engine: None, number: 0, current: None };
        let thread = thread::Builder::new().name("eval-supervisor".into()).spawn(move || supervisor.run(&heard))?;
        Ok((shared, thread))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn asker(&self) -> Asker {
        let mut state = self.state();
        state.askers += 1;
        Asker(state.askers)
    }

    pub(super) fn submit(
        &self,
        asker: Asker,
        weights: Option<Weights>,
        request: EvaluationRequest,
        earlier: Earlier,
    ) -> Result<Ticket, EvalWorkerError> {
        let mut state = self.state();
        if state.is_stopped {
            return Err(EvalWorkerError::Stopped);
        }
        let ticket = state.queue.submit(asker, Job { weights, request }, earlier)?;
        // What is asked for now will tell if that is still so.
        state.trouble = None;
        drop(state);
        self.wake();
        Ok(ticket)
    }

    /// The next result of an asker, waiting for it at most so long.
    pub(super) fn poll(&self, asker: Asker, timeout: Duration) -> Option<(Option<Ticket>, Outcome)> {
        let until = Instant::now().checked_add(timeout);
        let mut state = self.state();
        loop {
            if let Some((ticket, outcome)) = state.queue.poll(asker) {
                return Some((Some(ticket), outcome));
            }
            if let Some(trouble) = state.trouble.take() {
                return Some((None, Err(trouble)));
            }
            let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || state.is_stopped {
                return None;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// An asker is gone.
    pub(super) fn forget(&self, asker: Asker) {
        self.state().queue.forget(asker);
        self.wake();
    }

    /// No more evaluations. The supervising thread ends, and with it the engine.
    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.changed.notify_all();
        self.wake();
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
    /// What the engine is evaluating, and whether it was told that nobody wants that.
    current: Option<(Ticket, bool)>,
}

struct Engine {
    hands: Hands,
    is_ready: bool,
    last_heard: Instant,
}

/// How an engine is told something.
enum Hands {
    Thread(Sender<Order>),
    #[cfg(unix)]
    Process(ProcessEngine),
}

impl Supervisor {
    fn run(mut self, events: &Receiver<Event>) {
        self.engine = self.start_engine().map_err(|error| self.fail(error)).ok();
        loop {
            let job = {
                let mut state = self.shared.state();
                if state.is_stopped {
                    break;
                }
                if self.current.is_none() { state.queue.start() } else { None }
            };
            if let Some((ticket, job)) = job {
                self.current = Some((ticket, false));
                self.begin(ticket, job);
            }
            self.cancel_unwanted();
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

    fn begin(&mut self, ticket: Ticket, job: Job) {
        if self.engine.is_none() {
            match self.start_engine() {
                Ok(engine) => self.engine = Some(engine),
                Err(error) => return self.fail(error),
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.last_heard = Instant::now();
            let Job { weights, request } = job;
            engine.tell(Order::Evaluate { ticket, weights, request });
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
                    engine::run(&makers, &told, || {}, |report| events.send(Event::Report(number, report)).is_ok());
                    let _ = events.send(Event::Gone(number, "its thread has ended".into()));
                };
                let spawned = thread::Builder::new().name("evaluation".into()).spawn(work);
                spawned.map_err(|error| EvalWorkerError::setup("thread", error))?;
                Hands::Thread(orders)
            }
            #[cfg(unix)]
            Source::Process { program, spec } => {
                let engine = ProcessEngine::start(program, spec, move |event| {
                    let _ = events.send(match event {
                        Ok(report) => Event::Report(number, report),
                        Err(words) => Event::Gone(number, words),
                    });
                });
                Hands::Process(engine.map_err(|error| EvalWorkerError::setup("process", error))?)
            }
        };
        Ok(Engine { hands, is_ready: false, last_heard: Instant::now() })
    }

    fn cancel_unwanted(&mut self) {
        if let (Some((ticket, is_told)), Some(engine)) = (&mut self.current, &mut self.engine)
            && !*is_told
            && self.shared.state().queue.is_cancelled(*ticket)
        {
            *is_told = true;
            engine.tell(Order::Cancel(*ticket));
        }
    }

    /// How long the engine may still be silent, if it has anything to do.
    fn patience(&self) -> Option<Duration> {
        let engine = self.engine.as_ref().filter(|engine| !engine.is_ready || self.current.is_some())?;
        Some(self.timeout.saturating_sub(engine.last_heard.elapsed()))
    }

    fn hear(&mut self, report: Report) {
        let Some(engine) = &mut self.engine else { return };
        engine.last_heard = Instant::now();
        match report {
            Report::Progress => {}
            Report::Ready => engine.is_ready = true,
            Report::Broken(error) => {
                self.engine = None;
                self.fail(error);
            }
            Report::Done(ticket, result) => {
                if self.current.take_if(|(current, _)| *current == ticket).is_some() {
                    let cancelled = || EvalWorkerError::Failed("it was cancelled".into());
                    self.finish(ticket, result.and_then(|found| found.ok_or_else(cancelled)));
                }
            }
        }
    }

    /// The engine is gone. One that had nothing to do is replaced when there is something.
    fn lost(&mut self, words: String) {
        let Some(engine) = self.engine.take() else { return };
        if !engine.is_ready {
            self.fail(EvalWorkerError::setup("process", words));
        } else if self.current.is_some() {
            self.fail(EvalWorkerError::Ended(words));
        }
    }

    fn overdue(&mut self) {
        if self.patience().is_none_or(|patience| !patience.is_zero()) {
            return;
        }
        let Some(engine) = self.engine.take() else { return };
        // Whatever it says from now on is of another engine's time.
        self.number += 1;
        let doing = if engine.is_ready { "evaluating" } else { "beginning" }.to_owned();
        let limit_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        drop(engine);
        self.fail(EvalWorkerError::Overdue { doing, limit_ms });
    }

    /// Tells whoever waits for the evaluation, or else whoever asks next.
    fn fail(&mut self, error: EvalWorkerError) {
        match self.current.take() {
            Some((ticket, _)) => self.finish(ticket, Err(error)),
            None => {
                self.shared.state().trouble = Some(error);
                self.shared.changed.notify_all();
            }
        }
    }

    fn finish(&self, ticket: Ticket, outcome: Outcome) {
        self.shared.state().queue.finish(ticket, outcome);
        self.shared.changed.notify_all();
    }
}

impl Engine {
    /// An engine that does not hear is gone, which is told another way.
    fn tell(&mut self, order: Order) {
        match &mut self.hands {
            Hands::Thread(orders) => drop(orders.send(order)),
            #[cfg(unix)]
            Hands::Process(process) => process.tell(order),
        }
    }
}
