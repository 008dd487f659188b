//! Environments that hang, crash or exceed their resources.

use std::time::Duration;

use rollmesh::NativeShell;
use rollmesh_core::{
    batch::{EPS_ID, T},
    env::{BaseEnv as _, EnvError, EnvUpdates, Frame, Health, ProcessEnd, Reset, SubEnv, multi_agent::Turn},
    worker::{RolloutConfig, RolloutWorker, WorkerMetrics},
};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    rig::{FULL_WAIT, Rig, animals, builder, only_once, start},
    zoo::{LENGTH, STEP},
};

/// Returns the end of a process, and a part of its last lines.
fn end_of(error: &EnvError) -> (usize, &ProcessEnd, &str) {
    match error {
        EnvError::Process { env, end, last_words } => (*env, end, last_words),
        other => panic!("{other}"),
    }
}

fn overdue(doing: &'static str) -> ProcessEnd {
    ProcessEnd::Overdue { doing, limit_ms: 3_000 }
}

pub(crate) fn failures_are_reported_with_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = [
        "",
        "hang_step",
        "hang_reset",
        "exit0",
        "exit3",
        "abort",
        "panic",
        "stack",
        "memory",
        "stdout",
        "stderr",
        "answers",
        "fails",
        "slow",
        "talks",
    ];
    let mut rig = Rig::new(&only_once(animals(&kinds), &dir));
    let fine = ["", "slow", "talks"];
    rig.until(|rig| {
        let mut stories = kinds.iter().zip(&rig.stories);
        stories.all(|(kind, story)| {
            let ended = story.episodes.iter().filter(|episode| episode.len() as i64 == LENGTH + 1).count();
            ended >= 2 && (fine.contains(kind) || story.faults.len() == 1)
        })
    });
    for (env, (kind, story)) in kinds.iter().zip(&rig.stories).enumerate() {
        assert!(story.counts(), "{kind}: {:?}", story.episodes);
        let Some(fault) = story.faults.first() else {
            assert!(fine.contains(kind), "{kind}");
            continue;
        };
        let end = |wanted: ProcessEnd, word: &str| {
            let (who, end, last_words) = end_of(fault);
            assert_eq!((who, end), (env, &wanted), "{kind}: {fault}");
            assert!(last_words.contains(word), "{kind}: {fault}");
        };
        match *kind {
            "hang_step" => end(overdue("for a step"), ""),
            "hang_reset" => end(overdue("for a reset"), ""),
            "exit0" => end(ProcessEnd::Exited(0), ""),
            "exit3" => end(ProcessEnd::Exited(3), ""),
            "abort" => end(ProcessEnd::Signal(6), ""),
            "stack" => end(ProcessEnd::Signal(6), "overflowed its stack"),
            "memory" => end(ProcessEnd::Signal(6), "memory allocation of 5368709120 bytes failed"),
            "stdout" => end(overdue("for a step"), "stdout"),
            "stderr" => end(overdue("for a step"), "stderr"),
            "answers" => assert!(matches!(end_of(fault).1, ProcessEnd::Nonsense(_)), "{fault}"),
            "panic" => {
                let text = format!("the environment failed: panicked: no food (in the process of environment {env})");
                assert_eq!(fault.to_string(), text);
            }
            "fails" => assert!(fault.to_string().contains("not today"), "{fault}"),
            _ => panic!("{kind}: {fault}"),
        }
        if *kind != "hang_reset" {
            // The lost episode, up to its failure.
            assert_eq!(story.episodes[0].len() as i64, STEP + 1, "{kind}");
        }
    }
}

pub(crate) fn environment_that_always_fails_is_quarantined_alone() {
    let mut rig = Rig::new(&animals(&["", "exit3", "second", ""]));
    rig.until(|rig| [1, 2].iter().all(|env| rig.envs.quarantine(*env).is_some()));
    let before = rig.stories[0].steps();
    rig.until(|rig| rig.stories[0].steps() > before + 100);
    for env in [1, 2] {
        let faults = &rig.stories[env].faults;
        assert_eq!(faults.len(), Health::MAX_FAILURES as usize);
        let given_up = |fault: &EnvError| matches!(fault, EnvError::GivenUp { env: who, .. } if *who == env);
        assert!(faults.iter().position(given_up) == Some(faults.len() - 1), "{faults:?}");
        assert!(rig.stories[env].counts());
    }
    assert!(rig.envs.quarantine(1).unwrap().contains("exit code 3"));
    assert!(rig.stories[0].counts() && rig.stories[0].faults.is_empty() && rig.envs.process_ids()[1].is_none());
    // The decision can be reversed.
    rig.envs.try_restart(1).unwrap();
    assert_eq!(rig.envs.quarantine(1), None);
    rig.envs.try_reset(1, &mut Default::default()).unwrap();
    let episodes = rig.stories[1].episodes.len();
    rig.until(|rig| rig.stories[1].episodes.len() > episodes);
}

