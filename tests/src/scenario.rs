//! The faults of a simulated run, all drawn from one seed.

use rollmesh_core::{
    group::{AuditPolicy, Principal, SamplingMode},
    time::Micros,
};

use crate::fake_rows::splitmix64;

/// A source of random draws for the simulator; no test depends on their quality.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates dice with draws that depend only on the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + splitmix64(&mut self.0) % (high - low + 1)
    }

    /// Returns true with this probability in thousandths.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.between(0, 999) < per_mille
    }

    /// Returns a span of up to this number of milliseconds.
    pub fn within_ms(&mut self, millis: u64) -> Micros {
        Micros(self.between(0, millis * 1_000))
    }

    /// Returns one of these.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64 - 1) as usize]
    }
}

/// A simulated run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of all draws.
    pub seed: u64,
    /// The number of slots of the run.
    pub num_slots: u32,
    /// The maximum number of slots of a lease.
    pub max_slots_per_lease: u32,
    /// The env steps of a fragment.
    pub length: u32,
    /// The number of iterations of the run.
    pub iterations: u64,
    /// The number of iterations with the same weights; in synchronous mode two of them are open at a time.
    pub per_version: u64,
    /// The rule for the fragments of a batch.
    pub mode: SamplingMode,
    /// The minimum milliseconds from a batch to the next iteration.
    pub learner_ms: u64,
    /// The number of batches between two saved states of the group.
    pub save_every: usize,
    /// The microseconds per env step of each of the first workers.
    pub workers: Vec<u64>,
    /// Environments fail at some steps and are restarted there.
    pub is_fragile: bool,
    /// The faults.
    pub faults: Faults,
    /// The untrusted workers; if `None`, the hub trusts all workers.
    pub watch: Option<Watch>,
}

/// The untrusted workers, some of them dishonest.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// The policy by which the hub audits fragments.
    pub audits: AuditPolicy,
    /// The number of dishonest workers, counted from the first.
    pub divergent: usize,
    /// The falsified fragments among theirs, per thousand.
    pub falsification: u64,
    /// The maximum duration of a replay in milliseconds.
    pub audit_ms: u64,
    /// The fragments that cannot be replayed, per thousand.
    pub unknown: u64,
}

impl Watch {
    /// Returns the principal of the worker at this place of [`Scenario::workers`], unless it is trusted. Some honest workers
    /// are untrusted.
    #[must_use]
    pub fn principal(&self, place: usize) -> Option<Principal> {
        (place < self.divergent || place.is_multiple_of(2)).then_some(Principal(place as u64))
    }

    /// Returns whether this principal is dishonest.
    #[must_use]
    pub fn is_divergent(&self, principal: Principal) -> bool {
        principal.0 < self.divergent as u64
    }
}

/// The faults, per thousand unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The lost messages.
    pub lost: u64,
    /// The duplicated messages.
    pub duplicated: u64,
    /// The maximum delay of a message in milliseconds. Later messages overtake earlier ones.
    pub delay_ms: u64,
    /// The uploads that arrive corrupted.
    pub corrupted: u64,
    /// The refused leases.
    pub refused: u64,
    /// Failures of environments that do not repeat, per thousand of the moments in which a worker works.
    pub failed: u64,
    /// The workers that join but cannot run the leases.
    pub unable: u64,
    /// The uploads in which one bit of a reward is wrong. Chaotic scenarios have none, since an undetected
    /// falsification changes the run.
    pub falsification: u64,
    /// The mean milliseconds between injected faults; 0 for none.
    pub every_ms: u64,
    /// The kinds of injected faults; a repeated kind is more likely.
    pub kinds: Vec<FaultKind>,
    /// The time at which the faults end.
    pub until: Micros,
}

/// A fault of a worker or the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A worker's process crashes.
    Crash,
    /// A worker's process stops and later continues, as between SIGSTOP and SIGCONT.
    Freeze,
    /// Messages to a worker, from it or both are delayed or lost.
    Partition,
    /// An operator removes a worker, and another one joins.
    Remove,
    /// An operator pauses the run.
    Pause,
    /// All connections break, and all workers reconnect within a second.
    Storm,
    /// A worker's clock is set, and runs at another speed afterwards.
    Clock,
    /// The hub's process crashes and restarts from its last saved state.
    HubCrash,
    /// The hub's process stops for a while.
    HubFreeze,
}

