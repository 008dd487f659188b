//! State updates for dashboards.

use std::collections::BTreeMap;

use rollmesh_core::{
    group::{GroupEvent, QuarantineCause, WorkerStatus},
    hub::Curve,
    ids::WorkerId,
    protocol::{
        Frame, Message, Role, WorkerState,
        message::{
            EnvTrace, EvaluationPoint, Iteration, LedgerReport, NamedMetrics, Notice, RunSchema, RunStatus, WorkerGone,
            WorkerLocation, WorkerRow,
        },
    },
};

use super::{
    actor::{Actor, Peer},
    fragment::WatchedFragment,
    in_process::IN_PROCESS,
    limits::{MAX_BACKLOG_BYTES, STATE_BACKLOG_BYTES},
};
use crate::{learner::run_schema, train::IterationMetrics};

/// Maximum number of bytes of metrics with names that a new dashboard is sent. With [`Curve::MAX_POINTS`] of both other curves
/// and an answer it stays below [`MAX_BACKLOG_BYTES`], beyond which the dashboard would be disconnected.
const MAX_NAMED_BYTES: usize = MAX_BACKLOG_BYTES / 4;

/// The state that was sent last, so that only changes are sent.
#[derive(Default)]
pub(super) struct Dashboard {
    status: Option<RunStatus>,
    /// The encoded list as it was sent.
    runs: Vec<u8>,
    rows: BTreeMap<u32, WorkerRow>,
    places: BTreeMap<u32, WorkerLocation>,
    ledger: LedgerReport,
    pub(super) trace: Option<EnvTrace>,
    pub(super) points: Curve<Iteration>,
    /// The metrics with names of the same iterations.
    named: Curve<()>,
    /// The curve of the run's evaluations.
    pub(super) evaluations: Curve<EvaluationPoint>,
    /// The trace of the latest evaluated episode, and whether it still has to be sent to dashboards.
    pub(super) evaluation_trace: Option<Frame>,
    pub(super) is_trace_new: bool,
    pub(super) fragment: WatchedFragment,
}

impl Dashboard {
    pub(super) fn begin_run(&mut self) {
        self.points = Curve::default();
        self.named = Curve::default();
        self.evaluations = Curve::default();
        self.evaluation_trace = None;
        self.trace = None;
        self.fragment = WatchedFragment::default();
    }

    /// Adds an iteration to the curves.
    pub(super) fn add_iteration(&mut self, run: u32, metrics: &IterationMetrics) {
        let point = metrics.point(run);
        self.points.push(point, &Message::Iteration(point));
        self.add_named(metrics.named(run));
    }

    fn add_named(&mut self, metrics: NamedMetrics) {
        self.named.push((), &Message::NamedMetrics(metrics));
    }

    /// Returns the curves for a new dashboard. Metrics with names follow the iterations that they belong to.
    fn curves(&self) -> impl Iterator<Item = Frame> {
        let largest = self.named.frames().map(|frame| frame.num_bytes()).max().unwrap_or(1);
        let named = self.named.every_nth(MAX_NAMED_BYTES / largest).map(|(_, frame)| frame.clone());
        self.points.frames().chain(named).chain(self.evaluations.frames())
    }

    pub(super) fn forget_worker(&mut self, worker: u32) {
        self.rows.remove(&worker);
        self.places.remove(&worker);
    }

    /// Returns the messages about all workers.
    fn worker_messages(&self) -> impl Iterator<Item = Message> {
        let places = self.places.values().cloned().map(Message::WorkerLocation);
        places.chain(self.rows.values().cloned().map(Message::WorkerRow))
    }
}

impl Actor {
    /// Records a worker's health, and replaces a local one that is in quarantine because of repeated failures.
    pub(super) fn note_health(&mut self, event: &GroupEvent) {
        match event {
            GroupEvent::WorkerHung { worker, .. } => _ = self.hung.insert(worker.0, self.now()),
            GroupEvent::WorkerRecovered { worker } => _ = self.hung.remove(&worker.0),
            GroupEvent::WorkerQuarantined { worker, cause: QuarantineCause::Failures } => {
                self.end_quarantined(worker.0)
            }
            _ => {}
        }
    }

    /// Sends a new dashboard a full snapshot.
    pub(super) fn show_everything(&mut self, id: u32) {
        self.refresh_dashboards();
        let runs = self.run_list();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.is_up_to_date = true;
        let status = self.dashboard.status.clone().unwrap_or_default();
        // All of these are small.
        let schema = Message::RunSchema(RunSchema { schema: run_schema(&self.registry).to_string() });
        [schema, runs, Message::RunStatus(status)]
            .into_iter()
            .chain(self.dashboard.worker_messages())
            .for_each(|message| _ = peer.link.send(&message));
        let frames = self.dashboard.curves().chain(self.dashboard.evaluation_trace.clone());
        frames.for_each(|frame| peer.link.send_frame(frame));
        self.show_monitoring(id);
        let Some(peer) = self.peers.get(&id) else { return };
        let _ = peer.link.send(&Message::LedgerReport(self.dashboard.ledger.clone()));
    }

