//! A worker's side of the protocol, without I/O. Not here: sockets and clocks.

mod calls;
mod evaluations;
mod leases;
mod step_times;
#[cfg(test)]
mod tests;
mod uplink;
mod work;

pub use calls::HostSettings;
use calls::{Advanced, CallOutcome, Calls};
use evaluations::Evaluations;
use leases::{Leases, SessionTurn};
use step_times::StepTimes;
use uplink::Uplink;

use super::{
    CalledWorker, Guard, InferenceServer, Registry, RolloutWorkerBuilder, SetupError, SlotRunner, WorkerAnswer,
    command::{PanicWords, guarded, unguarded},
};
use crate::{
    env::EnvError,
    evaluation::Evaluates,
    ids::{CallId, LeaseId, WeightsVersion, WorkerId},
    kernels::Kernels,
    lease::Lease,
    prelude::*,
    protocol::{
        Connection, ConnectionEnd, FrameBytes, Inability, InabilityKind, Message, Received, Retry, Token,
        convert::{self, FragmentLimits},
        handshake::PeerService,
        message::{
            CallProgress, Goodbye, HostReport, Infer, Inferred, LeaseGrant, RunAnswer, RunStart, WeightsApplied,
            WeightsNotice, WeightsRequest,
        },
        printable,
    },
    run::{Inference, RunConfig},
    time::Micros,
    weights::Weights,
};

/// Interval of progress reports for a running lease or sample: only progress extends them.
const PROGRESS_INTERVAL: Micros = Micros::from_millis(250);

/// While more than this is queued to be sent, no lease and no call is begun, since the hub is not reading.
const MAX_BACKLOG_BYTES: usize = 2 << 20;

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Env steps of the completed fragments.
    pub env_steps: u64,
    /// Completed leases.
    pub leases_done: u64,
    /// Leases that were refused as a whole.
    pub leases_refused: u64,
    /// Fragments that failed.
    pub fragments_failed: u64,
    /// Leases that the hub revoked.
    pub leases_revoked: u64,
    /// Successful calls.
    pub calls_done: u64,
    /// Failed calls.
    pub calls_failed: u64,
}

/// A worker's connection to a hub, without the socket: handles and returns frames, runs leases, and executes calls.
///
/// The native worker and the browser's Web Worker both drive one: they pass it the socket's frames, send what
/// [`poll_frame`](Self::poll_frame) returns, and call [`work`](Self::work) while it [has work](Self::has_work). No message
/// of the hub makes it panic: a lease that cannot be run is refused with a reason, and a hub that violates the protocol ends
/// the session.
///
/// A [`SlotRunner`] runs the leases. Calls are executed by a [`RolloutWorker`](super::RolloutWorker), which the hub sets up
/// when it needs one; they are executed sequentially, and failures are answered with an error.
pub struct WorkerSession {
    connection: Connection,
    run: Option<ActiveRun>,
    leases: Leases,
    calls: Calls,
    /// Set if the worker evaluates instead.
    evaluations: Option<Evaluations>,
    /// True if the worker acts for others instead.
    acts_for_others: bool,
    guard: Guard,
    counters: SessionCounters,
    uplink: Uplink,
    /// Weights that a relay has, if they were not fetched yet.
    notice: Option<WeightsNotice>,
}

/// The run that the hub has announced.
struct ActiveRun {
    number: u32,
    config: RunConfig,
    /// Runs its leases; the error says why the worker cannot.
    runner: Result<LeaseRunner, Inability>,
    /// Computes the outputs of networks for the run's other workers.
    server: Option<InferenceServer>,
    /// When progress of the running lease was last reported.
    reported: Micros,
    step_times: StepTimes,
}

/// Runs leases, and knows the limits of their uploads.
struct LeaseRunner {
    slots: SlotRunner,
    limits: FragmentLimits,
}

impl ActiveRun {
    /// Decodes the lease of a grant, if it can be run here, and returns the version of the present weights, too.
    fn read_lease(&self, grant: &LeaseGrant) -> Result<(Lease, WeightsVersion), String> {
        let runner = self.runner.as_ref().map_err(|inability| inability.to_string())?;
        let lease = convert::lease(grant, &self.config).map_err(|error| error.to_string())?;
        runner.limits.check_lease_of(lease.slots.len()).map_err(|error| error.to_string())?;
        Ok((lease, runner.slots.weights_version()))
    }
}

