use core::cell::RefCell;
use std::thread_local;

use super::*;
use crate::{
    batch::SlotFragment,
    column::DType,
    env::EnvSpaces,
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    kernels::Kernels,
    lease::{Lease, LeasedSlot, SlotSource},
    policy::{ModelConfig, ModelSpec, PolicyContext, PolicyError},
    prelude::*,
    protocol::message::{Infer, Inferred},
    run::{Inference, InferenceBatch, RunConfig, SamplingMode},
    space::Space,
    time::Micros,
    weights::Weights,
    worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
};

fn run(model: &str) -> RunConfig {
    let mut run = RunConfig::new("StatelessCartPole-v1").seed(5).slots(3).num_envs(3).rollout_fragment_length(30);
    run.preset = "none".into();
    run.rollout.model_config = model.parse().unwrap();
    RunConfig { inference: Inference::Server, ..run }
}

fn builder() -> RolloutWorkerBuilder {
    RolloutWorkerBuilder::new(Registry::builtin()).kernels(Kernels::PORTABLE)
}

/// Returns the run's first weights under another version, and thrice as large.
fn weights(run: &RunConfig, version: u64) -> Weights {
    let parts = builder().learning_parts(run).unwrap();
    let first = Weights::of_run(WeightsVersion(0), parts.policies.iter().map(|(id, policy)| (id, policy.weights())));
    let mut tensors = first.unwrap().tensors().to_vec();
    tensors.iter_mut().for_each(|tensor| tensor.values.iter_mut().for_each(|value| *value *= 3.0));
    Weights::new(WeightsVersion(version), tensors).unwrap()
}

fn sample(run: &RunConfig, builder: RolloutWorkerBuilder, weights: &Weights) -> Result<Vec<SlotFragment>, String> {
    let mut runner = SlotRunner::new(run, builder).map_err(|error| error.to_string())?;
    runner.set_weights(weights).unwrap();
    let slots = (0..3).map(|slot| LeasedSlot::new(SlotId(slot), SlotSource::New)).collect();
    let lease = Lease { id: LeaseId(1), fragment: FragmentNo(0), weights_version: weights.version(), slots };
    runner.begin(lease).unwrap();
    loop {
        match runner.advance(u32::MAX) {
            Advance::Done { fragments, .. } => return Ok(fragments),
            Advance::Failed { failure, .. } => return Err(failure.message().into()),
            other => drop(other),
        }
    }
}

thread_local! {
    /// Servers need not be `Send`.
    static SERVER: RefCell<Option<InferenceServer>> = const { RefCell::new(None) };
}

/// Lets the thread's server answer.
fn ask(request: Infer) -> Result<Inferred, PolicyError> {
    SERVER.with_borrow_mut(|server| {
        let server = server.as_mut().unwrap();
        server.handle(request);
        server.work(Micros(0));
        Ok(server.poll_answer().expect("one row is enough"))
    })
}

#[test]
fn worker_that_asks_a_server_makes_the_rows_that_it_makes_by_itself() {
    for model in [
        r#"{"fcnet_hiddens": [8]}"#,
        r#"{"fcnet_hiddens": [8], "use_lstm": true, "lstm_cell_size": 4, "lstm_use_prev_action": true}"#,
    ] {
        let run = run(model);
        let weights = weights(&run, 7);
        let mut server = InferenceServer::new(&run, builder()).unwrap();
        server.add_weights(weights.clone());
        SERVER.set(Some(server));
        let expected = sample(&run, builder(), &weights).unwrap();
        assert_eq!(sample(&run, builder().inference(forward_by(ask)), &weights).unwrap(), expected);
        // A worker whose weights the server no longer keeps acts by itself; another run's workers do not ask.
        SERVER.with_borrow_mut(|server| {
            server.as_mut().unwrap().add_weights(weights.clone().with_version(WeightsVersion(8)))
        });
        let old = weights.clone().with_version(WeightsVersion(6));
        let by_itself = sample(&run, builder().inference(forward_by(ask)), &old).unwrap();
        assert_eq!(by_itself, sample(&run, builder(), &old).unwrap());
        let wrong = |_| Err(PolicyError::Failed("it was asked".into()));
        let error = sample(&run, builder().inference(forward_by(wrong)), &weights).unwrap_err();
        assert!(error.contains("it was asked"), "{error}");
        let local = RunConfig { inference: Inference::Local, ..run };
        assert_eq!(sample(&local, builder().inference(forward_by(wrong)), &weights).unwrap(), expected);
    }
}