    /// Sends all dashboards what has changed.
    pub(super) fn refresh_dashboards(&mut self) {
        self.publish_status();
        if !self.peers.values().any(is_dashboard) {
            // The next dashboard gets a full snapshot.
            return;
        }
        let mut news = Vec::new();
        let now = self.now();
        let status = self.run.as_ref().map(|run| run.state.status(now)).unwrap_or_default();
        // NaN is a valid value here but unequal to itself: compare the encoded messages.
        let message = Message::RunStatus(status.clone());
        let last = self.dashboard.status.replace(status).map(Message::RunStatus);
        if last.is_none_or(|last| last.encode() != message.encode()) {
            news.push(message);
        }
        let runs = self.run_list();
        let encoded = runs.encode();
        if self.dashboard.runs != encoded {
            self.dashboard.runs = encoded;
            news.push(runs);
        }
        for place in self.worker_places() {
            if self.dashboard.places.get(&place.worker) != Some(&place) {
                self.dashboard.places.insert(place.worker, place.clone());
                news.push(Message::WorkerLocation(place));
            }
        }
        for row in self.worker_rows() {
            if self.dashboard.rows.get(&row.worker) != Some(&row) {
                self.dashboard.rows.insert(row.worker, row.clone());
                news.push(Message::WorkerRow(row));
            }
        }
        let ledger = self.ledger_report();
        if self.dashboard.ledger != ledger {
            self.dashboard.ledger = ledger.clone();
            news.push(Message::LedgerReport(ledger));
        }
        news.extend(self.dashboard.trace.take().map(Message::EnvTrace));
        news.iter().for_each(|message| self.broadcast(message));
        let Dashboard { points, named, evaluations, .. } = &mut self.dashboard;
        let fresh = [points.take_fresh(), named.take_fresh(), evaluations.take_fresh()].concat();
        fresh.iter().for_each(|point| self.broadcast_frame(point, false));
        let is_new = std::mem::take(&mut self.dashboard.is_trace_new);
        if let Some(trace) = self.dashboard.evaluation_trace.clone().filter(|_| is_new) {
            self.broadcast_frame(&trace, true);
        }
        self.refresh_monitoring();
        self.catch_up();
    }

    pub(super) fn broadcast_notice(&mut self, level: u8, text: &str) {
        self.broadcast(&Message::Notice(Notice { level, text: text.chars().take(512).collect() }));
    }

    pub(super) fn broadcast_gone(&mut self, worker: u32) {
        self.broadcast(&Message::WorkerGone(WorkerGone { worker }));
    }

    pub(super) fn broadcast(&mut self, message: &Message) {
        if !self.peers.values().any(|peer| is_dashboard(peer) && peer.is_up_to_date) {
            return;
        }
        // State messages supersede each other: the latest one suffices.
        let is_state = matches!(
            message,
            Message::RunStatus(_)
                | Message::RunList(_)
                | Message::WorkerRow(_)
                | Message::WorkerLocation(_)
                | Message::EnvTrace(_)
                | Message::LedgerReport(_)
                | Message::HostReport(_)
        );
        // A message that is too large for dashboards is dropped.
        if let Ok(frame) = Frame::new(message) {
            self.broadcast_frame(&frame, is_state);
        }
    }

