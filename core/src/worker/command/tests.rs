use core::{iter, num::NonZeroU32};

use super::*;
use crate::{
    batch::{MultiAgentBatch, OBS},
    column::DType,
    config::Config,
    env::EnvSpaces,
    episode::{Quarantined, RolloutMetrics, SamplerPerf},
    estimate::Sample,
    evaluation::{EpisodeTrace, EvalWorkerError, EvaluatedEpisode, Evaluation, EvaluationRequest, Frames},
    filter::FilterKind,
    ids::{AgentId, CallId, WeightsVersion},
    protocol::{Message, Token, message},
    space::Space,
    weights::Tensor,
    worker::{
        OffPolicyEstimate, Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, WorkerMetrics, WorkerPlace,
        WorkerWarning, config::InputEvaluation,
    },
};

const P: PolicyId = PolicyId::DEFAULT;

fn named(value: f32) -> Weights {
    let tensor = Tensor { name: "w".into(), shape: vec![2], values: vec![value, 0.5] };
    Weights::new(WeightsVersion(3), vec![tensor]).unwrap()
}

fn by_id<T>(value: T) -> BTreeMap<PolicyId, T> {
    [(P, value)].into()
}

fn config() -> RolloutConfig {
    RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..RolloutConfig::new("CartPole-v1") }
        .num_envs(2)
        .rollout_fragment_length(8)
        .seed(4)
}

/// Creates a registry with functions of every kind.
fn registry() -> Registry {
    Registry::builtin()
        .with_worker_fn("count", |worker, arguments| {
            let factor = arguments.get::<usize>("factor")?.unwrap_or(1);
            Ok(Config::new().with("envs", factor * worker.num_envs())?)
        })
        .with_env_fn("place", |_env, context, arguments| {
            let add = arguments.get::<u32>("add")?.unwrap_or(0);
            Ok(Config::new().with("index", context.home.vector_index + add)?)
        })
        .with_policy_fn("name", |id, policy, arguments| {
            let says = arguments.get::<String>("says")?.unwrap_or_default();
            Ok(Config::new().with(id.as_str(), says)?.with("tensors", policy.weights().tensors().len())?)
        })
        .with_policy_mapping_factory("always", |arguments| {
            let id = PolicyId::new(arguments.get::<String>("policy")?.unwrap_or_default());
            Ok(Arc::new(move |_, _, _, _| id.clone()))
        })
}

fn called() -> CalledWorker {
    let mut called = CalledWorker::new(|| RolloutWorkerBuilder::new(registry()));
    called.set_up(&WorkerSetup { config: config(), place: WorkerPlace::remote(1, 2) }).unwrap();
    called
}

/// Executes a command, encoding and decoding it as between machines.
fn ask(called: &mut CalledWorker, command: WorkerCommand) -> Result<WorkerAnswer, CommandError> {
    let Message::Call(call) = command.message(CallId(7)).unwrap() else { panic!("no call") };
    let result = WorkerCommand::decode(&call.body).and_then(|command| called.execute(command));
    let Message::CallResult(result) = WorkerAnswer::message(CallId(call.call), &result) else { panic!("no result") };
    assert_eq!(result.call, 7);
    WorkerAnswer::read(&result)
}

fn arguments(json: &str) -> Config {
    json.parse().unwrap()
}

fn batches() -> [AnyBatch; 2] {
    let mut worker = RolloutWorker::from_config(config(), &registry(), WorkerPlace::LOCAL).unwrap();
    let single = worker.sample().unwrap();
    let multi = MultiAgentBatch::new(single.as_multi_agent().policy_batches, 9);
    [single, AnyBatch::Multi(multi)]
}

