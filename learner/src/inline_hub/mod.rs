//! A hub in memory, without sockets, files and threads: its shell, such as a Web Worker of a page, forwards frames and keeps the time.

mod port;
#[cfg(test)]
mod tests;
mod training;
mod workers;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
};

pub use port::PortId;
use port::{Port, PortLink};
use rollmesh_core::{
    group::Verdict,
    hub::{
        Arrival, BatchWork, ClipJob, Hub, HubEffect, HubRun as _, HubSetup, HubTokens, PeerEnd, RunEnd, RunLoop,
        RunStep, TrainRows, WorkerUpload,
    },
    ids::LeaseId,
    kernels::Kernels,
    protocol::{
        FrameBytes, Message, Phase, Role, Token, TokenGrant,
        handshake::{Accepted, malformed, no_token},
        message::{Goodbye, Hello, Iteration},
    },
    run::RunConfig,
    time::Micros,
    worker::{Registry, core_fingerprint},
};
use training::Training;
use workers::Workers;

use crate::{inline_run::InlineRunError, policy_file::PolicyFile};

/// The interval in which dashboards are sent changes and workers are checked.
const TEND_EVERY: Micros = Micros::from_millis(100);

/// The effects that a hub in a page asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum HubOutput {
    /// Send a frame to the peer of a port.
    Frame {
        /// The port.
        port: PortId,
        /// The frame.
        bytes: FrameBytes,
    },
    /// Start a worker, and connect it with this port and this token.
    Start {
        /// The port.
        port: PortId,
        /// A worker's token for this port alone.
        token: Token,
    },
    /// The port is closed: end the worker that was started for it.
    Closed {
        /// The port.
        port: PortId,
    },
    /// A run that has learned something has ended.
    Trained {
        /// Its number.
        run: u32,
        /// The hash of its weights, as `rollmesh train` prints it.
        weights_hash: String,
    },
}

/// The core's [`Hub`] with a learner, whose peers are connected by ports: queues of frames, each with a role and a token. The
/// caller transports the frames, starts the workers that the hub asks for, and lets it [learn](Self::learn) in between.
///
/// Frames of peers pass the same checks as on a socket: limits of sizes, the matrix of roles, and one token per port.
pub struct InlineHub {
    hub: Hub<PortLink, Training>,
    ports: BTreeMap<PortId, Port>,
    last_port: u32,
    workers: Workers,
    /// The number of workers that a run begins with.
    num_workers: u32,
    registry: Registry,
    kernels: Kernels,
    /// The number of the latest run.
    number: u32,
    batch: Option<TrainRows>,
    /// The fragment to draw.
    drawing: Option<Box<ClipJob>>,
    /// True while the page is hidden.
    is_hidden: bool,
    outputs: VecDeque<HubOutput>,
    now: Micros,
    /// Seconds since 1970 at the beginning of the caller's clock.
    epoch: u64,
    tended: Option<Micros>,
}

impl InlineHub {
    /// Creates a hub without a run. Its runs have numbers above `number` and begin with `num_workers` workers, and dashboards
    /// get `schema`, the settings of runs. The registry needs no policies that learn.
    #[must_use]
    pub fn new(number: u32, num_workers: u32, schema: String, registry: Registry, kernels: Kernels) -> Self {
        let setup = HubSetup {
            life: 1,
            fingerprint: core_fingerprint(kernels),
            server: concat!("rollmesh ", env!("CARGO_PKG_VERSION")).into(),
            schema,
            ..HubSetup::default()
        };
        Self {
            hub: Hub::new(setup, HubTokens::default()),
            ports: BTreeMap::new(),
            last_port: 0,
            workers: Workers::default(),
            num_workers,
            registry,
            kernels,
            number,
            batch: None,
            drawing: None,
            is_hidden: false,
            outputs: VecDeque::new(),
            now: Micros(0),
            epoch: 0,
            tended: None,
        }
    }

    /// Sets the time of day at the beginning of the caller's clock, in seconds since 1970: lines of the log have it.
    #[must_use]
    pub fn with_epoch(mut self, seconds: u64) -> Self {
        self.epoch = seconds;
        self
    }

    /// Opens a port for a peer of this role. The peer presents the token in its `Hello`.
    pub fn open_port(&mut self, role: Role) -> (PortId, Token) {
        self.open(role, None)
    }

