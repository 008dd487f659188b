//! Gradients against differences of losses, for every kind of model and action.

use candle_core::Device;
use rollmesh_core::{
    batch::{OBS, SampleBatch},
    column::{Column, ColumnData, ColumnKey, DType, RowShape},
    env::EnvSpaces,
    kernels::Kernels,
    policy::Gradients,
    space::Space,
    weights::{Tensor, Weights},
};

use super::{
    super::{test_support::*, *},
    models::{ModelCase, model_cases},
};

/// The weights of the parts of a loss in their sum.
#[derive(Clone, Copy)]
struct Coefficients {
    vf_loss: f64,
    entropy: f64,
    kl: f64,
}

impl Coefficients {
    /// Those of [`a2c`].
    const A2C: Self = Self { vf_loss: 0.7, entropy: 0.3, kl: 0.0 };
    /// Those of [`ppo`].
    const PPO: Self = Self { vf_loss: 0.7, entropy: 0.3, kl: 0.2 };
    /// Of algorithms whose loss is the policy's alone.
    const POLICY: Self = Self { vf_loss: 0.0, entropy: 0.0, kl: 0.0 };

    /// The loss along a tensor, put together from what is said of it. The networks of values have no part in the policy's
    /// loss: as weights of MARWIL's rows, values are constants.
    fn loss(self, stats: &UpdateStats, tensor: &str) -> f64 {
        let of_values = self.vf_loss * stats.vf_loss;
        if tensor.starts_with("value") {
            return of_values;
        }
        stats.policy_loss + of_values - self.entropy * stats.entropy + self.kl * stats.kl
    }
}

/// Compares the gradient with differences of losses, for weights of perceptrons or LSTMs.
#[track_caller]
fn check(algorithm: impl Into<AlgorithmConfig>, action: Space, weights: &Weights, coefficients: Coefficients) {
    let batch = batch(&action);
    let learner = new_learner(algorithm, &spaces(3, action), 1, weights, Device::Cpu, Kernels::PORTABLE);
    check_learner(learner.unwrap(), weights, &batch, "", coefficients);
}

#[track_caller]
fn check_case(algorithm: impl Into<AlgorithmConfig>, case: &ModelCase, coefficients: Coefficients) {
    let ModelCase { model, spaces, spec, batch } = case;
    let weights = weights_of(spec);
    let learner = Learner::new(algorithm, spaces, spec, 1, &weights, Device::Cpu, Kernels::PORTABLE);
    check_learner(learner.unwrap(), &weights, batch, model, coefficients);
}

/// Compares the gradient with differences of losses along single weights of every tensor.
#[track_caller]
fn check_learner(learner: Learner, weights: &Weights, batch: &SampleBatch, model: &str, coefficients: Coefficients) {
    let mut learner = learner.with_old_policy(OldPolicy::Batch);
    let (Gradients(gradients), _) = learner.compute_gradients(batch).unwrap();
    assert_eq!(learner.weights(), weights, "computing gradients changes nothing");

    let mut at = |tensor: usize, element: usize, step: f32| {
        let mut tensors: Vec<Tensor> = weights.tensors().to_vec();
        tensors[tensor].values[element] += step;
        learner.set_weights(&Weights::new(weights.version(), tensors).unwrap()).unwrap();
        coefficients.loss(&learner.compute_gradients(batch).unwrap().1, &weights.tensors()[tensor].name)
    };
    let step = 5e-3f32;
    for (i, tensor) in gradients.tensors().iter().enumerate() {
        let largest =
            (0..tensor.values.len()).max_by(|&a, &b| tensor.values[a].abs().total_cmp(&tensor.values[b].abs()));
        for element in [0, tensor.values.len() / 2, largest.unwrap()] {
            let difference = (at(i, element, step) - at(i, element, -step)) / f64::from(2.0 * step);
            let gradient = f64::from(tensor.values[element]);
            let gap = (difference - gradient).abs();
            let name = &tensor.name;
            assert!(gap < 1e-3 + 0.01 * gradient.abs(), "{model} {name} {element}: {gradient}, not {difference}");
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
    check(a2c(), Space::Discrete { n: 5 }, &weights(3, &[4], 5), Coefficients::A2C);
    check(ppo(), Space::Discrete { n: 5 }, &weights(3, &[4], 5), Coefficients::PPO);
}

#[test]
fn discrete_actions_of_several_components() {
    check(a2c(), Space::MultiDiscrete { nvec: vec![2, 3] }, &weights(3, &[4], 5), Coefficients::A2C);
}

#[test]
fn binary_actions() {
    check(ppo(), Space::MultiBinary { n: 3 }, &weights(3, &[4], 3), Coefficients::PPO);
}

#[test]
fn compound_actions() {
    let action = Space::Tuple(vec![Space::Discrete { n: 2 }, floats(2)]);
    check(ppo(), action, &weights(3, &[4], 6), Coefficients::PPO);
}

#[test]
fn continuous_actions() {
    check(a2c(), floats(2), &weights(3, &[4], 4), Coefficients::A2C);
    check(ppo(), floats(2), &weights(3, &[4], 4), Coefficients::PPO);
}

#[test]
fn recurrent_policies() {
    check(a2c(), Space::Discrete { n: 3 }, &lstm_weights(3, 4, 3), Coefficients::A2C);
    check(ppo(), floats(1), &lstm_weights(3, 4, 2), Coefficients::PPO);
}

#[test]
fn models_of_every_kind() {
    for case in model_cases() {
        if case.is_continuous() {
            check_case(ppo(), &case, Coefficients::PPO);
        } else {
            check_case(a2c(), &case, Coefficients::A2C);
        }
    }
}

#[test]
fn policy_gradient() {
    let common = CommonConfig { grad_clip: None, ..PolicyGradientConfig::pg().common };
    let pg = PolicyGradientConfig { common, ..PolicyGradientConfig::pg() };
    check(pg, Space::Discrete { n: 5 }, &weights(3, &[4], 5), Coefficients::POLICY);
    check(pg, floats(2), &weights(3, &[4], 4), Coefficients::POLICY);
    check(pg, Space::Discrete { n: 3 }, &lstm_weights(3, 4, 3), Coefficients::POLICY);
}

#[test]
fn behaviour_cloning() {
    let common = CommonConfig { grad_clip: None, ..MarwilConfig::bc().common };
    let bc = MarwilConfig { common, bc_logstd_coeff: 0.2, ..MarwilConfig::bc() };
    check(bc.clone(), Space::Discrete { n: 5 }, &weights(3, &[4], 5), Coefficients::POLICY);
    check(bc.clone(), floats(2), &weights(3, &[4], 4), Coefficients::POLICY);
    check(bc, floats(1), &lstm_weights(3, 4, 2), Coefficients::POLICY);
}

#[test]
fn weighted_imitation() {
    let common = CommonConfig { vf_loss_coeff: 0.7, grad_clip: None, ..MarwilConfig::marwil().common };
    let marwil = MarwilConfig { common, moving_average_sqd_adv_norm_start: 1.0, ..MarwilConfig::marwil() };
    for (action, outputs) in [(Space::Discrete { n: 5 }, 5), (floats(2), 4)] {
        let (weights, batch) = (weights(3, &[4], outputs), batch(&action));
        let learner = new_learner(marwil.clone(), &spaces(3, action), 1, &weights, Device::Cpu, Kernels::PORTABLE);
        check_learner(
            learner.unwrap(),
            &weights,
            &batch,
            "marwil",
            Coefficients { vf_loss: 0.35, ..Coefficients::POLICY },
        );
    }
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
