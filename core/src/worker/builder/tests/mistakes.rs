use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    config::Config,
    filter::FilterKind,
    ids::PolicyId,
    prelude::*,
    sampler::{BatchMode, CountStepsBy, Horizon, RewardClipping},
    worker::{
        FragmentLength, NeedsEpisodic, NewPolicy, Registry, RolloutConfig, RolloutWorker, SamplerChoice, SetupError,
        WorkerPlace,
        config::{InputEvaluation, PolicyConfig},
    },
};

fn config() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").single_policy("random")
}

fn error(config: RolloutConfig) -> String {
    RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL).unwrap_err().to_string()
}

#[test]
fn numbers_out_of_range_are_named() {
    let huge = u32::MAX;
    for (config, name) in [
        (RolloutConfig { num_envs: 0, ..config() }, "num_envs"),
        (RolloutConfig { num_envs: huge, ..config() }, "num_envs"),
        (config().rollout_fragment_length(0), "rollout_fragment_length"),
        (config().rollout_fragment_length(huge), "rollout_fragment_length"),
        (RolloutConfig { train_batch_size: 0, ..config() }, "train_batch_size"),
        (RolloutConfig { horizon: Some(0), ..config() }, "horizon"),
        (RolloutConfig { dataset_shards: Some(0), ..config() }, "dataset_shards"),
        (RolloutConfig { policy_map_capacity: 0, ..config() }, "policy_map_capacity"),
        (RolloutConfig { remote_env_timeout_ms: 0, ..config() }, "remote_env_timeout_ms"),
        (RolloutConfig { clip_rewards: RewardClipping::Limit(f64::NAN), ..config() }, "clip_rewards"),
        (RolloutConfig { num_envs: 65_536, ..config() }.rollout_fragment_length(65_536), "at most 2^26 steps"),
    ] {
        assert!(error(config).contains(name), "{name}");
    }
    let auto = RolloutConfig { rollout_fragment_length: FragmentLength::Auto, train_batch_size: huge, ..config() };
    assert!(error(auto).contains("rollout_fragment_length"));
    let place = WorkerPlace { worker_index: 3, num_workers: 2, ..WorkerPlace::LOCAL };
    let error = RolloutWorker::from_config(config(), &Registry::builtin(), place).unwrap_err();
    assert!(error.to_string().starts_with("worker_index is at most num_workers"), "{error}");
}

