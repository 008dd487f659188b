//! The hub of a simulated run: the group, its saved states, and its journal.

use std::collections::BTreeSet;

use rollmesh_core::{
    batch::SlotFragment,
    column::RowShape,
    filter::{FilterKind, FrozenStat, RunFilter},
    group::{FragmentOutcome, GroupCommand, GroupConfig, GroupEvent, GroupState, JournalEntry, LeaseGroup, Ledger},
    ids::{LeaseId, PolicyId, WeightsVersion, WorkerId},
    time::Micros,
    weights::Weights,
};

use super::{Event, Peer, SimNet, Watched};
use crate::{
    fake_worker::{WorkerInput, WorkerOutput},
    history::{Happened, History},
};

pub(super) struct Hub {
    pub(super) config: GroupConfig,
    pub(super) group: LeaseGroup,
    /// The number of restarts.
    pub(super) life: u32,
    pub(super) next_worker: u32,
    pub(super) frozen_until: Micros,
    /// The number of iterations so far.
    begun: u64,
    pub(super) batches: Vec<Vec<SlotFragment>>,
    pub(super) journal: Vec<JournalEntry>,
    pub(super) history: History,
    /// The statistics of the observations in all batches, and the weights with these statistics after the last batch.
    filter: RunFilter,
    pub(super) weights: Weights,
    /// The saved states, oldest first.
    saved: Vec<Save>,
    pub(super) watched: Watched,
    ledger: Ledger,
    /// The able workers of this life of the hub.
    able: BTreeSet<WorkerId>,
}

/// A state from which another process, or this one after a failed audit, can resume.
#[derive(Clone)]
struct Save {
    /// The encoded state of the group.
    state: Vec<u8>,
    /// The numbers of batches and of journal entries.
    batches: usize,
    journal: usize,
    weights: Weights,
}

impl Hub {
    pub(super) fn new(config: GroupConfig) -> Self {
        let group = LeaseGroup::new(config).expect("slots");
        let shapes = [(PolicyId::DEFAULT, RowShape::vector(2))].into();
        let filter = RunFilter::new(FilterKind::MeanStdFilter, &shapes, &[PolicyId::DEFAULT], WeightsVersion(0))
            .expect("a shape");
        let mut filter = filter.expect("a filter");
        let weights = filter.publish(&Weights::new(WeightsVersion(0), Vec::new()).expect("no tensors"));
        let saved = vec![Save { state: group.state().encode(), batches: 0, journal: 0, weights: weights.clone() }];
        Self {
            config,
            group,
            life: 0,
            next_worker: 1,
            frozen_until: Micros(0),
            begun: 0,
            batches: Vec::new(),
            journal: Vec::new(),
            history: History(vec![Happened::Saved]),
            filter,
            weights,
            saved,
            watched: Watched::new(config.num_slots),
            ledger: Ledger::default(),
            able: BTreeSet::new(),
        }
    }

    pub(super) fn save(&mut self) {
        let (state, weights) = (self.group.state().encode(), self.weights.clone());
        let (batches, journal) = (self.batches.len(), self.journal.len());
        self.saved.push(Save { state, batches, journal, weights });
        self.history.0.push(Happened::Saved);
    }

    /// Restarts as another process from the last saved state before this batch.
    pub(super) fn restart(&mut self, before: u64) {
        self.saved.retain(|save| save.batches as u64 <= before);
        let Save { state, batches, journal, weights } = self.saved.last().cloned().expect("the beginning");
        let (plain, filter) = RunFilter::split_from(&weights, &[PolicyId::DEFAULT]).expect("what was saved");
        self.filter = filter.expect("a filter");
        self.weights = self.filter.publish(&plain);
        let state = GroupState::decode(&state).expect("what was saved");
        assert_eq!(state.next_fragment().0, batches as u64);
        self.batches.truncate(batches);
        self.begun = batches as u64;
        self.life += 1;
        // The state may come from an earlier life.
        let first_lease = LeaseId(u64::from(self.life) << 40);
        self.group = LeaseGroup::restore(GroupConfig { first_lease, ..self.config }, state).expect("the same run");
        self.next_worker = 1;
        self.able.clear();
        self.journal.truncate(journal);
        self.watched.restart(&mut self.group, self.life);
        self.history.0.push(Happened::Restored);
    }

    /// Checks after every call that the ledger balances, and adds its state to the history.
    pub(super) fn check(&mut self) {
        let ledger = *self.group.ledger();
        assert!(ledger.balances(), "{ledger:?}");
        if ledger != self.ledger {
            self.ledger = ledger;
            self.history.0.push(Happened::Ledger(Box::new(ledger)));
        }
    }

    /// Counts the observations of a batch, as the hub of a training run does.
    fn observe(&mut self, batch: &[SlotFragment]) {
        self.filter.observe(batch).expect("rows of two floats");
        let (plain, _) = RunFilter::split_from(&self.weights, &[PolicyId::DEFAULT]).expect("a filter");
        let version = WeightsVersion(self.batches.len() as u64 + 1);
        self.weights = self.filter.publish(&plain.with_version(version));
        self.filter.forget_before(version);
    }

    /// Returns the number of rows in the statistics of the last weights.
    pub(super) fn observed(&self) -> u64 {
        FrozenStat::of_weights(&self.weights).ok().flatten().map_or(0, |frozen| frozen.running().n())
    }

    fn over(&mut self, lease: LeaseId) {
        self.history.0.push(Happened::Over { lease });
    }
}

impl SimNet {
    fn next_version(&self) -> WeightsVersion {
        WeightsVersion(self.hub.begun / self.scenario.per_version)
    }

