//! State of the hub for dashboards, of which only changes are sent, and curves.

use super::{
    Curve, Hub, HubRun, Peer, PeerConnection, RecentFragments,
    called::ProgramWorker,
    limits::{MAX_BACKLOG_BYTES, STATE_BACKLOG_BYTES},
};
use crate::{
    group::WorkerStatus,
    ids::WorkerId,
    prelude::*,
    protocol::{
        Kind, Message, MessageFrame, WorkerState,
        handshake::shortened,
        message::{
            EnvClip, EvaluationPoint, HostReport, Iteration, LauncherList, LedgerReport, NamedMetrics, Notice,
            OtherPeers, RunHistory, RunSchema, WorkerLocation, WorkerRow,
        },
    },
    time::Micros,
};

/// Maximum number of bytes of metrics with names that a new dashboard is sent. With [`Curve::MAX_POINTS`] of both other curves
/// and an answer it stays below [`MAX_BACKLOG_BYTES`], beyond which the dashboard would be disconnected.
const MAX_NAMED_BYTES: usize = MAX_BACKLOG_BYTES / 8;

/// The number of the worker in the hub's own process; no child process has it. RLlib's local worker is 0, too.
pub const IN_PROCESS: u32 = 0;
/// The number of the hub's own worker that acts for others.
pub const IN_PROCESS_SERVER: u32 = u32::MAX;

/// The messages that dashboards were sent, and those that they are to be sent next.
#[derive(Debug)]
pub struct Dashboards {
    /// The latest messages of which each supersedes earlier ones.
    states: BTreeMap<StateKey, Message>,
    /// Those that have not been sent.
    unsent: BTreeSet<StateKey>,
    points: Curve<Iteration>,
    /// The metrics with names of the same iterations.
    named: Curve<()>,
    /// The curve of the run's evaluations.
    evaluations: Curve<EvaluationPoint>,
    /// The latest pictures by kind: of the watched slot, and of the latest and the best evaluation that were drawn.
    clips: BTreeMap<Kind, MessageFrame>,
    /// Those that have not been sent.
    unsent_clips: BTreeSet<Kind>,
    /// The mean return of the best evaluation that was drawn.
    best_return: f32,
    /// When the next pictures of the watched slot are made; `None` while they are.
    pub(super) clip_due: Option<Micros>,
    /// When the latest ones were begun.
    pub(super) clip_begun: Micros,
    pub(super) fragments: RecentFragments,
    /// The workers that the program calls itself, by number.
    pub(super) called: BTreeMap<u32, ProgramWorker>,
}

impl Default for Dashboards {
    fn default() -> Self {
        Self {
            states: BTreeMap::new(),
            unsent: BTreeSet::new(),
            points: Curve::default(),
            named: Curve::default(),
            evaluations: Curve::default(),
            clips: BTreeMap::new(),
            unsent_clips: BTreeSet::new(),
            best_return: f32::NEG_INFINITY,
            clip_due: Some(Micros(0)),
            clip_begun: Micros(0),
            fragments: RecentFragments::default(),
            called: BTreeMap::new(),
        }
    }
}

/// The key of a message, which supersedes earlier ones with the same key. Dashboards get the messages in the order of
/// keys: a run that the list shows as over has its final numbers already, and the ledger completes the snapshot of a
/// new dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StateKey {
    Status,
    Runs,
    Location(u32),
    Row(u32),
    Host(u32),
    Others,
    Launchers,
    Ledger,
}

impl StateKey {
    /// Returns the key of a message; `None` for one that supersedes none.
    fn of(message: &Message) -> Option<Self> {
        Some(match message {
            Message::RunList(_) => Self::Runs,
            Message::RunStatus(_) => Self::Status,
            Message::WorkerLocation(place) => Self::Location(place.worker),
            Message::WorkerRow(row) => Self::Row(row.worker),
            Message::HostReport(report) => Self::Host(report.worker),
            Message::OtherPeers(_) => Self::Others,
            Message::LauncherList(_) => Self::Launchers,
            Message::LedgerReport(_) => Self::Ledger,
            _ => return None,
        })
    }
}

impl Dashboards {
    /// Forgets the curves of an earlier run.
    pub fn begin_run(&mut self) {
        let Self { states, unsent, called, .. } = core::mem::take(self);
        *self = Self { states, unsent, called, ..Self::default() };
    }

    /// Adds an iteration to the curves.
    pub fn add_iteration(&mut self, point: Iteration, named: NamedMetrics) {
        self.points.push(point, &Message::Iteration(point));
        self.named.push((), &Message::NamedMetrics(named));
    }

