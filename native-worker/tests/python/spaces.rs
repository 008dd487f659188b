//! Spaces, and points of them both ways.

use rollmesh::{NativeWorker as _, Registry, native};
use rollmesh_core::{
    env::{AnyVectorEnv, CheckOptions, EnvSpaces, RowsMut, check_env_all},
    ids::SlotId,
    kernels::Kernels,
    policy::MaskedObs,
    rng::{Purpose, Streams},
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
        ("uint64", "Box(0, 10, (1,), int64) int64"),
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

/// Writes the first observation of an environment of one point into a row.
fn first(name: &str, row: RowsMut<'_>) -> Result<(), String> {
    let mut env = make("py:lab:given", &format!(r#"{{"name": "{name}"}}"#), 1, 60_000).unwrap();
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
    env.reset_at(0, &mut rng, row).map_err(|error| error.to_string())
}

#[test]
fn compound_observations_keep_their_numbers() {
    let mut row = [0; 4];
    first("whole", RowsMut::I64(&mut row)).unwrap();
    assert_eq!(row, [(1 << 53) + 1, 0, 1, 0]);
    let points: [(&str, &[f64]); 3] =
        [("double", &[0.1, 0.0, 1.0]), ("mixed", &[-9_007_199_254_740_992.0, 0.5]), ("masked", &[0.0, 1.0, 0.1])];
    for (name, numbers) in points {
        let mut row = vec![0.0; numbers.len()];
        first(name, RowsMut::F64(&mut row)).unwrap();
        assert_eq!(row, numbers, "{name}");
    }
}

#[test]
fn observations_that_rows_would_change_are_refused() {
    let refused = |name: &str, row: RowsMut<'_>, text: &str| {
        let error = first(name, row).unwrap_err();
        assert!(error.contains("py:lab:given: ") && error.contains(text), "{name}: {error}");
    };
    refused("too_large", RowsMut::F64(&mut [0.0; 2]), "integers that rows of float64 cannot hold");
    refused("beyond", RowsMut::F32(&mut [0.0; 2]), "integers that rows of float32 cannot hold");
    refused("unsigned", RowsMut::I64(&mut [0]), "integers that rows of int64 cannot hold");
    refused("fraction", RowsMut::I64(&mut [0]), "the observation is an array of float64, its space one of int64");
    refused("no_choice", RowsMut::F32(&mut [0.0; 3]), "the observation 0 is not in Discrete(3, start=1)");
}

#[test]
fn compound_observations_of_float64_are_observed_in_32_bits_if_configured() {
    let make = |name: &str| {
        make("py:lab:given", &format!(r#"{{"name": "{name}", "observation_dtype": "float32"}}"#), 1, 60_000)
    };
    let EnvSpaces { observation, observation_type, .. } = EnvSpaces::of(make("double").unwrap().as_ref());
    assert_eq!(format!("{observation} {observation_type}"), "Box(0.0, 1.0, (3,), float32) float32");
    let error = make("whole").err().unwrap().to_string();
    assert!(error.contains("observation_dtype is 'float32'"), "{error}");
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
        ("long_double", ["the observation space Box(0.0, 1.0, (1,), float128)", "its elements are float128"]),
        ("long_doubles", ["the observation space Dict(", "its elements are float128"]),
    ] {
        let error = spaces(name).unwrap_err();
        assert!(texts.iter().all(|text| error.contains(text)), "{name}: {error}");
    }
}
