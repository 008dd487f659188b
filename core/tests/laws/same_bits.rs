//! Reproducibility: rows depend on seed, slot and weights, and on nothing else.

use rollmesh_core::{
    batch::{EPS_ID, NEW_OBS, OBS, SlotFragment, T},
    column::Granularity,
    env::EnvRegistry,
    hash::RolloutHasher,
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    kernels::Kernels,
    lease::{Lease, LeasedSlot, SlotSource},
    run::RunConfig,
    worker::{
        Advance, Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, SlotRunner, core_fingerprint,
        rollout_hash,
    },
};

fn config(num_envs: u32, fragment: u32) -> RolloutConfig {
    RolloutConfig::new("CartPole-v1")
        .num_envs(num_envs)
        .rollout_fragment_length(fragment)
        .seed(11)
        .fcnet_hiddens(&[16, 16])
}

fn hash(config: RolloutConfig, steps: u64) -> String {
    rollout_hash(config, steps, &Registry::builtin(), Kernels::PORTABLE).unwrap().to_string()
}

/// The guarantee: these constants are the same on every machine, in every build, in Node and in every browser.
#[test]
fn golden_hashes() {
    let mlp = RolloutConfig::new("CartPole-v1").num_envs(64).seed(1);
    assert_eq!(hash(mlp.clone(), 2_000), "521ef2d51d3d6ff4fd7c9c47f4d335f0");
    let random = mlp.single_policy("random");
    assert_eq!(hash(random, 2_000), "5ea1f432f1263e29bdf49da621626216");
    let fingerprint: String = core_fingerprint(Kernels::PORTABLE).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(fingerprint, "ea9a3856db66e77f050790411949b828");
}

/// Of 500 steps in each of four environments under random actions.
const OF_ENVIRONMENTS: [(&str, &str); 16] = [
    ("Acrobot-v1", "7f28a91cb6d2a9aad544ff50566ce936"),
    ("CartPole-v0", "2d89dc41de417984d69a6f8a13bebf16"),
    ("CartPole-v1", "2d89dc41de417984d69a6f8a13bebf16"),
    ("CliffWalking-v1", "5849c585c947353ec9761b6dc68889cb"),
    ("FrozenLake-v1", "7a586143a581ecec443da6b77191aa20"),
    ("FrozenLake8x8-v1", "ca292e33c2f845324cb549440b31138a"),
    ("MountainCar-v0", "0e42af683552a6f3ca7bc85cd566bd9a"),
    ("MountainCarContinuous-v0", "cf50defd2aa502a691e3f970c6b4760a"),
    ("Pendulum-v1", "4451eb7732a02effb365942eb54dc0ee"),
    ("PixelAsterix-v0", "541cdec55ea88bc366ea000cf3af3153"),
    ("PixelBreakout-v0", "f6110dbdd15b83f2f8ac957325f6b32c"),
    ("PixelFreeway-v0", "7c5c4cac4d0361f46db02e4f82410671"),
    ("PixelInvaders-v0", "ce5971694521c6b423c6ace4d2e12f93"),
    ("PixelSeaquest-v0", "d3ec900c11115697bb5bf1861038755c"),
    ("StatelessCartPole-v1", "370512913fd297208f752efdd9f7fe97"),
    ("Taxi-v4", "14303e24405ef1489890a39ff343303b"),
];

#[test]
fn every_environment_has_its_golden_hash_however_it_is_cut() {
    let known: Vec<&str> = OF_ENVIRONMENTS.map(|(env, _)| env).into();
    let registry = EnvRegistry::builtin();
    assert_eq!(registry.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), known);
    for (env, golden) in OF_ENVIRONMENTS {
        for fragment in [500, 37] {
            let config = RolloutConfig::new(env).num_envs(4).rollout_fragment_length(fragment).seed(5);
            assert_eq!(hash(config.single_policy("random"), 2_000), golden, "{env}, fragments of {fragment}");
        }
    }
}

#[test]
fn cuts_change_nothing() {
    let whole = hash(config(5, 700), 3_500);
    for fragment in [1, 7, 64, 699] {
        assert_eq!(hash(config(5, fragment), 3_500), whole, "fragments of {fragment}");
    }
}