    /// Adds an evaluation to its curve, and an episode of it, if it was drawn.
    pub fn add_evaluation(&mut self, point: EvaluationPoint, clip: Option<EnvClip>) {
        self.evaluations.push(point, &Message::Evaluation(point));
        let Some(clip) = clip else { return };
        if point.episode_return_mean >= self.best_return {
            self.best_return = point.episode_return_mean;
            self.keep_clip(&Message::BestEvaluationClip(clip.clone()));
        }
        self.keep_clip(&Message::EvaluationClip(clip));
    }

    /// Replaces the pictures of the watched slot.
    pub(super) fn set_clip(&mut self, clip: EnvClip) {
        self.keep_clip(&Message::SlotClip(clip));
    }

    /// Returns whether dashboards get pictures of the watched slot, or the reason why there are none.
    pub(super) fn has_slot_clip(&self) -> bool {
        self.clips.contains_key(&Kind::SlotClip)
    }

    fn keep_clip(&mut self, message: &Message) {
        if let Ok(frame) = MessageFrame::new(message) {
            self.clips.insert(message.kind(), frame);
            self.unsent_clips.insert(message.kind());
        }
    }

    /// Returns the curves for a new dashboard. Metrics with names follow the iterations that they belong to.
    fn curves(&self) -> impl Iterator<Item = MessageFrame> {
        let largest = self.named.frames().map(|frame| frame.num_bytes()).max().unwrap_or(1);
        let named = self.named.every_nth(MAX_NAMED_BYTES / largest).map(|(_, frame)| frame.clone());
        self.points.frames().chain(named).chain(self.evaluations.frames())
    }

    pub(super) fn forget_peer(&mut self, peer: u32) {
        for key in [StateKey::Location(peer), StateKey::Row(peer), StateKey::Host(peer)] {
            self.states.remove(&key);
        }
    }

    /// Replaces the message that this one supersedes, and marks it as unsent if it differs.
    pub(super) fn set_state(&mut self, message: Message) {
        let Some(key) = StateKey::of(&message) else { return };
        // NaN is a valid value here but unequal to itself: unequal messages are compared as they are encoded.
        let is_same = |last: &Message| *last == message || last.encode() == message.encode();
        if !self.states.get(&key).is_some_and(is_same) {
            self.states.insert(key, message);
            self.unsent.insert(key);
        }
    }

    fn host(&self, worker: u32) -> Option<&HostReport> {
        match self.states.get(&StateKey::Host(worker)) {
            Some(Message::HostReport(report)) => Some(report),
            _ => None,
        }
    }

