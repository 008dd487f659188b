//! The group with real workers on CartPole: the rows do not depend on the number of workers or their failures.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    column::RowShape,
    env::EnvRegistry,
    filter::{FilterKind, FrozenStat, RunFilter},
    group::{GroupCommand, GroupConfig, LeaseGroup, WorkerProfile},
    hash::{Hash128, RolloutHasher, weights_hash},
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion, WorkerId},
    lease::{Lease, LeasedSlot, SlotSource},
    policy::{ModelConfig, ModelSpec},
    run::RunConfig,
    time::Micros,
    weights::Weights,
    worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
};
use rollmesh_tests::{join, scenario::Dice};

const ITERATIONS: u64 = 6;

/// The number of iterations with the same weights, if two are open at a time.
const PER_VERSION: u64 = 3;

fn spec() -> RunConfig {
    RunConfig::new("CartPole-v1").seed(7).slots(12).num_envs(4).rollout_fragment_length(32).fcnet_hiddens(&[16])
}

/// Returns weights as a learner would publish them, with other values in every version.
fn weights(version: u64) -> Weights {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    let model = ModelConfig { fcnet_hiddens: vec![16], ..ModelConfig::default() };
    let first = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(7 + version).unwrap();
    Weights::new(WeightsVersion(version), first.tensors().to_vec()).unwrap()
}

/// A group and its workers, without a network between them.
struct Cluster {
    group: LeaseGroup,
    runners: BTreeMap<WorkerId, SlotRunner>,
    /// The leases that wait for the end of another one.
    follow_ups: BTreeMap<WorkerId, Lease>,
    joined: u32,
    now: Micros,
}

impl Cluster {
    fn new(workers: u32) -> Self {
        let spec = spec();
        let group = LeaseGroup::new(GroupConfig::new(spec.num_slots(), spec.fragment_length())).unwrap();
        let mut cluster =
            Self { group, runners: BTreeMap::new(), follow_ups: BTreeMap::new(), joined: 0, now: Micros(0) };
        (0..workers).for_each(|_| cluster.join());
        cluster
    }

