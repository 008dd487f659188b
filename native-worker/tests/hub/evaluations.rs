//! What dashboards are told of evaluations.

use std::time::Duration;

use rollmesh::train::{EvaluationConfig, RunEnd, RunRequest};
use rollmesh_core::protocol::{
    Message,
    message::{EnvTrace, EvaluationPoint},
};

use super::{TestHub, end, small};
use crate::support::client::Client;

/// The first points that a dashboard is told, and the first episode, which is that of the latest of these.
async fn told(dashboard: &mut Client) -> (Vec<EvaluationPoint>, EnvTrace) {
    let (mut points, mut trace) = (Vec::new(), None);
    dashboard
        .wait_for(|message| {
            match message {
                Message::Evaluation(point) => points.push(*point),
                Message::EvaluationTrace(episode) => trace = Some(episode.clone()),
                _ => {}
            }
            trace.clone()
        })
        .await;
    (points, trace.expect("it was waited for"))
}

#[tokio::test]
async fn dashboards_are_told_of_evaluations_also_those_that_come_later() {
    let hub = TestHub::start().await;
    let mut early = hub.viewer().await;
    let evaluation = EvaluationConfig { interval: 1, episodes: 1, ..EvaluationConfig::default() };
    // Slow enough for a process of the lowest priority.
    let pace = Duration::from_millis(20);
    let run = hub.train_with(RunRequest { pace, ..small(1, u64::MAX) }, |config| config.evaluation = evaluation).await;
    let (mut before, trace) = told(&mut early).await;
    let check = |points: &[EvaluationPoint], trace: &EnvTrace| {
        let latest = points.last().expect("a point comes before its episode");
        assert_eq!((latest.run, latest.episodes, latest.unfinished), (trace.run, 1, 0));
        assert_eq!(latest.episode_return_mean, latest.episode_len_mean);
        // Four numbers a row, the last of which was the end.
        let rows = latest.episode_len_mean as usize;
        assert_eq!((trace.obs_len, trace.obs.len(), trace.dones.len()), (4, 4 * 4 * rows, rows));
        assert!(trace.dones.iter().rposition(|done| *done == 1) == Some(rows - 1));
    };
    check(&before, &trace);
    // As it goes on.
    let (more, trace) = told(&mut early).await;
    check(&more, &trace);
    before.extend(more);

    let (points, trace) = told(&mut hub.viewer().await).await;
    check(&points, &trace);
    assert!(points.starts_with(&before), "{points:?} begin with {before:?}");
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
}
