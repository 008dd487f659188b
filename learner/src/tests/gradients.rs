//! Gradients against differences of losses, for every kind of model and action.

use candle_core::Device;
use rollmesh_core::{
    batch::{OBS, SampleBatch},
    column::{Column, ColumnData, ColumnKey, DType, RowShape},
    env::EnvSpaces,
    kernels::{Kernels, nets::Activation},
    policy::{Gradients, ModelSpec},
    space::Space,
    weights::{Tensor, Weights},
};

use super::super::{test_support::*, *};

/// Returns the whole loss, computed from its parts in the statistics.
fn loss(learner: &mut Learner, batch: &SampleBatch, [vf_loss_coeff, entropy_coeff, kl_coeff]: [f64; 3]) -> f64 {
    let stats = learner.compute_gradients(batch).unwrap().1;
    stats.policy_loss + vf_loss_coeff * stats.vf_loss - entropy_coeff * stats.entropy + kl_coeff * stats.kl
}

/// Compares the gradient with differences of losses along some directions, and along single weights of every tensor.
#[track_caller]
fn check(algorithm: impl Into<AlgorithmConfig>, action: Space, weights: &Weights, coefficients: [f64; 3]) {
    check_model(algorithm, action, &spec_of(weights), weights, coefficients);
}

#[track_caller]
fn check_model(
    algorithm: impl Into<AlgorithmConfig>,
    action: Space,
    spec: &ModelSpec,
    weights: &Weights,
    coefficients: [f64; 3],
) {
    let batch = batch(&action);
    let learner = Learner::new(algorithm, &spaces(3, action), spec, 1, weights, Device::Cpu, Kernels::PORTABLE);
    let mut learner = learner.unwrap().with_old_policy(OldPolicy::Batch);
    let (Gradients(gradients), _) = learner.compute_gradients(&batch).unwrap();
    assert_eq!(learner.weights(), weights, "computing gradients changes nothing");

    let mut at = |tensor: usize, element: usize, step: f32| {
        let mut tensors: Vec<Tensor> = weights.tensors().to_vec();
        tensors[tensor].values[element] += step;
        learner.set_weights(&Weights::new(weights.version(), tensors).unwrap()).unwrap();
        loss(&mut learner, &batch, coefficients)
    };
    let step = 5e-3f32;
    for (i, tensor) in gradients.tensors().iter().enumerate() {
        let largest =
            (0..tensor.values.len()).max_by(|&a, &b| tensor.values[a].abs().total_cmp(&tensor.values[b].abs()));
        for element in [0, tensor.values.len() / 2, largest.unwrap()] {
            let difference = (at(i, element, step) - at(i, element, -step)) / f64::from(2.0 * step);
            let gradient = f64::from(tensor.values[element]);
            let gap = (difference - gradient).abs();
            assert!(gap < 1e-3 + 0.01 * gradient.abs(), "{} {element}: {gradient}, not {difference}", tensor.name);
        }
    }
}

fn floats(len: usize) -> Space {
    Space::vector(&vec![-1.0; len], &vec![1.0; len])
}

fn a2c() -> PolicyGradientConfig {
    let common = CommonConfig { vf_loss_coeff: 0.7, grad_clip: None, ..PolicyGradientConfig::a2c().common };
    PolicyGradientConfig { common, entropy_coeff: 0.3, ..PolicyGradientConfig::a2c() }
}

fn ppo() -> PpoConfig {
    PpoConfig {
        common: CommonConfig { vf_loss_coeff: 0.7, grad_clip: None, ..PpoConfig::default().common },
        entropy_coeff: 0.3,
        kl_coeff: 0.2,
        // Differences are wrong at the corner of the clipped loss.
        clip_param: 100.0,
        ..PpoConfig::default()
    }
}

#[test]
fn discrete_actions() {
    check(a2c(), Space::Discrete { n: 5 }, &weights(3, &[4], 5), [0.7, 0.3, 0.0]);
    check(ppo(), Space::Discrete { n: 5 }, &weights(3, &[4], 5), [0.7, 0.3, 0.2]);
}

#[test]
fn discrete_actions_of_several_components() {
    check(a2c(), Space::MultiDiscrete { nvec: vec![2, 3] }, &weights(3, &[4], 5), [0.7, 0.3, 0.0]);
}

#[test]
fn binary_actions() {
    check(ppo(), Space::MultiBinary { n: 3 }, &weights(3, &[4], 3), [0.7, 0.3, 0.2]);
}

#[test]
fn compound_actions() {
    let action = Space::Tuple(vec![Space::Discrete { n: 2 }, floats(2)]);
    check(ppo(), action, &weights(3, &[4], 6), [0.7, 0.3, 0.2]);
}

#[test]
fn continuous_actions() {
    check(a2c(), floats(2), &weights(3, &[4], 4), [0.7, 0.3, 0.0]);
    check(ppo(), floats(2), &weights(3, &[4], 4), [0.7, 0.3, 0.2]);
}

#[test]
fn recurrent_policies() {
    check(a2c(), Space::Discrete { n: 3 }, &lstm_weights(3, 4, 3), [0.7, 0.3, 0.0]);
    check(ppo(), floats(1), &lstm_weights(3, 4, 2), [0.7, 0.3, 0.2]);
}