    fn join(&mut self) {
        self.joined += 1;
        let worker = WorkerId(self.joined);
        let mut runner = SlotRunner::new(&spec(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap();
        runner.set_sequential(self.joined.is_multiple_of(2));
        self.runners.insert(worker, runner);
        join(&mut self.group, worker, WorkerProfile::NATIVE, self.now);
    }

    /// Kills a worker in any state and starts another one.
    fn replace(&mut self, worker: WorkerId) {
        self.runners.remove(&worker);
        self.follow_ups.remove(&worker);
        self.group.handle_left(worker, self.now);
        self.join();
    }

    fn handle_commands(&mut self, weights: &Weights) {
        while let Some(command) = self.group.poll_command() {
            let runner = self.runners.get_mut(&command.worker()).unwrap();
            match command {
                GroupCommand::Grant { worker, lease } if runner.lease().is_some() => {
                    assert_eq!(self.follow_ups.insert(worker, lease), None, "one at most");
                }
                GroupCommand::Grant { lease, .. } => {
                    if runner.weights_version() != weights.version() {
                        runner.set_weights(weights).unwrap();
                    }
                    runner.begin(lease).unwrap();
                }
                GroupCommand::Revoke { worker, lease } => {
                    if runner.lease() == Some(lease) {
                        runner.abandon();
                    }
                    if self.follow_ups.get(&worker).is_some_and(|waiting| waiting.id == lease) {
                        self.follow_ups.remove(&worker);
                    }
                    self.group.handle_refused(worker, lease, "no", self.now);
                }
                GroupCommand::Dismiss { .. } => unreachable!("no worker is removed"),
            }
        }
    }

    /// Lets every worker do a few steps, and advances the clock by 10 ms.
    fn step_workers(&mut self, dice: &mut Dice) {
        let working: Vec<WorkerId> = self.runners.keys().copied().collect();
        for worker in working {
            self.work(worker, dice.between(1, 9) as u32);
        }
        self.now = self.now + Micros::from_millis(10);
        self.group.handle_timeout(self.now);
    }

    fn work(&mut self, worker: WorkerId, steps: u32) {
        let Some(runner) = self.runners.get_mut(&worker) else { return };
        match runner.advance(steps) {
            Advance::Idle => {}
            Advance::Working { lease, env_steps } => self.group.handle_progress(worker, lease, env_steps, self.now),
            Advance::Failed { lease, failure, .. } => self.group.handle_failed(worker, lease, failure, self.now),
            Advance::Part { lease, fragments, .. } => {
                self.group.handle_fragments(worker, lease, fragments, self.now);
            }
            Advance::Done { lease, fragments } => {
                // The next lease begins before the group learns of the end of the previous one.
                if let Some(next) = self.follow_ups.remove(&worker) {
                    runner.begin(next).unwrap();
                }
                self.group.handle_fragments(worker, lease, fragments, self.now);
            }
        }
    }
}

/// Runs all iterations; `inject` may inject faults before every round of work.
fn batches(workers: u32, inject: impl FnMut(&mut Cluster)) -> Vec<Vec<SlotFragment>> {
    batches_under(workers, |version, _| weights(version), inject)
}

/// Runs all iterations, each with the weights that `learn` returns after the previous batch.
fn batches_under(
    workers: u32,
    mut learn: impl FnMut(u64, &[SlotFragment]) -> Weights,
    mut inject: impl FnMut(&mut Cluster),
) -> Vec<Vec<SlotFragment>> {
    let mut cluster = Cluster::new(workers);
    let mut dice = Dice::new(u64::from(workers));
    let mut batches: Vec<Vec<SlotFragment>> = Vec::new();
    for iteration in 0..ITERATIONS {
        let weights = learn(iteration, batches.last().map_or(&[], Vec::as_slice));
        cluster.group.begin_iteration(weights.version(), cluster.now).unwrap();
        let batch = loop {
            cluster.handle_commands(&weights);
            if let Some(batch) = cluster.group.poll_batch() {
                break batch;
            }
            inject(&mut cluster);
            cluster.handle_commands(&weights);
            cluster.step_workers(&mut dice);
        };
        batches.push(batch);
    }
    assert!(cluster.group.ledger().balances());
    batches
}

/// Runs all iterations with weights that change only now and then; two iterations with the same weights are open at a
/// time.
fn batches_ahead(workers: u32, mut inject: impl FnMut(&mut Cluster)) -> Vec<Vec<SlotFragment>> {
    let mut cluster = Cluster::new(workers);
    let mut dice = Dice::new(u64::from(workers));
    let mut batches = Vec::new();
    let mut begun = 0;
    let mut followed = 0;
    while (batches.len() as u64) < ITERATIONS {
        while begun < ITERATIONS && cluster.group.may_begin(WeightsVersion(begun / PER_VERSION)) {
            cluster.group.begin_iteration(WeightsVersion(begun / PER_VERSION), cluster.now).unwrap();
            begun += 1;
        }
        let weights = weights(batches.len() as u64 / PER_VERSION);
        cluster.handle_commands(&weights);
        followed += cluster.follow_ups.len();
        inject(&mut cluster);
        cluster.handle_commands(&weights);
        cluster.step_workers(&mut dice);
        batches.extend(std::iter::from_fn(|| cluster.group.poll_batch()));
    }
    assert!(cluster.group.ledger().balances() && cluster.group.ledger().outstanding == 0);
    assert!(followed > 0, "no lease waited behind another one");
    batches
}

/// Computes the expected result of [`batches_ahead`] without a group.
fn batches_of_one_runner() -> Vec<Vec<SlotFragment>> {
    let mut runner = SlotRunner::new(&spec(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap();
    let batch = |iteration: u64| {
        let weights = weights(iteration / PER_VERSION);
        runner.set_weights(&weights).unwrap();
        let source = if iteration == 0 { SlotSource::New } else { SlotSource::Held };
        let slots = (0..spec().num_slots()).map(|slot| LeasedSlot::new(SlotId(slot), source.clone()));
        let (id, fragment) = (LeaseId(iteration), FragmentNo(iteration));
        runner.begin(Lease { id, fragment, weights_version: weights.version(), slots: slots.collect() }).unwrap();
        match runner.advance(u32::MAX) {
            Advance::Done { fragments, .. } => fragments,
            other => panic!("{other:?}"),
        }
    };
    (0..ITERATIONS).map(batch).collect()
}

fn hash(batches: &[Vec<SlotFragment>]) -> Hash128 {
    let mut hasher = RolloutHasher::new();
    for slot in (0..spec().num_slots()).map(SlotId) {
        for fragment in batches.iter().flatten().filter(|fragment| fragment.slot == slot) {
            hasher.add(fragment).unwrap();
        }
    }
    hasher.finish()
}

#[test]
fn one_to_five_workers_make_the_same_batches() {
    let alone = batches(1, |_| {});
    for workers in 2..=5 {
        let shared = batches(workers, |_| {});
        assert!(shared == alone, "{workers} workers: {} is not {}", hash(&shared), hash(&alone));
    }
}

#[test]
fn killed_workers_change_no_batch() {
    let calm = batches(1, |_| {});
    for seed in 0..5 {
        let mut dice = Dice::new(seed);
        let mut kills = 0;
        let stormy = batches(3, |cluster| {
            if dice.chance(150) {
                let alive: Vec<WorkerId> = cluster.runners.keys().copied().collect();
                cluster.replace(alive[dice.between(0, alive.len() as u64 - 1) as usize]);
                kills += 1;
            }
        });
        assert!(stormy == calm, "seed {seed}, {kills} kills: {} is not {}", hash(&stormy), hash(&calm));
        assert!(kills > 0, "seed {seed}");
    }
}

#[test]
fn batches_are_the_same_while_two_iterations_are_open() {
    let alone = batches_of_one_runner();
    for workers in 1..=5 {
        let shared = batches_ahead(workers, |_| {});
        assert!(shared == alone, "{workers} workers: {} is not {}", hash(&shared), hash(&alone));
    }
    for seed in 0..5 {
        let mut dice = Dice::new(seed);
        let stormy = batches_ahead(3, |cluster| {
            if dice.chance(100) {
                let alive: Vec<WorkerId> = cluster.runners.keys().copied().collect();
                cluster.replace(alive[dice.between(0, alive.len() as u64 - 1) as usize]);
            }
        });
        assert!(stormy == alone, "seed {seed}: {} is not {}", hash(&stormy), hash(&alone));
    }
}

/// Runs all iterations with a filter. Returns the hash of the rows, the hash of the learner's normalised rows, and the
/// last weights.
fn filtered(workers: u32, inject: impl FnMut(&mut Cluster)) -> (Hash128, Hash128, Weights) {
    let shapes = [(PolicyId::DEFAULT, RowShape::vector(4))].into();
    let mut filter =
        RunFilter::new(FilterKind::MeanStdFilter, &shapes, &[PolicyId::DEFAULT], WeightsVersion(0)).unwrap().unwrap();
    let mut seen = Vec::new();
    let mut learn = |version: u64, batch: &[SlotFragment]| {
        filter.observe(batch).unwrap();
        seen.push(filter.normalized(batch).unwrap());
        filter.forget_before(WeightsVersion(version));
        filter.publish(&weights(version))
    };
    let batches = batches_under(workers, &mut learn, inject);
    let last = learn(ITERATIONS, batches.last().unwrap());
    let rows = u64::from(spec().num_slots() * spec().fragment_length()) * ITERATIONS;
    let frozen = FrozenStat::of_weights(&last).unwrap().unwrap();
    assert_eq!(frozen.running().n(), rows, "every committed observation counts once");
    (hash(&batches), hash(&seen), last)
}

#[test]
fn filter_statistics_do_not_depend_on_which_workers_sample_or_die() {
    let calm = filtered(1, |_| {});
    assert_ne!(calm.0, hash(&batches(1, |_| {})), "the policy sees normalised observations");
    assert_ne!(calm.0, calm.1, "and so does the learner");
    for seed in 0..4 {
        let mut dice = Dice::new(seed);
        let mut kills = 0;
        let stormy = filtered(1 + seed as u32, |cluster| {
            if dice.chance(150) {
                let alive: Vec<WorkerId> = cluster.runners.keys().copied().collect();
                cluster.replace(alive[dice.between(0, alive.len() as u64 - 1) as usize]);
                kills += 1;
            }
        });
        assert!(kills > 0, "seed {seed}");
        assert_eq!((stormy.0, stormy.1), (calm.0, calm.1), "seed {seed}, {kills} kills");
        assert_eq!(weights_hash(&stormy.2), weights_hash(&calm.2), "seed {seed}, {kills} kills");
    }
}
