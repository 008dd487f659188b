//! Spaces, and points of them both ways.

use rollmesh::{NativeWorker as _, Registry, native};
use rollmesh_core::{
    env::{AnyVectorEnv, CheckOptions, EnvSpaces, check_env_all},
    kernels::Kernels,
    policy::MaskedObs,
    worker::{RolloutConfig, RolloutWorkerBuilder},
};

use super::{context, make, spec};

fn spaces(name: &str) -> Result<EnvSpaces, String> {
    let made = make("py:lab:echo", &format!(r#"{{"space": "{name}"}}"#), 1, 60_000);
    made.map(|env: Box<dyn AnyVectorEnv>| EnvSpaces::of(env.as_ref())).map_err(|error| error.to_string())
}

/// Returns its text, and the type of its rows.
fn both(name: &str) -> [String; 2] {
    let EnvSpaces { observation, observation_type, action, action_type } = spaces(name).unwrap();
    [format!("{observation} {observation_type}"), format!("{action} {action_type}")]
}

#[test]
fn spaces_are_translated() {
    for (name, text) in [
        ("discrete", "Discrete(3) int64"),
        ("multi_discrete", "MultiDiscrete([2 3 4 5]) int64"),
        ("multi_binary", "MultiBinary(4) uint8"),
        ("float64", "Box(-1.5, 2.5, (2, 3), float64) float64"),
        ("float16", "Box(-1.0, 1.0, (2,), float32) float32"),
        ("uint8", "Box(0, 255, (2, 2, 3), uint8) uint8"),
        ("int8", "Box(-100, 100, (), int32) int32"),
        ("int64", "Box(-inf, inf, (2,), int64) int64"),
    ] {
        assert_eq!(both(name), [text, text], "{name}");
    }
    // A compound observation is flattened as Gymnasium flattens it; a compound action is joined.
    let [observation, action] = both("tuple");
    assert!(observation.ends_with("(11,), float32) float32"), "{observation}");
    assert_eq!(action, "MultiDiscrete([3 2 2 4 2]) int64");
    let [observation, action] = both("dict");
    assert_eq!(observation, action);
    assert!(observation.ends_with("(3,), float32) float32"), "{observation}");
    assert_eq!(both("mixed")[1], "Tuple(Discrete(2), Box(0.0, 1.0, (2,), float32)) float32");
}

#[test]
fn points_round_trip() {
    // The environment asserts that its actions are in its space, and observes them.
    for name in
        ["discrete", "multi_discrete", "multi_binary", "float64", "float16", "uint8", "int8", "tuple", "dict", "mixed"]
    {
        let config = format!(r#"{{"space": "{name}"}}"#);
        let spec = spec("py:lab:echo");
        let with_space = rollmesh_core::env::EnvSpec::fallible("Echo-v0", move |contexts, kernels| {
            let contexts: Vec<_> = contexts.iter().map(|_| context(&config)).collect();
            spec.make(&contexts, kernels)
        });
        let errors = check_env_all(&with_space, CheckOptions { lanes: 2, steps: 10, seed: 5 });
        assert!(errors.is_empty(), "{name}: {errors:?}");
        with_space.make(&[context("{}")], Kernels::PORTABLE).unwrap();
    }
}

#[test]
fn actions_that_a_mask_forbids_are_never_chosen() {
    for name in ["observations", "obs", "observation"] {
        let config = format!(r#"{{"name": "{name}"}}"#);
        let space = make("py:lab:masked", &config, 1, 60_000).unwrap().observation_space();
        let masked = MaskedObs::of(&space).expect("a mask");
        assert_eq!([masked.mask, masked.observations].map(|part| part.shape().elements()), [3, 4]);
        let config = RolloutConfig::new("py:lab:masked").env_config(config.parse().unwrap()).num_envs(2);
        let builder = RolloutWorkerBuilder::new(native(Registry::builtin())).native();
        // The environment fails at a forbidden action.
        let mut worker = builder.config(config.rollout_fragment_length(100)).build().unwrap();
        assert_eq!(worker.sample().unwrap().env_steps(), 200);
    }
}

#[test]
fn other_spaces_are_refused_by_name() {
    for (name, texts) in [
        ("text", ["the observation space Text(", "rollmesh has no such space"]),
        ("graph", ["the observation space Graph(", "rollmesh has no such space"]),
        ("uint64", ["the observation space Box(0, 10, (1,), uint64)", "its elements are uint64"]),
    ] {
        let error = spaces(name).unwrap_err();
        assert!(texts.iter().all(|text| error.contains(text)), "{name}: {error}");
    }
}
