//! What goes wrong in a simulated run, all of it drawn from one seed.

use rollmesh_core::time::Micros;

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
    /// Iterations that are made with the same weights; of those two are open at a time.
    pub per_version: u64,
    /// Microseconds that each of the first workers needs for an env step.
    pub workers: Vec<u64>,
    /// What goes wrong.
    pub faults: Faults,
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
    /// Mean milliseconds between blows to a random worker, 0 for none.
    pub blow_every_ms: u64,
    /// Until when all this happens.
    pub until: Micros,
}

/// What may hit a worker.
#[derive(Clone, Copy, Debug)]
pub enum Blow {
    /// The process is gone; the group hears of it after the first span, a new one joins after the second.
    Crash(Micros, Micros),
    /// The process stands still and then goes on as if nothing was.
    Freeze(Micros),
    /// Messages in both directions are held back, or lost.
    Partition(Micros),
    /// An operator removes it; another one joins after the span.
    Remove(Micros),
    /// An operator pauses the run for the span.
    Pause(Micros),
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
            workers: vec![100; workers],
            faults: Faults::default(),
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
            blow_every_ms: sometimes(3_000),
            until: Micros::from_secs(20),
        };
        Self {
            seed,
            num_slots: dice.between(1, 16) as u32,
            max_slots_per_lease: dice.between(1, 24) as u32,
            length: dice.between(1, 8) as u32,
            iterations: dice.between(5, 30),
            per_version: 1,
            workers: (0..workers).map(|_| 10u64.pow(dice.between(1, 4) as u32)).collect(),
            faults,
        }
    }

    /// The same run with new weights only before every so many iterations.
    #[must_use]
    pub fn with_weights_for(self, iterations: u64) -> Self {
        Self { per_version: iterations, ..self }
    }

    /// The next blow.
    #[must_use]
    pub fn blow(dice: &mut Dice) -> Blow {
        match dice.between(0, 9) {
            0..=3 => Blow::Crash(dice.within_ms(5_000), dice.within_ms(3_000)),
            4..=6 => Blow::Freeze(dice.within_ms(9_000)),
            7 => Blow::Partition(dice.within_ms(8_000)),
            8 => Blow::Remove(dice.within_ms(1_000)),
            _ => Blow::Pause(dice.within_ms(2_000)),
        }
    }
}
