//! Starts and ends of processes.

use std::{
    collections::BTreeMap,
    env::{args, current_exe},
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio, abort},
};

use rollmesh_core::{
    env::{BaseEnv as _, EnvActions, EnvError, EnvUpdates, Reset, RowsRef, multi_agent::Turn},
    ids::AgentId,
    worker::RolloutConfig,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::rig::{Rig, animals, builder};

fn count(dir: &str) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn is_there(process: u32) -> bool {
    fs::exists(format!("/proc/{process}")).unwrap()
}

pub(crate) fn no_process_or_file_remains_after_drop() {
    // The thread that starts processes lives as long as this one.
    Rig::new(&animals(&[""])).envs.stop().unwrap();
    let before = (count("/proc/self/fd"), count("/proc/self/task"));
    let mut ids = Vec::new();
    for stops in [true, false] {
        let mut rig = Rig::new(&animals(&["", "exit3", "hang_step", "slow", "answers"]));
        rig.until(|rig| rig.stories[1].faults.len() >= 3 && rig.stories[4].faults.len() >= 2);
        ids.extend(rig.envs.process_ids().into_iter().flatten());
        if stops {
            rig.envs.stop().unwrap();
            rig.envs.stop().unwrap();
            assert_eq!(rig.envs.poll(&mut EnvUpdates::new()), Err(EnvError::Stopped));
            assert_eq!(rig.envs.try_reset(0, &mut Turn::new()), Err(EnvError::Stopped));
        }
    }
    // No zombies either: those are there.
    assert!(ids.len() >= 6 && !ids.iter().any(|id| is_there(*id)), "{ids:?}");
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), before);
}

/// Returns settings of animals that write the number of their steps into a directory when they end.
fn with_farewell(kinds: &[&str], dir: &tempfile::TempDir) -> RolloutConfig {
    let config = animals(kinds);
    let env_config = config.env_config.clone().with("farewell", dir.path()).unwrap();
    config.env_config(env_config)
}

/// Checks processes, also in the middle of a step.
pub(crate) fn processes_that_are_stopped_end_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&with_farewell(&["slow", "", "slow"], &dir));
    rig.until(|rig| rig.stories.iter().all(|story| story.steps() > 3));
    rig.envs.stop().unwrap();
    for (env, story) in rig.stories.iter().enumerate() {
        let steps: usize = fs::read_to_string(dir.path().join(env.to_string())).unwrap().parse().unwrap();
        assert!((story.steps()..=story.steps() + 1).contains(&steps), "{env}: {steps}");
    }
}

pub(crate) fn steps_that_a_reset_forgets_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&with_farewell(&["slow", "", "slow"], &dir));
    let mut forgotten = 0;
    for _ in 0..20 {
        // The second one is faster, and has updates when the first one has.
        for _ in 0..10 {
            rig.round().unwrap();
        }
        (0..3).for_each(|env| assert_eq!(rig.envs.try_reset(env, &mut Turn::new()), Ok(Reset::Later)));
        forgotten += rig.envs.forgotten_steps();
    }
    let heard = rig.stories.iter().map(|story| story.steps()).sum::<usize>() + rig.poll_all();
    forgotten += rig.envs.forgotten_steps();
    rig.envs.stop().unwrap();
    let steps = |env: usize| fs::read_to_string(dir.path().join(env.to_string())).unwrap().parse::<usize>().unwrap();
    assert_eq!((0..3).map(steps).sum::<usize>(), heard + forgotten as usize);
    assert!(forgotten > 0);
}

/// Starts environments, one of which hangs, prints the ids of their processes, and crashes.
pub(crate) fn be_a_parent_that_crashes() {
    if args().nth(1).as_deref() != Some("crash") {
        return;
    }
    let mut rig = Rig::new(&animals(&["", "hang_step"]));
    rig.until(|rig| rig.stories[0].steps() > 100);
    for id in rig.envs.process_ids().into_iter().flatten() {
        println!("{id}");
    }
    abort();
}

