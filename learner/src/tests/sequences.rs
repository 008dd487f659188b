//! Sequences of recurrent policies.

use candle_core::Device;
use rollmesh_core::{
    batch::{ADVANTAGES, BatchParts, OBS, SampleBatch},
    column::{ColumnData, ColumnKey},
    kernels::Kernels,
    space::Space,
};

use super::super::{test_support::*, *};

fn learner(algorithm: impl Into<AlgorithmConfig>) -> Learner {
    new_learner(algorithm, &discrete(3, 3), 1, &lstm_weights(3, 4, 3), Device::Cpu, Kernels::PORTABLE).unwrap()
}

/// The rows between sequences have no part in the loss.
#[test]
fn padding_is_never_learned_from() {
    let batch = batch(&Space::Discrete { n: 3 });
    let mut padded = batch.right_zero_pad(6).unwrap();
    let lens = padded.seq_lens().unwrap().to_vec();
    for key in [OBS, ADVANTAGES, ColumnKey::new("value_targets")] {
        let values = padded.get_mut(key).unwrap();
        let width = values.len() / (6 * lens.len());
        for (sequence, &len) in values.chunks_mut(6 * width).zip(&lens) {
            sequence[len as usize * width..].fill(f32::NAN);
        }
    }
    let learn = |batch: &SampleBatch, algorithm: AlgorithmConfig| {
        let (weights, stats) = learner(algorithm).update(batch).unwrap();
        (bits(&weights), stats)
    };
    for algorithm in
        [PolicyGradientConfig::a2c().into(), PpoConfig { minibatch_size: 6, ..PpoConfig::default() }.into()]
    {
        let whole = learn(&batch, AlgorithmConfig::clone(&algorithm));
        assert_eq!(learn(&padded, algorithm), whole);
        assert_eq!(whole.1.skipped_steps, 0);
    }
}

/// The gradient of a sequence does not depend on its neighbours.
#[test]
fn the_gradient_is_the_mean_over_all_steps() {
    let batch = batch(&Space::Discrete { n: 3 });
    let common = CommonConfig { grad_clip: None, ..PolicyGradientConfig::a2c().common };
    let config = PolicyGradientConfig { common, ..PolicyGradientConfig::a2c() };
    let gradient = |batch: &SampleBatch| {
        let (gradients, _) = learner(config).compute_gradients(batch).unwrap();
        let scale = batch.len() as f32;
        gradients.0.tensors().iter().flat_map(|t| t.values.iter().map(|g| g * scale)).collect::<Vec<f32>>()
    };
    let whole = gradient(&batch);
    let mut sum = vec![0.0; whole.len()];
    for i in 0..batch.seq_lens().unwrap().len() {
        let one = gradient(&batch.slice_sequences(i..=i));
        sum.iter_mut().zip(one).for_each(|(sum, g)| *sum += g);
    }
    assert!(whole.iter().zip(&sum).all(|(a, b)| (a - b).abs() < 1e-4), "{whole:?} {sum:?}");
}

/// As many rows as the lengths claim would fill the memory.
#[test]
fn lengths_without_rows_are_refused() {
    let parts = BatchParts {
        seq_lens: Some(ColumnData::scalars(vec![i32::MAX; 1])),
        zero_padded: true,
        ..BatchParts::default()
    };
    let error = learner(PolicyGradientConfig::a2c()).update(&SampleBatch::from_parts(parts).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the batch has no column 'obs'");
}

#[test]
fn states_matter_and_must_fit() {
    let batch = batch(&Space::Discrete { n: 3 });
    let gradients = |batch: &SampleBatch| learner(PolicyGradientConfig::a2c()).compute_gradients(batch);
    let mut other = batch.clone();
    other.get_mut(ColumnKey::<f32>::new("state_in_1")).unwrap().fill(0.9);
    assert_ne!(gradients(&batch).unwrap().0, gradients(&other).unwrap().0);
    let narrow = new_learner(
        PolicyGradientConfig::a2c(),
        &discrete(3, 3),
        1,
        &lstm_weights(3, 5, 3),
        Device::Cpu,
        Kernels::PORTABLE,
    );
    let error = narrow.unwrap().update(&batch).unwrap_err().to_string();
    assert_eq!(error, "a row of 'state_in_0' has 4 numbers, the model wants 5");
}
