//! Pictures of Python environments where users see them: on the page, and in files.

use std::time::Duration;

use rollmesh::{
    Registry,
    hub::Hub,
    native,
    train::{EvaluationConfig, RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::{
    env::render::Film,
    protocol::{Message, message::EnvClip},
};

use super::{lab, registry};
use crate::support::{self, Process, hub::TestHub, process::Signal, soon, until};

/// Checks that each picture has the shade of the lab's counter at its step, from the first one of an episode on.
fn check(clip: &EnvClip, shade: impl Fn(u32) -> u32) {
    let mut film = Film::read(clip.width, clip.height, &clip.film).unwrap_or_else(|| panic!("{:?}", clip.reason));
    let steps: Vec<(u32, u32)> = clip.steps().collect();
    assert_eq!((film.len(), clip.stride, &*clip.reason), (steps.len(), 1, ""));
    assert_eq!(steps[..2], [(steps[0].0, 0), (steps[0].0, 1)], "{steps:?}");
    for (index, (_, t)) in steps.into_iter().enumerate() {
        let shown = film.picture(index).unwrap().rgb();
        assert!(shown.iter().all(|value| u32::from(*value) == shade(t)), "step {t}: {shown:?}");
    }
}

#[tokio::test]
async fn page_shows_the_watched_slot_and_evaluations() {
    // So that it may run.
    registry();
    let registry = native(Registry::builtin());
    let hub = TestHub::start_by("127.0.0.1:0", |config| async { Hub::start(config, &registry).await }).await;
    let mut viewer = hub.viewer().await;
    let evaluation = EvaluationConfig { interval: 1, episodes: 1, ..EvaluationConfig::default() };
    // Whole episodes, so that fragments begin with one; slow enough for the evaluation's process of the lowest priority.
    let run = RunConfig::new("py:lab:counter").num_workers(1).slots(2).fcnet_hiddens(&[8]).rollout_fragment_length(20);
    let run = RunConfig { evaluation, ..run.stop_after(u64::MAX) };
    let run = hub.train(RunRequest { throttle: Duration::from_millis(20), ..run.into() }).await;
    let (mut slot, mut evaluated) = (None, None);
    viewer
        .wait_for(|message| {
            match message {
                Message::SlotClip(clip) => slot = Some(clip.clone()),
                Message::EvaluationClip(clip) => evaluated = Some(clip.clone()),
                _ => {}
            }
            slot.is_some().then_some(())?;
            evaluated.is_some().then_some(())
        })
        .await;
    // The watched environment before each step, an evaluated one after it.
    check(&slot.unwrap(), |t| 40 * t);
    check(&evaluated.unwrap(), |t| 40 * (t + 1));
    hub.hub.stop_run().await;
    assert_eq!(soon("the end of the run", run).await.unwrap().end, RunEnd::Stopped);
}

#[tokio::test]
async fn films_of_episodes_have_a_picture_of_every_step() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (run_dir, film, films) = (path("run"), path("first.gif"), path("films"));
    let start = |args: &[&str]| {
        let flags = ["--allow-python", "py:lab"];
        Process::start_with([args, &flags].concat(), |command| _ = command.env("PYTHONPATH", lab()))
    };
    let rollmesh = |args: &[&str]| start(args).finish_with(0);
    let env = ["--env", "py:lab:counter"];
    rollmesh(&[&["sample", "--num-envs", "1", "--env-steps", "20", "--monitor-path", &films], &env[..]].concat()).await;
    let text = std::fs::read_to_string(directory.path().join("films/stats.jsonl")).unwrap();
    let first = support::json(text.lines().next().unwrap());
    // The reset is shown as well.
    assert_eq!((&first["length"], &first["frames"]), (&5.into(), &6.into()), "{first}");
    // Made for pictures only because the evaluation asks for them.
    let env = ["--env", "py:lab:screen"];
    let train = ["train", "--workers", "0", "--num-slots", "1", "--max-env-steps", "64", "--run-dir", &run_dir];
    rollmesh(&[&train[..], &env, &["--hidden", "8", "--no-dashboard"]].concat()).await;
    rollmesh(&["evaluate", "--checkpoint", &run_dir, "--episodes", "1", "--render", &film]).await;
    let evaluated = ["--evaluation-interval", "1", "--evaluation-episodes", "1", "--evaluation-render"];
    let (run_dir, gif) = (path("rendered"), path("rendered/gifs/iteration-1.gif"));
    let train = ["train", "--workers", "0", "--num-slots", "1", "--max-env-steps", "1000000000", "--run-dir", &run_dir];
    let run = start(&[&train[..], &env, &evaluated, &["--hidden", "8", "--no-dashboard"]].concat());
    until("a film of an evaluation", || std::path::Path::new(&gif).exists()).await;
    run.signal(Signal::INT);
    run.finish_with(3).await;
    for (gif, pictures) in [(film, 5), (gif, 5), (path(&format!("films/{}", first["file"].as_str().unwrap())), 6)] {
        let gif = std::fs::read(gif).unwrap();
        // Width and height follow the signature; each picture has a graphic control extension.
        assert_eq!(gif[..10], *b"GIF89a\x06\0\x04\0");
        assert_eq!(gif.windows(3).filter(|bytes| bytes == b"\x21\xf9\x04").count(), pictures);
    }
}
