//! Sampling steps do not allocate; only episodes, cuts and batches do.

use std::sync::Arc;

use rollmesh_core::{
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    column::{Element, RowShape},
    env::{BaseEnv as _, EnvContext, EnvMaker, EnvRegistry, EnvSpaces, EnvStart, InProcess},
    filter::{Filter, FilterKind},
    ids::{FragmentNo, HomeIndex, PolicyId, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec, NetPolicy, Policy, PolicyEntry, PolicyMap, RandomPolicy},
    preprocess::Preprocessor,
    sampler::{
        Collector as _, Episodic, Horizon, InputReader as _, LaneStart, Lockstep, RewardClipping, SamplerHost,
        SamplerOptions, drive,
    },
    time::Micros,
};

#[test]
fn steps_within_an_episode_allocate_nothing() {
    let registry = EnvRegistry::builtin();
    let spec = registry.spec("Pendulum-v1").expect("a built-in environment");
    let start = |vector_index| EnvStart {
        slot: SlotId(vector_index),
        episode: 0,
        context: EnvContext::new(HomeIndex { worker_index: 0, vector_index }),
    };
    let maker = EnvMaker::single_agent(&spec, Kernels::PORTABLE);
    let envs = InProcess::new(maker, (0..4).map(start).collect(), 7).expect("environments");
    let spaces = envs.spaces(&envs.agents()[0]).expect("its spaces");
    let slots = (0..4).map(|slot| (SlotId(slot), 0)).collect();
    let options = SamplerOptions { fragment_length: 256, ..SamplerOptions::new(slots) };
    let mut sampler = Episodic::new(options, Box::new(envs)).expect("a sampler");
    let policy = RandomPolicy::for_space(&spaces.action, 7).expect("a policy");
    let mapping: PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::DEFAULT);
    let mut host = SamplerHost {
        worker: &WorkerInfo::default(),
        policies: &mut PolicyMap::single(Box::new(policy)),
        mapping: &mapping,
        observation_fn: None,
        callbacks: &mut CallbackList::new(),
        clock: &|| Micros(0),
        interrupt: None,
    };
    for _ in 0..4 {
        sampler.next(&mut host).expect("a batch");
    }
    let memory = allocation_counter::measure(|| {
        for _ in 0..255 {
            sampler.step(&mut host).expect("a step");
        }
    });
    assert_eq!(memory.count_total, 0);
}

/// Counts the allocations of 200 steps of lanes in lockstep in the middle of their fourth fragment. Some steps end
/// episodes.
fn of_lockstep(name: &str, options: &SamplerOptions, entry: impl Fn(&EnvSpaces) -> PolicyEntry) -> u64 {
    of_lockstep_of::<f32>(name, options, entry)
}

/// Counts like [`of_lockstep`], for observations of any type.
fn of_lockstep_of<O: Element>(name: &str, options: &SamplerOptions, entry: impl Fn(&EnvSpaces) -> PolicyEntry) -> u64 {
    let registry = EnvRegistry::builtin();
    let spec = registry.spec(name).expect("a built-in environment");
    let contexts: Vec<_> =
        (0..4).map(|vector_index| EnvContext::new(HomeIndex { worker_index: 0, vector_index })).collect();
    let mut env = spec.make(&contexts, Kernels::PORTABLE).expect("environments");
    let mut entry = entry(&EnvSpaces::of(env.as_ref()));
    let starts: Vec<_> = (0..4).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
    let mut lanes = Lockstep::<O>::new(&starts, options, &entry, env.as_mut()).expect("lanes");
    for fragment in 0..3 {
        lanes.begin(FragmentNo(fragment), WeightsVersion(0), 256);
        drive(&mut lanes, env.as_mut(), &mut entry, u32::MAX).expect("a fragment");
        drop(lanes.take(env.as_ref()).unwrap());
    }
    lanes.begin(FragmentNo(3), WeightsVersion(0), 256);
    drive(&mut lanes, env.as_mut(), &mut entry, 1).expect("a step");
    let memory = allocation_counter::measure(|| {
        drive(&mut lanes, env.as_mut(), &mut entry, 200).expect("steps");
    });
    memory.count_total
}

#[test]
fn steps_in_lockstep_allocate_nothing_whatever_they_go_through() {
    let random = |spaces: &EnvSpaces| -> Box<dyn Policy> {
        Box::new(RandomPolicy::for_space(&spaces.action, 7).expect("a policy"))
    };
    let net = |model: ModelConfig| {
        move |spaces: &EnvSpaces| -> Box<dyn Policy> {
            let weights = ModelSpec::for_spaces(spaces, &model).and_then(|spec| spec.init_weights(7)).expect("weights");
            Box::new(NetPolicy::new(spaces, &model, weights, 7, Kernels::PORTABLE).expect("a policy"))
        }
    };
    let plain = SamplerOptions { seed: 7, ..SamplerOptions::default() };
    let fast = net(ModelConfig::default());
    assert_eq!(of_lockstep("CartPole-v1", &plain, |spaces| fast(spaces).into()), 0);
    // Actions are unsquashed.
    assert_eq!(of_lockstep("Pendulum-v1", &plain, |spaces| random(spaces).into()), 0);
    let ends = SamplerOptions {
        horizon: Some(9),
        horizon_means: Horizon::LegacyHard,
        no_done_at_end: true,
        clip_rewards: RewardClipping::Sign,
        normalize_actions: false,
        clip_actions: true,
        explore: false,
        ..plain.clone()
    };
    assert_eq!(of_lockstep("Pendulum-v1", &ends, |spaces| random(spaces).into()), 0);
    let one_hot = |spaces: &EnvSpaces| {
        let preprocessor = Preprocessor::for_space(&spaces.observation).expect("one-hot rows");
        PolicyEntry::from(random(spaces)).with_preprocessor(Some(preprocessor))
    };
    assert_eq!(of_lockstep("FrozenLake-v1", &plain, one_hot), 0);
    let filtered = |spaces: &EnvSpaces| {
        let filter = Filter::new(FilterKind::MeanStdFilter, RowShape::vector(4)).expect("a filter");
        PolicyEntry::from(random(spaces)).with_filter(filter)
    };
    assert_eq!(of_lockstep("CartPole-v1", &plain, filtered), 0);
    for (env, model) in [
        ("CartPole-v1", r#"{"use_lstm": true}"#),
        ("CartPole-v1", r#"{"use_gru": true}"#),
        ("CartPole-v1", r#"{"use_lstm": true, "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#),
        ("Pendulum-v1", r#"{"free_log_std": true, "vf_share_layers": true}"#),
        ("CartPole-v1", r#"{"fcnet_use_layernorm": true}"#),
    ] {
        let policy = net(serde_json::from_str(model).expect("a model"));
        assert_eq!(of_lockstep(env, &plain, |spaces| policy(spaces).into()), 0, "{env} {model}");
    }
    let images = r#"{"conv_filters": [[5, 3, 2], [16, 2, 1]], "fcnet_hiddens": [8]}"#;
    let policy = net(serde_json::from_str(images).expect("a model"));
    assert_eq!(of_lockstep_of::<u8>("PixelBreakout-v0", &plain, |spaces| policy(spaces).into()), 0);
}
