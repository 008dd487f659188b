//! Audits of the fragments of untrusted workers, and the handling of failed audits.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    group::{AuditPolicy, AuditTask, FailedAudit, LeaseGroup, Principal, QuarantineCause, Verdict},
    ids::{SlotId, WorkerId},
    lease::SlotSource,
};

use super::{Event, Report, SimNet, hub::Hub};
use crate::{fake_rows::FakeState, scenario::Scenario};

/// The results for untrusted workers.
#[derive(Debug, Default)]
pub struct Watched {
    /// The principals that failed an audit, each with the batch to which the run was rolled back, if any.
    pub failed_audit_of: Vec<(Principal, Option<u64>)>,
    /// The number of failed audits after which the run was rolled back to the open batch.
    pub of_open_batches: u64,
    policy: Option<(AuditPolicy, u64)>,
    of_workers: BTreeMap<WorkerId, Principal>,
    /// The fragments that each slot's last fragment depends on, with their principals.
    chains: Vec<Vec<(Option<Principal>, SlotFragment)>>,
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

    fn has_failed_audit(&self, principal: Principal) -> bool {
        self.failed_audit_of.iter().any(|(failed_audit_of, _)| *failed_audit_of == principal)
    }
}

impl Hub {
    pub(super) fn watch(&mut self, audits: Option<(AuditPolicy, u64)>) {
        self.watched.policy = audits;
        self.watched.restart(&mut self.group, self.life);
    }

    pub(super) fn distrust(&mut self, worker: WorkerId, principal: Principal) {
        self.watched.of_workers.insert(worker, principal);
        self.group.distrust(worker, principal);
    }

    pub(super) fn has_failed_audit(&self, principal: Principal) -> bool {
        self.watched.has_failed_audit(principal)
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
        self.fail_divergent();
    }

    pub(super) fn fail_divergent(&mut self) {
        while let Some(failed_audit) = self.hub.group.poll_failed_audit() {
            self.fail_audit(&failed_audit);
        }
    }

    /// Handles a failed audit: removes the principal's workers permanently, and rolls its fragments back.
    fn fail_audit(&mut self, failed_audit: &FailedAudit) {
        self.log(format_args!("{failed_audit:?}"));
        let &FailedAudit { principal, first_doubtful, .. } = failed_audit;
        assert!(self.scenario.watch.is_some_and(|watch| watch.is_divergent(principal)), "{principal:?} is honest");
        self.processes.retain(|_, process| process.who.principal != Some(principal));
        for &worker in &failed_audit.workers {
            self.hub.group.handle_left(worker, self.now);
        }
        let batches = self.hub.batches.len() as u64;
        let first = first_doubtful.map(|first| first.0);
        self.hub.watched.failed_audit_of.push((principal, first));
        if let Some(first) = first {
            self.hub.watched.of_open_batches += u64::from(first == batches);
            self.restart_hub(first);
        }
    }

    pub(super) fn check_failed_audit(&self, worker: WorkerId, cause: QuarantineCause) {
        let Some(watch) = self.scenario.watch else { return };
        let principal = self.hub.watched.of_workers.get(&worker);
        let is_divergent = || principal.is_some_and(|&principal| watch.is_divergent(principal));
        assert!(cause == QuarantineCause::Failures || is_divergent(), "worker {worker} is honest: {cause}");
    }
}

impl Report {
    /// Returns true if all fragments in batches, and all that they depend on, have the correct rows, except those of
    /// undetected dishonest principals.
    ///
    /// # Panics
    /// If any fragment of a principal that failed an audit remains, or if a batch differs from the committed fragments.
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
            for (principal, fragment) in chain.iter().take_while(|(_, fragment)| is_taken(fragment)) {
                if *fragment != state.fragment(fragment.weights_version, scenario.length) {
                    is_honest = false;
                    let is_free = |principal: Principal| !self.watched.has_failed_audit(principal);
                    assert!(principal.is_some_and(is_free), "fragment {} of slot {slot} is false", fragment.fragment);
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
