//! Tests that read recordings back.

use std::{
    collections::BTreeSet,
    fs::{self, File},
};

use rollmesh_core::{
    env::{CartPole, EnvContext, EnvRegistry, Moment, Moments, StepOut, VectorEnv, render::Canvas},
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    rng::{Purpose, Streams},
};
use tempfile::{TempDir, tempdir};

use super::*;

fn all() -> MonitorOptions {
    MonitorOptions { schedule: Schedule::All, ..MonitorOptions::default() }
}

fn stats(dir: &TempDir) -> Vec<EpisodeStats> {
    let text = fs::read_to_string(dir.path().join("stats.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(dir: &TempDir) -> Vec<String> {
    let names = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the pictures of a GIF as a viewer shows them.
fn pictures(path: &Path) -> Vec<Vec<u8>> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    let mut decoder = options.read_info(File::open(path).unwrap()).unwrap();
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let palette = decoder.global_palette().unwrap().to_vec();
    let mut shown = vec![0; width * height * 3];
    let mut pictures = Vec::new();
    while let Some(frame) = decoder.read_next_frame().unwrap() {
        assert_eq!((frame.delay, frame.palette.is_none()), (3, true));
        for (row, indices) in frame.buffer.chunks(usize::from(frame.width)).enumerate() {
            let at = ((usize::from(frame.top) + row) * width + usize::from(frame.left)) * 3;
            for (pixel, index) in shown[at..].chunks_mut(3).zip(indices) {
                pixel.copy_from_slice(&palette[usize::from(*index) * 3..][..3]);
            }
        }
        pictures.push(shown.clone());
    }
    pictures
}

/// Returns a picture with an object at a place.
fn picture(size: u32, place: u32) -> Frame {
    let mut frame = Frame::new();
    let mut canvas = Canvas::new(&mut frame, [size, size], [9; 3]);
    canvas.circle([f64::from(place), 5.0], 3.0, [200, 0, 0]);
    frame
}

fn metrics(env: usize, length: u32) -> RolloutMetrics {
    RolloutMetrics { env, length, episode_return: f64::from(length), ..RolloutMetrics::default() }
}

#[test]
fn recorded_cart_pole_episode_round_trips_picture_by_picture() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), MonitorOptions { worker_index: 3, ..all() }).unwrap();
    let mut env = CartPole::new(1, Kernels::PORTABLE);
    let (mut obs, mut drawn, mut frame) = ([0.0; 4], Vec::new(), Frame::new());
    env.reset_at(0, &mut Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0), &mut obs).unwrap();
    let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
    while !terminated[0] {
        let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
        let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &[Moment::default()], mark: None };
        VectorEnv::step(&mut env, &[1], moments, &mut obs, out).unwrap();
        assert!(monitor.records(0) && VectorEnv::render_at(&env, 0, &mut frame));
        monitor.frame(0, &frame).unwrap();
        drawn.push(frame.rgb().to_vec());
    }
    assert!(drawn.len() > 5);
    monitor.end(&metrics(0, drawn.len() as u32)).unwrap();
    assert_eq!(names(&dir), ["episode-3-1.gif", "stats.jsonl"]);
    let path = dir.path().join("episode-3-1.gif");
    assert!(pictures(&path) == drawn, "the pictures differ");
    // Much less than separate pictures.
    let bytes = fs::metadata(path).unwrap().len();
    assert!(bytes < 1_500 * drawn.len() as u64, "{bytes} for {}", drawn.len());
    let expected = EpisodeStats {
        worker: 3,
        episode: 1,
        env: 0,
        length: Some(drawn.len() as u32),
        episode_return: Some(drawn.len() as f64),
        file: Some("episode-3-1.gif".into()),
        frames: drawn.len(),
        cut: None,
        complete: true,
        faulty: None,
        render_error: None,
    };
    assert_eq!(stats(&dir), [expected]);
}

#[test]
fn failed_render_is_named_in_the_statistics_of_the_episode() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    assert!(monitor.records(0));
    let fails = |frame: &mut Frame| frame.fail("pygame is missing".into());
    assert!(!monitor.draw(0, &mut Frame::new(), fails).unwrap());
    assert!(!monitor.records(0) && monitor.records(1));
    monitor.end(&metrics(0, 2)).unwrap();
    monitor.end(&metrics(1, 3)).unwrap();
    let errors: Vec<_> = stats(&dir).into_iter().map(|stats| stats.render_error).collect();
    assert_eq!(errors, [Some("pygame is missing".into()), None]);
}

