//! The settings with which a run can be resumed, and those that are refused.

use std::fs;

use super::rig::{Rig, undisturbed};
use crate::support::{process::Signal, until};

#[tokio::test]
async fn finished_run_resumes_to_a_later_end() {
    let rig = Rig::new(20);
    rig.begin().finish_with(0).await;
    assert_eq!(rig.outcome(), undisturbed(20).await);
    rig.resume_with(&["--max-env-steps", &(50 * 192).to_string(), "--checkpoint-interval", "7"]).finish_with(0).await;
    assert_eq!(rig.outcome().without_settings(), undisturbed(50).await.without_settings());
    // The new end is the run's from now on.
    rig.resume().finish_with(0).await;
    assert!(rig.text("config.toml").contains("env_steps = 9600"));
}

#[tokio::test]
async fn flags_that_contradict_the_run_are_named_and_change_nothing() {
    let rig = Rig::new(20);
    rig.begin().finish_with(0).await;
    let outcome = rig.outcome();
    let cases: [(&[&str], &str); 5] = [
        (&["--seed", "2"], "seed is 1, not 2; leave these flags out"),
        (&["--env", "Acrobot-v1"], r#"env is "CartPole-v1", not "Acrobot-v1""#),
        (&["--hidden", "16", "--workers", "3"], "model_config.fcnet_hiddens is [16, 16], not [16]"),
        (&["--rollout-fragment-length", "8"], "rollout_fragment_length is 16, not 8"),
        (&["--checkpoint-interval", "0"], "checkpoint_interval is 0; it must be at least 1"),
    ];
    for (args, message) in cases {
        let end = rig.resume_with(args).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
    }
    // The same again is no contradiction.
    // Nor is another number of workers.
    rig.resume_with(&["--seed", "1", "--workers", "2"]).finish_with(0).await;
    assert_eq!(rig.outcome().without_settings(), outcome.without_settings());
    let config = rig.text("config.toml");
    fs::write(rig.path("config.toml"), config.replace("seed = 1", "seed = 3")).unwrap();
    let end = rig.resume().finish_with(2).await;
    assert!(end.stderr.contains("was changed since the last checkpoint: seed is 1, not 3"), "{}", end.stderr);
    fs::remove_file(rig.path("config.toml")).unwrap();
    let end = rig.resume().finish_with(2).await;
    assert!(end.stderr.contains("holds no run: begin one with --run-dir"), "{}", end.stderr);
}

#[tokio::test]
async fn run_in_progress_in_another_process_is_not_resumed() {
    let rig = Rig::new(100_000);
    let process = rig.begin();
    until("some iterations", || rig.iterations() > 3).await;
    let end = rig.resume().finish_with(2).await;
    assert!(end.stderr.contains("is in progress in another process: stop that first"), "{}", end.stderr);
    process.signal(Signal::INT);
    process.finish_with(3).await;
}
