//! The rollouts of commit ab1fc68, whose hashes are in `golden/frozen.json`.

use std::path::{Path, PathBuf};

use rollmesh::kernels::AUTO;
use rollmesh_core::{
    hash::BatchHasher,
    worker::{Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, rollout_hash},
};
use serde::Deserialize;

use crate::kinds::{self, Kind, Kinds};

/// All entries, with the settings that they share.
#[derive(Deserialize)]
struct Frozen {
    num_envs: u32,
    hidden: Vec<u32>,
    rollout_fragment_length: u32,
    env_steps: u64,
    hashes: Vec<Entry>,
}

/// The settings of a rollout in one environment, and its hash.
#[derive(Deserialize)]
struct Entry {
    env: String,
    policy: String,
    seed: u64,
    /// The path of the worker's settings, relative to the repository's root.
    config: Option<PathBuf>,
    /// The hash for an environment with a single agent.
    rollout_hash: Option<String>,
    /// The hash for a game with several agents.
    batch_hash: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn frozen() -> Frozen {
    let text = std::fs::read_to_string(root().join("tests/golden/frozen.json")).expect("the file is in the repository");
    serde_json::from_str(&text).expect("as xtask writes it")
}

impl Entry {
    /// Returns the settings that `rollmesh sample` reads from its flags.
    fn settings(&self, shared: &Frozen) -> RolloutConfig {
        let mut config = match &self.config {
            Some(path) => toml::from_str(&std::fs::read_to_string(root().join(path)).unwrap()).unwrap(),
            None => RolloutConfig::default(),
        };
        config.env = Some(self.env.clone());
        if config.policies.is_empty() {
            config = config.single_policy(&self.policy);
        }
        config.policies.values_mut().for_each(|policy| policy.policy.clone_from(&self.policy));
        config
            .seed(self.seed)
            .num_envs(shared.num_envs)
            .fcnet_hiddens(&shared.hidden)
            .rollout_fragment_length(shared.rollout_fragment_length)
    }
}

/// Returns the hash of as many whole samples as contain the env steps.
fn batch_hash(config: RolloutConfig, env_steps: u64) -> String {
    let mut worker = RolloutWorker::new(config, &Registry::builtin(), AUTO).unwrap();
    let (mut hasher, mut done) = (BatchHasher::new(), 0);
    while done < env_steps {
        let batch = worker.sample().unwrap();
        done += batch.env_steps() as u64;
        hasher.add(&batch).unwrap();
    }
    hasher.finish().to_string()
}

/// Recomputes the `count` entries that have such a hash, each in all ways.
fn check(count: usize, hash: fn(&Entry) -> Option<&String>, recompute: impl Fn(&Entry, &Frozen) -> Vec<String>) {
    let shared = frozen();
    let entries: Vec<_> = shared.hashes.iter().filter_map(|entry| Some((entry, hash(entry)?))).collect();
    assert_eq!(entries.len(), count);
    for (entry, hash) in entries {
        let Entry { env, policy, seed, .. } = entry;
        for (way, found) in recompute(entry, &shared).iter().enumerate() {
            assert_eq!(found, hash, "{env}, {policy}, seed {seed}, way {way}");
        }
    }
}

#[test]
fn single_agents_keep_their_frozen_rollouts_however_they_are_cut() {
    let recompute = |entry: &Entry, shared: &Frozen| {
        let hash = |length| {
            let config = entry.settings(shared).rollout_fragment_length(length);
            rollout_hash(config, shared.env_steps, &Registry::builtin(), AUTO).unwrap()
        };
        [shared.rollout_fragment_length, 101].map(|length| hash(length).to_string()).into()
    };
    check(15 * 2 * 3, |entry| entry.rollout_hash.as_ref(), recompute);
}

#[test]
fn games_keep_their_frozen_batches() {
    let recompute = |entry: &Entry, shared: &Frozen| vec![batch_hash(entry.settings(shared), shared.env_steps)];
    check(4 * 2 * 3, |entry| entry.batch_hash.as_ref(), recompute);
}

/// Checks the list of hashes that all platforms share, with this machine's kernels.
#[test]
fn samples_of_every_kind_keep_their_golden_hashes() {
    let builder = || RolloutWorkerBuilder::new(kinds::register(Registry::builtin())).kernels(AUTO);
    let found = |kind: &Kind| (kind.sampled(builder()), kind.leased(builder()));
    let wrong = |kind: Kind| {
        let found = found(&kind);
        (found != (kind.batch_hash, kind.rollout_hash)).then(|| format!("{} {found:?}", kind.config))
    };
    let wrong: Vec<String> = Kinds::read().in_one_thread().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