#[test]
fn steps_are_rounded_up_to_whole_rows_of_slots() {
    assert_eq!(hash(config(4, 50), 397), hash(config(4, 50), 400));
    assert_ne!(hash(config(4, 50), 396), hash(config(4, 50), 397));
}

fn run_spec() -> RunConfig {
    RunConfig::new("CartPole-v1").seed(5).slots(6).num_envs(3).rollout_fragment_length(32).fcnet_hiddens(&[16, 16])
}

fn runner() -> SlotRunner {
    SlotRunner::new(&run_spec(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap()
}

fn lease(fragment: u64, slots: &[(u32, SlotSource)]) -> Lease {
    Lease {
        id: LeaseId(fragment),
        fragment: FragmentNo(fragment),
        weights_version: WeightsVersion(0),
        slots: slots.iter().map(|(slot, source)| LeasedSlot::new(SlotId(*slot), source.clone())).collect(),
    }
}

/// Returns the parts of a lease in the order in which they are handed over.
fn parts(runner: &mut SlotRunner) -> Vec<Vec<SlotFragment>> {
    let mut parts = Vec::new();
    loop {
        match runner.advance(5) {
            Advance::Working { .. } => {}
            Advance::Part { fragments, .. } => parts.push(fragments),
            Advance::Done { fragments, .. } => {
                parts.push(fragments);
                return parts;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn finish(runner: &mut SlotRunner) -> Vec<SlotFragment> {
    parts(runner).concat()
}

#[test]
fn sequentially_sampled_slots_are_handed_over_one_by_one_bit_identically() {
    let (mut together, mut sequential) = (runner(), runner());
    for fragment in 0..5 {
        let source = if fragment == 0 { SlotSource::New } else { SlotSource::Held };
        let lease = || lease(fragment, &(0..6).map(|slot| (slot, source.clone())).collect::<Vec<_>>());
        together.begin(lease()).unwrap();
        // To change between both moves the states within the worker.
        sequential.set_sequential(fragment != 2);
        sequential.begin(lease()).unwrap();
        let parts = parts(&mut sequential);
        assert_eq!(parts.len(), if fragment == 2 { 1 } else { 6 });
        assert_eq!(parts.concat(), finish(&mut together));
    }
}

#[test]
fn a_slot_that_moves_resumes_bit_identically() {
    let mut alone = runner();
    let mut calm = Vec::new();
    for fragment in 0..6 {
        let source = if fragment == 0 { SlotSource::New } else { SlotSource::Held };
        let slots: Vec<_> = (0..6).map(|slot| (slot, source.clone())).collect();
        alone.begin(lease(fragment, &slots)).unwrap();
        calm.push(finish(&mut alone));
    }
    // The same slots wander between two runners; one gives up in the middle of a fragment.
    let (mut a, mut b) = (runner(), runner());
    let mut states: Vec<Option<Vec<u8>>> = vec![None; 6];
    for fragment in 0..6 {
        let source = |states: &[Option<Vec<u8>>], slot: u32| {
            (slot, states[slot as usize].clone().map_or(SlotSource::New, SlotSource::State))
        };
        let split = [2, 5, 1, 6, 3, 4][fragment as usize];
        let (left, right): (Vec<_>, Vec<_>) =
            (0..6).map(|slot| source(&states, slot)).partition(|(slot, _)| *slot < split);
        let mut rows = Vec::new();
        a.begin(lease(fragment, &left)).unwrap();
        a.advance(9);
        a.abandon();
        b.begin(lease(fragment, &left)).unwrap();
        rows.extend(finish(&mut b));
        if !right.is_empty() {
            a.begin(lease(fragment, &right)).unwrap();
            rows.extend(finish(&mut a));
        }
        for done in &rows {
            states[done.slot.0 as usize] = Some(done.state.clone());
        }
        assert_eq!(rows, calm[fragment as usize]);
    }
}

#[test]
fn leases_that_cannot_be_run_are_refused_and_change_nothing() {
    let mut runner = runner();
    let error = |runner: &mut SlotRunner, lease| runner.begin(lease).unwrap_err().to_string();
    assert_eq!(error(&mut runner, lease(1, &[(0, SlotSource::Held)])), "the state of slot 0 is not here");
    assert_eq!(error(&mut runner, lease(0, &[(6, SlotSource::New)])), "the run has 6 slots, there is no slot 6");
    assert_eq!(
        error(&mut runner, lease(0, &[(1, SlotSource::New), (1, SlotSource::New)])),
        "the slots of a lease must be ascending, and at least one"
    );
    let wrong = Lease { weights_version: WeightsVersion(4), ..lease(0, &[(0, SlotSource::New)]) };
    assert_eq!(error(&mut runner, wrong), "the lease wants weights 4, here are 0");
    runner.begin(lease(0, &[(0, SlotSource::New)])).unwrap();
    assert_eq!(error(&mut runner, lease(0, &[(1, SlotSource::New)])), "lease 0 is still running");
    assert_eq!(finish(&mut runner).len(), 1);
    runner.begin(lease(1, &[(0, SlotSource::State(vec![9]))])).unwrap();
    let Advance::Failed { failure, .. } = runner.advance(1) else { panic!("it is no state") };
    let expected = "slot 0, episode 0, step 0: the state was not restored: the slot state has version 9, this program reads \
                    1 and 2";
    assert_eq!(failure.to_string(), expected);
}

#[test]
fn a_sample_has_every_column() {
    let mut worker = RolloutWorker::new(config(2, 30), &Registry::builtin(), Kernels::PORTABLE).unwrap();
    let sample = worker.sample().unwrap();
    let batch = sample.single().unwrap();
    let names: Vec<_> = batch.iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(
        names,
        [
            "obs",
            "actions",
            "rewards",
            "terminateds",
            "truncateds",
            "action_logp",
            "vf_preds",
            "new_obs",
            "eps_id",
            "unroll_id",
            "t",
            "agent_index",
            "advantages",
            "value_targets"
        ]
    );
    let ts = batch.get(T).unwrap();
    let dones = batch.dones().unwrap();
    let (obs, new_obs) = (batch.data(OBS).unwrap(), batch.data(NEW_OBS).unwrap());
    for row in 1..30 {
        // Inside an episode the next row's observation, at its end the final one and not that of the reset.
        assert_eq!(new_obs.row(row - 1) == obs.row(row), !dones[row - 1], "row {row}");
        assert_eq!(ts[row], if dones[row - 1] { 0 } else { ts[row - 1] + 1 }, "row {row}");
    }
    assert_eq!(batch.get(EPS_ID).unwrap()[30], 1 << 32);
}

#[test]
fn the_hash_sees_every_bit() {
    let mut worker = RolloutWorker::new(config(1, 10), &Registry::builtin(), Kernels::PORTABLE).unwrap();
    let fragment = worker.sample_fragments(10).unwrap().remove(0);
    let hash = |fragment: &SlotFragment| {
        let mut hasher = RolloutHasher::new();
        hasher.add(fragment).unwrap();
        hasher.finish()
    };
    let before = hash(&fragment);
    for name in ["obs", "actions", "rewards", "terminateds", "truncateds", "action_logp", "vf_preds"] {
        let mut other = fragment.clone();
        let mut column = other.rows.column(name).unwrap().clone();
        match &mut column {
            rollmesh_core::column::Column::F32(data) => data.values_mut()[9] += 1e-3,
            rollmesh_core::column::Column::I64(data) => data.values_mut()[9] ^= 1,
            rollmesh_core::column::Column::Bool(data) => data.values_mut()[9] ^= true,
            _ => panic!("no such column in CartPole"),
        }
        other.rows.insert(name, column).unwrap();
        assert_ne!(hash(&other), before, "{name}");
    }
    let mut compressed = fragment.clone();
    compressed.rows.compress(Granularity::Bulk).unwrap();
    assert!(RolloutHasher::new().add(&compressed).is_err());
}

#[test]
fn cuts_beyond_the_rows_are_refused() {
    let mut worker = RolloutWorker::new(config(1, 10), &Registry::builtin(), Kernels::PORTABLE).unwrap();
    let mut fragment = worker.sample_fragments(10).unwrap().remove(0);
    assert_eq!(fragment.with_derived().unwrap().len(), 10);
    fragment.cuts.last_mut().unwrap().end = u32::MAX;
    let error = fragment.with_derived().unwrap_err();
    assert_eq!(error.to_string(), "column 'eps_id' has 4294967295 rows, the batch has 10");
}
