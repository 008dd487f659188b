//! Divergent fragments found after a restart, and the flags that set which workers a hub trusts.

use std::{path::Path, process::Command};

use rollmesh::{
    checkpoint::PolicyCheckpoint,
    hub::{OnDivergence, PendingSummary, SecurityConfig},
    train::{RunEnd, RunRequest, SavedRun},
};
use rollmesh_core::{env::EnvRegistry, hash::weights_hash, protocol::Token};
use serde_json::Value;

use super::{
    TestHub,
    divergent::{diverges_after, flip_a_reward, kept, kept_undisturbed, metrics, undisturbed_metrics, watchful},
    end,
    hand_made::HandMade,
    small, undisturbed,
};
use crate::support::{Process, json};

/// Returns a worker's token that outlives hubs.
fn lasting_token(file: &Path) -> Token {
    let mut create = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
    let printed = create.args(["tokens", "create", "--role", "worker", "--file"]).arg(file).output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    printed.split_whitespace().find_map(|word| Token::from_hex(word).ok()).unwrap()
}

/// Runs a hub until the run reaches an iteration, with honest or divergent uploads.
async fn live(hub: TestHub, run: PendingSummary, token: Token, (iteration, falsifies): (u64, bool)) {
    let mut worker = HandMade::join_as(&hub, token, "native").await;
    // The status of a resumed run may come after its first lease: the uploads say where it is.
    let mut done = 0;
    while done < iteration {
        let upload = worker.next_upload().await.unwrap();
        done = upload.fragment + 1;
        let upload = if falsifies { worker.changed(&upload, flip_a_reward) } else { upload };
        worker.client.say(&rollmesh_core::protocol::Message::FragmentUpload(upload)).await;
        hub.status("the next iteration", |status| status.iteration == done).await;
    }
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.env_steps, iteration * 192);
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn divergent_fragment_found_after_a_restart_is_undone_from_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let [run_dir, tokens, output] = ["run", "tokens.json", "output"].map(|name| directory.path().join(name));
    let token = lasting_token(&tokens);
    let hub = async |share, distrust_remote| {
        let SecurityConfig { distrust, .. } = watchful(share, OnDivergence::RollBack);
        let distrust = rollmesh::hub::Distrust { distrust_remote, ..distrust };
        let token_file = Some(tokens.clone());
        TestHub::start_watchful(SecurityConfig { distrust, token_file, ..SecurityConfig::default() }).await
    };
    let saved = || {
        let saved = SavedRun::load(&run_dir).unwrap();
        let request = RunRequest { output: Some(output.clone()), ..saved.request().clone() };
        saved.with_request(request).unwrap()
    };

    // All are trusted at first; then an untrusted worker diverges without an audit.
    let first = hub(0.0, false).await;
    let (run_dir_too, output_too) = (Some(run_dir.clone()), Some(output.clone()));
    let config = RunRequest { run_dir: run_dir_too, output: output_too, ..super::saved_often(small(0, 2_000)) };
    let run = first.train(config).await;
    live(first, run, token, (3, false)).await;
    let second = hub(0.0, true).await;
    let run = second.hub.resume(saved()).await.unwrap();
    live(second, run, token, (7, true)).await;

    let mut third = hub(1.0, true).await;
    let run = third.hub.resume(saved()).await.unwrap();
    diverges_after(&third, token, 0).await;
    let line = third.notice("the run goes back").await;
    assert!(line.contains(" to 3, before the rows of a quarantined principal"), "{line}");
    let helper = third.worker();
    let summary = end(run).await;
    assert_eq!((summary.end, summary.tainted), (RunEnd::Finished, false));
    assert_eq!(summary.weights_hash.to_string(), undisturbed().await);
    assert_eq!(metrics(&run_dir), undisturbed_metrics().await);
    assert!(kept(&output) == kept_undisturbed().await, "rows from divergent fragments are removed and recomputed");
    assert_eq!(weights_hash(&PolicyCheckpoint::load(run_dir).unwrap().weights), summary.weights_hash);
    third.hub.shutdown().await;
    helper.finish_with(0).await;
}

/// Returns the result of a run whose worker uploads one divergent fragment, after as many fragments as are always
/// replayed. If the divergence is detected, an honest worker replaces it.
async fn diverged_from(flags: &str, is_found: bool) -> (String, Value) {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let fixed = "train --env CartPole-v1 --hidden 16,16 --rollout-fragment-length 16 --seed 1 --remote-only \
                 --num-envs-per-worker 12 --max-env-steps 2000 --run-dir";
    let words = fixed.split_whitespace().map(Into::into).chain([run_dir.clone().into_os_string()]);
    let mut run = Process::start(words.chain(flags.split_whitespace().map(Into::into)));
    let invitation = run.invitation().await;
    let token = Token::from_hex(&invitation.worker_token).unwrap();
    let mut divergent = HandMade::join_at(&invitation.address, token, "native", EnvRegistry::builtin()).await;
    let lie = divergent.upload_after(4).await;
    let lie = divergent.changed(&lie, flip_a_reward);
    divergent.client.say(&rollmesh_core::protocol::Message::FragmentUpload(lie)).await;
    divergent.stay().await;
    let helper = is_found.then(|| Process::worker(&invitation.address, &invitation.worker_token));
    let finished = run.finish_with(0).await;
    if let Some(helper) = helper {
        helper.finish_with(0).await;
    }
    (finished.stderr, json(&std::fs::read_to_string(run_dir.join("summary.json")).unwrap()))
}

#[tokio::test]
async fn flags_set_trust_audit_rate_and_reaction_to_divergence() {
    let expected = undisturbed().await;
    let (stderr, summary) = diverged_from("--distrust-workers --audit-share 1", true).await;
    assert!(stderr.contains("the run goes back from iteration"), "{stderr}");
    assert_eq!((&summary["weights_hash"], &summary["tainted"]), (&expected.as_str().into(), &Value::Null));

    let (stderr, summary) = diverged_from("--distrust-workers --audit-share 1 --on-divergence continue", true).await;
    assert!(stderr.contains("the run continues with rows of a quarantined principal: it is tainted"), "{stderr}");
    assert_eq!(summary["tainted"], true);

    for flags in ["--audit-share 1", "--distrust-workers --audit-share 0"] {
        let (stderr, summary) = diverged_from(flags, false).await;
        assert!(!stderr.contains("divergent") && summary["tainted"].is_null(), "{flags}: {stderr}");
        assert_ne!(summary["weights_hash"], expected.as_str(), "{flags}: the false rows were learned from");
    }
}
