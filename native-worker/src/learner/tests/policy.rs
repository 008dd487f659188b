//! Policies that act and learn.

use rollmesh_core::{
    batch::{ADVANTAGES, SampleBatch},
    column::ColumnData,
    config::Config,
    episode::GlobalVars,
    policy::{Gradients, MlpPolicy, MlpPolicySpec, Policy, PolicyError, Postprocessing},
    weights::WeightsError,
};

use super::super::{test_support::*, *};

fn policy(algorithm: impl Into<Algorithm>) -> LearningPolicy {
    let spec = MlpPolicySpec { obs_len: 2, num_actions: 2, hidden: vec![8] };
    let acting = MlpPolicy::new(spec, weights(2, &[8], 2), 1, crate::kernels::AUTO).unwrap();
    LearningPolicy::new(Box::new(acting), ActionHead::discrete(2), algorithm, 3).unwrap()
}

fn algorithms() -> [Algorithm; 3] {
    let ppo = r#"{"num_sgd_iter": 2, "sgd_minibatch_size": 16, "kl_coeff": 0.2}"#.parse().unwrap();
    [Algorithm::pg(&Config::new()), Algorithm::a2c(&Config::new()), Algorithm::ppo(&ppo)].map(Result::unwrap)
}

fn bad_batch() -> SampleBatch {
    bandit(8, 1).with(ADVANTAGES, ColumnData::scalars(vec![f32::NAN; 8])).unwrap()
}

#[test]
fn a_step_is_the_gradient_and_its_application() {
    for algorithm in &algorithms()[..2] {
        let (mut one, mut two) = (policy(algorithm.clone()), policy(algorithm.clone()));
        for seed in 0..3 {
            let info = one.learn_on_batch(&bandit(50, seed)).unwrap();
            let before = two.weights().clone();
            let (gradients, computed) = two.compute_gradients(&bandit(50, seed)).unwrap();
            assert_eq!(two.weights(), &before);
            assert_eq!(gradients.0.version(), before.version());
            two.apply_gradients(&gradients).unwrap();
            assert_eq!(bits(one.weights()), bits(two.weights()));
            assert_ne!(bits(one.weights()), bits(&before));
            assert_eq!(one.weights().version(), two.weights().version());
            assert_eq!((info["policy_loss"], info["grad_gnorm"]), (computed["policy_loss"], computed["grad_gnorm"]));
        }
    }
}

#[test]
fn a_restored_policy_goes_on_with_the_same_bits() {
    for algorithm in algorithms() {
        let mut whole = policy(algorithm.clone());
        (0..2).for_each(|seed| drop(whole.learn_on_batch(&bandit(50, seed)).unwrap()));
        let (weights, state) = (whole.weights().clone(), whole.extra_state());
        assert_eq!(state.len(), whole.extra_state_bytes());
        (2..4).for_each(|seed| drop(whole.learn_on_batch(&bandit(50, seed)).unwrap()));

        let mut restored = policy(algorithm);
        restored.learn_on_batch(&bandit(50, 9)).unwrap();
        restored.set_weights(&weights).unwrap();
        restored.set_extra_state(&state).unwrap();
        assert_eq!(restored.extra_state(), state);
        (2..4).for_each(|seed| drop(restored.learn_on_batch(&bandit(50, seed)).unwrap()));
        assert_eq!(restored.weights(), whole.weights());
        assert_eq!(restored.extra_state(), whole.extra_state());
    }
}

#[test]
fn no_state_is_that_of_a_new_policy() {
    let fresh = policy(algorithms()[2].clone()).extra_state();
    let mut policy = policy(algorithms()[2].clone());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    assert_ne!(policy.extra_state(), fresh);
    policy.set_extra_state(&[]).unwrap();
    assert_eq!(policy.extra_state(), fresh);
}

