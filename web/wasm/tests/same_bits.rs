//! Tests that rollouts are the same natively, in Node and in a browser, with one list of hashes for all of them.
//!
//! Runs as an ordinary test, and under wasm-bindgen's test runner, in Node or, with
//! `WASM_BINDGEN_USE_DEDICATED_WORKER=1`, in a browser's Web Worker.

use core::num::NonZeroU32;

use rollmesh_core::{
    eval_worker::EvalMakers, evaluation::EvaluationRequest, kernels::Kernels, run::RunConfig, time::Micros,
    worker::RolloutWorkerBuilder,
};
use rollmesh_learner::{InlineRun, InlineWork, register_learning_policies};
use rollmesh_wasm::{core_fingerprint, rollout_hash};
use rollmesh_web_registry::registry;
use serde_json::json;
use wasm_bindgen_test::wasm_bindgen_test;

use self::kinds::Kinds;

#[wasm_bindgen_test(unsupported = test)]
fn rollouts_have_the_hashes_of_every_other_build() {
    for (hidden, num_envs, seed, steps, expected) in GOLDEN {
        let model = json!({ "fcnet_hiddens": hidden });
        let config = json!({ "env": "CartPole-v1", "num_envs": num_envs, "seed": seed, "model_config": model });
        let hash = rollout_hash(&config.to_string(), *steps).ok();
        assert_eq!(hash.as_deref(), Some(*expected), "{hidden:?} {num_envs} {seed} {steps}");
    }
}

#[path = "../../../learner/src/tests/learned.rs"]
mod learned;

#[path = "../../../core/tests/kinds/mod.rs"]
mod kinds;