#[test]
fn every_command_travels_unchanged() {
    let [single, multi] = batches();
    let vars = GlobalVars { timestep: 9, num_grad_updates_per_policy: by_id(3) };
    let function = || NamedFn::new("name").with(arguments(r#"{"a":[1,{"b":null}]}"#));
    let ids: BTreeSet<PolicyId> = [P, PolicyId::new("q")].into();
    let filters = called().worker_mut().unwrap().filters(false).unwrap();
    let state = PolicyState { weights: named(1.0), filter: filters[&P].clone(), extra: vec![1, 2] };
    let roles =
        PolicyRoles { policy_mapping_fn: Some(function()), policies_to_train: Some(TrainedPolicies::Ids(ids.clone())) };
    let spaces = (Space::Discrete { n: 3 }, Space::MultiBinary { n: 2 });
    let policy = PolicyConfig::new("random").with_spaces(spaces.0, spaces.1).with_config(arguments(r#"{"gamma":0.5}"#));
    let options = SgdOptions { num_sgd_iter: 2, minibatch_size: 3, standardize_fields: vec!["advantages".into()] };
    let commands = [
        WorkerCommand::Ping,
        WorkerCommand::Sample,
        WorkerCommand::SampleOfSlice { step: 300, start: 2 },
        WorkerCommand::SampleAndLearn { expected: 300, options },
        WorkerCommand::LearnOnBatch(single.clone()),
        WorkerCommand::ComputeGradients(multi),
        WorkerCommand::ApplyGradients(by_id(Gradients(named(-1.0)))),
        WorkerCommand::Weights { policies: None },
        WorkerCommand::Weights { policies: Some(vec![P]) },
        WorkerCommand::SetWeights {
            weights: by_id(named(2.0)),
            global_vars: Some(vars.clone()),
            weights_seq_no: Some(300),
        },
        WorkerCommand::GlobalVars,
        WorkerCommand::SetGlobalVars { vars, policies: Some(vec![]) },
        WorkerCommand::Filters { flush_after: true },
        WorkerCommand::SyncFilters(filters),
        WorkerCommand::State,
        WorkerCommand::SetState(vec![0, 200, 7]),
        WorkerCommand::SamplerState,
        WorkerCommand::SetSamplerState(vec![9, 0]),
        WorkerCommand::SetupDataParallel(DataParallelConfig::new("127.0.0.1:5", 1, 300, Token::new([7; 32]))),
        WorkerCommand::Metrics,
        WorkerCommand::AddPolicy { id: PolicyId::new("q"), policy, state: Some(state), roles: roles.clone() },
        WorkerCommand::RemovePolicy { id: P, roles },
        WorkerCommand::SetPolicyMappingFn(function()),
        WorkerCommand::SetPoliciesToTrain(TrainedPolicies::All),
        WorkerCommand::PoliciesToTrain(None),
        WorkerCommand::PoliciesToTrain(Some(single)),
        WorkerCommand::Spaces,
        WorkerCommand::AssertHealthy,
        WorkerCommand::Hostname,
        WorkerCommand::NodeIp,
        WorkerCommand::FindFreePort,
        WorkerCommand::CreationArgs,
        WorkerCommand::Lock,
        WorkerCommand::Unlock,
        WorkerCommand::Stop,
        WorkerCommand::Apply(function()),
        WorkerCommand::ForEachEnv(function()),
        WorkerCommand::ForPolicy { id: P, function: function() },
        WorkerCommand::ForEachPolicy(function()),
        WorkerCommand::ForEachPolicyToTrain(NamedFn::new("name")),
        WorkerCommand::Evaluate { weights: Some(named(-0.0)), request: EvaluationRequest::new(300) },
        WorkerCommand::Evaluate {
            weights: None,
            request: EvaluationRequest {
                reward_key: "infos/a/b".parse().ok(),
                ..EvaluationRequest::of_episodes(NonZeroU32::MIN, 7)
            },
        },
    ];
    for command in commands {
        let bytes = command.encode().unwrap();
        assert_eq!(WorkerCommand::decode(&bytes).as_ref(), Ok(&command));
        for cut in [0, bytes.len() - 1] {
            assert_eq!(WorkerCommand::decode(&bytes[..cut]).unwrap_err().kind, CommandErrorKind::Malformed);
        }
        let long = WorkerCommand::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert_eq!(long.to_string(), "a command: 1 bytes follow it");
    }
}

fn metrics() -> WorkerMetrics {
    let episode = RolloutMetrics {
        episode_id: -5,
        env: 3,
        length: 7,
        episode_return: 0.1,
        agent_rewards: vec![(AgentId::SINGLE, P, 1.0), (AgentId::name("car"), PolicyId::new("q"), -0.5)],
        custom_metrics: [("speed".into(), 0.3)].into(),
        hist_data: [("speeds".into(), vec![0.1, 0.2]), ("none".into(), vec![])].into(),
        media: [("film".into(), vec![1, 2, 3])].into(),
        faulty: Some("rust".into()),
        perf: SamplerPerf {
            iterations: 9,
            env_wait_ms: 0.1,
            obs_processing_ms: 0.2,
            inference_ms: 0.3,
            action_processing_ms: 0.4,
            env_render_ms: 0.5,
        },
    };
    let sample = Sample { v_behavior: 1.0, v_target: 2.0 };
    WorkerMetrics {
        episodes: vec![episode, RolloutMetrics::default()],
        discarded_env_steps: 1,
        discarded_agent_steps: 2,
        blackholed_env_steps: 5,
        blackholed_agent_steps: 6,
        corrupt_lines: 7,
        quarantined: vec![Quarantined { env: 4, reason: "smoke".into() }],
        estimates: vec![OffPolicyEstimate { policy: P, by: InputEvaluation::Wis, sample, legacy: true }],
        forgotten: 3,
        warnings: vec![
            WorkerWarning::LargeBatch { rows: 9, threshold: 8 },
            WorkerWarning::Quarantined { env: 4, reason: "smoke".into() },
        ],
    }
}

/// Returns an evaluation with this many pictures.
fn evaluation(pictures: usize) -> Evaluation {
    let rgb = (0..pictures * 6).map(|at| (at * at) as u8).collect();
    let trace = EpisodeTrace { episode: 2, obs_len: 2, obs: vec![1.5, -0.0, f32::INFINITY, 7.0], is_cut: false };
    Evaluation {
        weights_version: WeightsVersion(5),
        episodes: vec![EvaluatedEpisode { env: 1, episode: 300, episode_return: 0.1, len: 7, terminated: true }],
        env_steps: 7,
        frames: Frames::of(2, 1, rgb, false),
        trace: Some(trace),
        ..Evaluation::default()
    }
}

#[test]
fn pictures_that_are_too_many_are_cut_and_say_so() {
    // Incompressible bytes.
    let (width, mut state) = (1 << 10, 1u64);
    let rgb: Vec<u8> = iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(30 * 3 * width as usize)
    .collect();
    let large = Evaluation { frames: Frames::of(width, 1, rgb, false), ..evaluation(0) };
    let bytes = WorkerAnswer::Evaluated(Box::new(Ok(large.clone()))).encode_within(64 << 10).unwrap();
    let Ok(WorkerAnswer::Evaluated(found)) = WorkerAnswer::decode(&bytes) else { panic!("an evaluation") };
    let found = found.unwrap();
    let frames = found.frames.as_ref().unwrap();
    assert!(frames.is_cut && frames.len() == 15 && large.frames.unwrap().rgb().starts_with(frames.rgb()));
    assert_eq!(found.episodes, large.episodes);
}

#[test]
fn pictures_that_claim_more_than_they_have_are_refused() {
    let bytes = WorkerAnswer::Evaluated(Box::new(Ok(evaluation(3)))).encode().unwrap();
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            // Altered bytes decode or are an error.
            if let Ok(WorkerAnswer::Evaluated(found)) = WorkerAnswer::decode(&bytes)
                && let Ok(Evaluation { frames: Some(frames), .. }) = *found
            {
                assert!(frames.rgb().len() <= 255 * bytes.len());
            }
        }
    }
}

#[test]
fn every_answer_travels_unchanged() {
    let [single, multi] = batches();
    let info: BTreeMap<String, f64> = [("loss".into(), 0.1)].into();
    let spaces = EnvSpaces {
        observation: Space::vector(&[-1.0, f32::NEG_INFINITY], &[1.0, 1.0]),
        observation_type: DType::F32,
        action: Space::Discrete { n: 3 },
        action_type: DType::I64,
    };
    let filters = called().worker_mut().unwrap().filters(false).unwrap();
    let answers = [
        WorkerAnswer::Done,
        WorkerAnswer::Pong,
        WorkerAnswer::Sample(single),
        WorkerAnswer::Sample(multi),
        WorkerAnswer::Learned { info: by_id(info.clone()), env_steps: 4 },
        WorkerAnswer::Gradients(by_id((Gradients(named(1.0)), info))),
        WorkerAnswer::Weights(by_id(named(1.0))),
        WorkerAnswer::GlobalVars(GlobalVars { timestep: 9, num_grad_updates_per_policy: by_id(3) }),
        WorkerAnswer::Filters(filters),
        WorkerAnswer::State(vec![0, 200, 7]),
        WorkerAnswer::Metrics(Box::new(metrics())),
        WorkerAnswer::PolicyIds([P].into()),
        WorkerAnswer::Spaces(by_id(spaces)),
        WorkerAnswer::CreationArgs(Box::new(config())),
        WorkerAnswer::Text("host".into()),
        WorkerAnswer::Port(8_000),
        WorkerAnswer::Value(arguments(r#"{"a":0.1}"#)),
        WorkerAnswer::Values(vec![arguments(r#"{"a":1}"#), Config::new()]),
        WorkerAnswer::Evaluated(Box::new(Ok(evaluation(3)))),
        WorkerAnswer::Evaluated(Box::new(Err(EvalWorkerError::setup("policy", "no device")))),
    ];
    for answer in answers {
        let bytes = answer.encode().unwrap();
        assert_eq!(WorkerAnswer::decode(&bytes).as_ref(), Ok(&answer));
        assert!(WorkerAnswer::decode(&bytes[..bytes.len() - 1]).is_err());
    }
    let error = CommandError::new(CommandErrorKind::Busy, "x".repeat(10_000));
    assert_eq!(error.message.len(), CommandError::MAX_CHARS);
    assert_eq!(CommandError::decode(&error.encode()), error);
    assert_eq!(CommandError::decode(&[250, 0]).kind, CommandErrorKind::Malformed);
}

#[test]
fn commands_that_would_take_much_memory_are_refused() {
    // A list of 60,000 policies without names.
    let mut bytes = vec![6, 1, 0xe0, 0xd4, 0x03];
    bytes.extend(iter::repeat_n(0, 60_000));
    let error = WorkerCommand::decode(&bytes).unwrap_err();
    assert_eq!(error.kind, CommandErrorKind::Malformed);
    // A policy that occurs twice.
    let command = WorkerCommand::SetWeights { weights: by_id(named(1.0)), global_vars: None, weights_seq_no: None };
    let mut bytes = command.encode().unwrap();
    let entry = bytes[2..bytes.len() - 2].to_vec();
    bytes[1] = 2;
    bytes.splice(2..2, entry);
    let error = WorkerCommand::decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "a list by policy: 'default_policy' is there twice");
    // Long settings.
    let long = NamedFn::new("count").with(Config::new().with("text", "x".repeat(3 << 20)).unwrap());
    let error = WorkerCommand::Apply(long.clone()).encode().unwrap_err();
    assert_eq!(error.to_string(), "JSON of 3145739 bytes is larger than the 2097152 that can be sent");
    let values = WorkerAnswer::Values(vec![long.arguments.clone(); 2]);
    assert_eq!(values.encode().unwrap_err().kind, CommandErrorKind::TooLarge);
    // An answer may be longer than a command; what is too large is an error for the caller.
    let state = vec![0; 64 << 20];
    let error = WorkerCommand::SetState(state.clone()).encode().unwrap_err();
    assert_eq!(error.to_string(), "a command of 67108869 bytes is larger than the 67108832 that can be sent");
    let state = WorkerAnswer::State(state);
    assert!(state.encode().is_ok());
    let error = state.encode_within(67_108_868).unwrap_err();
    assert_eq!(error.to_string(), "an answer of 67108869 bytes is larger than the 67108868 that can be sent");
}

#[test]
fn metrics_that_are_too_much_are_cut_and_counted() {
    let names = |count: u32| (0..count).map(|name| (format!("{name:05}"), 0.5)).collect::<BTreeMap<String, f64>>();
    let most = 1 << 20;
    let travelled = |metrics: WorkerMetrics| match WorkerAnswer::decode(
        &WorkerAnswer::Metrics(Box::new(metrics)).encode_within(most)?,
    )? {
        WorkerAnswer::Metrics(metrics) => Ok::<_, CommandError>(*metrics),
        other => panic!("{other:?}"),
    };
    let episode = RolloutMetrics { custom_metrics: names(4_100), length: 7, ..RolloutMetrics::default() };
    let found = travelled(WorkerMetrics { episodes: vec![episode], forgotten: 1, ..WorkerMetrics::default() }).unwrap();
    assert_eq!((found.episodes[0].length, found.forgotten), (7, 5));
    assert_eq!(found.episodes[0].custom_metrics, names(4_096));

    let film = vec![0; most];
    let large = RolloutMetrics { media: [("film".into(), film)].into(), ..RolloutMetrics::default() };
    let episodes = vec![large, RolloutMetrics { length: 7, ..RolloutMetrics::default() }];
    let found = travelled(WorkerMetrics { episodes, discarded_env_steps: 3, ..metrics() }).unwrap();
    assert_eq!((found.episodes.len(), found.episodes[0].length, found.discarded_env_steps), (1, 7, 3));
    assert_eq!(found.forgotten, metrics().forgotten + 1 + metrics().estimates.len().div_ceil(2) as u64);
    // An answer that cannot be truncated is an error when it is encoded.
    let ids = WorkerAnswer::PolicyIds((0..4_097).map(|id| PolicyId::new(format!("{id}"))).collect());
    assert_eq!(ids.encode().unwrap_err().kind, CommandErrorKind::TooLarge);
}

#[test]
fn commands_are_the_workers_methods() {
    let (mut called, mut alone) = (called(), RolloutWorkerBuilder::new(registry()).config(config()));
    alone = alone.place(WorkerPlace::remote(1, 2));
    let mut alone = alone.build().unwrap();
    let mut ask = |command| ask(&mut called, command);
    assert_eq!(ask(WorkerCommand::Ping), Ok(WorkerAnswer::Pong));
    assert_eq!(ask(WorkerCommand::AssertHealthy), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::Sample), Ok(WorkerAnswer::Sample(alone.sample().unwrap())));
    // Two readers share it, each with every other sample.
    let next: Vec<AnyBatch> = alone.samples().take(4).map(Result::unwrap).collect();
    for (start, number) in [(1, 1), (1, 3), (0, 0), (0, 2)] {
        let sample = ask(WorkerCommand::SampleOfSlice { step: 2, start });
        assert_eq!(sample, Ok(WorkerAnswer::Sample(next[number].clone())));
    }
    for (step, start) in [(2, 2), (1_025, 0)] {
        let error = ask(WorkerCommand::SampleOfSlice { step, start }).unwrap_err();
        assert_eq!(error.kind, CommandErrorKind::Sample);
    }
    let weights = alone.weights(None).unwrap();
    assert_eq!(ask(WorkerCommand::Weights { policies: None }), Ok(WorkerAnswer::Weights(weights.clone())));
    let none = ask(WorkerCommand::Weights { policies: Some(vec![PolicyId::new("q")]) });
    assert_eq!(none, Ok(WorkerAnswer::Weights(BTreeMap::new())));

    let shifted = weights[&P].tensors().iter().map(|tensor| {
        let values = tensor.values.iter().map(|value| value + 0.25).collect();
        Tensor { values, ..tensor.clone() }
    });
    let shifted = by_id(Weights::new(WeightsVersion(1), shifted.collect()).unwrap());
    let vars = GlobalVars { timestep: 9, num_grad_updates_per_policy: by_id(3) };
    let (global_vars, weights_seq_no) = (Some(vars.clone()), Some(1));
    alone.set_weights(&shifted, global_vars.as_ref(), weights_seq_no).unwrap();
    let set = WorkerCommand::SetWeights { weights: shifted, global_vars, weights_seq_no };
    assert_eq!(ask(set), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::GlobalVars), Ok(WorkerAnswer::GlobalVars(vars.clone())));
    assert_eq!(ask(WorkerCommand::SetGlobalVars { vars, policies: None }), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::Sample), Ok(WorkerAnswer::Sample(alone.sample().unwrap())));

    let filters = alone.filters(true).unwrap();
    assert_eq!(ask(WorkerCommand::Filters { flush_after: true }), Ok(WorkerAnswer::Filters(filters.clone())));
    assert_eq!(ask(WorkerCommand::SyncFilters(filters)), Ok(WorkerAnswer::Done));
    let state = alone.save().unwrap();
    assert_eq!(ask(WorkerCommand::State), Ok(WorkerAnswer::State(state.clone())));
    assert_eq!(ask(WorkerCommand::SetState(state)), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::Metrics), Ok(WorkerAnswer::Metrics(Box::new(alone.metrics()))));
    assert_eq!(ask(WorkerCommand::Spaces), Ok(WorkerAnswer::Spaces(alone.spaces())));
    assert_eq!(alone.spaces()[&P].action, Space::Discrete { n: 2 });
    assert_eq!(ask(WorkerCommand::CreationArgs), Ok(WorkerAnswer::CreationArgs(Box::new(config()))));

    assert_eq!(ask(WorkerCommand::Lock), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::Lock).unwrap_err().kind, CommandErrorKind::Lock);
    assert_eq!(ask(WorkerCommand::Unlock), Ok(WorkerAnswer::Done));
    for unknown in [WorkerCommand::Hostname, WorkerCommand::NodeIp, WorkerCommand::FindFreePort] {
        assert_eq!(ask(unknown).unwrap_err().kind, CommandErrorKind::Host);
    }
    let options = SgdOptions::default();
    let error = ask(WorkerCommand::SampleAndLearn { expected: 1, options }).unwrap_err();
    assert_eq!(error.kind, CommandErrorKind::Learn);
    assert_eq!(ask(WorkerCommand::LearnOnBatch(batches()[0].clone())).unwrap_err().kind, CommandErrorKind::Policy);
    assert_eq!(ask(WorkerCommand::Stop), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::Sample).unwrap_err().kind, CommandErrorKind::Stopped);
}