    fn open(&mut self, role: Role, child: Option<u32>) -> (PortId, Token) {
        self.last_port += 1;
        let port = PortId(self.last_port);
        // A port is the credential: its token is worth nothing on any other.
        let mut bytes = [role.to_wire(); 32];
        bytes[..4].copy_from_slice(&port.0.to_le_bytes());
        let token = Token::new(bytes);
        // All workers are the program's own, so their fragments need no audit.
        let child = child.or_else(|| (role == Role::Worker).then_some(u32::MAX - port.0));
        let id = self.hub.tokens.add(&token, TokenGrant { role, child, expires: None });
        self.ports.insert(port, Port::new(role, id));
        (port, token)
    }

    /// Begins a run. Returns its number.
    ///
    /// # Errors
    /// [`InlineRunError`] names the problem; the earlier run stays then.
    pub fn start(&mut self, config: RunConfig, now: Micros) -> Result<u32, InlineRunError> {
        self.set_time(now);
        let run = self.hub.run.as_ref();
        if run.is_some_and(|run| !run.state().is_over()) {
            return Err(InlineRunError::Busy);
        }
        let first_lease = run.map_or(LeaseId(0), |run| run.state().group.next_lease_id());
        let place = (self.number + 1, first_lease);
        let mut run = Training::new(place, config, &self.registry, self.kernels, now)?;
        self.number += 1;
        if self.num_staying() < self.num_workers {
            self.scale(self.num_workers).map_err(InlineRunError::Workers)?;
        }
        run.num_workers = self.num_staying();
        self.hub.run = Some(run);
        self.hub.dashboards.begin_run();
        self.hub.bring_all_into_run();
        self.settle();
        Ok(self.number)
    }

    /// Handles a frame from the peer of a port.
    pub fn handle_frame(&mut self, port: PortId, frame: &[u8], now: Micros) {
        self.set_time(now);
        let Some(known) = self.ports.get_mut(&port).filter(|known| !known.link.is_closing()) else { return };
        match known.receive(frame) {
            Ok(Some(message)) => self.handle_message(port, message),
            Ok(None) => {}
            Err(reason) => self.break_off(port, &reason),
        }
        self.settle();
    }

    /// Handles the end of a port: its peer has ended, or cannot be reached.
    pub fn handle_closed(&mut self, port: PortId, reason: &str, now: Micros) {
        self.set_time(now);
        self.lose(port, reason, true);
        self.settle();
    }

    /// Handles deadlines that are over. Called at [`poll_timeout`](Self::poll_timeout), once frames that have arrived are
    /// handled, and a few times a second.
    pub fn handle_timeout(&mut self, now: Micros) {
        self.set_time(now);
        self.hub.handle_timeout();
        self.hub.sweep_hung();
        self.end_hopeless();
        self.settle();
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.hub.poll_timeout()
    }

    /// Returns whether a batch waits for [`learn`](Self::learn).
    #[must_use]
    pub fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Learns from the batch that is complete, if there is one; that takes as long as an update does. Returns the metrics of
    /// the iteration.
    ///
    /// # Errors
    /// [`InlineRunError::Batch`], [`InlineRunError::Learn`]; the run has failed then and is over.
    pub fn learn(&mut self, now: Micros) -> Result<Option<Iteration>, InlineRunError> {
        self.set_time(now);
        let Some(rows) = self.batch.take() else { return Ok(None) };
        let Some(run) = self.hub.current() else { return Ok(None) };
        let learned = run.learn(rows, now);
        match &learned {
            Ok((point, named)) => {
                self.hub.dashboards.add_iteration(*point, named.clone());
                self.hub.course.handle_counted();
            }
            Err(error) => self.end_run(RunEnd::Failed(error.to_string())),
        }
        self.settle();
        learned.map(|(point, _)| Some(point))
    }

    /// Sets whether the page is hidden: then nothing [is drawn](Self::draw).
    pub fn set_hidden(&mut self, is_hidden: bool) {
        self.is_hidden = is_hidden;
    }

    /// Returns true if a fragment is to be [drawn](Self::draw).
    #[must_use]
    pub fn has_drawing(&self) -> bool {
        self.drawing.is_some() && !self.is_hidden
    }