/// Checks that each environment's colours fit into one palette, so that nothing is lost.
#[test]
fn first_pictures_of_all_environments_round_trip() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    for (number, spec) in (1..).zip(EnvRegistry::builtin().iter()) {
        let home = HomeIndex { worker_index: 1, vector_index: 0 };
        let env = spec.make(&[EnvContext::new(home)], Kernels::PORTABLE).unwrap();
        let mut frame = Frame::new();
        assert!(env.render_at(0, &mut frame));
        monitor.frame(0, &frame).unwrap();
        monitor.end(&metrics(0, 1)).unwrap();
        let found = pictures(&dir.path().join(format!("episode-0-{number}.gif")));
        assert!(found == [frame.rgb()], "{}", spec.name);
    }
    assert_eq!(stats(&dir).len(), EnvRegistry::builtin().iter().len());
}

#[test]
fn sub_environments_do_not_mix_and_episodes_are_counted_as_they_begin() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), MonitorOptions::default()).unwrap();
    let recorded: Vec<bool> = (0..8).map(|env| monitor.records(env)).collect();
    assert_eq!(recorded, [true, false, false, false, false, false, false, true]);
    for place in 0..4 {
        (0..8).for_each(|env| monitor.frame(env, &picture(10, place + env as u32)).unwrap());
    }
    (0..8).rev().for_each(|env| monitor.end(&metrics(env, 4)).unwrap());
    // The ninth episode is not recorded.
    monitor.frame(0, &picture(10, 0)).unwrap();
    monitor.end(&metrics(0, 1)).unwrap();
    assert_eq!(names(&dir), ["episode-0-1.gif", "episode-0-8.gif", "stats.jsonl"]);
    let lines: Vec<_> = stats(&dir).into_iter().map(|line| (line.episode, line.env, line.frames)).collect();
    assert_eq!(lines, [(8, 7, 4), (1, 0, 4)]);
    let expected: Vec<_> = (7..11).map(|place| picture(10, place).rgb().to_vec()).collect();
    assert_eq!(pictures(&dir.path().join("episode-0-8.gif")), expected);
}

#[test]
fn episode_open_at_the_end_is_written_as_incomplete() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    monitor.frame(2, &picture(10, 1)).unwrap();
    assert!(monitor.records(5));
    monitor.stop().unwrap();
    monitor.stop().unwrap();
    let lines = stats(&dir);
    assert_eq!((lines.len(), lines[0].complete, lines[0].length, lines[0].frames), (1, false, None, 1));
    assert_eq!(names(&dir), ["episode-0-1.gif", "stats.jsonl"]);
    monitor.frame(0, &picture(10, 1)).unwrap();
    drop(monitor);
    assert_eq!(stats(&dir)[1].file.as_deref(), Some("episode-0-3.gif"));
}

#[test]
fn limits_cut_and_say_so() {
    let dir = tempdir().unwrap();
    let record = |options: MonitorOptions| {
        let mut monitor = Monitor::new(dir.path(), options).unwrap();
        let mut taken = 0;
        for place in 0..20 {
            taken += u32::from(monitor.records(0));
            monitor.frame(0, &picture(100, place * 5)).unwrap();
        }
        monitor.end(&metrics(0, 20)).unwrap();
        let line = stats(&dir).pop().unwrap();
        let bytes = line.file.as_ref().map_or(0, |name| fs::metadata(dir.path().join(name)).unwrap().len());
        (line.frames, line.cut, line.length, taken, bytes as usize)
    };
    let (frames, cut, length, ..) = record(MonitorOptions { max_frames: 20, ..all() });
    assert_eq!((frames, cut, length), (20, None, Some(20)));
    let (frames, cut, length, taken, _) = record(MonitorOptions { max_frames: 7, ..all() });
    assert_eq!((frames, cut, length, taken), (7, Some(Cut::MaxFrames), Some(20), 8));
    let (frames, cut, _, _, bytes) = record(MonitorOptions { max_bytes: 1_200, ..all() });
    assert!(frames > 2 && frames < 20 && cut == Some(Cut::MaxBytes) && bytes <= 1_200, "{frames} {cut:?} {bytes}");
    assert_eq!(record(MonitorOptions { max_bytes: 0, ..all() }), (0, Some(Cut::MaxBytes), Some(20), 1, 0));
    assert_eq!(names(&dir), ["episode-0-1.gif", "episode-0-2.gif", "episode-0-3.gif", "stats.jsonl"]);
}

#[test]
fn faults_and_missing_pictures_are_in_the_line() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    let faulty = Some("the environment failed".to_owned());
    monitor.end(&RolloutMetrics { faulty: faulty.clone(), episode_return: f64::NAN, ..metrics(1, 3) }).unwrap();
    let [line] = stats(&dir).try_into().unwrap();
    assert_eq!((line.faulty, line.complete, line.episode_return), (faulty, false, None));
    assert_eq!((line.file, line.frames, line.length), (None, 0, Some(3)));
}

