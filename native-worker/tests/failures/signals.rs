//! Commands that are asked to end while an environment hangs.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rollmesh::{
    hub::HubConfig,
    train::{Algorithm, RunConfig, RunEnd},
};
use serde_json::json;

use super::runs::{Rig, run};
use crate::support::{
    Process,
    process::{Finished, Signal},
    until,
};

/// Signals a command once its environment hangs, which creates this file.
async fn signalled(args: &[&str], hangs: &Path, signal: Signal) -> Finished {
    let process = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
    until("a step that hangs", || hangs.exists()).await;
    process.signal(signal);
    process.finish_with(3).await
}

pub(crate) async fn commands_end_with_signal_while_a_step_hangs() {
    for signal in [Signal::INT, Signal::TERM] {
        let rig = Rig::new();
        let (hangs, late) = (rig.path("hangs"), "interrupted: a step takes longer than 1.5 s");
        let config = json!({ "kind": "hang", "once": hangs }).to_string();
        let sample = ["sample", "--env", "Faulty-v0", "--env-config", &config, "--num-envs", "4"];
        let end = signalled(&sample, &hangs, signal).await;
        assert!(end.stderr.contains(late), "{signal:?}: {}", end.stderr);

        let rig = Rig::new();
        let (hangs, armed) = (rig.path("hangs"), rig.path("armed"));
        let config = json!({ "kind": "hang", "once": hangs, "armed": armed, "all": true });
        assert_eq!(rig.train(0, &config, &["--max-env-steps", "64"]).await.0.status.code(), Some(0));
        std::fs::write(armed, "").unwrap();
        let run_dir = rig.path("run").display().to_string();
        let end = signalled(&["evaluate", "--checkpoint", &run_dir], &hangs, signal).await;
        assert!(end.stderr.contains("interrupted: "), "{signal:?}: {}", end.stderr);
    }
}

/// Checks that local workers end with the run, however long their environments hang.
pub(crate) async fn runs_end_with_signal_while_a_worker_hangs_and_leave_no_process() {
    for signal in [Signal::INT, Signal::TERM] {
        for workers in [Some(2), Some(0), None] {
            let rig = Rig::new();
            let host = rig.path("host");
            // The process that creates the file hangs.
            let config = json!({ "kind": "hang", "host": host });
            let timeout = ["--hung-worker-timeout", "600"];
            let sample = ["--num-workers", "2", "--env", "Faulty-v0", "--env-config", &config.to_string()];
            let args = match workers {
                Some(workers) => rig.args(workers, &config, &timeout),
                None => [&["sample"], &sample[..], &timeout].concat().into_iter().map(String::from).collect(),
            };
            let process = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
            let pid = || std::fs::read_to_string(&host).ok().filter(|pid| !pid.is_empty());
            until("a step that hangs", || pid().is_some()).await;
            let since = Instant::now();
            process.signal(signal);
            let end = process.finish_with(3).await;
            // Ten seconds for leases to end, and four for the processes.
            assert!(since.elapsed() < Duration::from_secs(25), "{signal:?}, {workers:?}: {}", end.stderr);
            let pid = pid().unwrap();
            assert!(!Path::new("/proc").join(&pid).exists(), "{signal:?}, {workers:?}: process {pid} is left");
        }
    }
}

/// Stops a program's own run, whose caller waits for an iteration on another thread.
pub(crate) async fn iteration_ends_when_its_run_is_stopped_while_a_step_hangs() {
    // Its methods block.
    std::thread::spawn(stop_while_a_step_hangs).join().unwrap();
}

fn stop_while_a_step_hangs() {
    for workers in [0, 2] {
        let rig = Rig::new();
        let hangs = rig.path("hangs");
        let env_config = json!({ "kind": "hang", "once": hangs }).to_string().parse().unwrap();
        let config = RunConfig::new("Faulty-v0").env_config(env_config).num_workers(workers).num_envs(2);
        let config = RunConfig { hung_worker_timeout_s: 600.0, ..config };
        let hub = HubConfig { worker_program: std::env::current_exe().unwrap(), ..HubConfig::local().unwrap() };
        let registry = super::faulty::register(rollmesh::Registry::builtin());
        let mut algorithm = Algorithm::on(hub, config, &registry).unwrap();
        let stopper = algorithm.stopper();
        let waiting = hangs.clone();
        let stopping = std::thread::spawn(move || {
            while !waiting.exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
            stopper.stop();
            Instant::now()
        });
        while algorithm.step().unwrap().is_some() {}
        assert_eq!(algorithm.stop().unwrap().end, RunEnd::Stopped);
        let since = stopping.join().unwrap();
        assert!(since.elapsed() < Duration::from_secs(20), "{workers} workers: {:?}", since.elapsed());
    }
}

/// Checks that only the signal ends it.
pub(crate) async fn environment_that_is_never_made_is_named_and_ends_with_first_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        for kind in ["make", "make again"] {
            let rig = Rig::new();
            let config = json!({ "kind": kind });
            let train = rig.args(0, &config, &[]);
            let sample = ["sample", "--num-workers", "1", "--env", "Faulty-v0", "--env-config", &config.to_string()];
            for args in [train, sample.map(String::from).to_vec()] {
                let mut process = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
                process.line("waiting for environment Faulty-v0 to be made").await;
                process.signal(signal);
                let end = process.finish_with(3).await;
                let text = "environment Faulty-v0 was not made yet, and no run has begun";
                assert!(end.stderr.contains(text), "{signal:?}, {kind}: {}", end.stderr);
            }
        }
    }
}

pub(crate) async fn run_of_another_program_is_evaluated_by_that_one() {
    let rig = Rig::new();
    rig.train(0, &json!({}), &["--max-env-steps", "64"]).await;
    let run_dir = rig.path("run").display().to_string();
    let evaluate = ["evaluate", "--checkpoint", &run_dir, "--episodes", "2", "--json"];
    let end = Process::start(evaluate).finish_with(2).await;
    assert!(end.stderr.contains("run this with the program that trained it"), "{}", end.stderr);
    // The return of drawn actions, as in training, is compared with that of the most likely ones.
    let report = crate::support::json(&run(&evaluate).await.0.stdout);
    let means = ["deterministic_return_mean", "explored_return_mean"].map(|name| report[name].as_f64());
    assert!(means.iter().all(Option::is_some) && means[0] == report["episode_return_mean"].as_f64(), "{report}");
    // A directory without a run is not reported as one.
    let state = rig.path("kd.state");
    std::fs::write(&state, "no policy").unwrap();
    let end = Process::start(["evaluate", "--checkpoint", state.to_str().unwrap()]).finish_with(2).await;
    assert!(end.stderr.contains("kd.state") && !end.stderr.contains("--run-dir"), "{}", end.stderr);
}
