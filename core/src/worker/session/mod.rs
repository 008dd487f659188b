//! A worker's side of the protocol, without IO. Not here: sockets, clocks, and when to connect again.

mod leases;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use leases::{Leases, Turn};

use super::{Advance, RunnerError, SlotRunner};
use crate::{
    batch::SlotFragment,
    env::{EnvContext, EnvRegistry},
    ids::{LeaseId, SlotId, WeightsVersion, WorkerId},
    kernels::Kernels,
    lease::Lease,
    prelude::*,
    protocol::{
        Inbox, Message, Outbox, Received, RefusalCode, Role,
        convert::{self, FragmentLimits},
        handshake::{self, HandshakeError, Identity},
        message::{Goodbye, LeaseGrant, LeaseRefused, Progress, RunStart, WeightsApplied, Welcome},
    },
    run::RunSpec,
    time::Micros,
};

/// A running lease is reported on this often: only progress extends it.
const PROGRESS_INTERVAL: Micros = Micros::from_millis(250);

/// No lease is begun while this much waits to be sent: the hub is not taking it.
const MAX_BACKLOG_BYTES: usize = 2 << 20;

/// The longest reason that is sent.
const MAX_REASON_CHARS: usize = 512;

/// Where a session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The hub has not answered yet.
    Connecting,
    /// The hub gives out leases when it has some.
    Ready,
    /// The hub does not want this worker.
    Refused {
        /// Why, for programs; none if the hub has a reason that this version does not know.
        code: Option<RefusalCode>,
        /// Why, for people.
        reason: String,
    },
    /// The session is over, by either side.
    Closed {
        /// Why.
        reason: String,
    },
}

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Env steps of the fragments that were made.
    pub env_steps: u64,
    /// Leases that were done.
    pub leases_done: u64,
    /// Leases that were refused because they could not be done.
    pub leases_refused: u64,
    /// Leases that the hub took back.
    pub leases_revoked: u64,
}

/// A worker's connection to a hub: frames in, frames out, leases run in between.
///
/// The native worker and the browser's Web Worker both drive one: they hand it what the socket brings, send what
/// [`poll_frame`](Self::poll_frame) returns, and call [`work`](Self::work) as long as it [has work](Self::has_work).
/// Nothing that the hub sends makes it panic: a lease that cannot be done is refused with a reason, and a hub that
/// breaks the protocol ends the session.
pub struct WorkerSession {
    envs: EnvRegistry,
    kernels: Kernels,
    inbox: Inbox,
    outbox: Outbox,
    state: SessionState,
    welcome: Option<Welcome>,
    run: Option<ActiveRun>,
    leases: Leases,
    counters: SessionCounters,
}

/// The run that the hub has announced.
struct ActiveRun {
    number: u32,
    spec: RunSpec,
    /// What runs its leases, or why nothing can.
    runner: Result<Runner, String>,
    /// When the running lease was last reported on.
    reported: Micros,
}

/// What runs leases, and what their uploads must look like.
struct Runner {
    slots: SlotRunner,
    limits: FragmentLimits,
}

impl ActiveRun {
    /// The lease of a grant, if it can be run here, and the version of the weights that act now.
    fn read_lease(&self, grant: &LeaseGrant) -> Result<(Lease, WeightsVersion), String> {
        let runner = self.runner.as_ref().map_err(Clone::clone)?;
        let lease = convert::lease(grant, &self.spec).map_err(|error| error.to_string())?;
        runner.limits.check_lease_of(lease.slots.len()).map_err(|error| error.to_string())?;
        Ok((lease, runner.slots.weights_version()))
    }
}

impl Runner {
    fn new(spec: &RunSpec, envs: &EnvRegistry, kernels: Kernels) -> Result<Self, RunnerError> {
        let slots = SlotRunner::new(spec, envs, kernels)?;
        let spaces = envs.spec(&spec.env)?.spaces_in(&EnvContext::of_slot(spec, SlotId(0)))?;
        Ok(Self { slots, limits: FragmentLimits::new(spec, &spaces) })
    }
}

impl WorkerSession {
    /// Begins a session: the first frame to send is the `Hello`. The identity's role is always that of a worker.
    #[must_use]
    pub fn new(identity: Identity, envs: EnvRegistry, kernels: Kernels) -> Self {
        let mut session = Self {
            envs,
            kernels,
            inbox: Inbox::of_peer(Role::Worker),
            // Chunks wait for the credit that the welcome brings.
            outbox: Outbox::new(0),
            state: SessionState::Connecting,
            welcome: None,
            run: None,
            leases: Leases::default(),
            counters: SessionCounters::default(),
        };
        session.send(&Identity { role: Role::Worker, ..identity }.hello());
        session
    }