    /// Returns the latest reports of all hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &HostReport> {
        let hosts = self.states.range(StateKey::Host(0)..=StateKey::Host(u32::MAX));
        hosts.filter_map(|(_, message)| if let Message::HostReport(report) = message { Some(report) } else { None })
    }

    /// Returns the curves of a run, thinned out to fit into a message, without its settings.
    pub(super) fn history(&self) -> RunHistory {
        RunHistory {
            iterations: self.points.at_most(RunHistory::MAX_ITERATIONS),
            evaluations: self.evaluations.at_most(RunHistory::MAX_EVALUATIONS),
            ..RunHistory::default()
        }
    }
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Stores a report of a worker's host, or of the hub's own; dashboards get the latest one.
    pub fn handle_host_report(&mut self, worker: u32, report: HostReport) {
        let (host, version) = (shortened(&report.host), shortened(&report.version));
        let mut report = HostReport { worker, host, version, ..report };
        report.gpus.iter_mut().for_each(|gpu| gpu.name = shortened(&gpu.name));
        self.dashboards.set_state(Message::HostReport(report));
    }

    /// Stores the launchers; dashboards get the latest list.
    pub fn show_launchers(&mut self, launchers: LauncherList) {
        self.dashboards.set_state(Message::LauncherList(launchers));
    }

    /// Sends a new dashboard a full snapshot.
    pub(super) fn show_everything(&mut self, id: u32) {
        self.refresh_dashboards();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.is_up_to_date = true;
        let shown = &self.dashboards;
        // All of these are small.
        let _ = peer.link.send(&Message::RunSchema(RunSchema { schema: self.setup.schema.clone() }));
        let certificate = self.setup.certificate.map(Message::HubCertificate);
        certificate.iter().for_each(|message| _ = peer.link.send(message));
        let ledger = shown.states.get(&StateKey::Ledger);
        let others = shown.states.range(..StateKey::Ledger).map(|(_, message)| message);
        others.for_each(|message| _ = peer.link.send(message));
        let frames = shown.curves().chain(self.logs.snapshot_for(peer.role));
        frames.for_each(|frame| peer.link.send_frame(frame));
        ledger.into_iter().for_each(|message| _ = peer.link.send(message));
        // Clips are large, and follow a long history once that has been sent.
        if peer.link.queued_bytes() > STATE_BACKLOG_BYTES {
            peer.has_missed_clips = true;
        } else {
            shown.clips.values().for_each(|clip| peer.link.send_frame(clip.clone()));
        }
    }

    /// Sends all dashboards what has changed.
    pub fn refresh_dashboards(&mut self) {
        if !self.has_dashboards() {
            // The next dashboard gets a full snapshot.
            return;
        }
        // Before anything is queued: a run reports its iterations each time.
        self.send_missed(|queued_bytes| queued_bytes == 0);
        self.update_states();
        for key in core::mem::take(&mut self.dashboards.unsent) {
            if let Some(frame) = self.dashboards.states.get(&key).map(MessageFrame::new) {
                self.broadcast_frame(frame.ok(), true);
            }
        }
        let Dashboards { points, named, evaluations, clips, unsent_clips, .. } = &mut self.dashboards;
        let fresh = [points.take_fresh(), named.take_fresh(), evaluations.take_fresh()].concat();
        let unsent = core::mem::take(unsent_clips);
        let clips: Vec<MessageFrame> = unsent.iter().filter_map(|kind| clips.get(kind).cloned()).collect();
        fresh.into_iter().for_each(|point| self.broadcast_frame(Some(point), false));
        for viewer in self.peers.values_mut().filter(|peer| peer.is_up_to_date && !clips.is_empty()) {
            if viewer.link.queued_bytes() > STATE_BACKLOG_BYTES {
                viewer.has_missed_clips = true;
            } else {
                clips.iter().for_each(|clip| viewer.link.send_frame(clip.clone()));
            }
        }
        self.send_logs();
    }

    /// Returns true while a dashboard is connected.
    #[must_use]
    pub fn has_dashboards(&self) -> bool {
        self.peers.values().any(Peer::is_dashboard)
    }

    fn update_states(&mut self) {
        let (now, state) = (self.now, self.state());
        let status = state.map(|run| run.status(now)).unwrap_or_default();
        let ledger = state.map(|run| run.ledger_report()).unwrap_or_default();
        let ledger = LedgerReport { num_worker_restarts: self.num_worker_restarts, ..ledger };
        let current = state.filter(|run| !run.is_over()).map(|run| run.row(now));
        let runs = self.queue.list(current, self.keeps_queue && !self.is_leaving);
        let (places, rows) = (self.worker_places(), self.worker_rows());
        let others = Message::OtherPeers(self.other_peers());
        let states = [Message::RunStatus(status), Message::RunList(runs), others, Message::LedgerReport(ledger)];
        let states = states.into_iter();
        let places = places.into_iter().map(Message::WorkerLocation);
        let states = states.chain(places).chain(rows.into_iter().map(Message::WorkerRow));
        states.for_each(|message| self.dashboards.set_state(message));
    }

    pub(super) fn broadcast_notice(&mut self, level: u8, text: &str) {
        self.broadcast(&Message::Notice(Notice { level, text: text.chars().take(512).collect() }));
    }

    /// Sends a message to all dashboards; one that is too large for them is dropped.
    pub(super) fn broadcast(&mut self, message: &Message) {
        if self.peers.values().any(|peer| peer.is_up_to_date) {
            self.broadcast_frame(MessageFrame::new(message).ok(), false);
        }
    }

    fn broadcast_frame(&mut self, frame: Option<MessageFrame>, is_state: bool) {
        let Some(frame) = frame else { return };
        for viewer in self.peers.values_mut().filter(|peer| peer.is_up_to_date) {
            let backlog = viewer.link.queued_bytes();
            if is_state && backlog > STATE_BACKLOG_BYTES {
                viewer.has_missed = true;
            } else if backlog < MAX_BACKLOG_BYTES {
                viewer.link.send_frame(frame.clone());
            } else {
                viewer.link.hang_up();
            }
        }
    }

    /// Sends dashboards the newest states, and all that they have missed, however much is queued for them: the hub is about to
    /// leave.
    pub fn send_last_states(&mut self) {
        self.refresh_dashboards();
        self.send_missed(|_| true);
    }

    /// Sends the states and clips to dashboards that have missed some and may get them, by the bytes that are queued for them.
    fn send_missed(&mut self, may_send: impl Fn(usize) -> bool) {
        for peer in self.peers.values_mut().filter(|peer| peer.has_missed || peer.has_missed_clips) {
            if !may_send(peer.link.queued_bytes()) {
                continue;
            }
            // All of these are small.
            if core::mem::take(&mut peer.has_missed) {
                self.dashboards.states.values().for_each(|message| _ = peer.link.send(message));
            }
            if core::mem::take(&mut peer.has_missed_clips) {
                self.dashboards.clips.values().for_each(|clip| peer.link.send_frame(clip.clone()));
            }
        }
    }

    /// Returns the peers that are no workers of runs.
    fn other_peers(&self) -> OtherPeers {
        let others = self.peers.iter().filter(|(_, peer)| !peer.is_worker());
        OtherPeers::new(others.map(|(&id, peer)| (id, peer.service_name(), &*peer.name)))
    }

    /// Returns where workers run, as far as that is known.
    fn worker_places(&self) -> Vec<WorkerLocation> {
        let place = |(worker, peer): (u32, &Peer<C>)| {
            let host = self.dashboards.host(worker).map(|report| report.host.clone()).unwrap_or_default();
            WorkerLocation { worker, host, launcher: peer.launcher.clone() }
        };
        let is_known = |place: &WorkerLocation| !(place.host.is_empty() && place.launcher.is_empty());
        self.workers().map(place).filter(is_known).collect()
    }

    /// Returns the states of all workers.
    pub fn worker_rows(&self) -> Vec<WorkerRow> {
        let run = self.state();
        let in_group: BTreeMap<u32, WorkerStatus<'_>> =
            run.iter().flat_map(|run| run.group.workers(self.now).map(|status| (status.worker.0, status))).collect();
        let no_lease = |id| match self.acts_for_others(id) {
            true => "it acts for the other workers",
            false => "there is no run",
        };
        let row = |(id, peer): (u32, &Peer<C>)| {
            let known = run.zip(in_group.get(&id));
            let (state, reason) =
                known.map_or_else(|| (WorkerState::Idle, no_lease(id).into()), |(run, known)| run.shown_state(known));
            let before = match self.dashboards.states.get(&StateKey::Row(id)) {
                Some(Message::WorkerRow(row)) => row.env_steps,
                _ => 0,
            };
            WorkerRow {
                worker: id,
                kind: peer.kind.clone(),
                name: peer.name.clone(),
                device: peer.device.clone(),
                state: state.to_wire(),
                local: peer.child.is_some_and(|child| ![IN_PROCESS, IN_PROCESS_SERVER].contains(&child)),
                slots: run.filter(|run| !run.is_over()).map_or(0, |run| run.latest_slots(WorkerId(id))),
                env_steps: known.map_or(before, |(_, status)| status.env_steps),
                steps_per_s: known.map_or(0.0, |(_, status)| status.env_steps_per_s as f32),
                weights_lag: known.map_or(0, |(run, status)| run.weights_lag(status.weights_version)),
                reason,
            }
        };
        self.with_called(self.workers().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Kind, Outbox};

    #[test]
    fn backlog_limit_of_a_new_dashboard_holds_the_curves_of_a_long_run_and_an_answer() {
        let name = |number| format!("custom/{number:0width$}", width = NamedMetrics::MAX_NAME - "custom/".len());
        let mut dashboard = Dashboards::default();
        let last = Curve::<Iteration>::MAX_POINTS as u64;
        for iteration in 1..=last {
            let (run, env_steps) = (1_000, iteration * 1_000_000);
            let point = Iteration { run, iteration, env_steps, wall_ms: env_steps, ..Iteration::default() };
            let named = NamedMetrics::new(run, iteration, (0..100).map(|number| (name(number), 1.0)));
            dashboard.add_iteration(point, named);
            dashboard.add_evaluation(EvaluationPoint { run, iteration, env_steps, ..EvaluationPoint::default() }, None);
        }
        let mut outbox = Outbox::default();
        dashboard.curves().for_each(|frame| outbox.push_frame(frame));
        let answer = Kind::RunHistory.body_cap() as usize;
        assert!(outbox.queued_bytes() + answer < MAX_BACKLOG_BYTES, "{} bytes", outbox.queued_bytes());

        let named: Vec<MessageFrame> = dashboard.curves().filter(|frame| frame.kind() == Kind::NamedMetrics).collect();
        let newest = NamedMetrics::new(1_000, last, (0..100).map(|number| (name(number), 1.0)));
        assert!(named.len() > 64, "{} iterations have metrics with names", named.len());
        assert_eq!(named.last(), MessageFrame::new(&Message::NamedMetrics(newest)).ok().as_ref());
    }

    #[test]
    fn few_points_are_sent_without_gaps_and_thinned_ones_end_with_the_latest() {
        let mut dashboard = Dashboards::default();
        for iteration in 1..=7 {
            let point = Iteration { iteration, ..Iteration::default() };
            dashboard.add_iteration(point, NamedMetrics::new(0, iteration, [("lag_mean".into(), 0.5)]));
        }
        assert_eq!(dashboard.curves().count(), 14);
        let at_most = |most| dashboard.points.at_most(most).iter().map(|point| point.iteration).collect::<Vec<_>>();
        assert_eq!(
            [at_most(RunHistory::MAX_ITERATIONS), at_most(3), at_most(1)],
            [(1..=7).collect(), vec![1, 4, 7], vec![7]]
        );
        assert_eq!(Dashboards::default().curves().count(), 0);
    }
}