#[test]
fn nothing_of_before_is_overwritten() {
    let dir = tempdir().unwrap();
    for name in
        ["episode-0-41.gif", "episode-1-99.gif", "episode-0-x.gif", "episode-0-7.gif.tmp", "episode-1-9.gif.tmp"]
    {
        fs::write(dir.path().join(name), [1]).unwrap();
    }
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    monitor.frame(0, &picture(10, 1)).unwrap();
    monitor.end(&metrics(0, 1)).unwrap();
    let expected =
        ["episode-0-41.gif", "episode-0-42.gif", "episode-0-x.gif", "episode-1-9.gif.tmp", "episode-1-99.gif"];
    assert_eq!(names(&dir)[..5], expected);
}

#[test]
fn errors_name_the_file() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    let path = dir.path().join("episode-0-1.gif");
    let error = monitor.frame(0, &Frame::new()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot add a picture of 0 x 0 pixels to {}: its pictures have 0 x 0", path.display()));
    monitor.frame(0, &picture(10, 1)).unwrap();
    let error = monitor.frame(0, &picture(11, 1)).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("cannot add a picture of 11 x 11 pixels to {}: its pictures have 10 x 10", path.display())
    );
    // A directory blocks the file's name; the next episode is not affected.
    fs::create_dir(&path).unwrap();
    let error = monitor.end(&metrics(0, 1)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}: ", path.display())), "{error}");
    assert_eq!(names(&dir), ["episode-0-1.gif"]);
    monitor.frame(0, &picture(10, 1)).unwrap();
    monitor.end(&metrics(0, 1)).unwrap();
    assert_eq!(names(&dir), ["episode-0-1.gif", "episode-0-2.gif", "stats.jsonl"]);
    let file = dir.path().join("stats.jsonl");
    let error = Monitor::new(&file, all()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}: ", file.display())), "{error}");
}

#[test]
fn recordings_from_after_a_position_are_removed() {
    let dir = tempdir().unwrap();
    let monitor = |worker_index| Monitor::new(dir.path(), MonitorOptions { worker_index, ..all() }).unwrap();
    let record = |monitor: &mut Monitor, pictures: u32, ends: bool| {
        (0..pictures).for_each(|place| monitor.frame(0, &picture(10, place)).unwrap());
        if ends { monitor.end(&metrics(0, pictures)) } else { monitor.stop() }.unwrap();
    };
    let (mut own, mut other) = (monitor(1), monitor(2));
    (0..3).for_each(|_| record(&mut other, 1, true));
    record(&mut own, 2, true);
    record(&mut own, 4, false);
    own.number_next(2);
    record(&mut own, 6, true);
    // Without pictures there is only a line; of a crash there may be a part of one, or only the GIF.
    record(&mut own, 0, true);
    let mut lines = fs::OpenOptions::new().append(true).open(dir.path().join("stats.jsonl")).unwrap();
    std::io::Write::write_all(&mut lines, b"{\"worker\": 1").unwrap();
    fs::write(dir.path().join("episode-1-8.gif"), [1]).unwrap();

    let mut own = monitor(1);
    assert!(own.has_recordings());
    own.forget_after(2, 4).unwrap();
    let lines = || -> Vec<_> { stats(&dir).into_iter().map(|line| (line.worker, line.episode, line.frames)).collect() };
    let others = [(2, 1, 1), (2, 2, 1), (2, 3, 1)];
    assert_eq!(lines(), [&others[..], &[(1, 1, 2), (1, 2, 4)]].concat());
    let gifs = ["episode-1-1.gif", "episode-1-2.gif", "episode-2-1.gif", "episode-2-2.gif", "episode-2-3.gif"];
    assert_eq!(names(&dir)[..5], gifs);
    own.forget_after(2, 3).unwrap();
    assert_eq!((lines().len(), names(&dir).contains(&gifs[1].to_owned())), (4, false));
    own.forget_after(1, 0).unwrap();
    assert_eq!((lines(), own.has_recordings()), (others.to_vec(), false));
}

#[test]
fn discarded_episodes_are_not_written() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    monitor.frame(0, &picture(10, 1)).unwrap();
    monitor.discard();
    drop(monitor);
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn directory_with_lines_and_without_pictures_has_recordings() {
    let dir = tempdir().unwrap();
    let mut monitor = Monitor::new(dir.path(), all()).unwrap();
    monitor.end(&metrics(0, 3)).unwrap();
    let mut next = Monitor::new(dir.path(), all()).unwrap();
    assert!(next.has_recordings());
    next.end(&metrics(0, 3)).unwrap();
    assert_eq!(stats(&dir).iter().map(|line| line.episode).collect::<Vec<_>>(), [1, 2]);
}