#[test]
fn functions_are_called_by_name() {
    let mut called = called();
    let mut ask = |command| ask(&mut called, command);
    let factor = NamedFn::new("count").with(arguments(r#"{"factor":3}"#));
    assert_eq!(ask(WorkerCommand::Apply(factor)), Ok(WorkerAnswer::Value(arguments(r#"{"envs":6}"#))));
    let places = ask(WorkerCommand::ForEachEnv(NamedFn::new("place").with(arguments(r#"{"add":10}"#))));
    let expected = [r#"{"index":10}"#, r#"{"index":11}"#].map(arguments);
    assert_eq!(places, Ok(WorkerAnswer::Values(expected.to_vec())));

    let other = PolicyId::new("other");
    let add =
        |roles| WorkerCommand::AddPolicy { id: other.clone(), policy: PolicyConfig::new("random"), state: None, roles };
    let policies_to_train = Some(TrainedPolicies::Ids([other.clone()].into()));
    assert_eq!(ask(add(PolicyRoles { policies_to_train, ..PolicyRoles::default() })), Ok(WorkerAnswer::Done));
    let name = NamedFn::new("name").with(arguments(r#"{"says":"hello"}"#));
    let (default, own) = (r#"{"default_policy":"hello","tensors":12}"#, r#"{"other":"hello","tensors":0}"#);
    let value = |json| Ok(WorkerAnswer::Value(arguments(json)));
    let values = |json: &[&str]| Ok(WorkerAnswer::Values(json.iter().map(|json| arguments(json)).collect()));
    assert_eq!(ask(WorkerCommand::ForPolicy { id: other.clone(), function: name.clone() }), value(own));
    assert_eq!(ask(WorkerCommand::ForEachPolicy(name.clone())), values(&[default, own]));
    assert_eq!(ask(WorkerCommand::ForEachPolicyToTrain(name.clone())), values(&[own]));
    assert_eq!(ask(WorkerCommand::PoliciesToTrain(None)), Ok(WorkerAnswer::PolicyIds([other.clone()].into())));
    assert_eq!(ask(WorkerCommand::SetPoliciesToTrain(TrainedPolicies::All)), Ok(WorkerAnswer::Done));
    assert_eq!(ask(WorkerCommand::ForEachPolicyToTrain(name)), values(&[default, own]));

    assert_eq!(ask(add(PolicyRoles::default())).unwrap_err().kind, CommandErrorKind::Policy);
    let remove = || WorkerCommand::RemovePolicy { id: other.clone(), roles: PolicyRoles::default() };
    assert_eq!(ask(remove()), Ok(WorkerAnswer::Done));
    assert_eq!(ask(remove()).unwrap_err().kind, CommandErrorKind::Policy);

    let unknown = || NamedFn::new("unknown");
    for command in [
        WorkerCommand::Apply(unknown()),
        WorkerCommand::ForEachEnv(unknown()),
        WorkerCommand::ForPolicy { id: P, function: unknown() },
        WorkerCommand::ForEachPolicy(unknown()),
        WorkerCommand::ForEachPolicyToTrain(unknown()),
        WorkerCommand::SetPolicyMappingFn(unknown()),
    ] {
        let error = ask(command).unwrap_err();
        assert_eq!(error.kind, CommandErrorKind::UnknownName, "{error}");
        assert!(error.message.contains("function 'unknown'; known are: "), "{error}");
    }
    let bad = NamedFn::new("count").with(arguments(r#"{"factor":"many"}"#));
    assert_eq!(ask(WorkerCommand::Apply(bad)).unwrap_err().kind, CommandErrorKind::Function);
}

/// Removes the first policy; a mapping with arguments gives its agents another one.
#[test]
fn mapping_with_arguments_is_saved_with_them() {
    let config = RolloutConfig::new("MultiAgentCartPole-v1").single_policy("random").rollout_fragment_length(8);
    let make = || RolloutWorkerBuilder::new(registry()).config(config.clone()).build().unwrap();
    let (mut worker, new) = (make(), PolicyId::new("new"));
    let always = NamedFn::new("always").with(arguments(r#"{"policy":"new"}"#));
    let policies_of = |batch: AnyBatch| batch.as_multi_agent().policy_batches.into_keys().collect::<Vec<_>>();
    assert_eq!(policies_of(worker.sample().unwrap()), [P]);
    let add = WorkerCommand::AddPolicy {
        id: new.clone(),
        policy: PolicyConfig::new("random"),
        state: None,
        roles: PolicyRoles { policy_mapping_fn: Some(always.clone()), policies_to_train: None },
    };
    assert_eq!(worker.execute(add), Ok(WorkerAnswer::Done));
    let Ok(WorkerAnswer::State(state)) = worker.execute(WorkerCommand::State) else { panic!("no state") };
    let mut restored = make();
    restored.restore(&state).unwrap();
    // The open episode keeps its policy, the next ones have the other.
    assert_eq!(policies_of(restored.sample().unwrap()), [P]);
    let later: BTreeSet<PolicyId> = (0..20).flat_map(|_| policies_of(restored.sample().unwrap())).collect();
    assert!(later.contains(&new), "{later:?}");

    let named = RolloutConfig { policy_mapping_fn: Some(always.to_string()), ..config.clone() }
        .policy(new.clone(), PolicyConfig::new("random"));
    let mut named = RolloutWorkerBuilder::new(registry()).config(named).build().unwrap();
    assert_eq!(policies_of(named.sample().unwrap()), [new]);

    let none = NamedFn::new("agent_id").with(arguments(r#"{"a":1}"#));
    let error = worker.execute(WorkerCommand::SetPolicyMappingFn(none)).unwrap_err();
    assert!(error.message.starts_with("policy mapping function 'agent_id' failed: it takes no arguments"), "{error}");
    let error = worker.set_policy_mapping_fn_by_name("always {").unwrap_err().to_string();
    assert!(error.starts_with("settings must be a JSON object"), "{error}");
}

#[test]
fn worker_that_cannot_be_created_reports_its_own_error() {
    let mut called = called();
    let broken = RolloutConfig::new("CartPole-v9");
    let alone = RolloutWorker::from_config(broken.clone(), &registry(), WorkerPlace::LOCAL).unwrap_err();
    let setup = WorkerSetup { config: broken, place: WorkerPlace::LOCAL };
    let error = called.set_up(&setup).unwrap_err();
    assert_eq!((error.kind, error.to_string()), (CommandErrorKind::UnknownName, alone.to_string()));
    // The previous worker was replaced.
    assert!(called.worker_mut().is_none());
    assert_eq!(called.execute(WorkerCommand::Sample).unwrap_err().kind, CommandErrorKind::NotSetUp);
    assert_eq!(called.execute(WorkerCommand::Ping), Ok(WorkerAnswer::Pong));
    assert_eq!(called.execute(WorkerCommand::Stop), Ok(WorkerAnswer::Done));
}

#[test]
fn settings_travel_with_the_place() {
    let place = WorkerPlace { recreated_worker: true, in_evaluation: true, ..WorkerPlace::remote(3, 5) };
    let setup = WorkerSetup { config: config(), place };
    let Ok(Message::WorkerSetup(sent)) = setup.message(CallId(9)) else { panic!("no settings") };
    assert_eq!((sent.call, WorkerSetup::read(&sent)), (9, Ok(setup)));
    let error = WorkerSetup::read(&message::WorkerSetup { config: r#"{"num_env":3}"#.into(), ..sent }).unwrap_err();
    assert!(error.message.starts_with("the settings are wrong: num_env: there is no such setting"), "{error}");
    let mut long = config();
    long.env_config = Config::new().with("text", "x".repeat(4 << 20)).unwrap();
    let error = WorkerSetup { config: long, place }.message(CallId(9)).unwrap_err();
    assert_eq!(error.kind, CommandErrorKind::TooLarge);
}

#[test]
fn a_sample_can_be_made_in_spans() {
    let (mut called, mut whole) = (called(), called());
    let mut spans = 1;
    let sample = loop {
        match called.sample_within(crate::time::Micros(0)).unwrap() {
            Some(sample) => break sample,
            None => spans += 1,
        }
    };
    assert!(spans > 4, "{spans}");
    assert_eq!(whole.execute(WorkerCommand::Sample), Ok(sample.clone()));
    let WorkerAnswer::Sample(batch) = sample else { panic!("no sample") };
    assert_eq!(batch.single().unwrap().get(OBS).unwrap().len(), 2 * 8 * 4);
}