#[test]
fn settings_that_do_not_go_together_say_what_to_change() {
    let legacy = Horizon::LegacySoft;
    for (config, what) in [
        (RolloutConfig { no_done_at_end: true, ..config() }, "set horizon_means to legacy_hard or legacy_soft"),
        (
            RolloutConfig {
                horizon: Some(5),
                horizon_means: legacy,
                count_steps_by: CountStepsBy::AgentSteps,
                ..config()
            },
            "set count_steps_by to env_steps",
        ),
        (RolloutConfig { remote_worker_envs: true, ..config() }, "raise num_envs"),
        (RolloutConfig { remote_worker_envs: true, num_envs: 2, env: None, ..config() }, "register the environment"),
        (RolloutConfig { remote_env_batch_wait_ms: 5, ..config() }, "set remote_worker_envs"),
        (
            RolloutConfig { sample_async: true, observation_filter: FilterKind::MeanStdFilter, ..config() },
            "ConcurrentMeanStdFilter",
        ),
        (
            RolloutConfig { input_evaluation: [InputEvaluation::Simulation].into(), ..config() },
            "samples alongside another input",
        ),
        (
            RolloutConfig {
                input_evaluation: [InputEvaluation::Is, InputEvaluation::Dm].into(),
                legacy_step_estimates: true,
                ..config()
            },
            "for input_evaluation 'is' and 'wis'",
        ),
        (RolloutConfig { fake_sampler: true, input: "files".into(), ..config() }, "fake_sampler"),
    ] {
        let error = error(config);
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn settings_that_need_a_shell_are_unsupported_without_one() {
    let files = || RolloutConfig { input: "files".into(), ..config() };
    for (config, setting) in [
        (RolloutConfig { sample_async: true, ..config() }, "sample_async"),
        (RolloutConfig { remote_worker_envs: true, num_envs: 2, ..config() }, "remote_worker_envs"),
        (RolloutConfig { monitor_path: Some("/tmp".into()), ..config() }, "monitor_path"),
        (RolloutConfig { input_evaluation: [InputEvaluation::Simulation].into(), ..files() }, "input_evaluation"),
    ] {
        let made = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL);
        let error = made.unwrap_err();
        assert!(matches!(error, SetupError::Unsupported { setting: named, .. } if named == setting), "{error}");
        assert!(error.to_string().contains("`rollmesh` crate"));
    }
}

#[test]
fn unknown_names_are_listed_with_what_there_is() {
    for (config, what) in [
        (RolloutConfig { env: Some("Pong-v9".into()), ..config() }, "there is no environment 'Pong-v9'"),
        (config().single_policy("nte"), "there is no kind of policy 'nte'; known are: a2c, net, pg, ppo, random"),
        (RolloutConfig { policy_mapping_fn: Some("x".into()), ..config() }, "no policy mapping function 'x'"),
        (RolloutConfig { observation_fn: Some("x".into()), ..config() }, "no observation function 'x'"),
        (RolloutConfig { callbacks: vec!["x".into()], ..config() }, "no callback 'x'"),
        (RolloutConfig { input: "x".into(), ..config() }, "no input 'x'"),
        (RolloutConfig { output: Some("x".into()), ..config() }, "no output 'x'"),
        (
            RolloutConfig { policies_to_train: Some([PolicyId::new("x")].into()), ..config() },
            "'x' is among the policies to train, but there are only default_policy",
        ),
    ] {
        let error = error(config);
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn invalid_configuration_creates_no_parts() {
    let made = Arc::new(AtomicU32::new(0));
    let build = |config: RolloutConfig, new: Option<NewPolicy>| {
        let count = made.clone();
        let mut builder =
            RolloutWorker::builder().config(RolloutConfig { env: None, ..config }).env_creator(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(crate::env::Lane::new(crate::env::classic::Pendulum::new(1)))
            });
        if let Some(new) = new {
            builder = builder.policy(PolicyId::DEFAULT, new);
        }
        builder.build().map(|_| ())
    };
    build(config(), None).unwrap();
    assert!(made.swap(0, Ordering::Relaxed) > 0);
    for config in [
        config().single_policy("nte"),
        config().policy(PolicyId::new("b"), PolicyConfig::new("random")),
        RolloutConfig { policy_mapping_fn: Some("x".into()), ..config() },
        RolloutConfig { observation_fn: Some("x".into()), ..config() },
        RolloutConfig { callbacks: vec!["x".into()], ..config() },
        RolloutConfig { input: "x".into(), ..config() },
        RolloutConfig { output: Some("x".into()), ..config() },
        RolloutConfig { policies_to_train: Some([PolicyId::new("x")].into()), ..config() },
    ] {
        assert!(build(config.clone(), None).is_err(), "{config:?}");
        assert_eq!(made.load(Ordering::Relaxed), 0, "{config:?}");
    }
    assert!(build(config(), Some(NewPolicy::default())).is_err());
    assert!(build(config(), Some(NewPolicy::named("nte"))).is_err());
    assert_eq!(made.load(Ordering::Relaxed), 0);
}

#[test]
fn a_single_agent_has_a_single_policy() {
    let two = config().policy(PolicyId::new("b"), PolicyConfig::new("random"));
    let message = error(two);
    assert!(
        message.starts_with("there are policies b, default_policy, but the environment has a single agent"),
        "{message}"
    );
    let other =
        RolloutConfig { policies: BTreeMap::new(), ..config() }.policy(PolicyId::new("b"), PolicyConfig::new("random"));
    assert!(error(other).contains("single agent"));
}

#[test]
fn a_policy_needs_a_kind_or_an_object_and_spaces() {
    let build = |new: NewPolicy| RolloutWorker::builder().policy(PolicyId::DEFAULT, new).build().unwrap_err();
    assert_eq!(build(NewPolicy::named("random")), SetupError::NoSpaces(PolicyId::DEFAULT));
    let space = crate::space::Space::Discrete { n: 2 };
    let neither = NewPolicy::default().with_spaces(space.clone(), space.clone());
    assert_eq!(build(neither), SetupError::KindOrObject(PolicyId::DEFAULT));
    let nonsense = NewPolicy::named("random").with_spaces(space, crate::space::Space::Discrete { n: 0 });
    assert!(matches!(build(nonsense), SetupError::Space { .. }));
}

#[test]
fn a_wrong_sampler_is_not_forced() {
    let config = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..config() };
    let error = RolloutWorker::builder().config(config).sampler(SamplerChoice::Lockstep).build().unwrap_err();
    assert_eq!(error, SetupError::NeedsEpisodic(NeedsEpisodic::CompleteEpisodes));
    let text = "this cannot be sampled in lockstep: `complete_episodes` have different lengths; leave the choice of the \
                sampler out";
    assert_eq!(error.to_string(), text);
}

#[test]
fn settings_of_environments_and_models_are_read() {
    let wrong = RolloutConfig { env_config: Config::new().with("gravity", 3).unwrap(), ..config() };
    assert!(error(wrong).contains("sub-environment 0 cannot be made"));
    let model = RolloutConfig { model_config: Config::new().with("fcnet", 3).unwrap(), ..config() };
    assert!(error(model.single_policy("net")).contains("unknown field `fcnet`"));
}
