//! Updates about evaluations that dashboards receive.

use std::time::Duration;

use rollmesh::train::{EvaluationConfig, RunEnd, RunRequest};
use rollmesh_core::{
    env::render::Film,
    protocol::{
        Message,
        message::{EnvClip, EvaluationPoint},
    },
};

use super::{TestHub, end, small};
use crate::support::client::Client;

/// Receives the first points of a dashboard, and the first episode, which is that of the latest of these.
async fn first_updates(dashboard: &mut Client) -> (Vec<EvaluationPoint>, EnvClip) {
    let (mut points, mut clip) = (Vec::new(), None);
    dashboard
        .wait_for(|message| {
            match message {
                Message::Evaluation(point) => points.push(*point),
                Message::EvaluationClip(episode) => clip = Some(episode.clone()),
                _ => {}
            }
            clip.clone()
        })
        .await;
    (points, clip.expect("it was waited for"))
}

#[tokio::test]
async fn dashboards_receive_evaluations_also_if_they_join_later() {
    let hub = TestHub::start().await;
    let mut early = hub.viewer().await;
    let evaluation = EvaluationConfig { interval: 1, episodes: 1, ..EvaluationConfig::default() };
    // Slow enough for a process of the lowest priority.
    let throttle = Duration::from_millis(20);
    let run =
        hub.train_with(RunRequest { throttle, ..small(1, u64::MAX) }, |config| config.evaluation = evaluation).await;
    let (mut before, clip) = first_updates(&mut early).await;
    let check = |points: &[EvaluationPoint], clip: &EnvClip| {
        let latest = points.last().expect("a point comes before its episode");
        assert_eq!((latest.run, latest.episodes, latest.unfinished), (clip.run, 1, 0));
        assert_eq!(latest.episode_return_mean, latest.episode_len_mean);
        assert_eq!(clip.weights_version, latest.iteration);
        // A picture after each step, or after every n-th so that all fit.
        let steps: Vec<_> = (0..latest.episode_len_mean as u32).map(|t| (0, t)).collect();
        let mut film = Film::read(clip.width, clip.height, &clip.film).expect("a film");
        let shown: Vec<_> = clip.steps().collect();
        assert!(steps.starts_with(&shown) && shown.len() >= steps.len().min(64), "{} of {}", shown.len(), steps.len());
        assert_eq!((film.len(), clip.stride), (shown.len(), 1));
        assert!(film.picture(0).cloned() != film.picture(film.len() - 1).cloned(), "the pole moves");
    };
    check(&before, &clip);
    // As it continues.
    let (more, clip) = first_updates(&mut early).await;
    check(&more, &clip);
    before.extend(more);

    let (points, clip) = first_updates(&mut hub.viewer().await).await;
    check(&points, &clip);
    assert!(points.starts_with(&before), "{points:?} begin with {before:?}");
    hub.hub.stop_run().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
}