    pub(super) fn begin_iterations(&mut self) {
        while self.hub.begun < self.scenario.iterations && self.hub.group.may_begin(self.next_version()) {
            let weights_version = self.next_version();
            let begun = self.hub.begun;
            self.log(format_args!("iteration {begun} begins with weights {weights_version}"));
            let number = self.hub.group.begin_iteration(weights_version, self.now).expect("the one before is over");
            assert_eq!(number.0, begun);
            self.hub.begun += 1;
            self.hub.history.0.push(Happened::Began { weights_version });
        }
    }

    pub(super) fn group_receives(&mut self, from: Peer, said: WorkerOutput, corrupted: bool) {
        if from.life != self.hub.life && self.dice.chance(500) {
            return;
        }
        let (worker, now) = (from.worker, self.now);
        match said {
            // The answer belongs to the run of another life.
            WorkerOutput::Answer(_) if from.life != self.hub.life => {}
            WorkerOutput::Answer(answer) => {
                self.log(format_args!("worker {worker} answers {answer:?}"));
                if answer.is_ok() {
                    self.hub.able.insert(worker);
                }
                self.hub.group.handle_answer(worker, answer, now);
            }
            WorkerOutput::Progress(lease, env_steps) => self.hub.group.handle_progress(worker, lease, env_steps, now),
            WorkerOutput::Refused(lease) => {
                self.log(format_args!("worker {worker} refuses lease {lease}"));
                self.hub.group.handle_refused(worker, lease, "no", now);
                self.hub.over(lease);
            }
            WorkerOutput::Failed(lease, failure) => {
                self.log(format_args!("worker {worker} fails in lease {lease}: {failure}"));
                self.hub.group.handle_failed(worker, lease, failure, now);
            }
            WorkerOutput::Upload(lease, _) if corrupted => {
                self.hub.group.handle_invalid(worker, lease, now);
                self.hub.over(lease);
            }
            WorkerOutput::Upload(lease, fragments) => self.upload(worker, lease, fragments),
        }
    }

    fn upload(&mut self, worker: WorkerId, lease: LeaseId, fragments: Vec<SlotFragment>) {
        let receipt = self.hub.group.handle_fragments(worker, lease, fragments.clone(), self.now);
        self.log(format_args!("worker {worker} uploads lease {lease}: {receipt:?}"));
        for ((_, outcome), fragment) in receipt.outcomes.iter().zip(fragments) {
            if *outcome == FragmentOutcome::Committed {
                self.hub.watched.committed(worker, &fragment);
                let fragment = Box::new(fragment);
                self.hub.history.0.push(Happened::Committed { worker, lease, fragment });
            }
        }
        self.fail_divergent();
    }

    pub(super) fn lose(&mut self, peer: Peer) {
        if peer.life == self.hub.life {
            self.log(format_args!("worker {} left", peer.worker));
            self.hub.group.handle_left(peer.worker, self.now);
            self.hub.history.0.push(Happened::Left { worker: peer.worker });
        }
    }

    pub(super) fn drain(&mut self) {
        let before = self.hub.batches.len();
        self.deliver_commands();
        while let Some(batch) = self.hub.group.poll_batch() {
            self.take(batch);
            // The group may now accept more.
            self.deliver_commands();
        }
        while let Some(event) = self.hub.group.poll_event() {
            self.log(format_args!("{event}"));
            if let GroupEvent::WorkerQuarantined { worker, cause } = event {
                self.check_failed_audit(worker, cause);
            }
        }
        self.audit();
        self.hub.journal.extend(std::iter::from_fn(|| self.hub.group.poll_journal()));
        if let Some(at) = self.hub.group.poll_timeout() {
            self.after(at.since(self.now), Event::Timer);
        }
        let batches = self.hub.batches.len();
        if batches > before && batches.is_multiple_of(self.scenario.save_every) {
            self.hub.check();
            self.hub.save();
        }
    }

    fn deliver_commands(&mut self) {
        while let Some(command) = self.hub.group.poll_command() {
            self.log(format_args!("to worker {}: {}", command.worker(), summary(&command)));
            let to = Peer { life: self.hub.life, worker: command.worker() };
            match command {
                GroupCommand::Grant { worker, lease } => {
                    assert!(self.hub.able.contains(&worker), "lease {} before worker {worker} was able", lease.id);
                    self.hub.history.0.push(Happened::granted(worker, &lease));
                    self.send_to_worker(to, WorkerInput::Grant(lease));
                }
                GroupCommand::Revoke { lease, .. } => {
                    self.hub.over(lease);
                    self.send_to_worker(to, WorkerInput::Revoke(lease));
                }
                GroupCommand::Dismiss { .. } => {
                    self.processes.remove(&to);
                    let delay = self.delay();
                    self.after(delay, Event::Lost(to));
                }
            }
        }
    }

    fn take(&mut self, batch: Vec<SlotFragment>) {
        self.log(format_args!("batch {} is complete with {} fragments", self.hub.batches.len(), batch.len()));
        self.hub.history.0.push(Happened::Batch { fragments: batch.clone() });
        self.hub.observe(&batch);
        self.hub.batches.push(batch);
        let learning = Micros::from_millis(self.scenario.learner_ms);
        self.after(learning, Event::BeginIteration);
    }
}

fn summary(command: &GroupCommand) -> String {
    match command {
        GroupCommand::Grant { lease, .. } => {
            let slots: Vec<u32> = lease.slots.iter().map(|leased| leased.slot.0).collect();
            format!("lease {} of fragment {} of slots {slots:?}", lease.id, lease.fragment)
        }
        GroupCommand::Revoke { lease, .. } => format!("revoke {lease}"),
        GroupCommand::Dismiss { .. } => "dismiss".into(),
    }
}
