//! Models of every kind by candle's operations, which GPUs take, against the kernels.

use candle_core::Device;
use rollmesh_core::{
    kernels::Kernels,
    policy::{Gradients, Input, NetPolicy, Output, Policy as _, PolicyContext},
};

use super::{
    super::{ops::candle_only::by_candle, test_support::*, *},
    models::{ModelCase, model_cases},
};

/// Compares numbers relative to those above 1.
#[track_caller]
fn assert_close(what: &str, kernels: &[f32], candle: &[f32]) {
    assert_eq!(kernels.len(), candle.len(), "{what}");
    for (i, (a, b)) in kernels.iter().zip(candle).enumerate() {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{what}[{i}]: {a} and {b}");
    }
}

#[test]
fn losses_and_gradients_are_those_of_the_kernels() {
    for case in model_cases() {
        let ModelCase { model, spaces, spec, batch } = &case;
        let weights = weights_of(spec);
        let algorithms: [AlgorithmConfig; 3] = [
            PolicyGradientConfig::a2c().into(),
            PpoConfig { entropy_coeff: 0.1, ..PpoConfig::default() }.into(),
            MarwilConfig::marwil().into(),
        ];
        for algorithm in algorithms {
            let gradients = || {
                let algorithm = algorithm.clone();
                let learner = Learner::new(algorithm, spaces, spec, 1, &weights, Device::Cpu, Kernels::PORTABLE);
                let mut learner = learner.unwrap().with_old_policy(OldPolicy::Batch);
                learner.compute_gradients(batch).unwrap()
            };
            let ((Gradients(kernels), stats), (Gradients(candle), candle_stats)) = (gradients(), by_candle(gradients));
            let losses = |stats: &UpdateStats| {
                [stats.policy_loss, stats.vf_loss, stats.entropy, stats.kl, stats.grad_norm].map(|x| x as f32)
            };
            assert_close(model, &losses(&stats), &losses(&candle_stats));
            for (kernels, candle) in kernels.tensors().iter().zip(candle.tensors()) {
                assert_close(&format!("{model}: {}", kernels.name), &kernels.values, &candle.values);
            }
            // Other bits: candle's operations did compute.
            assert_ne!(bits(&kernels), bits(&candle), "{model}");
        }
    }
}

/// Single steps, as policies act on a device: recurrent models take another code path than for sequences.
#[test]
fn acting_gives_the_outputs_of_the_kernels() {
    const ROWS: usize = 7;
    let numbers = |len: usize| (0..len).map(|i| (i as f32 * 0.37).sin() * 2.0).collect::<Vec<f32>>();
    for ModelCase { model, spaces, spec, .. } in model_cases() {
        let weights = weights_of(&spec);
        let state_len = spec.state_lens().iter().sum::<usize>();
        let (obs, state) = (numbers(ROWS * spec.obs_len), numbers(ROWS * state_len));
        let outputs = |mut policy: NetPolicy| {
            let mut dist_inputs = vec![f32::NAN; ROWS * spec.dist_inputs_len()];
            let (mut values, mut states) = (vec![f32::NAN; ROWS], vec![f32::NAN; ROWS * state_len]);
            let out = Output { dist_inputs: &mut dist_inputs, values: &mut values, state: &mut states };
            policy.compute_outputs(Input { obs: &obs, state: &state }, out).unwrap();
            [dist_inputs, values, states]
        };
        let config = serde_json::from_str(&model).unwrap();
        let policy = || NetPolicy::new(&spaces, &config, weights.clone(), 1, Kernels::PORTABLE).unwrap();
        let context = PolicyContext::new(spaces.clone(), 1, Kernels::PORTABLE);
        let candle = by_candle(|| {
            let forward = forward_on(Device::Cpu).make(&context, &spec, &weights).unwrap();
            outputs(policy().with_forward(forward))
        });
        for (name, (kernels, candle)) in
            ["dist_inputs", "values", "states"].iter().zip(outputs(policy()).iter().zip(&candle))
        {
            assert_close(&format!("{model}: {name}"), kernels, candle);
        }
    }
}
