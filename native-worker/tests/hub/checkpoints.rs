//! Checkpoints that a program asks for, and runs that resume in another hub.

use rollmesh::{
    checkpoint::PolicyCheckpoint,
    hub::CheckpointNowError,
    train::{RunEnd, RunRequest, SavedRun},
};
use rollmesh_core::protocol::Message;

use super::{TestHub, end, small, undisturbed};
use crate::support::soon;

#[tokio::test]
async fn run_is_saved_on_request_and_resumes_in_another_hub() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let hub = TestHub::start().await;
    // It would not be saved otherwise in the time that this takes.
    let config = RunRequest { run_dir: Some(run_dir.clone()), ..small(1, 1_000_000_000) };
    let summary = hub.train_with(config, |config| config.checkpoint_interval = 1_000_000).await;
    let mut before = None;
    for _ in 0..3 {
        let saved = soon("a checkpoint", hub.hub.checkpoint()).await.unwrap();
        assert!(before.is_none_or(|(number, iteration)| saved.number > number && saved.iteration >= iteration));
        assert_eq!(PolicyCheckpoint::load(run_dir.join("checkpoints")).unwrap().iteration, saved.iteration);
        before = Some((saved.number, saved.iteration));
        hub.status("an iteration", |status| status.iteration > saved.iteration).await;
    }
    hub.hub.stop_run().await;
    let stopped = end(summary).await;
    assert_eq!(stopped.end, RunEnd::Stopped);
    assert_eq!(hub.hub.checkpoint().await, Err(CheckpointNowError::NoRun));
    hub.hub.shutdown().await;

    let saved = SavedRun::load(&run_dir).unwrap();
    assert_eq!(saved.env_steps(), stopped.env_steps, "it is saved at its end, too");
    let max_env_steps = saved.env_steps() + 2_000;
    let config = RunRequest::from(saved.config().clone().stop_after(max_env_steps));
    let iterations = saved.iteration();
    let hub = TestHub::start().await;
    let other = end(hub.hub.resume(saved.with_request(config).unwrap()).await.unwrap()).await;
    let mut dashboard = hub.operator().await;
    for iteration in 1..=iterations {
        let message = dashboard.wait_for(|message| match message {
            Message::Iteration(point) => Some(point.iteration),
            _ => None,
        });
        assert_eq!(soon("a point", message).await, iteration, "the whole curve is shown");
    }
    let calm = end(hub.train(small(1, max_env_steps)).await).await;
    assert_eq!((other.weights_hash, other.env_steps), (calm.weights_hash, calm.env_steps));
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_run_that_writes_no_files_is_not_saved_and_says_so() {
    let hub = TestHub::start().await;
    assert_eq!(hub.hub.checkpoint().await, Err(CheckpointNowError::NoRun));
    let summary = hub.train(small(1, 2_000)).await;
    assert_eq!(hub.hub.checkpoint().await, Err(CheckpointNowError::NoDirectory));
    assert_eq!(end(summary).await.weights_hash.to_string(), undisturbed().await);
}