    /// Draws the latest fragment of the watched slot, if that is due. The clock measures how long it takes: of this thread,
    /// which learns as well, drawing gets a tenth.
    pub fn draw(&mut self, clock: impl Fn() -> Micros) {
        let Some(job) = self.drawing.take_if(|_| !self.is_hidden) else { return };
        self.set_time(clock());
        self.hub.begin_clip();
        let run = self.hub.run.as_mut().filter(|run| run.state().number() == job.run());
        let clip = run.map(|run| run.draw(&job));
        self.set_time(clock());
        // This also discards a fragment of an earlier run that was to be drawn.
        clip.into_iter().for_each(|clip| self.hub.handle_clip(clip));
        self.settle();
    }

    /// Returns what the shell has to do next; `None` until the next event.
    pub fn poll_output(&mut self) -> Option<HubOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        for (&port, known) in &self.ports {
            if let Some(bytes) = known.link.poll_frame() {
                return Some(HubOutput::Frame { port, bytes });
            }
        }
        let closing = self.ports.iter().find(|(_, port)| port.link.is_closing()).map(|(port, _)| *port)?;
        self.lose(closing, "the hub closed the connection", false);
        self.settle();
        self.poll_output()
    }

    /// Returns the loop of the current run, or of the one that is over.
    #[must_use]
    pub fn state(&self) -> Option<&RunLoop> {
        self.hub.state()
    }

    /// Describes the policy of the latest run as it is now, as `rollmesh train` writes it next to the weights.
    #[must_use]
    pub fn policy_file(&self) -> Option<PolicyFile> {
        self.hub.run.as_ref().map(Training::policy_file)
    }

    fn set_time(&mut self, now: Micros) {
        self.now = now;
        self.hub.set_time(now, self.epoch + now.0 / 1_000_000);
    }

    fn handle_message(&mut self, port: PortId, message: Message) {
        let Some(known) = self.ports.get(&port) else { return };
        let Some(peer) = known.peer else {
            // The inbox admits no other message before it.
            let Message::Hello(hello) = message else { return };
            return self.greet(port, &hello);
        };
        match message {
            Message::Credit(credit) => known.link.grant(credit.bytes),
            Message::Goodbye(Goodbye { reason }) if known.role != Role::Worker => self.lose(port, &reason, false),
            Message::FragmentUpload(upload) => self.hub.handle_upload(peer, WorkerUpload::Lanes(upload)),
            Message::AgentUpload(upload) => self.hub.handle_upload(peer, WorkerUpload::Agents(upload)),
            message => {
                let request = self.hub.handle_message(peer, message);
                request.into_iter().for_each(|request| self.handle_request(peer, request));
            }
        }
    }

    fn greet(&mut self, port: PortId, hello: &Hello) {
        let Some(known) = self.ports.get_mut(&port) else { return };
        let is_its_own = |accepted: &Accepted| (accepted.role, accepted.token) == (known.role, known.token);
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        match self.hub.check(hello).and_then(|accepted| is_its_own(&accepted).then_some(accepted).ok_or_else(no_token))
        {
            Ok(accepted) => {
                let (link, session) = (known.link.clone(), [0; 16]);
                let arrival = Arrival { from, link, session, launcher: String::new(), is_spare: false };
                known.admit(self.hub.admit(accepted, arrival));
            }
            Err(refused) => {
                self.hub.handle_refused(from, &refused);
                known.link.send_last(&Message::Refused(refused));
            }
        }
    }

    /// Closes a port whose peer has broken the protocol.
    fn break_off(&mut self, port: PortId, reason: &str) {
        let Some(known) = self.ports.get(&port) else { return };
        let is_admitted = known.peer.is_some();
        let last = if is_admitted {
            Message::Goodbye(Goodbye { reason: reason.into() })
        } else {
            Message::Refused(malformed(reason))
        };
        known.link.send_last(&last);
        if let Some(peer) = known.peer {
            self.hub.handle_left(peer, PeerEnd { reason, is_fault: true, denied: None });
        }
    }

    /// Handles an operator's request for which a native hub has processes and files.
    fn handle_request(&mut self, peer: u32, message: Message) {
        let kind = message.kind();
        let (request, done) = match message {
            Message::StartRun(start) => {
                let config = RunConfig::of_wire_settings(&start.settings).map_err(|error| error.to_string());
                let now = self.now;
                (start.request, config.and_then(|config| self.start(config, now).map_err(|error| error.to_string())))
            }
            Message::AddWorker(asked) => (asked.request, self.scale(self.num_staying() + 1).map(|()| 0)),
            Message::Scale(asked) => (asked.request, self.scale(asked.num_workers).map(|()| 0)),
            Message::Goodbye(_) => return self.hub.dismiss(peer),
            message => {
                let Some(request) = request_of(&message) else { return };
                (request, Err(format!("a hub in a page has no files and no tokens: it cannot answer {kind:?}")))
            }
        };
        self.hub.reply(peer, kind, request, done);
    }

    /// Executes the effects of an event, and updates dashboards.
    fn settle(&mut self) {
        while let Some(effect) = self.hub.poll_effect() {
            match effect {
                HubEffect::Reply { peer, kind, request } => self.hub.reply(peer, kind, request, Ok(0)),
                HubEffect::Child { child, fate } => self.decide(child, fate),
                HubEffect::Hung { worker, .. } => self.end_hung(worker),
                HubEffect::Consume(Ok(BatchWork::Learn(rows))) => self.batch = Some(rows),
                HubEffect::Consume(Err(error)) => self.end_run(RunEnd::Failed(error.to_string())),
                HubEffect::Audit { run, task, .. } => self.hub.handle_audited(run, &task, Verdict::Unknown),
                HubEffect::Draw(job) => self.drawing = Some(job),
                HubEffect::Step(RunStep::End(end)) => self.end_run(end),
                HubEffect::Step(RunStep::Begin) => self.hub.begin_iteration(),
                // A page has no checkpoints, no queue, no batches for a caller, and only its own workers.
                HubEffect::Step(RunStep::Save | RunStep::RollBack(_))
                | HubEffect::Consume(Ok(_))
                | HubEffect::Quarantine { .. }
                | HubEffect::Record(_)
                | HubEffect::Notice { .. }
                | HubEffect::Joined(_)
                | HubEffect::Left { .. }
                | HubEffect::Answered { .. }
                | HubEffect::WeightsApplied
                | HubEffect::Journal(_)
                | HubEffect::MakeRun(_)
                | HubEffect::GiveUpStart => {}
            }
        }
        if self.tended.is_none_or(|tended| self.now.since(tended) >= TEND_EVERY) {
            self.tended = Some(self.now);
            self.hub.refresh_dashboards();
        }
    }

    fn end_run(&mut self, end: RunEnd) {
        let (now, end) = (self.now, self.hub.course.end(end));
        let Some(run) = self.hub.current() else { return };
        run.end(end, now);
        let state = run.state();
        let trained = (state.iteration() > 0 && !matches!(state.phase(), Phase::Failed))
            .then(|| HubOutput::Trained { run: state.number(), weights_hash: state.weights_hash().to_string() });
        self.batch = None;
        self.hub.announce_end();
        self.hub.add_past_run();
        self.hub.refresh_dashboards();
        self.outputs.extend(trained);
    }

    /// Closes a port with a goodbye.
    fn close(&mut self, port: PortId, reason: &str) {
        if let Some(known) = self.ports.get(&port) {
            known.link.send_last(&Message::Goodbye(Goodbye { reason: reason.into() }));
        }
    }

    /// Removes a port and its peer.
    fn lose(&mut self, port: PortId, reason: &str, is_fault: bool) {
        let Some(known) = self.ports.remove(&port) else { return };
        self.hub.tokens.revoke(known.token);
        if let Some(peer) = known.peer {
            self.hub.handle_left(peer, PeerEnd { reason, is_fault, denied: None });
        }
        self.replace_if_worker(port, reason);
        self.outputs.push_back(HubOutput::Closed { port });
    }
}

/// Returns the number of an operator's request that only a native hub can answer.
fn request_of(message: &Message) -> Option<u32> {
    Some(match message {
        Message::Checkpoint(asked) | Message::WorkerTokenRequest(asked) | Message::SavedRunsRequest(asked) => {
            asked.request
        }
        Message::SavedRunRequest(asked) | Message::ResumeRun(asked) | Message::DeleteRun(asked) => asked.request,
        Message::ManageTokens(asked) => asked.request,
        _ => return None,
    })
}