impl FaultKind {
    /// All kinds, as often as in chaotic scenarios.
    pub const ALL: [Self; 16] = [
        Self::Crash,
        Self::Crash,
        Self::Crash,
        Self::Crash,
        Self::Freeze,
        Self::Freeze,
        Self::Freeze,
        Self::Partition,
        Self::Partition,
        Self::Remove,
        Self::Pause,
        Self::Storm,
        Self::Clock,
        Self::Clock,
        Self::HubCrash,
        Self::HubFreeze,
    ];
}

impl Scenario {
    /// Returns a run without faults.
    #[must_use]
    pub fn calm(num_slots: u32, workers: usize) -> Self {
        Self {
            seed: 0,
            num_slots,
            max_slots_per_lease: num_slots,
            length: 8,
            iterations: 20,
            per_version: 1,
            mode: SamplingMode::Synchronous,
            learner_ms: 20,
            save_every: 1,
            workers: vec![100; workers],
            is_fragile: false,
            faults: Faults::default(),
            watch: None,
        }
    }

    /// Returns a run with all faults, in ways that depend on the seed.
    #[must_use]
    pub fn chaotic(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let workers = dice.between(1, 5);
        // Some seeds have a network that loses and reorders messages, others a slow but ordered one.
        let mut sometimes = |most: u64| if dice.chance(600) { dice.between(1, most) } else { 0 };
        let faults = Faults {
            lost: sometimes(50),
            duplicated: sometimes(100),
            delay_ms: sometimes(400),
            corrupted: sometimes(20),
            refused: sometimes(50),
            failed: 0,
            unable: 0,
            falsification: 0,
            every_ms: sometimes(3_000),
            kinds: FaultKind::ALL.into(),
            until: Micros::from_secs(20),
        };
        Self {
            seed,
            num_slots: dice.between(1, 16) as u32,
            max_slots_per_lease: dice.between(1, 24) as u32,
            length: dice.between(1, 8) as u32,
            iterations: dice.between(5, 30),
            per_version: 1,
            mode: SamplingMode::Synchronous,
            learner_ms: 20,
            save_every: dice.between(1, 4) as usize,
            workers: (0..workers).map(|_| 10u64.pow(dice.between(1, 4) as u32)).collect(),
            is_fragile: false,
            faults,
            watch: None,
        }
    }

    /// Returns the same run with environments that fail, most of them in a way that repeats.
    #[must_use]
    pub fn fragile(self) -> Self {
        Self { is_fragile: true, faults: Faults { failed: 5, ..self.faults }, ..self }
    }

    /// Returns the same run with asynchronous batches, of up to two rounds of all slots.
    #[must_use]
    pub fn asynchronous(self) -> Self {
        let mut dice = Dice::new(self.seed ^ 0xa5);
        let round = u64::from(self.num_slots) * u64::from(self.length);
        let batch_env_steps = dice.between(1, 2 * round);
        let mode = SamplingMode::Asynchronous { batch_env_steps, max_staleness: dice.between(0, 3) };
        Self { mode, learner_ms: dice.between(1, 300), per_version: dice.between(1, 2), ..self }
    }

    /// Returns the same run with a deadline for each iteration.
    #[must_use]
    pub fn with_deadlines(self) -> Self {
        let mut dice = Dice::new(self.seed ^ 0xdead);
        let mode = SamplingMode::Deadline { after: dice.within_ms(400), max_staleness: dice.between(0, 3) };
        Self { mode, learner_ms: dice.between(1, 300), per_version: dice.between(1, 2), ..self }
    }

    /// Returns the same run with up to two dishonest workers.
    #[must_use]
    pub fn watched(mut self) -> Self {
        let mut dice = Dice::new(self.seed ^ 0x11a2);
        let divergent = dice.between(1, 2) as usize;
        for _ in 0..divergent {
            self.workers.insert(0, 10u64.pow(dice.between(1, 4) as u32));
        }
        let audits =
            AuditPolicy { share: dice.between(1, 5) as f64 / 10.0, first_fragments: dice.between(0, 2) as u32 };
        let (falsification, audit_ms, unknown) = (dice.between(20, 400), dice.between(1, 1_000), dice.between(0, 50));
        self.watch = Some(Watch { audits, divergent, falsification, audit_ms, unknown });
        self
    }

    /// Returns the same run with new weights only before every `iterations` iterations.
    #[must_use]
    pub fn with_weights_for(self, iterations: u64) -> Self {
        Self { per_version: iterations, ..self }
    }

    /// Returns the same run with only one kind of injected fault, up to a time.
    #[must_use]
    pub fn with_only(self, kind: FaultKind, every_ms: u64, until: Micros) -> Self {
        let faults = Faults { every_ms, kinds: vec![kind], until, ..Faults::default() };
        Self { faults, ..self }
    }
}
