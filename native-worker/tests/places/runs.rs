//! The command line, and the runs of a hub.

use rollmesh::{
    NativeWorker as _,
    hub::{Hub, HubConfig},
    native,
    train::{RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::{
    filter::FilterKind,
    hash::weights_hash,
    protocol::{Message, Phase, message::StartRun},
    worker::RolloutWorkerBuilder,
};
use serde_json::json;

use super::{kinds::Kinds, registry};
use crate::support::{Process, hub::TestHub, json};

fn own_program(args: &[&str]) -> Process {
    Process::start_program(std::env::current_exe().unwrap(), args, |_| {})
}

/// Samples every kind: rows under an observation filter are normalised as those of leases; others are those of one
/// worker.
pub(crate) async fn the_command_line_samples_every_kind_with_its_golden_hash() {
    let directory = tempfile::tempdir().unwrap();
    for (number, kind) in Kinds::read().in_programs().enumerate() {
        let file = directory.path().join(format!("{number}.json"));
        std::fs::write(&file, kind.config.to_string()).unwrap();
        let mut here = RolloutWorkerBuilder::new(native(registry())).native().config(kind.rollout()).build().unwrap();
        let steps: usize = kind.batches(&mut here).iter().map(|batch| batch.env_steps()).sum();
        let args = ["sample", "--json", "--config", file.to_str().unwrap(), "--env-steps", &steps.to_string()];
        let printed = json(&own_program(&args).finish_with(0).await.stdout);
        if kind.config.to_string().contains("MeanStdFilter") {
            assert!(
                printed["rollout_hash"].is_string() && printed["env_steps"].as_u64() >= Some(steps as u64),
                "{printed}"
            );
        } else {
            let found = (&printed["env_steps"], &printed["batch_hash"]);
            assert_eq!(found, (&json!(steps), &json!(kind.batch_hash)), "{}", kind.config);
        }
    }
}

/// Trains a run that leases do not support: its own worker samples, whose policy has its own learner.
pub(crate) async fn policy_of_a_user_learns_in_a_run_without_leases() {
    let run_dir = tempfile::tempdir().unwrap();
    let train = ["train", "--json", "--no-dashboard", "--workers", "0", "--env", "Base-v0", "--max-env-steps", "48"];
    let learner = r#"policies={"default_policy": {"policy": "backward"}}"#;
    let run_dir = run_dir.path().join("run").display().to_string();
    let args = [&train[..], &["--num-envs-per-worker", "2", "--set", learner, "--run-dir", &run_dir]].concat();
    let end = own_program(&args).finish_with(0).await;
    assert!(end.stdout.contains("weights_hash") && end.stderr.contains("only this process samples"), "{}", end.stderr);
    let weights = std::fs::read(format!("{run_dir}/weights.safetensors")).unwrap();
    let rewards: [u8; 4] = weights[weights.len() - 4..].try_into().unwrap();
    // The rewards of its rows, doubled.
    assert!(f32::from_le_bytes(rewards) >= 2.0 * 48.0);
}

/// Trains on two hubs: one samples a page's runs by itself, the other one has two workers.
pub(crate) async fn every_kind_trains_with_one_hash_for_any_workers() {
    let directory = tempfile::tempdir().unwrap();
    let in_directory = |config| HubConfig { runs_dir: Some(directory.path().into()), ..config };
    let registry = registry();
    let start = |config| async { Hub::start(in_directory(config), &registry).await };
    let alone = TestHub::start_by("127.0.0.1:0", start).await;
    let mut shared = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(config, &registry).await }).await;
    let (url, token) = (format!("ws://{}", shared.hub.address()), shared.hub.worker_token().to_hex());
    let connect = || {
        let own_program = std::env::current_exe().unwrap();
        Process::start_program(own_program, ["worker", "--hub", &url], |command| {
            command.env("ROLLMESH_TOKEN", &token);
        })
    };
    let _workers = [connect(), connect()];
    shared.notice(" joined: ").await;
    shared.notice(" joined: ").await;
    let (mut number, mut wrong) = (0, Vec::new());
    for kind in Kinds::read().in_programs() {
        let config = &kind.config;
        let settings = kind.training();
        let request = |run: RunConfig| RunRequest { remote_only: true, ..run.into() };
        let run = RunConfig::of_settings(&settings);
        if kind.rollout_hash.is_none() {
            let is_refused = match run {
                Ok(run) => shared.hub.train(request(run)).await.is_err(),
                Err(_) => true,
            };
            assert!(is_refused, "{config}");
            continue;
        }
        number += 1;
        let mut page = alone.operator().await;
        let started = page.ask(|request| Message::StartRun(StartRun { request, settings: settings.to_string() })).await;
        assert_eq!(started, "", "{config}");
        let ended = |phase| phase == Phase::Finished.to_wire() || phase == Phase::Failed.to_wire();
        let status = alone.status("its end", |status| status.run == number && ended(status.phase)).await;
        assert_eq!(status.phase, Phase::Finished.to_wire(), "{config}: {}", status.error);
        let expected = std::fs::read_to_string(format!("{}/summary.json", status.run_dir)).unwrap();

        let run = run.unwrap();
        let found = shared.train(request(run.clone())).await.await.unwrap();
        assert_eq!(found.end, RunEnd::Finished, "{config}");
        // No other worker continues an episode of an opaque environment.
        assert_eq!(found.reproducible, !config.to_string().contains("Opaque"), "{config}");
        // Learning of some policies does not change the others; statistics of observations are among the weights of
        // all.
        let is_plain = kind.rollout().observation_filter == FilterKind::NoFilter;
        if let (Some(trained), true) = (kind.rollout().policies_to_train, is_plain) {
            let parts = RolloutWorkerBuilder::new(native(registry.clone())).learning_parts(&run).unwrap();
            let first = parts.policies.iter().map(|(id, policy)| (id, weights_hash(policy.weights())));
            first.for_each(|(id, first)| {
                assert_eq!(found.policies[id] == first, !trained.contains(id), "{id}: {config}")
            });
        }
        let expected = json(&expected)["weights_hash"].clone();
        let hashes = (expected.as_str(), Some(found.weights_hash.to_string()));
        if hashes != (kind.weights_hash.as_deref(), kind.weights_hash.clone()) && found.reproducible {
            wrong.push(format!("{config} {hashes:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    shared.hub.shutdown().await;
    alone.hub.shutdown().await;
}