    /// Takes a frame from the hub.
    pub fn handle_frame(&mut self, frame: &[u8]) {
        if self.is_over() {
            return;
        }
        let run = self.run.as_ref().map(|run| run.number);
        match self.inbox.receive(frame, run) {
            Ok(None) => {}
            Ok(Some(Received::Bytes(bytes))) => match Message::decode(bytes) {
                Ok(message) => self.handle_message(message),
                Err(error) => self.leave(&error.to_string()),
            },
            Ok(Some(Received::Weights { run: of, weights })) => {
                // A run may have ended while they came.
                if run == Some(of) {
                    self.leases.add_weights(weights);
                    self.apply_weights();
                }
            }
            Err(error) => self.leave(&error.to_string()),
        }
        if let Some(credit) = self.inbox.take_credit_due() {
            self.send(&Message::Credit(credit));
        }
    }

    /// The next frame to send to the hub. Also after the end of the session: the last word may be a farewell.
    pub fn poll_frame(&mut self) -> Option<Bytes> {
        self.outbox.poll_frame()
    }

    /// True if [`work`](Self::work) has something to do now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.leases.running().is_some() || self.may_begin()
    }

    /// Works for at most `max_vector_steps` steps of all slots of a lease, so that a caller can keep to a time budget.
    pub fn work(&mut self, max_vector_steps: u32, now: Micros) {
        if self.leases.running().is_none() && self.may_begin() {
            self.begin_next(now);
        }
        if self.leases.running().is_some() {
            self.advance(max_vector_steps, now);
        }
    }

    /// Ends the session on this side's wish, and tells the hub.
    pub fn leave(&mut self, reason: &str) {
        if !self.is_over() {
            self.send(&Message::Goodbye(Goodbye { reason: clip(reason) }));
            self.end(SessionState::Closed { reason: reason.into() });
        }
    }

    /// Tells the hub that this worker wishes to go. Work goes on until the hub says goodbye, which it does as soon as the
    /// lease that runs has come: nothing is lost.
    pub fn leave_when_done(&mut self, reason: &str) {
        if self.state == SessionState::Ready {
            self.send(&Message::Goodbye(Goodbye { reason: clip(reason) }));
        } else {
            self.leave(reason);
        }
    }

    /// Where the session stands.
    #[must_use]
    pub fn state(&self) -> &SessionState {
        &self.state
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// The id that the hub gave to this worker.
    #[must_use]
    pub fn worker_id(&self) -> Option<WorkerId> {
        self.welcome.as_ref().map(|welcome| WorkerId(welcome.peer))
    }

    /// What to present when connecting again.
    #[must_use]
    pub fn resume_id(&self) -> Option<[u8; 16]> {
        self.welcome.as_ref().map(|welcome| welcome.resume_id)
    }

    /// The run that the hub has announced.
    #[must_use]
    pub fn run(&self) -> Option<&RunSpec> {
        self.run.as_ref().map(|run| &run.spec)
    }

    /// The lease that is running.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.leases.running()
    }

    /// Version of the weights that act.
    #[must_use]
    pub fn weights_version(&self) -> Option<WeightsVersion> {
        self.run.as_ref()?.runner.as_ref().ok().map(|runner| runner.slots.weights_version())
    }

    fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Refused { .. } | SessionState::Closed { .. })
    }

    fn end(&mut self, state: SessionState) {
        self.state = state;
        self.run = None;
        self.leases = Leases::default();
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Goodbye(goodbye) => self.end(SessionState::Closed { reason: goodbye.reason }),
            answer if self.state == SessionState::Connecting => self.handle_answer(answer),
            Message::RunStart(start) => self.start_run(start),
            Message::RunEnd(end) => {
                if self.run.as_ref().is_some_and(|run| run.number == end.run) {
                    self.run = None;
                    self.leases = Leases::default();
                }
            }
            // Those of the run that goes on are read before; these are of an earlier one.
            Message::WeightsUpdate(_) => {}
            Message::LeaseGrant(grant) => self.take_lease(&grant),
            Message::Revoke(revoke) => self.revoke(LeaseId(revoke.lease)),
            Message::Credit(credit) => self.outbox.grant(credit.bytes),
            // The inbox lets nothing else through but a second answer.
            other => self.leave(&format!("{:?} has no place in a session", other.kind())),
        }
    }

    fn handle_answer(&mut self, answer: Message) {
        match handshake::read_answer(answer) {
            Ok(welcome) => {
                self.outbox.grant(welcome.credit);
                self.welcome = Some(welcome);
                self.state = SessionState::Ready;
            }
            Err(HandshakeError::Refused { code, reason }) => self.end(SessionState::Refused { code, reason }),
            Err(error) => self.leave(&error.to_string()),
        }
    }

    fn start_run(&mut self, start: RunStart) {
        let RunStart { run: number, spec } = start;
        let runner = Runner::new(&spec, &self.envs, self.kernels).map_err(|error| error.to_string());
        self.run = Some(ActiveRun { number, spec, runner, reported: Micros(0) });
        self.leases = Leases::default();
    }

    /// Lets new weights act as soon as no lease is running, so that the next one need not wait for them. Weights that
    /// do not fit are for that lease to refuse.
    fn apply_weights(&mut self) {
        let Some(ActiveRun { number, runner: Ok(runner), .. }) = &mut self.run else { return };
        let Some(weights) = self.leases.weights_to_apply(runner.slots.weights_version()) else { return };
        if runner.slots.set_weights(weights).is_ok() {
            let applied = WeightsApplied { run: *number, version: weights.version().0 };
            self.send(&Message::WeightsApplied(applied));
        }
    }

    /// A new lease follows the one before or takes its place: then the hub has given that up.
    fn take_lease(&mut self, grant: &LeaseGrant) {
        let id = LeaseId(grant.lease);
        if self.leases.was_revoked(id) {
            return;
        }
        let Some(run) = self.run.as_ref().filter(|run| run.number == grant.run) else {
            return self.refuse(id, &format!("run {} is not the one that goes on here", grant.run));
        };
        let queued = run
            .read_lease(grant)
            .and_then(|(lease, acting)| self.leases.queue(lease, acting).map_err(|error| error.to_string()));
        match queued {
            Ok(true) => self.abandon(),
            Ok(false) => {}
            Err(reason) => self.refuse(id, &reason),
        }
    }

    /// Drops a lease and says so, also of one that is not known here: the hub may be asking for a sign of life.
    fn revoke(&mut self, lease: LeaseId) {
        self.counters.leases_revoked += 1;
        if self.leases.running() == Some(lease) {
            self.abandon();
        } else {
            self.leases.revoke(lease);
            self.apply_weights();
        }
        self.send(&Message::LeaseRefused(LeaseRefused { lease: lease.0, reason: "revoked".into() }));
    }

    fn abandon(&mut self) {
        if let Some(ActiveRun { runner: Ok(runner), .. }) = &mut self.run {
            runner.slots.abandon();
        }
        self.finish();
    }

    /// The running lease is no more.
    fn finish(&mut self) {
        self.leases.finish();
        self.apply_weights();
    }

    fn may_begin(&self) -> bool {
        let version = self.weights_version();
        version.is_some_and(|version| self.leases.is_ready(version)) && self.outbox.queued_bytes() < MAX_BACKLOG_BYTES
    }

    fn begin_next(&mut self, now: Micros) {
        let Some(ActiveRun { number, runner: Ok(runner), reported, .. }) = &mut self.run else { return };
        let mut applied = None;
        let (id, begun) = match self.leases.next(runner.slots.weights_version()) {
            None => return,
            Some(Turn::Refuse(id, error)) => (id, Err(error.to_string())),
            Some(Turn::Run(lease, weights)) => {
                let id = lease.id;
                let set = weights.map_or(Ok(()), |weights| {
                    applied = Some(WeightsApplied { run: *number, version: weights.version().0 });
                    runner.slots.set_weights(&weights)
                });
                (id, set.and_then(|()| runner.slots.begin(lease)).map_err(|error| error.to_string()))
            }
        };
        *reported = now;
        match (begun, applied) {
            (Ok(()), Some(applied)) => self.send(&Message::WeightsApplied(applied)),
            (Ok(()), None) => {}
            (Err(reason), _) => {
                self.leases.finish();
                self.refuse(id, &reason);
            }
        }
    }

    fn advance(&mut self, max_vector_steps: u32, now: Micros) {
        let Some(ActiveRun { number, runner: Ok(runner), reported, .. }) = &mut self.run else { return };
        let (run, running) = (*number, runner.slots.lease());
        match runner.slots.advance(max_vector_steps) {
            Ok(Advance::Idle) => self.finish(),
            Ok(Advance::Working { lease, env_steps }) => {
                // A clock that was set back must not keep the hub in the dark.
                if now.since(*reported) >= PROGRESS_INTERVAL || now < *reported {
                    *reported = now;
                    self.send(&Message::Progress(Progress { lease: lease.0, env_steps }));
                }
            }
            Ok(Advance::Done { lease, fragments }) => {
                self.upload(run, lease, &fragments);
                self.finish();
            }
            Err(error) => {
                self.finish();
                self.refuse(running.unwrap_or_default(), &error.to_string());
            }
        }
    }

    fn upload(&mut self, run: u32, lease: LeaseId, fragments: &[SlotFragment]) {
        let upload = convert::fragment_upload(run, lease, fragments).map_err(|error| error.to_string());
        let pushed = upload
            .and_then(|upload| self.outbox.push(&Message::FragmentUpload(upload)).map_err(|error| error.to_string()));
        match pushed {
            Ok(()) => {
                self.counters.leases_done += 1;
                self.counters.env_steps += fragments.iter().map(SlotFragment::env_steps).sum::<u64>();
            }
            Err(reason) => self.refuse(lease, &reason),
        }
    }

    fn refuse(&mut self, lease: LeaseId, reason: &str) {
        self.counters.leases_refused += 1;
        self.send(&Message::LeaseRefused(LeaseRefused { lease: lease.0, reason: clip(reason) }));
    }

    /// Sends what is small by its nature: its texts are clipped.
    fn send(&mut self, message: &Message) {
        if let Err(error) = self.outbox.push(message) {
            self.end(SessionState::Closed { reason: error.to_string() });
        }
    }
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_REASON_CHARS).collect()
}