impl LeaseRunner {
    fn new(run: &RunConfig, builder: RolloutWorkerBuilder, guard: Guard) -> Result<Self, SetupError> {
        let mut slots = SlotRunner::new(run, builder)?;
        slots.set_guard(guard);
        let limits = FragmentLimits::new(run, slots.layout());
        Ok(Self { slots, limits })
    }
}

impl WorkerSession {
    /// Begins a session of a worker with this identity, or over its connection: the first frame to send is the `Hello`.
    ///
    /// Leases and calls use the names of `registry`, without a shell; see [`with_workers`](Self::with_workers).
    #[must_use]
    pub fn new(connection: impl Into<Connection>, registry: Registry, kernels: Kernels) -> Self {
        let workers = move || RolloutWorkerBuilder::new(registry.clone()).kernels(kernels);
        Self {
            connection: connection.into(),
            run: None,
            leases: Leases::default(),
            calls: Calls::new(CalledWorker::new(workers)),
            evaluations: None,
            acts_for_others: false,
            guard: unguarded,
            counters: SessionCounters::default(),
            uplink: Uplink::default(),
            notice: None,
        }
    }

    /// Sets the builder that leases and calls use: with the names of the program, its shell, clock and kernels. The hub
    /// decides on settings and place.
    ///
    /// ```
    /// use rollmesh_core::{
    ///     kernels::Kernels,
    ///     protocol::{Role, Token, handshake::Identity},
    ///     worker::{Registry, RolloutWorkerBuilder, WorkerSession},
    /// };
    ///
    /// let identity = Identity::new(Role::Worker, Token::new([1; 32]), "native", "worker-1", "cpu");
    /// let registry = Registry::builtin();
    /// let mut session = WorkerSession::new(identity, registry.clone(), Kernels::PORTABLE)
    ///     .with_workers(move || RolloutWorkerBuilder::new(registry.clone()));
    /// assert!(session.poll_frame().is_some()); // Hello
    /// ```
    #[must_use]
    pub fn with_workers(self, builder: impl FnMut() -> RolloutWorkerBuilder + 'static) -> Self {
        Self { calls: Calls::new(CalledWorker::new(builder)), ..self }
    }

    /// Sets the guard that catches panics of user code in leases and calls, which the core cannot do itself.
    #[must_use]
    pub fn with_guard(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self.calls.set_guard(guard);
        self
    }

    /// Sets what becomes of the settings for called workers that name files, directories and environment variables of this
    /// machine. Comes after [`with_workers`](Self::with_workers).
    #[must_use]
    pub fn with_host_settings(mut self, host_settings: HostSettings) -> Self {
        self.calls.set_host_settings(host_settings);
        self
    }

    /// Sets this machine's limit of the memory of each environment process in MiB, which no hub sets: `None` for the default of
    /// [`remote_env_memory_mb`](crate::worker::RolloutConfig::remote_env_memory_mb). Comes after [`with_workers`](Self::with_workers).
    #[must_use]
    pub fn with_env_memory(mut self, mb: Option<u32>) -> Self {
        self.calls.set_env_memory(mb);
        self
    }

    /// Makes this a worker that evaluates under its name: it answers calls with this, and takes no part in runs.
    #[must_use]
    pub fn with_evaluator(mut self, evaluator: Box<dyn Evaluates>) -> Self {
        self.connection.identity_mut().service = PeerService::Evaluates;
        self.evaluations = Some(Evaluations::new(evaluator));
        self
    }

    /// Makes this a worker that acts for the others of runs with [`Inference::Server`], and samples nothing.
    #[must_use]
    pub fn acting_for_others(self) -> Self {
        Self { acts_for_others: true, ..self }
    }

    /// Handles a frame from the hub.
    pub fn handle_frame(&mut self, frame: &[u8]) {
        let run = self.run.as_ref().map(|run| run.number);
        match self.connection.handle_frame(frame, run) {
            Some(Received::Message(message)) => self.handle_message(message),
            // The run may have ended while they arrived.
            Some(Received::Weights { run: of, weights }) if run == Some(of) => self.add_weights(weights),
            Some(Received::Weights { .. } | Received::Piece(_)) | None => {}
        }
        self.end_if_over();
    }