#[test]
fn foreign_states_are_refused_and_change_nothing() {
    let mut policy = policy(algorithms()[1].clone());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    let state = policy.extra_state();
    let mut other_version = state.clone();
    other_version[0] = 9;
    let mut not_finite = state.clone();
    let end = not_finite.len();
    not_finite[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    for (bytes, reason) in [
        (&state[..20], "it is too short"),
        (&state[..state.len() - 1], "it has another number of moments"),
        (&other_version, "it is of another version"),
        (&not_finite, "it holds numbers out of range"),
    ] {
        let error = policy.set_extra_state(bytes).unwrap_err().to_string();
        assert_eq!(error, format!("the policy failed: this is no state of a learner with 75 parameters: {reason}"));
        assert_eq!(policy.extra_state(), state);
    }
}

#[test]
fn what_acts_is_what_was_learned() {
    let mut policy = policy(algorithms()[2].clone());
    for version in 1..3 {
        policy.learn_on_batch(&bandit(50, version)).unwrap();
        assert_eq!(policy.weights().version().0, version);
        assert_eq!(policy.weights(), policy.learner().weights());
    }
}

#[test]
fn gradients_of_another_model_are_refused() {
    let mut policy = policy(algorithms()[1].clone());
    let before = policy.weights().clone();
    let error = policy.apply_gradients(&Gradients(weights(2, &[7], 2))).unwrap_err();
    assert!(matches!(error, PolicyError::Weights(WeightsError::Missing { .. })), "{error}");
    assert_eq!(policy.weights(), &before);
}

#[test]
fn bad_batches_are_typed_errors() {
    let mut policy = policy(algorithms()[1].clone());
    let before = policy.weights().clone();
    let mut error = |batch: SampleBatch| policy.learn_on_batch(&batch).unwrap_err().to_string();
    let mut without = bandit(8, 1);
    without.remove("advantages");
    assert_eq!(error(without), "the batch has no column 'advantages'");
    let narrow = bandit(8, 1).with(rollmesh_core::batch::OBS, ColumnData::scalars(vec![1.0; 8])).unwrap();
    assert_eq!(error(narrow), "the policy takes 2 numbers in a row of 'obs', not 1");
    let wild = bandit(8, 1).with(rollmesh_core::batch::ACTIONS, ColumnData::scalars(vec![2; 8])).unwrap();
    assert_eq!(error(wild), "the policy takes actions below 2, not 2");
    assert_eq!(error(SampleBatch::new()), "the policy takes at least one row to learn from, not an empty batch");
    assert_eq!(policy.weights(), &before);
}

#[test]
fn bad_numbers_are_skipped_twice_and_then_an_error() {
    let mut policy = policy(algorithms()[1].clone());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    let good = bits(policy.weights());
    for _ in 0..2 {
        assert_eq!(policy.learn_on_batch(&bad_batch()).unwrap()["skipped_steps"], 1.0);
    }
    let error = policy.learn_on_batch(&bad_batch()).unwrap_err();
    assert!(matches!(&error, PolicyError::Diverged(text) if text.starts_with("training diverged")), "{error}");
    assert_eq!(bits(policy.weights()), good);
    assert!(policy.compute_gradients(&bad_batch()).is_err());
    policy.learn_on_batch(&bandit(50, 1)).unwrap();
    assert_ne!(bits(policy.weights()), good);
}

/// A policy may be used after training ended: it starts anew from the last good weights.
#[test]
fn weights_that_are_not_finite_leave_the_good_ones() {
    let config = PolicyGradientConfig { lr: 1e39, ..PolicyGradientConfig::a2c() };
    let mut policy = policy(config);
    let good = policy.weights().clone();
    assert!(matches!(policy.learn_on_batch(&bandit(50, 1)), Err(PolicyError::Diverged(_))));
    assert_eq!(policy.weights(), &good);
    assert!(policy.compute_gradients(&bandit(50, 1)).unwrap().1["policy_loss"].is_finite());
}

/// A worker hands its train batch over in minibatches: ratios start from when actions were taken.
#[test]
fn ppo_clips_over_several_calls() {
    let config = r#"{"lr": 0.05, "num_sgd_iter": 1, "sgd_minibatch_size": 1000, "anneal_over_env_steps": null}"#;
    let mut policy = policy(Algorithm::ppo(&config.parse().unwrap()).unwrap());
    let clipped: Vec<f64> = (0..8).map(|_| policy.learn_on_batch(&bandit(200, 1)).unwrap()["clip_fraction"]).collect();
    assert!(clipped[7] > clipped[0] + 0.1, "{clipped:?}");
}

#[test]
fn the_runs_clock_anneals() {
    let config = r#"{"lr": 0.01, "anneal_over_env_steps": 1000, "anneal_to": 0.0}"#.parse().unwrap();
    let mut policy = policy(Algorithm::a2c(&config).unwrap());
    let rates = [0, 500, 1000].map(|timestep| {
        policy.on_global_var_update(&GlobalVars { timestep, ..GlobalVars::default() });
        policy.learn_on_batch(&bandit(8, 1)).unwrap()["cur_lr"]
    });
    assert_eq!(rates, [0.01, 0.005, 0.0]);
}

#[test]
fn settings_say_how_trajectories_are_postprocessed() {
    let config = r#"{"gamma": 0.95, "lambda": 0.7}"#.parse().unwrap();
    let Postprocessing::Advantages(config) = policy(Algorithm::a2c(&config).unwrap()).postprocessing() else {
        panic!()
    };
    assert_eq!((config.gamma, config.lambda, config.use_gae, config.use_critic), (0.95, 0.7, true, true));
}
