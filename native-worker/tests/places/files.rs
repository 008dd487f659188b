//! Files that the workers of a group write and read.

use std::path::Path;

use rollmesh::{WorkerGroup, worker_group::Placement};
use rollmesh_core::{batch::AnyBatch, config::Config, worker::RolloutConfig};
use serde_json::json;

use super::groups::{group, group_with, samples};
use crate::worker_group::everywhere;

fn config(more: &serde_json::Value) -> RolloutConfig {
    let usual = r#"{"env": "CartPole-v1", "rollout_fragment_length": 20, "train_batch_size": 20, "seed": 5,
        "policies": {"default_policy": {"policy": "marwil"}}, "model_config": {"fcnet_hiddens": [8]}}"#;
    usual.parse::<Config>().unwrap().merged(&Config::of(more).unwrap()).parse().unwrap()
}

/// Returns the placements of workers that may read files which the group names.
fn trusting() -> [Placement; 2] {
    let [threads, processes, _] = everywhere();
    [threads, processes]
}

fn read(
    input: &serde_json::Value,
    io_config: &serde_json::Value,
    placement: &Placement,
) -> (Vec<AnyBatch>, Vec<String>) {
    // Data of other programs have no action probabilities.
    let evaluation = if input.to_string().contains("minari") { vec![] } else { vec!["is", "wis"] };
    let config = config(&json!({ "input": input, "io_config": io_config, "input_evaluation": evaluation }));
    samples(&mut group(&config, placement), 6)
}

pub(crate) fn rows_and_episodes_are_written_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    for format in ["json", "parquet"] {
        let mut first = None;
        for (number, placement) in everywhere().iter().enumerate() {
            let name = format!("{format}{number}");
            let folder = directory.path().join(&name).display().to_string();
            // A worker that connects has a directory for outputs of these names.
            let output = if matches!(placement, Placement::Remote) { &name } else { &folder };
            let films = format!("{output}-films");
            let settings = json!({ "output": output, "io_config": { "format": format }, "monitor_path": films });
            let config = config(&settings);
            let mut group = group_with(&config, placement, &["--data-root", root]).unwrap();
            samples(&mut group, 4);
            group.stop();
            let rows = read(&json!(folder), &json!({ "read_all_files": true }), &Placement::Threads);
            assert!(*first.get_or_insert_with(|| rows.clone()) == rows, "{format} with {placement:?}");
            let films = std::fs::read_dir(format!("{folder}-films")).unwrap().map(|file| file.unwrap().path());
            assert!(films.into_iter().any(|path| path.extension().is_some_and(|end| end == "gif")), "{placement:?}");
        }
    }
}

pub(crate) fn files_are_read_mixed_and_estimated_alike() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for format in ["json", "parquet"] {
        let config = config(&json!({ "output": at(format), "io_config": { "format": format } }));
        let mut group = group(&config, &Placement::Threads);
        samples(&mut group, 4);
        group.stop();
    }
    let golden = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name);
    let mixture = json!({ at("json"): 0.5, at("parquet"): 0.5 });
    for (input, io_config) in [
        (json!(at("json")), json!({ "read_all_files": true })),
        (json!(at("parquet")), json!({})),
        (json!(golden("minari_cartpole_hdf5")), json!({})),
        (mixture, json!({ "shuffle_buffer_size": 3 })),
    ] {
        let [threads, processes] = trusting().map(|placement| read(&input, &io_config, &placement));
        assert!(threads == processes, "{input}: {:?} and {:?}", threads.1, processes.1);
    }
    let judged = read(&json!(at("json")), &json!({ "read_all_files": true }), &Placement::Threads).1;
    assert!(judged.iter().any(|line| line.contains("v_behavior")), "{judged:?}");

    let limited = json!({ "memory_limit": 1 << 20 });
    for placement in trusting() {
        let config = config(&json!({ "input": golden("minari_cartpole_hdf5"), "io_config": limited }));
        let sample = |mut group: WorkerGroup| group.sample().map(drop).map_err(|error| error.to_string());
        let error = group_with(&config, &placement, &[]).and_then(sample).unwrap_err();
        assert!(error.contains("takes more than 1048576 bytes of memory"), "{error}");
    }
    let refused = config(&json!({ "input": at("json") }));
    let error = group_with(&refused, &Placement::Remote, &[]).err().unwrap();
    assert!(error.contains("input belongs to one machine"), "{error}");
}

/// Checks the weights that a local worker learns from rows that another worker has read.
pub(crate) fn imitation_from_files_is_the_same_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().display().to_string();
    samples(&mut group(&config(&json!({ "output": folder })), &Placement::Threads), 4);
    for policy in ["bc", "marwil"] {
        let learn = |placement: Placement| {
            let policies = json!({ "default_policy": { "policy": policy } });
            let config =
                config(&json!({ "input": folder, "io_config": { "read_all_files": true }, "policies": policies }));
            let mut group = group(&config, &placement);
            for batch in samples(&mut group, 4).0 {
                group.local_worker().unwrap().learn_on_batch(&batch).unwrap();
            }
            group.weights(None).unwrap()
        };
        let [threads, processes] = trusting().map(learn);
        assert!(threads == processes, "{policy}");
    }
}
