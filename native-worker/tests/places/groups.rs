//! The workers of a group.

use std::{collections::BTreeMap, process::Command};

use rollmesh::{
    NativeWorker as _, WorkerGroup,
    launch::WorkerSpec,
    learner::{DeviceSpec, forward_on, register_learning_policies_on},
    native,
    worker_group::{ForEachWorker, ParallelSample, Placement, SyncWeights},
};
use rollmesh_core::{
    batch::AnyBatch,
    ids::PolicyId,
    weights::Weights,
    worker::{RolloutConfig, RolloutWorkerBuilder, WorkerAnswer, WorkerCommand, WorkerMetrics, WorkerPlace},
};

use super::{
    kinds::{Kind, Kinds},
    registry,
};
use crate::worker_group::{connect_with, everywhere};

/// Returns a group with one worker.
pub(super) fn group(config: &RolloutConfig, placement: &Placement) -> WorkerGroup {
    group_with(config, placement, &[]).unwrap_or_else(|error| panic!("{config:?}: {error}"))
}

/// Returns the same; `more` are arguments of a worker that connects by itself.
pub(super) fn group_with(config: &RolloutConfig, placement: &Placement, more: &[&str]) -> Result<WorkerGroup, String> {
    let builder = WorkerGroup::builder(config.clone()).registry(registry()).placement(placement.clone());
    let mut group = builder.num_workers(1).build().map_err(|error| error.to_string())?;
    match !matches!(placement, Placement::Remote) || connect_with(&mut group, 1, more) {
        true => Ok(group),
        false => Err(std::iter::from_fn(|| group.next_notice()).collect::<Vec<_>>().join("; ")),
    }
}

/// Returns the batches of this number of rounds of the group's worker, and their episodes as text.
pub(super) fn samples(group: &mut WorkerGroup, rounds: u64) -> (Vec<AnyBatch>, Vec<String>) {
    let sample = |_| group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    let batches = (0..rounds).flat_map(sample).collect();
    match group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Metrics).unwrap().remove(0) {
        WorkerAnswer::Metrics(metrics) => (batches, summary(&metrics)),
        other => panic!("{other:?}"),
    }
}

/// Returns episodes with their custom metrics, failures, and estimates; without times.
fn summary(metrics: &WorkerMetrics) -> Vec<String> {
    let episodes = metrics.episodes.iter().map(|episode| {
        let rollmesh_core::episode::RolloutMetrics { episode_id, length, episode_return, .. } = episode;
        format!("{episode_id} {length} {episode_return} {:?} {:?}", episode.custom_metrics, episode.faulty)
    });
    let rest = [format!("{:?} {:?}", metrics.quarantined, metrics.discarded_env_steps)];
    episodes.chain(metrics.estimates.iter().map(|estimate| format!("{estimate:?}"))).chain(rest).collect()
}

pub(crate) fn every_kind_of_run_is_sampled_bit_identically_in_every_placement() {
    let builder = || RolloutWorkerBuilder::new(native(registry())).native();
    for kind in Kinds::read().in_programs() {
        let Kind { config, samples: rounds, batch_hash, .. } = &kind;
        let rollout = kind.rollout();
        assert_eq!(
            (kind.sampled(builder()), kind.leased(builder())),
            (batch_hash.clone(), kind.rollout_hash.clone()),
            "{config}"
        );
        let mut here = builder().config(rollout.clone()).place(WorkerPlace::remote(1, 1)).build().unwrap();
        let expected = (kind.batches(&mut here), summary(&here.metrics()));
        for placement in everywhere() {
            // A worker that connects refuses inputs and outputs that a hub names.
            if matches!(placement, Placement::Remote) && rollout.output.is_some() {
                let error = group_with(&rollout, &placement, &[]).err().unwrap();
                assert!(error.contains("belongs to one machine"), "{error}");
                continue;
            }
            let found = samples(&mut group(&rollout, &placement), *rounds);
            assert!(found == expected, "{config} with {placement:?}: {:?} and {:?}", found.1, expected.1);
        }
    }
}