pub(crate) fn when_all_are_given_up_that_is_an_error() {
    let mut rig = Rig::new(&animals(&["exit0", "abort"]));
    let error = loop {
        if let Err(error) = rig.round() {
            break error;
        }
    };
    assert!(matches!(error, EnvError::AllGivenUp { num_envs: 2, .. }), "{error}");
}

/// Checks a failure between its caller's last poll and a reset.
pub(crate) fn the_last_failure_is_reported_before_a_reset_is_refused() {
    let mut envs = start(&animals(&["", "paints"])).unwrap();
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    let mut faults = Vec::new();
    while faults.len() < Health::MAX_FAILURES as usize {
        updates.clear();
        envs.poll(&mut updates).unwrap();
        for entry in updates.entries_mut() {
            faults.extend(entry.fault.take());
            if entry.env == 1 && !entry.turn.obs().is_empty() {
                assert!(!envs.try_render(1, &mut Frame::new()));
            }
            if envs.quarantine(entry.env).is_none() || !entry.turn.obs().is_empty() {
                assert_eq!(envs.try_reset(entry.env, &mut turn), Ok(Reset::Later));
            }
        }
    }
    assert!(matches!(faults.last(), Some(EnvError::GivenUp { env: 1, .. })), "{faults:?}");
    assert!(matches!(envs.try_reset(1, &mut turn), Err(EnvError::GivenUp { env: 1, .. })));
}

pub(crate) fn worker_continues_without_environments_that_always_fail() {
    let config = animals(&["", "exit3", "second"]).rollout_fragment_length(24).single_policy("random");
    for wait in [0, FULL_WAIT] {
        let config = RolloutConfig { remote_env_batch_wait_ms: wait, ..config.clone() };
        let mut worker = builder(config).build().unwrap();
        let state = worker.save().unwrap();
        let mut all = WorkerMetrics::default();
        for _ in 0..1_000_000 {
            assert_eq!(worker.sample().unwrap().env_steps(), 72);
            let metrics = worker.metrics();
            all.discarded_env_steps += metrics.discarded_env_steps;
            all.discarded_agent_steps += metrics.discarded_agent_steps;
            all.warnings.extend(metrics.warnings);
            all.episodes.extend(metrics.episodes.into_iter().filter(|episode| episode.faulty.is_some()));
            if metrics.quarantined.len() == 2 {
                all.quarantined = metrics.quarantined;
                break;
            }
        }
        // A crash in the sixth step loses five, one in the second step one.
        let crashes = Health::MAX_FAILURES as usize;
        assert_eq!((all.discarded_env_steps, all.discarded_agent_steps), (6 * crashes as u64, 6 * crashes as u64));
        assert_eq!(all.episodes.len(), 2 * crashes);
        let [one, two] = &all.quarantined[..] else { panic!("{:?}", all.quarantined) };
        assert!(one.env == 1 && one.reason.contains("exit code 3"), "{one:?}");
        assert!(two.env == 2 && two.reason.contains("every second step"), "{two:?}");
        assert_eq!(all.warnings.len(), 2, "{:?}", all.warnings);
        // Those two are no longer called.
        let batch = worker.sample().unwrap();
        assert!(batch.single().unwrap().get(EPS_ID).unwrap().iter().all(|id| id >> 32 == 0));
        let metrics = worker.metrics();
        assert_eq!((metrics.quarantined.len(), metrics.warnings.len(), metrics.discarded_env_steps), (2, 0, 0));
        assert!(metrics.episodes.iter().all(|episode| episode.faulty.is_none()));
        worker.restore(&state).unwrap();
        assert_eq!(worker.metrics().quarantined, []);
        assert_eq!(worker.sample().unwrap().env_steps(), 72);
        worker.stop().unwrap();
    }
}

pub(crate) fn worker_with_all_environments_quarantined_fails_every_sample() {
    let config = animals(&["exit0", "abort"]).rollout_fragment_length(24).single_policy("random");
    let mut worker = builder(config).build().unwrap();
    for _ in 0..2 {
        let error = worker.sample().unwrap_err().to_string();
        assert!(error.contains("exit code 0") || error.contains("signal 6"), "{error}");
        assert_eq!(worker.metrics().quarantined.len(), 2);
    }
    assert_eq!(worker.metrics().discarded_env_steps, 0, "counted before");
}

