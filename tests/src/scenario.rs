//! What goes wrong in a simulated run, all of it drawn from one seed.

use rollmesh_core::{
    group::{AuditPolicy, Party, SamplingMode},
    time::Micros,
};

use crate::fake_rows::splitmix64;

/// Random draws for the simulator; nothing that is tested depends on their quality.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that always fall the same way for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + splitmix64(&mut self.0) % (high - low + 1)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.between(0, 999) < per_mille
    }

    /// A span of up to so many milliseconds.
    pub fn within_ms(&mut self, millis: u64) -> Micros {
        Micros(self.between(0, millis * 1_000))
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64 - 1) as usize]
    }
}

/// A simulated run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where all draws come from.
    pub seed: u64,
    /// Slots of the run.
    pub num_slots: u32,
    /// Slots of a lease, at most.
    pub max_slots_per_lease: u32,
    /// Env steps of a fragment.
    pub length: u32,
    /// Iterations of the run.
    pub iterations: u64,
    /// Iterations that are made with the same weights; in synchronous mode two of those are open at a time.
    pub per_version: u64,
    /// Which fragments make a batch.
    pub mode: SamplingMode,
    /// Milliseconds from a batch to the next iteration, at least.
    pub learner_ms: u64,
    /// Batches from one saved state of the group to the next.
    pub save_every: usize,
    /// Microseconds that each of the first workers needs for an env step.
    pub workers: Vec<u64>,
    /// What goes wrong.
    pub faults: Faults,
    /// Whom the hub does not trust; it trusts everybody if this is not there.
    pub watch: Option<Watch>,
}

/// Workers that are not trusted, and some that should not be.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Which fragments the hub makes again.
    pub audits: AuditPolicy,
    /// So many of the first workers lie.
    pub liars: usize,
    /// Fragments of theirs that are lies, in cases of a thousand.
    pub lies: u64,
    /// The longest time that it takes to make a fragment again, in milliseconds.
    pub audit_ms: u64,
    /// Fragments that cannot be made again, in cases of a thousand.
    pub unknown: u64,
}

impl Watch {
    /// Who answers for the worker at this place of [`Scenario::workers`], unless it is trusted. Some honest ones are.
    #[must_use]
    pub fn party(&self, place: usize) -> Option<Party> {
        (place < self.liars || place.is_multiple_of(2)).then_some(Party(place as u64))
    }

    /// Whether this party lies.
    #[must_use]
    pub fn is_liar(&self, party: Party) -> bool {
        party.0 < self.liars as u64
    }
}

/// What goes wrong, in cases of a thousand unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Messages that are lost.
    pub lost: u64,
    /// Messages that arrive twice.
    pub duplicated: u64,
    /// Longest delay of a message in milliseconds. Later messages overtake earlier ones.
    pub delay_ms: u64,
    /// Uploads that arrive broken.
    pub corrupted: u64,
    /// Leases that are refused.
    pub refused: u64,
    /// Workers that join and cannot run the leases.
    pub unable: u64,
    /// Uploads of which one bit of a reward is wrong. No chaos has any: who lies and is not caught leaves no run as it was.
    pub lies: u64,
    /// Mean milliseconds between blows, 0 for none.
    pub blow_every_ms: u64,
    /// The kinds of blows, each as often as it is here.
    pub blows: Vec<BlowKind>,
    /// Until when all this happens.
    pub until: Micros,
}

/// What may hit a worker, or the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlowKind {
    /// A worker's process is gone.
    Crash,
    /// A worker's process stands still and then goes on as if nothing was, as between SIGSTOP and SIGCONT.
    Freeze,
    /// Messages to a worker, from it or both are held back, or lost.
    Partition,
    /// An operator removes a worker; another one joins.
    Remove,
    /// An operator pauses the run.
    Pause,
    /// All connections break, and all workers come back within a second.
    Storm,
    /// A worker's clock is set, and runs at another speed from then on.
    Clock,
    /// The hub's process is gone and comes back with the state that it saved last.
    HubCrash,
    /// The hub's process stands still.
    HubFreeze,
}

impl BlowKind {
    /// Every kind, as often as it comes in chaos.
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
    /// A run in which nothing goes wrong.
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
            faults: Faults::default(),
            watch: None,
        }
    }

    /// A run in which everything goes wrong, in ways that depend on the seed.
    #[must_use]
    pub fn chaotic(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let workers = dice.between(1, 5);
        // Some seeds have a network that loses and reorders, others one that is slow but in order, and so on.
        let mut sometimes = |most: u64| if dice.chance(600) { dice.between(1, most) } else { 0 };
        let faults = Faults {
            lost: sometimes(50),
            duplicated: sometimes(100),
            delay_ms: sometimes(400),
            corrupted: sometimes(20),
            refused: sometimes(50),
            unable: 0,
            lies: 0,
            blow_every_ms: sometimes(3_000),
            blows: BlowKind::ALL.into(),
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
            faults,
            watch: None,
        }
    }

    /// The same run with batches of what is ready, up to two rounds of all slots.
    #[must_use]
    pub fn asynchronous(self) -> Self {
        let mut dice = Dice::new(self.seed ^ 0xa5);
        let round = u64::from(self.num_slots) * u64::from(self.length);
        let batch_env_steps = dice.between(1, 2 * round);
        let mode = SamplingMode::Asynchronous { batch_env_steps, max_staleness: dice.between(0, 3) };
        Self { mode, learner_ms: dice.between(1, 300), per_version: dice.between(1, 2), ..self }
    }

    /// The same run with a deadline for each iteration.
    #[must_use]
    pub fn with_deadlines(self) -> Self {
        let mut dice = Dice::new(self.seed ^ 0xdead);
        let mode = SamplingMode::Deadline { after: dice.within_ms(400), max_staleness: dice.between(0, 3) };
        Self { mode, learner_ms: dice.between(1, 300), per_version: dice.between(1, 2), ..self }
    }

    /// The same run with up to two liars among its workers.
    #[must_use]
    pub fn watched(mut self) -> Self {
        let mut dice = Dice::new(self.seed ^ 0x11a2);
        let liars = dice.between(1, 2) as usize;
        for _ in 0..liars {
            self.workers.insert(0, 10u64.pow(dice.between(1, 4) as u32));
        }
        let audits =
            AuditPolicy { share: dice.between(1, 5) as f64 / 10.0, first_fragments: dice.between(0, 2) as u32 };
        let (lies, audit_ms, unknown) = (dice.between(20, 400), dice.between(1, 1_000), dice.between(0, 50));
        self.watch = Some(Watch { audits, liars, lies, audit_ms, unknown });
        self
    }

    /// The same run with new weights only before every so many iterations.
    #[must_use]
    pub fn with_weights_for(self, iterations: u64) -> Self {
        Self { per_version: iterations, ..self }
    }

    /// The same run with nothing but blows of one kind for so long.
    #[must_use]
    pub fn with_only(self, kind: BlowKind, every_ms: u64, until: Micros) -> Self {
        let faults = Faults { blow_every_ms: every_ms, blows: vec![kind], until, ..Faults::default() };
        Self { faults, ..self }
    }
}