pub(crate) fn processes_end_with_the_worker_also_while_they_hang() {
    let mut worker =
        Command::new(current_exe().unwrap()).arg("crash").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(worker.stdout.take().unwrap()).lines();
    let ids: Vec<i32> = lines.map(|line| line.unwrap().parse().unwrap()).collect();
    worker.wait().unwrap();
    assert_eq!(ids.len(), 2);
    for id in ids {
        // It may have exited already.
        let Ok(process) = pidfd_open(Pid::from_raw(id).unwrap(), PidfdFlags::empty()) else { continue };
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)), Ok(1), "{id} is still there");
    }
}

pub(crate) fn environs_and_seeds_reach_the_processes() {
    let extra_environs: BTreeMap<String, String> = [("ROLLMESH_TEST_VARIABLE".into(), "7".into())].into();
    let rig = Rig::new(&RolloutConfig { extra_environs, ..animals(&["", ""]) });
    for id in rig.envs.process_ids().into_iter().flatten() {
        let environs = fs::read(format!("/proc/{id}/environ")).unwrap();
        assert!(environs.split(|byte| *byte == 0).any(|one| one == b"ROLLMESH_TEST_VARIABLE=7"));
        // Its memory is limited.
        let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
        let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
        assert!(data.contains(&(4096u64 << 20).to_string()), "{data}");
    }
    // Other seeds, other episodes.
    let returns = |seed| {
        let config = RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(100).seed(seed);
        let mut worker = builder(RolloutConfig { remote_worker_envs: true, ..config }).build().unwrap();
        worker.sample().unwrap();
        worker.metrics().episodes.iter().map(|episode| episode.episode_return).collect::<Vec<_>>()
    };
    assert_ne!(returns(1), returns(2));
}

pub(crate) fn calls_at_the_wrong_time_are_refused() {
    let mut rig = Rig::new(&animals(&["", ""]));
    let answer = |env| {
        let mut answer = EnvActions { env, ..EnvActions::default() };
        answer.actions.set(&AgentId::SINGLE, RowsRef::I64(&[1]));
        answer
    };
    let refused = |result: Result<(), EnvError>, word: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(rig.envs.send_actions(&[answer(0)]), "has not begun");
    rig.until(|rig| rig.stories.iter().all(|story| story.steps() > 0));
    refused(rig.envs.send_actions(&[answer(0)]), "environment 0: it has not answered yet");
    refused(rig.envs.send_actions(&[answer(7)]), "there is no lane 7");
    assert!(rig.envs.try_reset(7, &mut Turn::new()).is_err() && rig.envs.try_restart(7).is_err());
    // A reset at any time begins an episode and discards the step in progress.
    let episodes = rig.stories[0].episodes.len();
    rig.envs.try_reset(0, &mut Turn::new()).unwrap();
    rig.envs.try_reset(0, &mut Turn::new()).unwrap();
    rig.until(|rig| rig.stories[0].episodes.len() > episodes);
    assert!(rig.stories[0].counts());
    // Actions of the wrong form are the caller's mistake, and end no process.
    let mut rig = Rig::new(&animals(&[""]));
    let process = rig.envs.process_ids();
    rig.envs.poll(&mut EnvUpdates::new()).unwrap();
    let mut wrong = EnvActions::default();
    wrong.actions.set(&AgentId::SINGLE, RowsRef::F32(&[1.0]));
    rig.envs.send_actions(&[wrong]).unwrap();
    refused(rig.envs.poll(&mut EnvUpdates::new()), "environment 0, agent 0: its action is 1 of float32");
    refused(rig.envs.poll(&mut EnvUpdates::new()), "there are no updates");
    rig.envs.try_reset(0, &mut Turn::new()).unwrap();
    rig.until(|rig| rig.stories[0].steps() > 5);
    assert_eq!(rig.envs.process_ids(), process);
}