pub(crate) fn a_failure_that_is_not_survived_is_an_error() {
    for (kind, words) in [
        ("exit3", "environment 1: its process has ended with exit code 3"),
        ("hang_step", "environment 1: its process took longer than 3000 ms for a step and was killed: "),
        ("fails", "the environment failed: not today (in the process of environment 1)"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let config = RolloutConfig { restart_failed_sub_environments: false, ..animals(&["", kind]) };
        let config = only_once(config, &dir).rollout_fragment_length(20).single_policy("random");
        let mut worker = builder(config).build().unwrap();
        // The other one may make some batches alone before the deadline.
        let error = (0..1_000_000).find_map(|_| worker.sample().err()).unwrap().to_string();
        assert!(error.contains(words), "{error}");
        // The next call continues, with another process.
        let batch = worker.sample().unwrap();
        assert!(batch.env_steps() >= 40);
    }
}

pub(crate) fn no_poll_waits_longer_than_the_deadline() {
    // Also where all are awaited.
    let config = RolloutConfig { remote_env_batch_wait_ms: FULL_WAIT, ..animals(&["", "hang_step", "hang_reset", ""]) };
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&only_once(config, &dir));
    rig.until(|rig| rig.stories.iter().all(|story| story.steps() >= 30));
    assert!(rig.longest_wait >= Duration::from_millis(2_900), "{:?}", rig.longest_wait);
    assert!(rig.longest_wait < Duration::from_secs(10), "{:?}", rig.longest_wait);
    // And where none is, the others have continued meanwhile.
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&only_once(animals(&["", "hang_step"]), &dir));
    rig.until(|rig| !rig.stories[1].faults.is_empty());
    assert!(rig.stories[0].steps() > 10 * rig.stories[1].steps(), "{}", rig.stories[0].steps());
}

pub(crate) fn a_process_that_is_killed_is_replaced() {
    for restart in [true, false] {
        let config = RolloutConfig { restart_failed_sub_environments: restart, ..animals(&["", "slow"]) };
        let mut rig = Rig::new(&config);
        rig.until(|rig| rig.stories.iter().all(|story| story.steps() > 5));
        let victim = rig.envs.process_ids()[1].unwrap();
        kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL).unwrap();
        if restart {
            let episodes = rig.stories[1].episodes.len();
            rig.until(|rig| rig.stories[1].episodes.len() > episodes + 1);
            assert_eq!(end_of(&rig.stories[1].faults[0]).1, &ProcessEnd::Signal(9));
            assert_ne!(rig.envs.process_ids()[1], Some(victim));
            assert!(rig.stories[0].faults.is_empty());
        } else {
            let error = loop {
                if let Err(error) = rig.round() {
                    break error;
                }
            };
            assert_eq!(error.to_string(), "environment 1: its process was ended by signal 9 (kill)");
        }
    }
}

pub(crate) fn environments_that_cannot_be_made_fail_the_build() {
    let error = |config: &RolloutConfig| start(config).err().unwrap().to_string();
    let quick = RolloutConfig { remote_env_timeout_ms: 1_500, ..animals(&["", "hang_make"]) };
    let text = "environment 1: its process took longer than 1500 ms to make its environment and was killed";
    assert!(error(&quick).starts_with(text), "{}", error(&quick));
    let unknown = RolloutConfig { env: Some("Nowhere-v0".into()), ..quick.clone() };
    assert!(error(&unknown).contains("there is no environment 'Nowhere-v0'"), "{}", error(&unknown));
    // Code that accesses environments is not sent to their processes: it gets all of them together.
    let refuse = |env: SubEnv<'_>, _: &_| match env {
        SubEnv::Base(env) => Err(EnvError::Failed(format!("{} are too many", env.num_envs()))),
        SubEnv::Lane { .. } | SubEnv::MultiAgent(_) => Ok(()),
    };
    let refused = builder(animals(&["", ""])).validate_env(refuse).build().unwrap_err().to_string();
    assert_eq!(refused, "sub-environment 0 is not valid: the environment failed: 2 are too many");
    // Programs that cannot be such a process.
    for (program, word) in [("/nowhere", "cannot be started"), ("/bin/cat", "exit code 1"), ("/bin/echo", "has")] {
        let config = RolloutConfig::new("CartPole-v1").num_envs(2);
        let config = RolloutConfig { remote_worker_envs: true, ..config };
        let shell = Box::new(NativeShell::with_program(program));
        let error = RolloutWorker::builder().config(config).shell(shell).build().unwrap_err().to_string();
        assert!(error.contains(word) && error.starts_with("environment "), "{program}: {error}");
    }
}

pub(crate) fn a_worker_loses_the_rows_of_the_failed_alone() {
    let config = animals(&["", "exit3", "hang_step"]).rollout_fragment_length(24).single_policy("random");
    for wait in [0, FULL_WAIT] {
        let dir = tempfile::tempdir().unwrap();
        let config = RolloutConfig { remote_env_batch_wait_ms: wait, ..config.clone() };
        let mut worker = builder(only_once(config, &dir)).build().unwrap();
        let mut faults = Vec::new();
        for _ in 0..6 {
            let batch = worker.sample().unwrap();
            let steps = batch.single().unwrap().get(T).unwrap();
            assert!(steps.windows(2).all(|pair| pair[1] == pair[0] + 1 || pair[1] == 0), "{steps:?}");
            faults.extend(worker.metrics().episodes.into_iter().filter_map(|episode| episode.faulty));
            if faults.len() == 2 {
                break;
            }
        }
        assert!(faults.iter().any(|fault| fault.contains("exit code 3")), "{faults:?}");
        worker.stop().unwrap();
    }
}
