//! The requests to an evaluation worker, and its answers.

use std::{
    fs,
    num::NonZeroU32,
    thread,
    time::{Duration, Instant},
};

use rollmesh::{
    Registry,
    eval::{EvalMakers, EvalWorker, EvalWorkerError, InitSpec},
    kernels::AUTO,
    native,
    train::RunConfig,
};
use rollmesh_core::{
    env::{BaseEnv, EnvContext, EnvMaker, EnvStart, InProcess},
    evaluation::{Earlier, Evaluation, EvaluationRequest},
    ids::{HomeIndex, SlotId},
    policy::RandomPolicy,
    worker::RegisteredEnv,
};
use serde_json::json;

use super::lab::{lab, one, registry};

/// Longer than any wait of these tests.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn result(worker: &mut EvalWorker) -> Evaluation {
    worker.poll(LONG).unwrap().expect("a result")
}

/// Polls a handle that waits for nothing until it returns its worker's error, which takes a moment to arrive.
pub(crate) fn heard(worker: &mut EvalWorker) -> EvalWorkerError {
    let began = Instant::now();
    while began.elapsed() < LONG {
        match worker.poll(Duration::ZERO) {
            Ok(None) => thread::yield_now(),
            Ok(Some(found)) => panic!("it has not asked for {found:?}"),
            Err(error) => return error,
        }
    }
    panic!("nothing was heard");
}

/// Returns workers in a thread and in a process.
pub(crate) fn both(run: &RunConfig) -> [EvalWorker; 2] {
    let makers = EvalMakers::of_run(run, &native(registry()), AUTO).unwrap();
    [EvalWorker::in_thread(makers).unwrap(), EvalWorker::in_process(run).unwrap()]
}

pub(crate) fn nothing_is_ready_before_a_submission() {
    for mut worker in both(&lab(json!({}))) {
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
    }
}

pub(crate) fn a_result_has_a_reward_and_frames() {
    for mut worker in both(&lab(json!({}))) {
        worker.submit(None, 100, true, true).unwrap();
        let found = worker.poll(Duration::from_secs(30)).unwrap().unwrap();
        assert_eq!((found.reward(), found.env_steps, found.episodes.len()), (5.0, 5, 1));
        let frames = found.frames.unwrap();
        assert_eq!(frames.shape(), [5, 6, 8, 3]);
        assert!(frames.iter().map(|rgb| rgb[0]).eq(1..=5));
        // Without a request, `poll` does not wait.
        assert_eq!(worker.poll(Duration::MAX), Ok(None));
        worker.submit(None, 0, true, true).unwrap();
        assert_eq!(result(&mut worker).reward(), 0.0);
        worker.shutdown();
        worker.shutdown();
        assert!(worker.submit(None, 1, true, true).is_err());
    }
}

pub(crate) fn only_the_second_result_is_ever_returned() {
    for mut worker in both(&lab(json!({ "does": "endless" }))) {
        // It would take for ever.
        let first = worker.submit(None, u32::MAX, true, true).unwrap();
        let second = worker.submit(None, 3, true, true).unwrap();
        assert!(second > first);
        let (ticket, found) = worker.poll_ticket(LONG).unwrap();
        assert_eq!((ticket, found.unwrap().env_steps), (Some(second), 3));
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
        // A finished one whose result was not fetched is dropped, too.
        worker.submit(None, 1, true, true).unwrap();
        worker.submit(None, 2, true, true).unwrap();
        assert_eq!((result(&mut worker).env_steps, worker.poll(Duration::ZERO)), (2, Ok(None)));
    }
}

pub(crate) fn results_arrive_in_order_if_asked_for() {
    for mut worker in both(&lab(json!({}))) {
        for steps in 1..=4 {
            worker.submit_request(None, EvaluationRequest::new(steps), Earlier::Keep).unwrap();
        }
        let steps: Vec<u64> = (0..4).map(|_| result(&mut worker).env_steps).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
    }
}

pub(crate) fn a_process_finds_what_a_thread_finds() {
    let mut run = RunConfig::new("CartPole-v1").seed(5);
    run.evaluation.num_envs = 3;
    let request =
        EvaluationRequest { deterministic: false, render: true, ..EvaluationRequest::of_episodes(seven(), 900) };
    let found = both(&run).map(|mut worker| {
        worker.submit_request(None, request.clone(), Earlier::Cancel).unwrap();
        result(&mut worker)
    });
    assert_eq!(found[0], found[1]);
    assert_eq!((found[0].episodes.len(), found[0].unfinished), (7, 0));
}

fn seven() -> NonZeroU32 {
    NonZeroU32::new(7).unwrap()
}