    /// Returns the next frame to send to the hub. Also after the end of the session: the last one may be a `Goodbye`.
    pub fn poll_frame(&mut self) -> Option<FrameBytes> {
        while let Some(done) = self.evaluations.as_mut().and_then(Evaluations::poll) {
            self.answer(done);
        }
        let frame = self.connection.poll_frame();
        if frame.is_none() {
            self.uplink.observe(self.connection.queued_bytes());
        }
        frame
    }

    /// Sets the time on the worker's clock, from which the session learns how fast its link is. Called before frames are
    /// sent, after [`work`](Self::work) and after a wait.
    pub fn set_time(&mut self, now: Micros) {
        self.uplink.set_time(now);
    }

    /// Records that all frames that have arrived were handled, and all frames sent that may be: what comes later has not come
    /// while the worker was at [`work`](Self::work). A caller that cannot know this need not call it.
    pub fn has_caught_up(&mut self) {
        self.uplink.has_caught_up();
    }

    /// Returns, once, the notice of weights that a relay has. The caller fetches them and calls
    /// [`take_relayed`](Self::take_relayed).
    pub fn poll_notice(&mut self) -> Option<WeightsNotice> {
        self.notice.take()
    }

    /// Takes weights of a relay, the message of a notice. Without them, or if they are not those that the hub has announced,
    /// requests the newest weights from the hub.
    pub fn take_relayed(&mut self, notice: &WeightsNotice, message: Option<&[u8]>) {
        let Some(run) = self.run.as_ref().map(|run| run.number).filter(|run| *run == notice.run) else { return };
        match message.and_then(|message| convert::weights_of_notice(notice, message)) {
            Some(weights) => self.add_weights(weights),
            None => self.send(&Message::WeightsRequest(WeightsRequest { run })),
        }
    }