/// Checks a device: Candle's CPU stands for it unless `ROLLMESH_TEST_DEVICE` names another one, as in the learner's
/// tests.
pub(crate) fn groups_act_and_learn_on_devices() {
    let device = std::env::var("ROLLMESH_TEST_DEVICE").map_or(DeviceSpec::Cpu, |name| name.parse().unwrap());
    let mut registry = registry();
    register_learning_policies_on(&mut registry.policies, &device.open().unwrap());
    registry.policies.act_with(forward_on(device.open().unwrap()));
    let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(12).fcnet_hiddens(&[8]).single_policy("ppo");
    let mut group = WorkerGroup::builder(config.clone()).registry(registry).num_workers(1).build().unwrap();
    let first = group.weights(None).unwrap();
    let (batches, _) = samples(&mut group, 2);
    group.local_worker().unwrap().learn_on_batch(&batches[0]).unwrap();
    group.sync_weights(SyncWeights::default()).unwrap();
    assert!(group.weights(None).unwrap() != first);
    assert_eq!(samples(&mut group, 1).0[0].env_steps(), 12);
    // Processes get their device from the group, or from the command that starts them. A program that knows no
    // GPUs says so.
    if cfg!(feature = "cuda") {
        return;
    }
    let missing = "cuda:0 needs a program built with `--features cuda`";
    let [_, processes, remote] = everywhere();
    let spec = WorkerSpec { device: Some("cuda:0".into()), ..WorkerSpec::default() };
    let builder = WorkerGroup::builder(config.clone()).placement(processes).num_workers(1).worker_spec(spec);
    let error = builder.build().unwrap_err().to_string();
    assert!(error.contains(missing), "{error}");
    let group = WorkerGroup::builder(config).placement(remote).num_workers(1).build().unwrap();
    let mut worker = Command::new(std::env::current_exe().unwrap());
    worker.args(["worker", "--hub", &group.worker_url().unwrap(), "--device", "cuda:0"]);
    let ended = worker.env("ROLLMESH_TOKEN", group.worker_token().unwrap().to_hex()).output().unwrap();
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(error.contains(missing), "{error}");
}

/// Players of two algorithms, and a policy with its own learner, learn from the rows of a worker, which acts with their
/// latest weights.
pub(crate) fn several_policies_learn_the_same_everywhere() {
    for config in [
        r#"{"env": "RockPaperScissors-v0", "rollout_fragment_length": 12, "policy_mapping_fn": "agent_id",
            "policies": {"0": {"policy": "ppo"}, "1": {"policy": "a2c"}}, "model_config": {"fcnet_hiddens": [8]}}"#,
        r#"{"env": "CartPole-v1", "rollout_fragment_length": 12, "policies": {"default_policy": {"policy": "backward"}}}"#,
    ] {
        let config = serde_json::from_str(config).unwrap();
        let learn = |placement| -> BTreeMap<PolicyId, Weights> {
            let mut group = group(&config, &placement);
            for _ in 0..3 {
                for batch in samples(&mut group, 1).0 {
                    group.local_worker().unwrap().learn_on_batch(&batch).unwrap();
                }
                group.sync_weights(SyncWeights::default()).unwrap();
            }
            let weights = WorkerCommand::Weights { policies: None };
            match group.foreach_worker_with(&ForEachWorker::remote(), weights).unwrap().remove(0) {
                WorkerAnswer::Weights(weights) => weights,
                other => panic!("{other:?}"),
            }
        };
        let [threads, processes, remote] = everywhere().map(learn);
        assert!(threads == processes && threads == remote);
        let first = group(&config, &Placement::Threads).weights(None).unwrap();
        assert!(threads.iter().all(|(id, weights)| weights.tensors() != first[id].tensors()));
    }
}