pub(crate) fn the_init_function_comes_before_everything() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("notes");
    let settings: rollmesh_core::config::Config = json!({ "notes": notes }).to_string().parse().unwrap();
    let mut run = one("Lab-v0", "noted").env_config(settings.clone()).policy_config(settings.clone());
    run.rollout.callbacks = vec!["record".into()];
    run.evaluation.init = Some(InitSpec { name: "record".into(), arguments: settings });
    let mut worker = EvalWorker::in_process(&run).unwrap();
    worker.submit(None, 10, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 5.0);
    assert_eq!(fs::read_to_string(notes).unwrap(), "init\nenvironment\npolicy\nstart\nend of 1\n");
}

pub(crate) fn any_signal_can_be_the_reward() {
    let mut run = one("Stroll-v0", "random");
    for (key, reward) in [("infos/progress/metres", 10.0), ("reward", 0.0)] {
        run.evaluation.reward_key = key.parse().unwrap();
        let mut worker = EvalWorker::in_process(&run).unwrap();
        worker.submit(None, 100, true, true).unwrap();
        let found = result(&mut worker);
        assert_eq!((found.reward(), found.frames), (reward, None));
    }
    // Also with one agent, and for one request.
    let mut worker = EvalWorker::in_process(&lab(json!({}))).unwrap();
    for (key, reward) in [(Some("infos/walk/step"), 15.0), (None, 5.0)] {
        let reward_key = key.map(|key| key.parse().unwrap());
        let request = EvaluationRequest { reward_key, ..EvaluationRequest::new(100) };
        worker.submit_request(None, request, Earlier::Cancel).unwrap();
        assert_eq!(result(&mut worker).reward(), reward);
    }
    run.evaluation.reward_key = "infos/height".parse().unwrap();
    let mut worker = EvalWorker::in_process(&run).unwrap();
    worker.submit(None, 100, true, true).unwrap();
    let error = worker.poll(LONG).unwrap_err().to_string();
    assert!(error.contains("no step brought the reward signal 'infos/height'"), "{error}");
    assert_eq!(worker.poll(Duration::ZERO), Ok(None));
}

pub(crate) fn process_has_exactly_the_resources_of_its_worker_spec() {
    let mut run = lab(json!({}));
    run.evaluation.init = Some(InitSpec { name: "one_cpu".into(), ..InitSpec::default() });
    run.host.evaluator.cpus = 1;
    let mut worker = EvalWorker::in_process(&run).unwrap();
    worker.submit(None, 10, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 5.0);
    run.host.evaluator.resources.insert("simulator".into(), 1);
    let mut worker = EvalWorker::in_process(&run).unwrap();
    let error = worker.poll(LONG).unwrap_err().to_string();
    assert!(error.contains("a worker needs the resource 'simulator', and there is none of that name"), "{error}");
    // A caller that does not wait for it gets the report once, too.
    let mut worker = EvalWorker::in_process(&run).unwrap();
    let ticket = worker.submit(None, 10, true, true).unwrap();
    let (about, outcome) = worker.poll_ticket(LONG).unwrap();
    assert_eq!((about, outcome.is_err()), (Some(ticket), true));
    assert_eq!(worker.poll(Duration::MAX), Ok(None));
}

pub(crate) fn a_process_has_its_environment_variables() {
    let mut run = lab(json!({}));
    run.evaluation.init = Some(InitSpec { name: "licensed".into(), ..InitSpec::default() });
    run.rollout.extra_environs.insert("LAB_LICENCE".into(), "to test".into());
    let mut worker = EvalWorker::in_process(&run).unwrap();
    worker.submit(None, 10, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 5.0);
}

pub(crate) fn other_seeds_are_other_episodes_than_those_of_training() {
    let registry = native(Registry::builtin());
    let RegisteredEnv::SingleAgent(env) = registry.env("CartPole-v1").unwrap() else { unreachable!() };
    let first = |seed| {
        let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
        let start = EnvStart { slot: SlotId(0), episode: 0, context };
        let env = InProcess::new(EnvMaker::single_agent(&env, AUTO), vec![start], seed).unwrap();
        let makers = EvalMakers::new(
            {
                let env = std::sync::Mutex::new(Some(Box::new(env)));
                move || Ok(env.lock().unwrap().take().unwrap() as Box<dyn BaseEnv>)
            },
            |spaces| Ok(Box::new(RandomPolicy::for_space(&spaces.action, 7)?)),
        );
        trace(EvalWorker::in_thread(makers).unwrap())
    };
    let played = trace(EvalWorker::in_process(&one("CartPole-v1", "net").seed(7)).unwrap());
    assert!([7, 10_007].into_iter().all(|seed| first(seed) != played));
}

/// Returns the first observations of the first episode.
fn trace(mut worker: EvalWorker) -> Vec<f32> {
    let request = EvaluationRequest { trace: true, ..EvaluationRequest::of_episodes(NonZeroU32::MIN, 900) };
    worker.submit_request(None, request, Earlier::Cancel).unwrap();
    result(&mut worker).trace.unwrap().obs[..4].to_vec()
}