    fn broadcast_frame(&mut self, frame: &Frame, is_state: bool) {
        for viewer in self.peers.values_mut().filter(|peer| is_dashboard(peer) && peer.is_up_to_date) {
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

    /// Sends the current state to dashboards that have missed updates and whose queue is empty again.
    fn catch_up(&mut self) {
        let status = self.dashboard.status.clone().map(Message::RunStatus);
        let workers: Vec<Message> = self.dashboard.worker_messages().collect();
        let runs = self.run_list();
        let behind = self.peers.values_mut().filter(|peer| peer.has_missed && peer.link.is_idle());
        let mut behind = behind.peekable();
        if behind.peek().is_none() {
            return;
        }
        let ledger = Message::LedgerReport(self.dashboard.ledger.clone());
        let hosts = self.monitoring.hosts().cloned().map(Message::HostReport);
        let news: Vec<Message> = status.into_iter().chain(workers).chain([runs, ledger]).chain(hosts).collect();
        for peer in behind {
            peer.has_missed = false;
            // All of these are small.
            news.iter().for_each(|message| _ = peer.link.send(message));
        }
    }

    fn ledger_report(&self) -> LedgerReport {
        LedgerReport {
            num_worker_restarts: self.num_worker_restarts,
            ..self.run.as_ref().map(|run| run.state.ledger_report()).unwrap_or_default()
        }
    }

    /// Returns where workers run, as far as that is known.
    fn worker_places(&self) -> Vec<WorkerLocation> {
        let place = |(&worker, peer): (&u32, &Peer)| {
            let host = self.monitoring.host(worker).map(|report| report.host.clone()).unwrap_or_default();
            WorkerLocation { worker, host, launcher: peer.launcher.clone() }
        };
        let workers = self.peers.iter().filter(|(_, peer)| peer.is_worker()).map(place);
        workers.filter(|place| !(place.host.is_empty() && place.launcher.is_empty())).collect()
    }

    pub(super) fn worker_rows(&self) -> Vec<WorkerRow> {
        let now = self.now();
        let in_group: BTreeMap<u32, WorkerStatus<'_>> = self
            .run
            .iter()
            .flat_map(|run| run.state.group.workers(now).map(|status| (status.worker.0, status)))
            .collect();
        let row = |(&id, peer): (&u32, &Peer)| {
            let known = in_group.get(&id);
            let before = self.dashboard.rows.get(&id);
            let (state, reason) = match (&self.run, known) {
                (Some(run), Some(known)) => run.state.shown_state(known),
                _ => (WorkerState::Idle, "there is no run".into()),
            };
            WorkerRow {
                worker: id,
                kind: peer.kind.clone(),
                name: peer.name.clone(),
                device: peer.device.clone(),
                state: state.to_wire(),
                local: peer.child.is_some_and(|child| child != IN_PROCESS),
                slots: self
                    .run
                    .as_ref()
                    .filter(|run| !run.is_over())
                    .map_or(0, |run| run.state.latest_slots(WorkerId(id))),
                env_steps: known.map_or_else(|| before.map_or(0, |row| row.env_steps), |status| status.env_steps),
                steps_per_s: known.map_or(0.0, |status| status.env_steps_per_s as f32),
                weights_lag: match (&self.run, known) {
                    (Some(run), Some(status)) => run.state.weights_lag(status.weights_version),
                    _ => 0,
                },
                reason,
            }
        };
        self.peers.iter().filter(|(_, peer)| peer.is_worker()).map(row).collect()
    }
}

fn is_dashboard(peer: &Peer) -> bool {
    matches!(peer.role, Role::Viewer | Role::Operator)
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::{Kind, Outbox, message::RunHistory};

    use super::*;

    #[test]
    fn new_dashboard_has_room_for_the_curves_of_a_long_run_and_an_answer() {
        let name = |number| format!("custom/{number:0width$}", width = NamedMetrics::MAX_NAME - "custom/".len());
        let mut dashboard = Dashboard::default();
        let last = Curve::<Iteration>::MAX_POINTS as u64;
        for iteration in 1..=last {
            let (run, env_steps) = (1_000, iteration * 1_000_000);
            let point = Iteration { run, iteration, env_steps, wall_ms: env_steps, ..Iteration::default() };
            dashboard.points.push(point, &Message::Iteration(point));
            dashboard.add_named(NamedMetrics::new(run, iteration, (0..100).map(|number| (name(number), 1.0))));
            let point = EvaluationPoint { run, iteration, env_steps, ..EvaluationPoint::default() };
            dashboard.evaluations.push(point, &Message::Evaluation(point));
        }
        let mut outbox = Outbox::default();
        dashboard.curves().for_each(|frame| outbox.push_frame(frame));
        let answer = Kind::RunHistory.body_cap() as usize;
        assert!(outbox.queued_bytes() + answer < MAX_BACKLOG_BYTES, "{} bytes", outbox.queued_bytes());

        let named: Vec<Frame> = dashboard.curves().filter(|frame| frame.kind() == Kind::NamedMetrics).collect();
        let newest = NamedMetrics::new(1_000, last, (0..100).map(|number| (name(number), 1.0)));
        assert!(named.len() > 64, "{} iterations have metrics with names", named.len());
        assert_eq!(named.last(), Frame::new(&Message::NamedMetrics(newest)).ok().as_ref());
    }

    #[test]
    fn few_points_are_sent_without_gaps_and_thinned_ones_end_with_the_latest() {
        let mut dashboard = Dashboard::default();
        for iteration in 1..=7 {
            let point = Iteration { iteration, ..Iteration::default() };
            dashboard.points.push(point, &Message::Iteration(point));
            dashboard.add_named(NamedMetrics::new(0, iteration, [("lag_mean".into(), 0.5)]));
        }
        assert_eq!(dashboard.curves().count(), 14);
        let at_most = |most| dashboard.points.at_most(most).iter().map(|point| point.iteration).collect::<Vec<_>>();
        assert_eq!(
            [at_most(RunHistory::MAX_ITERATIONS), at_most(3), at_most(1)],
            [(1..=7).collect(), vec![1, 4, 7], vec![7]]
        );
        assert_eq!(Dashboard::default().curves().count(), 0);
    }
}
