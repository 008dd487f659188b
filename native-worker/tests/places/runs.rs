//! The command line, and the runs of a hub.

use rollmesh::{
    NativeWorker as _,
    hub::{Hub, HubConfig},
    native,
    train::{RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::{
    config::Config,
    protocol::{Message, Phase, message::StartRun},
    worker::RolloutWorkerBuilder,
};
use serde_json::json;

use super::{
    kinds::{Kind, Kinds},
    registry,
};
use crate::support::{Process, hub::TestHub, json};

fn own_program(args: &[&str]) -> Process {
    Process::start_program(std::env::current_exe().unwrap(), args, |_| {})
}

/// Rows under an observation filter are normalised as those of leases; others are those of one worker.
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

/// A run of such settings, as a page sends them.
fn settings(kind: &Kind) -> Config {
    let rollout = kind.rollout();
    let is_random = |id: &&_| rollout.policies[*id].policy == "random";
    let (random, trained): (Vec<_>, Vec<_>) = rollout.policies.keys().partition(is_random);
    let run = json!({
        "num_workers": 0, "num_slots": rollout.num_envs, "preset": "none", "evaluation": { "episodes": 0 },
        "stop": { "env_steps": kind.samples * kind.run().fragment_length() as u64 * u64::from(rollout.num_envs) },
    });
    let run = kind.config.merged(&Config::of(&run).unwrap());
    if random.is_empty() { run } else { run.with_at("policies_to_train", json!(trained)) }
}

/// One hub samples by itself what a page starts; the other one has two workers.
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
    let mut number = 0;
    for kind in Kinds::read().in_programs() {
        let config = &kind.config;
        let settings = settings(&kind);
        let shared_run = RunConfig::of_settings(&settings).map(|run| RunRequest { remote_only: true, ..run.into() });
        if kind.rollout_hash.is_none() {
            let is_refused = match shared_run {
                Ok(request) => shared.hub.train(request).await.is_err(),
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

        let found = shared.train(shared_run.unwrap()).await.await.unwrap();
        assert_eq!(found.end, RunEnd::Finished, "{config}");
        // No other worker continues an episode of an opaque environment.
        assert_eq!(found.reproducible, !config.to_string().contains("Opaque"), "{config}");
        let is_equal = found.weights_hash.to_string() == json(&expected)["weights_hash"];
        assert!(is_equal || !found.reproducible, "{config}: {found:?} and {expected}");
    }
    shared.hub.shutdown().await;
    alone.hub.shutdown().await;
}