#[test]
fn layers_of_every_kind() {
    let activations =
        Activation::NAMES.map(|name| format!(r#"{{"fcnet_hiddens": [4], "fcnet_activation": "{name}"}}"#));
    let others = [
        r#"{"fcnet_hiddens": [4], "post_fcnet_hiddens": [3], "vf_share_layers": true}"#,
        r#"{"fcnet_hiddens": [4], "conv_filters": [[3, [2, 1], 1], [2, [2, 1], 1]], "conv_activation": "silu"}"#,
        r#"{"fcnet_hiddens": [3], "conv_filters": [[2, [2, 1], 1]], "use_lstm": true, "lstm_cell_size": 4}"#,
        r#"{"fcnet_hiddens": [3], "use_gru": true, "gru_cell_size": 4}"#,
        r#"{"fcnet_hiddens": [5, 3], "fcnet_use_layernorm": true}"#,
    ];
    for model in activations.iter().map(String::as_str).chain(others) {
        let spec = ModelSpec::new(&serde_json::from_str(model).unwrap(), &[3, 1, 1], 3).unwrap();
        check_model(a2c(), Space::Discrete { n: 3 }, &spec, &weights_of(&spec), [0.7, 0.3, 0.0]);
    }
    let spec =
        ModelSpec::new(&serde_json::from_str(r#"{"fcnet_hiddens": [4], "free_log_std": true}"#).unwrap(), &[3], 4);
    let spec = spec.unwrap();
    check_model(ppo(), floats(2), &spec, &weights_of(&spec), [0.7, 0.3, 0.2]);
}

#[test]
fn without_a_critic_the_value_network_stays() {
    let mut learner = new_learner(
        PolicyGradientConfig::pg(),
        &discrete(3, 2),
        1,
        &weights(3, &[4], 2),
        Device::Cpu,
        Kernels::PORTABLE,
    )
    .unwrap();
    let mut batch = batch(&Space::Discrete { n: 2 });
    batch.remove("value_targets");
    batch.remove("vf_preds");
    batch.remove("action_logp");
    let (Gradients(gradients), _) = learner.compute_gradients(&batch).unwrap();
    let is_zero = |name: &str| gradients.tensor(name).unwrap().values.iter().all(|&value| value == 0.0);
    assert!(is_zero("value.0.weight") && is_zero("value.1.bias") && !is_zero("policy.0.weight"));
}

/// The batch holds observations as the environment gives them.
#[test]
fn observations_are_encoded_as_for_acting() {
    let gradients = |observation: Space, obs: Column| {
        let mut batch = batch(&Space::Discrete { n: 2 });
        batch.insert(OBS.name(), obs).unwrap();
        let spaces = EnvSpaces { observation, ..discrete(3, 2) };
        let mut learner = new_learner(a2c(), &spaces, 1, &weights(3, &[4], 2), Device::Cpu, Kernels::PORTABLE).unwrap();
        learner.compute_gradients(&batch).map(|(gradients, _)| gradients)
    };
    let points: Vec<i64> = (0..ROWS as i64).map(|i| i * i % 3).collect();
    let one_hot: Vec<u8> = points.iter().flat_map(|&point| (0..3).map(move |i| u8::from(i == point))).collect();
    let shape = RowShape::new(&[3, 1]).unwrap();
    let bytes = Space::uniform(DType::U8, shape, 0.0, 255.0);
    let from_bytes = gradients(bytes, ColumnData::new(one_hot, shape).unwrap().into()).unwrap();
    let from_points = gradients(Space::Discrete { n: 3 }, ColumnData::scalars(points).into()).unwrap();
    assert_eq!(from_bytes, from_points);
    assert!(gradients(Space::Discrete { n: 3 }, ColumnData::scalars(vec![3i64; ROWS]).into()).is_err());
}

#[test]
fn error_names_the_missing_column() {
    let whole = batch(&Space::Discrete { n: 2 });
    let error = |algorithm: AlgorithmConfig, weights: &Weights, without: &str| {
        let mut batch = whole.clone();
        batch.remove(without);
        let mut learner = new_learner(algorithm, &discrete(3, 2), 1, weights, Device::Cpu, Kernels::PORTABLE).unwrap();
        learner.update(&batch).unwrap_err().to_string()
    };
    let (mlp, lstm) = (weights(3, &[4], 2), lstm_weights(3, 4, 2));
    for (column, algorithm, weights) in [
        ("obs", a2c().into(), &mlp),
        ("actions", a2c().into(), &mlp),
        ("advantages", AlgorithmConfig::from(PolicyGradientConfig::pg()), &mlp),
        ("value_targets", a2c().into(), &mlp),
        ("vf_preds", a2c().into(), &mlp),
        ("action_logp", ppo().into(), &mlp),
        ("state_in_1", a2c().into(), &lstm),
    ] {
        assert_eq!(error(algorithm, weights, column), format!("the batch has no column '{column}'"));
    }
    let rows = bandit(8, 1);
    let lstm = lstm_weights(2, 4, 2);
    let mut learner = new_learner(a2c(), &discrete(2, 2), 1, &lstm, Device::Cpu, Kernels::PORTABLE).unwrap();
    let error = learner.update(&rows).unwrap_err().to_string();
    assert_eq!(error, "learning of a recurrent policy needs a batch with seq_lens");
    let nan = whole.with(ColumnKey::<f32>::new("advantages"), ColumnData::scalars(vec![f32::NAN; ROWS])).unwrap();
    let mut learner = new_learner(a2c(), &discrete(3, 2), 1, &mlp, Device::Cpu, Kernels::PORTABLE).unwrap();
    assert!(matches!(learner.compute_gradients(&nan), Err(LearnError::NotFinite)));
}
