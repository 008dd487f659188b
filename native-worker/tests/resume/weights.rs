//! Weights that come from outside: a run begins or resumes with them, and files that do not fit are named.

use std::{fs, path::Path};

use rollmesh_core::{ids::WeightsVersion, weights::Weights};
use serde_json::json as object;

use super::rig::Rig;
use crate::support::{Process, json, process::Finished};

async fn run(code: i32, args: &[&str]) -> Finished {
    Process::start(args).finish_with(code).await
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the hash of a policy in a directory.
fn hash(dir: &Path) -> String {
    json(&fs::read_to_string(dir.join("policy.json")).unwrap())["weights_hash"].as_str().unwrap().into()
}

#[tokio::test]
async fn weights_set_are_those_a_run_resumes_with_and_an_edit_is_not_ignored_silently() {
    let (rig, other) = (Rig::new(6), Rig::new(9));
    rig.begin().finish_with(0).await;
    other.begin().finish_with(0).await;
    let (dir, file) = (rig.dir(), other.path("weights.safetensors"));
    let evaluate = ["evaluate", "--checkpoint", text(&dir), "--episodes", "1", "--json"];

    // An edit in place is not used, with a notice of both commands.
    let own = fs::read(rig.path("weights.safetensors")).unwrap();
    fs::copy(&file, rig.path("weights.safetensors")).unwrap();
    let output = run(0, &evaluate).await;
    assert!(output.stderr.contains("weights.safetensors was changed and is not used"), "{}", output.stderr);
    assert!(output.stderr.contains("rollmesh weights set"), "{}", output.stderr);
    let report = json(&output.stdout);
    assert_eq!(report["weights_hash"], hash(&dir).as_str());
    assert_eq!(report["deterministic_return_mean"], report["episode_return_mean"]);
    assert!(report["explored_return_mean"].is_number());
    let output = rig.resume_with(&["--max-env-steps", "1152"]).finish_with(0).await.stderr;
    assert!(output.contains("rollmesh weights set"), "{output}");
    fs::write(rig.path("weights.safetensors"), own).unwrap();

    let version = || json(&rig.text("policy.json"))["weights_version"].as_u64().unwrap();
    let before = version();
    run(0, &["weights", "set", text(&dir), text(&file)]).await;
    assert_eq!(
        (hash(&dir), version()),
        (hash(&other.dir()), before + 1),
        "workers have other weights of the version before"
    );
    let output = run(0, &evaluate).await;
    assert_eq!(
        (json(&output.stdout)["weights_hash"].as_str(), output.stderr.as_str()),
        (Some(hash(&dir).as_str()), "")
    );
    // The run stops with the weights that were set, and later continues from them.
    let output = rig.resume_with(&["--max-env-steps", "1152"]).finish_with(0).await.stderr;
    assert!(!output.contains("not used"), "{output}");
    assert_eq!(rig.outcome().weights_hash, hash(&other.dir()));
    rig.resume_with(&["--max-env-steps", "1344"]).finish_with(0).await;
    assert_ne!(hash(&dir), hash(&other.dir()));

    // Without checkpoints the file next to the policy may be the one that was edited.
    fs::remove_dir_all(rig.path("checkpoints")).unwrap();
    fs::copy(&file, rig.path("weights.safetensors")).unwrap();
    let output = run(2, &evaluate).await.stderr;
    assert!(output.contains("has other weights than policy.json says; `rollmesh weights set"), "{output}");
    run(0, &["weights", "set", text(&dir), text(&rig.path("weights.safetensors"))]).await;
    assert_eq!(hash(&dir), hash(&other.dir()));
}

#[tokio::test]
async fn a_run_begins_with_weights_of_a_file_and_keeps_them() {
    let (first, second) = (Rig::new(4), Rig::new(3));
    first.begin().finish_with(0).await;
    let file = first.path("weights.safetensors");
    let init = ["--init-weights", text(&file)];
    second.begin_with(&init).finish_with(0).await;
    let begun = second.outcome();
    // The place of sampling has no influence.
    let here = Rig::new(3).with(&["--set", "num_workers=0"]);
    here.begin_with(&init).finish_with(0).await;
    assert_eq!(here.outcome().weights_hash, begun.weights_hash);
    // Begun again without any checkpoint, it starts from the same weights.
    fs::remove_dir_all(second.path("checkpoints")).unwrap();
    second.resume().finish_with(0).await;
    assert_eq!(second.outcome().weights_hash, begun.weights_hash);
    let plain = Rig::new(3);
    plain.begin().finish_with(0).await;
    assert_ne!(plain.outcome().weights_hash, begun.weights_hash);

    let sample = ["sample", "--hidden", "16,16", "--num-envs", "4", "--env-steps", "400", "--json"];
    let rollout = async |flags: &[&str]| {
        json(&run(0, &[&sample[..], flags].concat()).await.stdout)["rollout_hash"].as_str().unwrap().to_owned()
    };
    let (alone, random) = (rollout(&init).await, rollout(&[]).await);
    assert_ne!(alone, random);
    assert_eq!(rollout(&[&init[..], &["--num-workers", "1"]].concat()).await, alone);
}

#[tokio::test]
async fn weights_that_do_not_fit_are_named() {
    let (rig, narrow) = (Rig::new(1), Rig::new(1).with(&["--set", "model_config.fcnet_hiddens=[16,8]"]));
    rig.begin().finish_with(0).await;
    narrow.begin().finish_with(0).await;
    let file = narrow.path("weights.safetensors");
    let before = fs::read(rig.path("policy.json")).unwrap();
    let other = Rig::new(1);
    let init = ["--init-weights", text(&file)];
    let wrong = [
        run(2, &["weights", "set", text(&rig.dir()), text(&file)]).await.stderr,
        other.begin_with(&init).finish_with(2).await.stderr,
        run(2, &[&["sample", "--hidden", "16,16", "--num-workers", "1"], &init[..]].concat()).await.stderr,
        run(2, &[&["sample", "--hidden", "16,16"], &init[..]].concat()).await.stderr,
    ];
    for output in wrong {
        assert!(output.contains("has shape [8]; the policy's has shape [16]"), "{output}");
    }
    assert_eq!(fs::read(rig.path("policy.json")).unwrap(), before);
    assert!(!other.path("config.toml").exists());
}

#[tokio::test]
async fn weights_are_exported_as_safetensors_and_onnx() {
    let rig = Rig::new(6);
    rig.begin().finish_with(0).await;
    let (dir, tensors, onnx) = (rig.dir(), rig.path("copy.safetensors"), rig.path("policy.onnx"));
    run(0, &["weights", "export", text(&dir), text(&tensors)]).await;
    assert_eq!(fs::read(&tensors).unwrap(), fs::read(rig.path("weights.safetensors")).unwrap());
    let output = run(0, &["weights", "export", text(&dir), text(&onnx)]).await.stdout;
    assert!(output.contains(&hash(&dir)), "{output}");
    // Field 1, the version of the format, and the name of a constant.
    let (bytes, name) = (fs::read(&onnx).unwrap(), b"policy.0.weight");
    assert!(bytes.starts_with(&[8, 8]) && bytes.windows(name.len()).any(|window| window == name));
    let output = run(2, &["weights", "export", text(&dir), "policy.pt"]).await.stderr;
    assert!(output.contains("policy.pt: the name of the file must end with .onnx or .safetensors"), "{output}");
}

#[tokio::test]
async fn each_of_several_policies_is_exported_by_name() {
    // Models that differ show whose tensors a file has.
    let policy = |hidden: u32| object!({ "policy": "ppo", "config": { "model": { "fcnet_hiddens": [hidden] } } });
    let rig = Rig::of_settings(
        &object!({
            "env": "MultiAgentCartPole-v1", "env_config": { "num_agents": 2 }, "policy_mapping_fn": "agent_id",
            "policies": { "0": policy(3), "1": policy(5) },
            "num_slots": 4, "num_envs": 4, "rollout_fragment_length": 16, "seed": 1, "stop": { "env_steps": 128 },
        }),
        1,
    );
    rig.begin().finish_with(0).await;
    let (dir, onnx, tensors) = (rig.dir(), rig.path("policy.onnx"), rig.path("policy.safetensors"));
    for (id, hidden) in [("0", 3), ("1", 5)] {
        for file in [&onnx, &tensors] {
            run(0, &["weights", "export", text(&dir), text(file), "--policy", id]).await;
        }
        let found = Weights::from_safetensors(&fs::read(&tensors).unwrap(), WeightsVersion(0)).unwrap();
        assert_eq!(found.tensor("policy.0.weight").unwrap().shape, [4, hidden]);
        // The constant of the first layer as it is in the file: its numbers, little-endian.
        let numbers: Vec<u8> =
            found.tensor("policy.0.weight").unwrap().values.iter().flat_map(|number| number.to_le_bytes()).collect();
        let bytes = fs::read(&onnx).unwrap();
        assert!(bytes.windows(numbers.len()).any(|window| window == numbers), "{id}");
    }
    let output = run(2, &["weights", "export", text(&dir), text(&onnx)]).await.stderr;
    assert!(output.contains("an ONNX file holds one policy, and the run has 0, 1: name one with --policy"), "{output}");
    let output = run(2, &["weights", "export", text(&dir), text(&tensors), "--policy", "2"]).await.stderr;
    assert!(output.contains("the run has no policy '2': it has 0, 1"), "{output}");
}
