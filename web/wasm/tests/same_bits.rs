//! The same rollouts natively, in Node and in a browser: one list of hashes for all of them.
//!
//! Runs as an ordinary test, and under wasm-bindgen's test runner, in Node or, with
//! `WASM_BINDGEN_USE_DEDICATED_WORKER=1`, in a browser's Web Worker.

use rollmesh_wasm::{core_fingerprint, rollout_hash, sample_hash};
use wasm_bindgen_test::wasm_bindgen_test;

#[wasm_bindgen_test(unsupported = test)]
fn rollouts_have_the_hashes_of_every_other_build() {
    for (hidden, num_envs, seed, steps, expected) in GOLDEN {
        let hash = rollout_hash("CartPole-v1", Some(hidden.to_vec()), *num_envs, *seed, *steps).ok();
        assert_eq!(hash.as_deref(), Some(*expected), "{hidden:?} {num_envs} {seed} {steps}");
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn the_fingerprint_is_that_of_every_other_build() {
    assert_eq!(core_fingerprint(), FINGERPRINT);
}

#[wasm_bindgen_test(unsupported = test)]
fn samples_of_several_agents_have_the_hashes_of_every_other_build() {
    for (config, samples, expected) in SAMPLES {
        assert_eq!(sample_hash(config, *samples).ok().as_deref(), Some(*expected), "{config}");
    }
}

/// Settings, samples, hash. The first is also that of `rollmesh sample`, in native-worker/tests/sample.rs.
const SAMPLES: &[(&str, u32, &str)] = &[
    (
        r#"{"env": "MultiAgentTrafficGrid-v0", "num_envs": 2, "rollout_fragment_length": 50, "seed": 3,
            "policy_mapping_fn": "traffic",
            "policies": {"car_policy1": {}, "car_policy2": {}, "traffic_light_policy": {"policy": "random"}}}"#,
        3,
        "c6fba48d1816566f0de35ed6d9c4c9bf",
    ),
    (
        r#"{"env": "MultiAgentCartPole-v1", "num_envs": 3, "rollout_fragment_length": 40, "seed": 5,
            "batch_mode": "complete_episodes", "observation_filter": "MeanStdFilter",
            "model_config": {"use_lstm": true, "lstm_cell_size": 8}}"#,
        2,
        "084cac840516f8be5788dfc5cba02383",
    ),
];

/// Hidden layers, environments, seed, env steps, hash.
const GOLDEN: &[(&[u32], u32, u64, u32, &str)] = &[
    (&[64, 64], 64, 1, 2_000, "521ef2d51d3d6ff4fd7c9c47f4d335f0"),
    (&[64, 64], 5, 7, 2_000, "e30f6678c27cefec785314253f8b549c"),
    (&[16], 1, u64::MAX, 500, "d7c78261df34537dd3da910fac82a6f1"),
    // Minutes without optimisation.
    #[cfg(not(debug_assertions))]
    (&[64, 64], 8, 0, 1_000_000, "7ddda76a2621d751b1159ca29d2ec996"),
];

const FINGERPRINT: &str = "ea9a3856db66e77f050790411949b828";