#[wasm_bindgen_test(unsupported = test)]
fn learned_weights_have_the_hashes_of_every_other_build() {
    for run in learned::Learned::read().runs {
        assert_eq!(run.learn(Kernels::PORTABLE, register_learning_policies), run.weights_hash, "{:?}", run.config);
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn runs_in_one_thread_learn_the_weights_of_train() {
    for trained in learned::Learned::read().trains {
        let mut run = InlineRun::new(1, trained.run(), &registry(), Kernels::PORTABLE, Micros(0)).expect("a run");
        while run.work(7, Micros(0)).expect("work") != InlineWork::Over {}
        assert_eq!(run.state().weights_hash().to_string(), trained.weights_hash, "{:?}", trained.config);
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn journals_repeat_with_the_weights_of_every_other_build() {
    for learned::Journalled { trained, entries } in learned::Learned::read().journals {
        let run = InlineRun::replaying(1, trained.run(), &registry(), Kernels::PORTABLE, entries);
        let mut run = run.expect("a run");
        while run.work(7, Micros(0)).expect("work") != InlineWork::Over {}
        assert_eq!(run.state().weights_hash().to_string(), trained.weights_hash, "{:?}", trained.config);
    }
}

/// A module's memory never shrinks, so a run must reuse freed memory.
#[cfg(target_family = "wasm")]
#[wasm_bindgen_test]
fn memory_stays_flat_over_many_updates() {
    let config = json!({ "num_slots": 4, "rollout_fragment_length": 16, "stop": { "env_steps": 1_000_000 } });
    let config = serde_json::from_value(config).expect("settings");
    let config = RunConfig::new("CartPole-v1").merged(&config).expect("settings of a run");
    let mut run = InlineRun::new(1, config, &registry(), Kernels::PORTABLE, Micros(0)).expect("a run");
    let mut pages_after = |updates| {
        while run.state().iteration() < updates {
            run.work(16, Micros(0)).expect("work");
        }
        core::arch::wasm32::memory_size::<0>()
    };
    let before = pages_after(50);
    // Fragmentation may take some pages; to keep the batch of each update would take 17 pages of 64 KiB and more.
    let grown = pages_after(500) - before;
    assert!(grown <= 4, "{before} pages, and {grown} more");
}

#[wasm_bindgen_test(unsupported = test)]
fn the_fingerprint_is_that_of_every_other_build() {
    assert_eq!(core_fingerprint(), FINGERPRINT);
}

fn builder() -> RolloutWorkerBuilder {
    RolloutWorkerBuilder::new(kinds::register(registry()))
}

#[wasm_bindgen_test(unsupported = test)]
fn samples_of_every_kind_have_the_hashes_of_every_other_build() {
    for kind in Kinds::read().in_one_thread() {
        assert_eq!(kind.sampled(builder()), kind.batch_hash, "{}", kind.config);
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn leases_of_every_kind_have_the_hashes_of_every_other_build() {
    for kind in Kinds::read().in_one_thread() {
        assert_eq!(kind.leased(builder()), kind.rollout_hash, "{}", kind.config);
    }
    for kind in Kinds::read().leases {
        assert_eq!(kind.leased(builder()), kind.rollout_hash, "{}", kind.config);
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn runs_of_every_kind_learn_the_weights_of_every_other_build() {
    let registry = kinds::register(registry());
    for kind in Kinds::read().in_one_thread().filter(|kind| kind.weights_hash.is_some()) {
        let run = RunConfig::of_settings(&kind.training()).expect("settings of a run");
        let mut run = InlineRun::new(1, run, &registry, Kernels::PORTABLE, Micros(0)).expect("a run");
        while run.work(7, Micros(0)).expect("work") != InlineWork::Over {}
        assert_eq!(Some(run.state().weights_hash().to_string()), kind.weights_hash, "{}", kind.config);
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn callbacks_of_a_user_leave_metrics_of_episodes() {
    let mut counted = Kinds::read().own.into_iter().filter(|kind| !kind.rollout().callbacks.is_empty());
    let rollout = counted.next().expect("a kind with callbacks").rollout().rollout_fragment_length(200);
    let mut worker = builder().config(rollout).build().expect("a worker");
    worker.sample().expect("a sample");
    let episodes = worker.metrics().episodes;
    assert!(!episodes.is_empty());
    assert!(episodes.iter().all(|episode| episode.custom_metrics.get("steps") == Some(&f64::from(episode.length))));
}

/// Cars and lights each have a policy.
#[wasm_bindgen_test(unsupported = test)]
fn policies_of_several_agents_are_evaluated_as_in_every_other_build() {
    let mut run = RunConfig::new("MultiAgentTrafficGrid-v0").seed(3);
    run.evaluation.num_envs = 2;
    let makers = EvalMakers::of_run(&run, &registry(), Kernels::PORTABLE).expect("an evaluation");
    let mut evaluator = makers.evaluator().expect("an evaluator");
    evaluator.begin(EvaluationRequest::of_episodes(NonZeroU32::MIN, 50)).expect("a request");
    let found = evaluator.advance(u32::MAX).expect("episodes").expect("it was not interrupted");
    assert_eq!((found.env_steps, found.reward()), EVALUATED);
}

/// The env steps and the return.
const EVALUATED: (u64, f64) = (50, -187.50000000000003);

/// Hidden layers, number of environments, seed, env steps, hash.
const GOLDEN: &[(&[u32], u32, u64, u32, &str)] = &[
    (&[64, 64], 64, 1, 2_000, "521ef2d51d3d6ff4fd7c9c47f4d335f0"),
    (&[64, 64], 5, 7, 2_000, "e30f6678c27cefec785314253f8b549c"),
    (&[16], 1, u64::MAX, 500, "d7c78261df34537dd3da910fac82a6f1"),
    // Takes minutes without optimisation.
    #[cfg(not(debug_assertions))]
    (&[64, 64], 8, 0, 1_000_000, "7ddda76a2621d751b1159ca29d2ec996"),
];

const FINGERPRINT: &str = "ea9a3856db66e77f050790411949b828";
