//! Audits the fragments of untrusted workers, and handles convictions.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    group::{AuditPolicy, AuditTask, Conviction, LeaseGroup, Party, QuarantineCause, Verdict},
    ids::{SlotId, WorkerId},
    lease::SlotSource,
};

use super::{Event, Report, SimNet, hub::Hub};
use crate::{fake_rows::FakeState, scenario::Scenario};

/// The results for untrusted workers.
#[derive(Debug, Default)]
pub struct Watched {
    /// The convicted principals, each with the batch to which the run was rolled back, if any.
    pub convicted: Vec<(Party, Option<u64>)>,
    /// Convictions after which the run was rolled back to the open batch.
    pub of_open_batches: u64,
    policy: Option<(AuditPolicy, u64)>,
    of_workers: BTreeMap<WorkerId, Party>,
    /// For each slot, the fragments that its last fragment depends on, with their principals.
    chains: Vec<Vec<(Option<Party>, SlotFragment)>>,
}

impl Watched {
    pub(super) fn new(num_slots: u32) -> Self {
        Self { chains: vec![Vec::new(); num_slots as usize], ..Self::default() }
    }

    /// Resets after a restart: no worker is connected, and the new audit choices are unpredictable.
    pub(super) fn restart(&mut self, group: &mut LeaseGroup, life: u32) {
        self.of_workers.clear();
        if let Some((policy, secret)) = self.policy {
            group.set_audits(policy, secret ^ u64::from(life) << 32).expect("a share");
        }
    }

    pub(super) fn committed(&mut self, worker: WorkerId, fragment: &SlotFragment) {
        let chain = &mut self.chains[fragment.slot.0 as usize];
        chain.truncate(fragment.fragment.0 as usize);
        chain.push((self.of_workers.get(&worker).copied(), fragment.clone()));
    }

    fn is_convicted(&self, party: Party) -> bool {
        self.convicted.iter().any(|(convicted, _)| *convicted == party)
    }
}

impl Hub {
    pub(super) fn watch(&mut self, audits: Option<(AuditPolicy, u64)>) {
        self.watched.policy = audits;
        self.watched.restart(&mut self.group, self.life);
    }

    pub(super) fn distrust(&mut self, worker: WorkerId, party: Party) {
        self.watched.of_workers.insert(worker, party);
        self.group.distrust(worker, party);
    }

    pub(super) fn is_expelled(&self, party: Party) -> bool {
        self.watched.is_convicted(party)
    }
}

/// Returns the verdict of an honest replay.
pub(crate) fn replay(task: &AuditTask, length: u32) -> Verdict {
    let lease = task.lease();
    let [leased] = &lease.slots[..] else { panic!("one slot") };
    let start = match &leased.source {
        SlotSource::State(bytes) => FakeState::decode(bytes),
        _ => FakeState::new(leased.slot),
    };
    task.verdict(&start.fragment(lease.weights_version, length))
}

impl SimNet {
    /// Replays all fragments that the group wants to audit.
    pub(super) fn audit(&mut self) {
        let Some(watch) = self.scenario.watch else { return };
        while let Some(task) = self.hub.group.poll_audit() {
            let verdict = match self.dice.chance(watch.unknown) {
                true => Verdict::Unknown,
                false => replay(&task, self.scenario.length),
            };
            let took = self.dice.within_ms(watch.audit_ms);
            self.after(took, Event::Audited { life: self.hub.life, task: Box::new(task), verdict });
        }
    }

    pub(super) fn audited(&mut self, life: u32, task: &AuditTask, verdict: Verdict) {
        if life != self.hub.life {
            return;
        }
        self.hub.group.handle_audited(task, verdict, self.now);
        self.convict_liars();
    }

    pub(super) fn convict_liars(&mut self) {
        while let Some(conviction) = self.hub.group.poll_conviction() {
            self.convict(&conviction);
        }
    }

    /// Handles a conviction: the principal's workers are removed for good, and its fragments are rolled back.
    fn convict(&mut self, conviction: &Conviction) {
        self.note(format_args!("{conviction:?}"));
        let &Conviction { party, first_doubtful, .. } = conviction;
        assert!(self.scenario.watch.is_some_and(|watch| watch.is_liar(party)), "{party:?} is honest");
        self.processes.retain(|_, process| process.who.party != Some(party));
        for &worker in &conviction.workers {
            self.hub.group.handle_left(worker, self.now);
        }
        let batches = self.hub.batches.len() as u64;
        let first = first_doubtful.map(|first| first.0);
        self.hub.watched.convicted.push((party, first));
        if let Some(first) = first {
            self.hub.watched.of_open_batches += u64::from(first == batches);
            self.restart_hub(first);
        }
    }

    pub(super) fn check_accusation(&self, worker: WorkerId, cause: QuarantineCause) {
        let Some(watch) = self.scenario.watch else { return };
        let party = self.hub.watched.of_workers.get(&worker);
        let is_liar = || party.is_some_and(|&party| watch.is_liar(party));
        assert!(cause == QuarantineCause::Failures || is_liar(), "worker {worker} is honest: {cause}");
    }
}

impl Report {
    /// Returns true if all fragments in batches, and all that they depend on, have the correct rows, except those of
    /// undetected dishonest principals.
    ///
    /// # Panics
    /// If any fragment of a convicted principal remains, or if a batch differs from the committed fragments.
    #[must_use]
    pub fn check_honesty(&self, scenario: &Scenario) -> bool {
        let is_taken = |fragment: &SlotFragment| {
            let mut taken = self.batches.iter().flatten();
            taken.any(|other| {
                (other.slot, other.fragment) >= (fragment.slot, fragment.fragment) && other.slot == fragment.slot
            })
        };
        let mut is_honest = true;
        for (slot, chain) in (0..).map(SlotId).zip(&self.watched.chains) {
            let mut state = FakeState::new(slot);
            for (party, fragment) in chain.iter().take_while(|(_, fragment)| is_taken(fragment)) {
                if *fragment != state.fragment(fragment.weights_version, scenario.length) {
                    is_honest = false;
                    let is_free = |party: Party| !self.watched.is_convicted(party);
                    assert!(party.is_some_and(is_free), "fragment {} of slot {slot} is a lie", fragment.fragment);
                }
                state = FakeState::decode(&fragment.state);
            }
        }
        for fragment in self.batches.iter().flatten() {
            let chain = &self.watched.chains[fragment.slot.0 as usize];
            assert!(chain[fragment.fragment.0 as usize].1 == *fragment, "a batch is made of something else");
        }
        is_honest
    }
}