#[test]
fn answers_that_are_not_of_these_weights_and_rows_are_errors() {
    let run = run(r#"{"fcnet_hiddens": [8]}"#);
    let weights = weights(&run, 7);
    let answer = |version, error: &'static str| {
        move |request: Infer| Ok(Inferred { ask: request.ask, version, error: error.into(), outputs: vec![0; 4] })
    };
    let cases = [
        (7, "no such policy", "the worker that acts for others failed: no such policy"),
        (8, "", "the worker that acts for others answered with weights 8, not 7"),
        // Slots that fail together are sampled one by one: a row each.
        (7, "", "the worker that acts for others answered with 4 bytes, not 12"),
    ];
    for (version, error, expected) in cases {
        let found = sample(&run, builder().inference(forward_by(answer(version, error))), &weights).unwrap_err();
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn rows_that_fit_into_no_message_are_refused_when_the_policy_is_made() {
    let spaces = EnvSpaces {
        observation: Space::vector(&vec![0.0; 70_000], &vec![1.0; 70_000]),
        observation_type: DType::F32,
        action: Space::Discrete { n: 2 },
        action_type: DType::I64,
    };
    let spec = ModelSpec::for_spaces(&spaces, &ModelConfig::of_widths(&[])).unwrap();
    let (weights, context) = (spec.init_weights(1).unwrap(), PolicyContext::new(spaces, 1, Kernels::PORTABLE));
    let error = forward_by(ask).make(&context, &spec, &weights).err().unwrap().to_string();
    assert!(error.contains("does not fit into a message") && error.contains("inference = \"local\""), "{error}");
}

/// Returns a request of this many rows of StatelessCartPole.
fn request(ask: u64, version: u64, rows: u32) -> Infer {
    let obs = vec![0; 8 * rows as usize];
    let policy = "default_policy".to_owned();
    Infer { ask, policy, version, rows, wants: Infer::DIST_INPUTS, obs, ..Infer::default() }
}

#[test]
fn early_request_waits_for_its_weights_and_an_old_one_is_refused() {
    let mode = SamplingMode::Asynchronous { batch_env_steps: 0, max_staleness: 3 };
    let run = RunConfig { mode, ..run(r#"{"fcnet_hiddens": [8]}"#) };
    let mut server = InferenceServer::new(&run, builder()).unwrap();
    server.add_weights(weights(&run, 1));
    server.handle(request(1, 2, 1));
    assert!(!server.has_work() && server.due_at().is_none());
    for version in 2..=6 {
        server.add_weights(weights(&run, version));
    }
    let work = |server: &mut InferenceServer| {
        let answers = core::iter::from_fn(|| {
            server.work(Micros(0));
            server.poll_answer()
        });
        answers.map(|answer| (answer.ask, answer.error, answer.outputs.len())).collect::<Vec<_>>()
    };
    assert_eq!(work(&mut server), [(1, String::new(), 12)]);
    // Five are kept: three versions behind the newest, one for what is on its way, and the newest.
    let wrong = [
        (request(2, 1, 1), "weights 1 are no longer kept: the newest here are 6"),
        (Infer { obs: vec![0; 7], ..request(3, 6, 1) }, "are 8 bytes of observations and 0 of states, not 7 and 0"),
        (Infer { rows: 0, ..request(4, 6, 1) }, "0 rows for policy 'default_policy' are 0 bytes"),
        (Infer { obs: vec![0; 12], ..request(5, 6, 1) }, "are 8 bytes of observations and 0 of states, not 12 and 0"),
        (Infer { state: vec![0; 4], ..request(7, 6, 1) }, "are 8 bytes of observations and 0 of states, not 8 and 4"),
        // The memory for the first number of rows would end the process; the outputs of the second one fit into no message.
        (Infer { rows: u32::MAX, obs: Vec::new(), ..request(8, 6, 1) }, "4294967295 rows"),
        (request(9, 6, 30_000), "the outputs of 30000 rows are 360000 bytes, and a message holds 261120"),
        (Infer { policy: "x".into(), ..request(6, 6, 1) }, "'x'"),
    ];
    for (request, expected) in wrong {
        let ask = request.ask;
        server.handle(request);
        let answers = work(&mut server);
        assert!(matches!(&answers[..], [(to, why, 0)] if *to == ask && why.contains(expected)), "{answers:?}");
    }
}

#[test]
fn requests_for_weights_that_never_arrive_take_little_memory() {
    let run = run(r#"{"fcnet_hiddens": [8]}"#);
    let mut server = InferenceServer::new(&run, builder()).unwrap();
    // A request of 20,000 rows is 160 kB.
    (0..500).for_each(|ask| server.handle(request(ask, u64::MAX, 20_000)));
    let refused = core::iter::from_fn(|| server.poll_answer()).collect::<Vec<_>>();
    assert_eq!(refused.len(), 500 - (64 << 20) / (160_000 + "default_policy".len()));
    assert!(refused.iter().all(|answer| answer.error.contains("which have not arrived")), "{:?}", refused[0]);
}

#[test]
fn rows_wait_for_others_until_there_are_enough_or_the_time_is_up() {
    let mut batcher = Batcher::new(InferenceBatch { min_rows: 4, max_rows: 5, wait_us: 100 });
    let numbers = |batch: Option<Vec<Infer>>| batch.map(|batch| batch.iter().map(|one| one.ask).collect::<Vec<_>>());
    batcher.push(request(1, 0, 2));
    assert!(batcher.has_work(), "it has not looked at the request");
    assert_eq!(numbers(batcher.poll(Micros(10))), None);
    assert!(!batcher.has_work());
    assert_eq!(batcher.due_at(), Some(Micros(110)));
    // Rows of other weights do not count, and are no part of the batch.
    batcher.push(request(2, 1, 3));
    assert_eq!(numbers(batcher.poll(Micros(20))), None);
    batcher.push(request(3, 0, 2));
    batcher.push(request(4, 0, 3));
    batcher.push(request(5, 0, 1));
    assert_eq!(numbers(batcher.poll(Micros(30))), Some(vec![1, 3, 4]));
    assert_eq!(numbers(batcher.poll(Micros(119))), None);
    assert_eq!(batcher.due_at(), Some(Micros(120)));
    assert_eq!(numbers(batcher.poll(Micros(120))), Some(vec![2]));
    assert_eq!(numbers(batcher.poll(Micros(130))), Some(vec![5]));
    assert_eq!((batcher.due_at(), numbers(batcher.poll(Micros(999)))), (None, None));
}
