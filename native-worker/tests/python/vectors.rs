//! Vector environments of Gymnasium, and the memory that hosts share.

use std::{collections::BTreeSet, fs, path::PathBuf};

use rollmesh_core::{
    env::{EnvState, Frame, RowsMut},
    ids::SlotId,
    rng::{Purpose, Streams},
};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    PATIENT, make,
    same::{reset, step},
};

#[test]
fn vector_environment_steps_its_lanes_together_and_loses_no_last_observation() {
    // Metadata may have a mode's value.
    let cases = [("SameStep", ""), ("Disabled", ""), ("SameStep", r#", "told": "SameStep""#)];
    for (mode, told) in cases {
        let config = format!(r#"{{"vectorize": "native", "mode": "{mode}"{told}}}"#);
        let mut env = make("py:lab:counters", &config, 3, PATIENT).unwrap();
        assert_eq!(env.snapshot_at(0, &mut Vec::new()), Ok(EnvState::Opaque));
        (0..3).for_each(|lane| assert_eq!(reset(env.as_mut(), lane, 1), [0.0], "{mode}"));
        // Lane 0 ends with its third step, lane 1 with its fourth.
        let mut counts = [0.0, 0.0, 0.0];
        for t in 0..12 {
            let (obs, rewards, terminateds, truncateds) = step(env.as_mut(), &[0, 1, i64::from(t % 2)], t, 1);
            counts.iter_mut().for_each(|count| *count += 1.0);
            assert_eq!(obs, counts, "{mode}, step {t}");
            assert_eq!(rewards, [0.0, 1.0, f64::from(t % 2)]);
            assert_eq!(
                (terminateds.clone(), truncateds),
                ([3.0, 4.0, 5.0].map(|last| obs[last as usize - 3] == last).to_vec(), vec![false; 3])
            );
            for lane in (0..3).filter(|lane| terminateds[*lane]) {
                counts[lane] = 0.0;
                assert_eq!(reset(env.as_mut(), lane, 1), [0.0], "{mode}, step {t}");
            }
        }
        // In the middle of its episode, and no other lane with it.
        assert_eq!(reset(env.as_mut(), 2, 1), [0.0]);
        assert_eq!(step(env.as_mut(), &[0; 3], 12, 1).0, [counts[0] + 1.0, counts[1] + 1.0, 1.0]);
    }
}

#[test]
fn vector_environment_that_loses_observations_is_refused() {
    let error = |name: &str, config: &str| make(name, config, 2, PATIENT).err().unwrap().to_string();
    let next = error("py:lab:counters", r#"{"vectorize": "native", "mode": "NextStep"}"#);
    assert!(next.contains("(autoreset_mode NextStep)") && next.contains("leave vectorize out"), "{next}");
    let next = error("py:lab:counters", r#"{"vectorize": "native", "mode": "NextStep", "told": "NextStep"}"#);
    assert!(next.contains("(autoreset_mode NextStep)"), "{next}");
    for told in ["null", r#""Sometimes""#] {
        let config = format!(r#"{{"vectorize": "native", "mode": "NextStep", "told": {told}}}"#);
        let untold = error("py:lab:counters", &config);
        assert!(untold.contains("does not tell when it begins an episode") && untold.contains("vectorize"), "{untold}");
    }
    let none = error("gym:Pendulum-v1", r#"{"vectorize": "native"}"#);
    assert!(none.contains("gym:Pendulum-v1 has no vector environment of its own"), "{none}");
    let unknown = error("gym:Pendulum-v1", r#"{"vectorize": "sync"}"#);
    assert!(unknown.contains("vectorize is 'sync'"), "{unknown}");
    let single = error("py:lab:counter", r#"{"vectorize": "native"}"#);
    assert!(single.contains("TypeError") && single.contains("num_envs"), "{single}");
}

/// Returns the files in memory that a process has open for rows.
fn shared_rows(pid: u32) -> BTreeSet<PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("/memfd:rollmesh-rows-")).collect()
}

#[test]
fn rows_are_in_memory_that_is_closed_with_the_environments() {
    for is_killed in [false, true] {
        // It observes the process of this thread's environments.
        let mut here = make("py:lab:Here", "{}", 1, PATIENT).unwrap();
        let mut obs = [0.0; 3];
        let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        here.reset_at(0, &mut rng, RowsMut::F64(&mut obs)).unwrap();
        drop(here);
        let host = obs[0] as u32;
        assert!(shared_rows(host).is_empty());
        let env = make("py:lab:counter", r#"{"vectorize": null}"#, 2, PATIENT).unwrap();
        let shared = shared_rows(host);
        let is_open_here = || !shared_rows(std::process::id()).is_disjoint(&shared);
        assert!(shared.len() == 1 && is_open_here(), "{shared:?}");
        if is_killed {
            kill_process(Pid::from_raw(host as i32).unwrap(), Signal::KILL).unwrap();
        }
        drop(env);
        assert!(!is_open_here());
        assert!(is_killed || shared_rows(host).is_empty());
    }
}

#[test]
fn pictures_are_those_of_the_environment() {
    let mut env = make("py:lab:counter", "{}", 2, PATIENT).unwrap();
    (0..2).for_each(|lane| _ = reset(env.as_mut(), lane, 1));
    step(env.as_mut(), &[0, 0], 0, 1);
    let mut frame = Frame::new();
    assert!(env.render_at(1, &mut frame));
    assert_eq!((frame.width(), frame.height()), (6, 4));
    assert!(frame.rgb().iter().all(|value| *value == 40), "{:?}", frame.rgb());
}

#[test]
fn missing_package_of_render_is_named_and_steps_continue() {
    let mut env = make("py:lab:unseen", "{}", 1, PATIENT).unwrap();
    reset(env.as_mut(), 0, 1);
    let mut frame = Frame::new();
    for t in 0..2 {
        step(env.as_mut(), &[0], t, 1);
        assert!(!env.render_at(0, &mut frame));
        let reason = frame.take_failure().unwrap();
        assert!(
            reason.contains("a picture needs a package that") && reason.contains("pygame is not installed"),
            "{reason}"
        );
    }
}
