use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    config::Config,
    ids::PolicyId,
    policy::{PolicyContext, PolicySpec, RandomPolicy},
    prelude::*,
    worker::{
        NewPolicy, PolicyConfig, Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, SetupError, WorkerPlace,
    },
};

/// Returns a class of policy that passes its context to `look`.
fn inspecting_policy(look: impl Fn(&PolicyContext) + Send + Sync + 'static) -> PolicySpec {
    PolicySpec::new("inspecting_policy", move |context| {
        look(context);
        Ok(Box::new(RandomPolicy::for_space(&context.spaces.action, context.seed)?))
    })
}

#[test]
fn policies_are_made_in_order_with_their_settings_over_the_common_ones() {
    let order = Arc::new(AtomicU32::new(0));
    let seen = order.clone();
    let registry = Registry::builtin().with_policy(inspecting_policy(move |context| {
        let gamma = context.config.get::<f64>("gamma").unwrap().unwrap();
        let place = context.config.get::<u32>("worker_index").unwrap().zip(context.config.get("num_workers").unwrap());
        assert_eq!(place, Some((2, 3)));
        assert_eq!((context.worker_index, context.num_workers), (2, 3));
        let model = context.config.get::<Config>("model").unwrap().unwrap();
        let widths = model.get::<Vec<u32>>("fcnet_hiddens").unwrap().unwrap();
        let number = match context.id.as_str() {
            "car_policy1" => 1,
            "car_policy2" => 2,
            _ => 3,
        };
        assert_eq!((gamma, widths), ([0.99, 0.95, 0.9][number - 1], if number == 3 { vec![5] } else { vec![7] }));
        seen.store(seen.load(Ordering::Relaxed) * 10 + number as u32, Ordering::Relaxed);
    }));
    let own = |text: &str| PolicyConfig::new("inspecting_policy").with_config(text.parse().unwrap());
    let config = RolloutConfig {
        policy_config: r#"{"gamma": 0.9}"#.parse().unwrap(),
        policy_mapping_fn: Some("traffic".into()),
        ..RolloutConfig::new("MultiAgentTrafficGrid-v0").fcnet_hiddens(&[7])
    }
    .policy(PolicyId::new("traffic_light_policy"), own(r#"{"model": {"fcnet_hiddens": [5]}}"#))
    .policy(PolicyId::new("car_policy2"), own(r#"{"gamma": 0.95}"#))
    .policy(PolicyId::new("car_policy1"), own(r#"{"gamma": 0.99}"#));
    let mut worker = RolloutWorker::from_config(config, &registry, WorkerPlace::remote(2, 3)).unwrap();
    assert_eq!(order.load(Ordering::Relaxed), 123);
    let batch = worker.sample().unwrap().as_multi_agent();
    let ids: Vec<&str> = batch.policy_batches.keys().map(PolicyId::as_str).collect();
    assert_eq!(ids, ["car_policy1", "car_policy2", "traffic_light_policy"]);
    assert_eq!(batch.env_steps(), 200);
}

fn grid(map: impl Fn(&crate::ids::AgentId) -> &'static str + Send + Sync + 'static) -> RolloutWorkerBuilder {
    let config = RolloutConfig::new("MultiAgentTrafficGrid-v0").rollout_fragment_length(5);
    RolloutWorker::builder().config(config).policy_mapping_fn(move |agent, _, _, _| PolicyId::new(map(agent)))
}

#[test]
fn agents_with_different_spaces_need_two_policies() {
    let error = grid(|_| "all").policy(PolicyId::new("all"), NewPolicy::named("random")).build().unwrap_err();
    assert!(matches!(&error, SetupError::AmbiguousSpaces { policy, .. } if policy.as_str() == "all"), "{error}");
    assert!(error.to_string().contains("write its observation_space and action_space"), "{error}");
    let two = grid(|agent| if agent.starts_with("car_") { "cars" } else { "lights" })
        .policy(PolicyId::new("cars"), NewPolicy::named("random"))
        .policy(PolicyId::new("lights"), NewPolicy::named("net"));
    assert_eq!(two.build().unwrap().sample().unwrap().env_steps(), 5);
}

#[test]
fn a_policy_that_no_agent_has_needs_spaces_unless_all_are_the_same() {
    let cars = |agent: &crate::ids::AgentId| if agent.starts_with("car_") { "cars" } else { "lights" };
    let spare = || NewPolicy::named("random");
    let with = |spare: NewPolicy| {
        grid(cars)
            .policy(PolicyId::new("cars"), NewPolicy::named("random"))
            .policy(PolicyId::new("lights"), NewPolicy::named("random"))
            .policy(PolicyId::new("spare"), spare)
    };
    assert_eq!(with(spare()).build().unwrap_err(), SetupError::NoSpaces(PolicyId::new("spare")));
    let space = crate::space::Space::Discrete { n: 2 };
    assert!(with(spare().with_spaces(space.clone(), space)).build().is_ok());
    let config = RolloutConfig::new("RockPaperScissors-v0").rollout_fragment_length(5);
    let games = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, spare());
    assert!(games.policy(PolicyId::new("spare"), spare()).build().is_ok());
}

#[test]
fn local_worker_alongside_others_has_no_environments() {
    let config = RolloutConfig::new("CartPole-v1").policy(
        PolicyId::DEFAULT,
        PolicyConfig::new("net")
            .with_spaces(crate::space::Space::vector(&[0.0; 4], &[1.0; 4]), crate::space::Space::Discrete { n: 2 }),
    );
    let place = WorkerPlace::remote(0, 2);
    let build = |config| RolloutWorker::from_config(config, &Registry::builtin(), place).unwrap();
    let mut without = build(config.clone());
    assert_eq!((without.num_envs(), without.sample()), (0, Err(crate::worker::RolloutError::NoInput)));
    assert!(without.assert_healthy().is_err());
    let mut with = build(RolloutConfig { create_env_on_local_worker: true, ..config });
    assert_eq!((with.num_envs(), with.sample().is_ok()), (1, true));
}
