//! The effects of an update, and the state that it must not change.

use candle_core::Device;
use rollmesh_core::{
    batch::{ADVANTAGES, SampleBatch},
    column::ColumnData,
    kernels::Kernels,
};

use super::super::{test_support::*, *};

fn ppo(config: PpoConfig) -> Learner {
    new_learner(config, &discrete(2, 2), 5, &weights(2, &[8], 2), Device::Cpu, Kernels::PORTABLE).unwrap()
}

/// Returns a batch whose advantages are all NaN.
fn bad_batch(rows: usize) -> SampleBatch {
    bandit(rows, 1).with(ADVANTAGES, ColumnData::scalars(vec![f32::NAN; rows])).unwrap()
}

#[test]
fn a_bandit_is_learned() {
    let common = CommonConfig { lr: 0.01, anneal_over_env_steps: None, ..PpoConfig::default().common };
    let mut ppo = ppo(PpoConfig { common, ..PpoConfig::default() });
    let mut last = UpdateStats::default();
    for seed in 0..12 {
        last = ppo.update(&bandit(256, seed)).unwrap().1;
    }
    let contexts = candle_core::Tensor::new(&[[0f32, 1.0], [1.0, 0.0]], &Device::Cpu).unwrap();
    let logits = ppo.model.forward(&contexts, None).unwrap().0.to_vec2::<f32>().unwrap();
    assert!(logits[0][0] - logits[0][1] > 2.0 && logits[1][1] - logits[1][0] > 2.0, "{logits:?}");
    assert!(last.entropy < 0.4 && last.skipped_steps == 0, "{last:?}");
}

#[test]
fn equal_inputs_give_equal_bits() {
    let run = |seed| {
        let mut ppo = new_learner(
            PpoConfig::default(),
            &discrete(2, 2),
            seed,
            &weights(2, &[64, 64], 2),
            Device::Cpu,
            Kernels::PORTABLE,
        )
        .unwrap();
        for batch in 0..2 {
            ppo.update(&bandit(300, batch)).unwrap();
        }
        bits(ppo.weights())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2), "the seed must shuffle");
}

#[test]
fn the_calling_thread_does_not_matter() {
    let update = || {
        let mut ppo = new_learner(
            PpoConfig::default(),
            &discrete(2, 2),
            1,
            &weights(2, &[64, 64], 2),
            Device::Cpu,
            Kernels::PORTABLE,
        )
        .unwrap();
        bits(&ppo.update(&bandit(512, 3)).unwrap().0)
    };
    let here = update();
    assert_eq!(std::thread::spawn(update).join().unwrap(), here);
}

#[test]
fn one_bad_batch_is_skipped_and_learning_continues() {
    let common = CommonConfig { anneal_over_env_steps: None, ..PpoConfig::default().common };
    let mut ppo = ppo(PpoConfig { common, num_epochs: 2, ..PpoConfig::default() });
    let before = bits(ppo.weights());
    let (skipped, stats) = ppo.update(&bad_batch(64)).unwrap();
    assert_eq!((bits(&skipped), stats.skipped_steps, stats.gradient_steps), (before.clone(), 2, 0));
    let (learned, stats) = ppo.update(&bandit(64, 1)).unwrap();
    assert_ne!(bits(&learned), before);
    assert_eq!((learned.version().0, stats.skipped_steps), (2, 0));
}

#[test]
fn three_bad_steps_in_a_row_are_an_error_with_the_last_good_weights() {
    let mut ppo = ppo(PpoConfig::default());
    let (good, _) = ppo.update(&bandit(64, 1)).unwrap();
    let error = ppo.update(&bad_batch(64)).unwrap_err();
    let LearnError::Diverged { last_good, .. } = error else { panic!("{error}") };
    assert_eq!(bits(&last_good), bits(&good));
    assert_eq!(ppo.skipped_in_a_row, 0, "as before the update");
}

#[test]
fn weights_that_are_not_finite_are_never_published() {
    let common = CommonConfig { lr: 1e39, ..PpoConfig::default().common };
    let mut ppo = ppo(PpoConfig { common, num_epochs: 1, ..PpoConfig::default() });
    let error = ppo.update(&bandit(64, 1)).unwrap_err();
    assert!(error.to_string().starts_with("training diverged: a weight is not finite; try"), "{error}");
    assert_eq!(ppo.weights().version().0, 0);
}

#[test]
fn a_batch_that_does_not_fit_changes_nothing() {
    let mut ppo =
        new_learner(PpoConfig::default(), &discrete(3, 2), 5, &weights(3, &[8], 2), Device::Cpu, Kernels::PORTABLE)
            .unwrap();
    let error = ppo.update(&bandit(8, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the policy takes 8 observations of Box(-9.0, 9.0, (3,), float32), not 16 values of float32"
    );
    let mut ppo =
        new_learner(PpoConfig::default(), &discrete(2, 1), 5, &weights(2, &[8], 1), Device::Cpu, Kernels::PORTABLE)
            .unwrap();
    let error = ppo.update(&bandit(8, 1)).unwrap_err();
    assert_eq!(error.to_string(), "action 1 is not one of the model's, 0 to 0");
    assert_eq!(ppo.weights().version().0, 0);
}

#[test]
fn the_gap_to_acting_is_reported() {
    let mut ppo = ppo(PpoConfig { num_epochs: 1, ..PpoConfig::default() });
    let batch = bandit(64, 1);
    let logp = ppo.train_rows(&batch).unwrap().old_logp();
    let want = logp.iter().map(|logp| f64::from((logp - 0.5f32.ln()).abs())).fold(0.0, f64::max);
    assert!(want > 0.01);
    assert_eq!(ppo.update(&batch).unwrap().1.logp_gap, want);
}

#[test]
fn a_target_kl_ends_the_update_early() {
    let common = CommonConfig { lr: 0.05, ..PpoConfig::default().common };
    let config = |target_kl| PpoConfig { common, target_kl, num_epochs: 50, ..PpoConfig::default() };
    let steps = |target_kl| ppo(config(target_kl)).update(&bandit(64, 1)).unwrap().1.gradient_steps;
    assert_eq!(steps(None), 50);
    assert!(steps(Some(0.005)) < 25);
}

#[test]
fn annealing_follows_the_env_steps() {
    let common = PpoConfig::default().common;
    let common = CommonConfig { lr: 1e-3, anneal_over_env_steps: Some(256), anneal_to: 0.0, ..common };
    let mut ppo = ppo(PpoConfig { common, ..PpoConfig::default() });
    let rates: Vec<f64> = (0..3).map(|seed| ppo.update(&bandit(128, seed)).unwrap().1.learning_rate).collect();
    assert_eq!(rates, [1e-3, 5e-4, 0.0]);
}