    /// Returns true if [`work`](Self::work) has something to do now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let evaluates = self.evaluations.as_ref().is_some_and(Evaluations::has_work);
        let acts = self.run.as_ref().and_then(|run| run.server.as_ref()).is_some_and(InferenceServer::has_work);
        acts || evaluates || self.may_call() || self.leases.running().is_some() || self.may_begin()
    }

    /// Returns when there is [work](Self::work) although [`has_work`](Self::has_work) returns false, on the clock of
    /// `work`: rows of other workers wait for more of them until then.
    #[must_use]
    pub fn due_at(&self) -> Option<Micros> {
        self.run.as_ref()?.server.as_ref()?.due_at()
    }

    /// Executes a queued call, and works for at most `max_vector_steps` steps of the slots that are sampled together, so
    /// that a caller can observe a time budget; if env steps are slow, slots are sampled sequentially and each is
    /// uploaded when it is complete. A call for a sample is executed in spans of a few milliseconds on the worker's
    /// clock, if it has one; any other call takes as long as it needs.
    pub fn work(&mut self, max_vector_steps: u32, now: Micros) {
        self.uplink.begin_work(now);
        if let Some(call) = self.evaluations.as_mut().and_then(|evaluations| evaluations.work(now)) {
            self.send(&Message::CallProgress(CallProgress { call: call.0 }));
        }
        self.act_for_others(now);
        if self.may_call() {
            match self.calls.advance(now) {
                Some(Advanced::Done(done)) => self.answer(done),
                Some(Advanced::Report(call)) => self.send(&Message::CallProgress(CallProgress { call: call.0 })),
                Some(Advanced::Working) | None => {}
            }
        }
        if self.leases.running().is_none() && self.may_begin() {
            self.begin_next(now);
        }
        if self.leases.running().is_some() {
            self.advance(max_vector_steps, now);
        }
    }

    /// Ends the session from this side, and notifies the hub.
    pub fn leave(&mut self, reason: &str) {
        self.connection.leave(reason);
        self.end_if_over();
    }

    /// Handles the end of the socket, see [`Connection::handle_close`]. Work in progress is dropped; the next frame to
    /// send is another `Hello`.
    ///
    /// # Errors
    /// [`ConnectionEnd`] if another attempt would end in the same way.
    pub fn handle_close(&mut self, reason: &str, random: u32) -> Result<Retry, ConnectionEnd> {
        self.end();
        self.connection.handle_close(reason, random)
    }

    /// Returns the connection, for another session.
    #[must_use]
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    /// Notifies the hub that this worker is about to leave, once the hub has answered. Work continues until the hub says
    /// goodbye, which it does as soon as the running lease is uploaded, so that nothing is lost.
    pub fn leave_when_done(&mut self, reason: &str) {
        if self.connection.end().is_none() {
            self.send(&Message::Goodbye(Goodbye { reason: printable(reason) }));
        }
    }

    /// Replaces the worker's token, see [`Connection::renew`].
    pub fn renew(&mut self, token: Token) {
        self.connection.renew(token);
        self.end_if_over();
    }

    /// Sends the hub a report about this machine.
    pub fn report_host(&mut self, report: HostReport) {
        self.send(&Message::HostReport(report));
    }

    /// Returns the connection to the hub.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// Returns the id that the hub gave to this worker.
    #[must_use]
    pub fn worker_id(&self) -> Option<WorkerId> {
        self.connection.welcome().map(|welcome| WorkerId(welcome.peer))
    }

    /// Returns the run that the hub has announced.
    #[must_use]
    pub fn run(&self) -> Option<&RunConfig> {
        self.run.as_ref().map(|run| &run.config)
    }

    /// Returns why this worker cannot run the announced run, with the run's number; `None` while it can, or without a run.
    #[must_use]
    pub fn inability(&self) -> Option<(u32, &Inability)> {
        let run = self.run.as_ref()?;
        Some((run.number, run.runner.as_ref().err()?))
    }

    /// Returns the running lease.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.leases.running()
    }

    /// Returns the version of the present weights.
    #[must_use]
    pub fn weights_version(&self) -> Option<WeightsVersion> {
        self.run.as_ref()?.runner.as_ref().ok().map(|runner| runner.slots.weights_version())
    }

    fn end_if_over(&mut self) {
        if self.connection.end().is_some() {
            self.end();
        }
    }

    fn end(&mut self) {
        self.run = None;
        self.notice = None;
        self.leases = Leases::default();
        self.calls.stop();
        self.evaluations.iter_mut().for_each(Evaluations::end);
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::RunStart(start) => self.start_run(start),
            Message::RunEnd(end) if self.run.as_ref().is_some_and(|run| run.number == end.run) => {
                self.run = None;
                self.leases = Leases::default();
            }
            // Weights of the present run were handled before; these belong to an earlier one.
            Message::RunEnd(_) | Message::WeightsUpdate(_) => {}
            Message::HalfWeightsUpdate(update) if self.run.as_ref().is_some_and(|run| run.number == update.run) => {
                match convert::half_weights(&update) {
                    Ok(weights) => self.add_weights(weights),
                    Err(error) => self.connection.violated(&error),
                }
            }
            Message::WeightsNotice(notice) => self.notice = Some(notice),
            Message::LeaseGrant(grant) => self.take_lease(&grant),
            Message::Revoke(revoke) => self.revoke(LeaseId(revoke.lease)),
            Message::Infer(request) => match self.server() {
                Some(server) => server.handle(request),
                None => {
                    let refused = Inferred::failed(&request, "this worker acts for no run");
                    self.send(&Message::Inferred(refused));
                }
            },
            Message::WorkerSetup(setup) => {
                let refused = self.calls.set_up(setup);
                refused.into_iter().for_each(|done| self.answer(done));
            }
            Message::Call(call) => {
                let done = match &mut self.evaluations {
                    Some(evaluations) => evaluations.call(CallId(call.call), &call.body),
                    None => self.calls.call(call),
                };
                done.into_iter().for_each(|done| self.answer(done));
            }
            Message::CallCancel(cancel) => {
                // Other commands cannot be cancelled.
                let evaluations = self.evaluations.as_mut();
                let done = evaluations.and_then(|evaluations| evaluations.cancel(CallId(cancel.call)));
                done.into_iter().for_each(|done| self.answer(done));
            }
            // The inbox lets nothing else through.
            _ => {}
        }
    }

    fn start_run(&mut self, start: RunStart) {
        let RunStart { run: number, config } = start;
        let (mut server, guard) = (None, self.guard);
        let (config, runner) = match RunConfig::from_wire(&config) {
            Ok(mut config) => {
                self.calls.limit_memory(&mut config.rollout);
                let runner = guarded(guard, || match self.acts_for_others {
                    false => LeaseRunner::new(&config, self.calls.builder(), guard).map_err(|error| inability(&error)),
                    true => {
                        server = Some(self.make_server(&config)?);
                        Err(Inability::new(InabilityKind::ActsForOthers, ""))
                    }
                });
                (config, runner)
            }
            Err(error) => (RunConfig::default(), Err(inability(&error.into()))),
        };
        self.send(&Message::RunAnswer(RunAnswer::new(number, runner.as_ref().map(|_| ()))));
        self.run =
            Some(ActiveRun { number, config, runner, server, reported: Micros(0), step_times: StepTimes::default() });
        self.leases = Leases::default();
    }

    /// Creates the server that acts for the other workers of a run, if the run requires one.
    fn make_server(&mut self, config: &RunConfig) -> Result<InferenceServer, Inability> {
        if config.inference == Inference::Local {
            let reason = "this worker acts for others, in runs with inference = \"server\"";
            return Err(Inability::new(InabilityKind::Other, reason));
        }
        let mut server = InferenceServer::new(config, self.calls.builder()).map_err(|error| inability(&error))?;
        server.set_guard(self.guard);
        Ok(server)
    }

    fn server(&mut self) -> Option<&mut InferenceServer> {
        self.run.as_mut()?.server.as_mut()
    }

    /// Computes the outputs that are due for other workers, and sends them.
    fn act_for_others(&mut self, now: Micros) {
        if self.connection.queued_bytes() >= MAX_BACKLOG_BYTES {
            return;
        }
        let Some(server) = self.server() else { return };
        server.work(now);
        while let Some(answer) = self.server().and_then(InferenceServer::poll_answer) {
            let (ask, version) = (answer.ask, answer.version);
            // The connection must not end because of one request.
            if let Err(error) = self.connection.push(&Message::Inferred(answer)) {
                let request = Infer { ask, version, ..Infer::default() };
                self.send(&Message::Inferred(Inferred::failed(&request, &error.to_string())));
            }
        }
    }

    fn add_weights(&mut self, weights: Weights) {
        match self.server() {
            Some(server) => server.add_weights(weights),
            None => {
                self.leases.add_weights(weights);
                self.apply_weights();
            }
        }
    }

    /// Sets new weights as soon as no lease is running, so that the next one need not wait for them. If they do not fit,
    /// that lease is refused.
    fn apply_weights(&mut self) {
        let Some(ActiveRun { number, runner: Ok(runner), .. }) = &mut self.run else { return };
        let Some(weights) = self.leases.weights_to_apply(runner.slots.weights_version()) else { return };
        if runner.slots.set_weights(weights).is_ok() {
            let applied = WeightsApplied { run: *number, version: weights.version().0 };
            self.send(&Message::WeightsApplied(applied));
        }
    }

    fn may_call(&self) -> bool {
        !self.calls.is_empty() && self.connection.queued_bytes() < MAX_BACKLOG_BYTES
    }

    fn answer(&mut self, (call, result): CallOutcome) {
        match result {
            Ok(_) => self.counters.calls_done += 1,
            Err(_) => self.counters.calls_failed += 1,
        }
        self.send(&WorkerAnswer::message(call, &result));
    }

    /// Sends a message that is always small, since its texts are truncated.
    fn send(&mut self, message: &Message) {
        self.connection.send(message);
        self.end_if_over();
    }
}

/// Returns whether the next report is due. Also if the clock was set back, which must not suppress reports.
fn is_report_due(reported: Micros, now: Micros) -> bool {
    now.since(reported) >= PROGRESS_INTERVAL || now < reported
}

impl From<PanicWords> for Inability {
    fn from(PanicWords(words): PanicWords) -> Self {
        Self::new(InabilityKind::Other, &words)
    }
}

/// Converts a set-up error to the inability that is sent to the hub.
fn inability(error: &SetupError) -> Inability {
    let kind = match error {
        SetupError::Unknown(unknown) if unknown.kind == "environment" => InabilityKind::UnknownEnv,
        SetupError::PolicyKind { .. } => InabilityKind::UnknownPolicy,
        SetupError::Env { source: EnvError::Unavailable(reason), .. } => {
            return Inability::new(InabilityKind::Other, reason);
        }
        SetupError::Env { .. } => InabilityKind::EnvConfig,
        SetupError::Range(_) | SetupError::Config(_) | SetupError::Conflict(_) => InabilityKind::Description,
        _ => InabilityKind::Other,
    };
    Inability::new(kind, &error.to_string())
}
