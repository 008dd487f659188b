use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    batch::{BatchError, EPS_ID, SampleBatch},
    column::ColumnData,
    rng::{Purpose, Streams},
};

fn batch(columns: &[(&'static str, &[f64])], ids: &[i64]) -> SampleBatch {
    let mut batch = SampleBatch::new().with(EPS_ID, ColumnData::scalars(ids.to_vec())).unwrap();
    for (name, values) in columns {
        batch.insert(*name, ColumnData::scalars(values.to_vec())).unwrap();
    }
    batch
}

const OLD: [f64; 5] = [0.5, 0.5, 0.25, 0.8, 0.5];
const NEW: [f64; 5] = [0.25, 0.75, 0.5, 0.4, 0.5];

/// Returns two episodes with rewards 1, 2, 3 and 4, 5.
fn logged(new: [f64; 5]) -> SampleBatch {
    let rewards = [1.0, 2.0, 3.0, 4.0, 5.0];
    batch(&[("rewards", &rewards), ("action_prob", &OLD), ("new_action_prob", &new)], &[1, 1, 1, 2, 2])
}

fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} {expected}");
}

use Estimator::{
    ConsistentWeightedImportanceSampling, DirectMethod, DoublyRobust, ImportanceSampling, TrajectoryImportanceSampling,
    WeightedImportanceSampling,
};

#[test]
fn by_episode() {
    let found = ImportanceSampling.estimate(&logged(NEW), 1.0, true).unwrap();
    for (found, expected) in [
        (found.v_behavior, 7.5),
        (found.v_behavior_std, 1.5),
        (found.v_target, 5.5),
        (found.v_target_std, 1.0),
        (found.v_gain, 5.5 / 7.5),
        (found.v_delta, -2.0),
    ] {
        assert_close(found, expected);
    }
    let found = WeightedImportanceSampling.estimate(&logged(NEW), 1.0, true).unwrap();
    assert_close(found.v_target, 7.2);
    assert_close(found.v_target_std, 0.8);
    assert_close(found.v_gain, 0.96);
    assert_eq!(importance_weights(&logged(NEW)).unwrap(), [1.5, 0.5]);
}

#[test]
fn by_whole_trajectories() {
    // 1.5 times 1 + 1 + 0.75, and half of 4 + 2.5.
    let samples = TrajectoryImportanceSampling.per_episode(&logged(NEW), 0.5).unwrap();
    assert_eq!([samples[0].v_target, samples[1].v_target], [4.125, 3.25]);
}

#[test]
fn longer_episodes_are_worth_more_where_ended_episodes_count() {
    // Every step has reward 1. The new policy never takes the action that ended the first episode, and always the second
    // one's.
    let (old, new, rewards) = ([0.5; 3], [0.0, 1.0, 1.0], [1.0; 3]);
    let logged = batch(&[("rewards", &rewards), ("action_prob", &old), ("new_action_prob", &new)], &[1, 2, 2]);
    let value = |estimator: Estimator| estimator.estimate(&logged, 1.0, true).unwrap().v_target;
    assert_close(value(WeightedImportanceSampling), 1.5);
    assert_close(value(ConsistentWeightedImportanceSampling), 2.0);
    // Ratios 0.5, 0.75, 1.5, kept as 1.5; 0.5, 0.5, kept as 0.5: means 0.5, 0.625, 1.
    let value = ConsistentWeightedImportanceSampling.estimate(&self::logged(NEW), 1.0, true).unwrap();
    assert_close(value.v_target, (1.0 + 2.0 * 1.2 + 3.0 * 1.5 + 4.0 + 5.0 * 0.8) / 2.0);
}

#[test]
fn the_same_policy_is_worth_the_same() {
    for estimator in Estimator::ALL.into_iter().filter(|estimator| !estimator.needs_model()) {
        let found = estimator.estimate(&logged(OLD), 0.9, true).unwrap();
        assert_close(found.v_behavior, 6.865);
        assert_close(found.v_target, 6.865);
    }
}

#[test]
fn rows_as_bandits() {
    for (estimator, target) in [(ImportanceSampling, 3.3), (WeightedImportanceSampling, 3.0)] {
        let found = estimator.estimate(&logged(NEW), 0.5, false).unwrap();
        assert_close(found.v_behavior, 3.0);
        assert_close(found.v_target, target);
    }
}

#[test]
fn with_a_model() {
    let mut logged = logged(NEW);
    logged.insert("v_values", ColumnData::scalars(vec![1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
    logged.insert("q_values", ColumnData::scalars(vec![0.5; 5])).unwrap();
    let samples = DirectMethod.per_episode(&logged, 0.9).unwrap();
    assert_eq!([samples[0].v_target, samples[1].v_target], [1.0, 4.0]);
    assert_close(DirectMethod.estimate(&logged, 0.9, false).unwrap().v_target, 3.0);
    let samples = DoublyRobust.per_episode(&logged, 0.5).unwrap();
    // v = 5 + (5 - 0.5) = 9.5; 4 + 0.5 (4 + 4.75 - 0.5)
    assert_close(samples[1].v_target, 8.125);
    // v = 3 + 2 (2.5) = 8; 2 + 1.5 (2 + 4 - 0.5) = 10.25; 1 + 0.5 (1 + 5.125 - 0.5)
    assert_close(samples[0].v_target, 3.8125);
    // Rows: 1 + 0.5 (0.5), 2 + 1.5 (1.5), 3 + 2 (2.5), 4 + 0.5 (3.5), 5 + 4.5
    assert_close(DoublyRobust.estimate(&logged, 0.5, false).unwrap().v_target, (1.25 + 4.25 + 8.0 + 5.75 + 9.5) / 5.0);
}

#[test]
fn drawn_episodes_are_complete_and_have_new_ids() {
    let rewards: Vec<f64> = (0..40).map(f64::from).collect();
    let ids: Vec<i64> = (0..40).map(|row| 7 - row / 4).collect();
    let logged = batch(&[("rewards", &rewards)], &ids);
    let streams = Streams::new(3, Purpose::Shuffle);
    let drawn = draw_episodes(&logged, &streams, 0).unwrap();
    assert_eq!(drawn.get(EPS_ID).unwrap(), (0..40).map(|row| row / 4).collect::<Vec<i64>>());
    let rewards = drawn.column("rewards").unwrap().typed::<f64>().unwrap().values();
    let firsts: Vec<f64> = rewards.chunks(4).map(|rows| rows[0]).collect();
    assert!(rewards.chunks(4).all(|rows| rows[0] % 4.0 == 0.0 && rows[3] == rows[0] + 3.0), "{rewards:?}");
    assert!((2..10).contains(&firsts.iter().map(|first| *first as i64).collect::<BTreeSet<_>>().len()), "{firsts:?}");
    assert_eq!(draw_episodes(&logged, &streams, 0).unwrap(), drawn);
    assert_ne!(draw_episodes(&logged, &streams, 1).unwrap(), drawn);
    assert!(draw_episodes(&batch(&[("rewards", &[])], &[]), &streams, 0).unwrap().is_empty());
}

#[test]
fn the_last_step_counts() {
    let one = batch(&[("rewards", &[3.0]), ("action_prob", &[0.5]), ("new_action_prob", &[1.0])], &[1]);
    assert_eq!(ImportanceSampling.per_episode(&one, 0.9).unwrap(), [Sample { v_behavior: 3.0, v_target: 6.0 }]);
}

#[test]
fn steps_that_the_new_policy_never_reaches_count_nothing() {
    let never = logged([0.0, 0.75, 0.5, 0.0, 0.5]);
    for split in [false, true] {
        let found = WeightedImportanceSampling.estimate(&never, 1.0, split).unwrap();
        assert!(found.v_target.is_finite(), "{found:?}");
    }
    assert_eq!(WeightedImportanceSampling.estimate(&never, 1.0, true).unwrap().v_target, 0.0);
}

#[test]
fn errors_name_column_and_row() {
    let bare = batch(&[("rewards", &[1.0]), ("new_action_prob", &[1.0])], &[1]);
    let error = ImportanceSampling.estimate(&bare, 0.9, true).unwrap_err();
    assert_eq!(error, EstimateError::Batch(BatchError::MissingColumn("action_prob".into())));
    let ones = [1.0; 3];
    let columns = [("rewards", &ones[..]), ("action_prob", &ones), ("new_action_prob", &ones)];
    let back = batch(&columns, &[1, 2, 1]);
    let error = WeightedImportanceSampling.estimate(&back, 0.9, true).unwrap_err();
    assert_eq!(error, EstimateError::EpisodeReturns { eps_id: 1, row: 2 });
    assert_eq!(ImportanceSampling.per_episode(&back, 0.9).unwrap().len(), 3);
    let mut impossible = back.clone();
    impossible.insert("action_prob", ColumnData::scalars(vec![1.0, 0.0, 1.0])).unwrap();
    let error = ImportanceSampling.estimate(&impossible, 0.9, true).unwrap_err();
    assert_eq!(error, EstimateError::Probability { column: "action_prob", row: 1, value: 0.0 });
    let unlogged = batch(&[("rewards", &[1.0]), ("v_values", &[1.0])], &[1]);
    let error = DirectMethod.estimate(&unlogged, 0.9, true).unwrap_err();
    assert_eq!(error, EstimateError::Batch(BatchError::MissingColumn("action_prob".into())));
    let empty = batch(&[("rewards", &[]), ("v_values", &[]), ("action_prob", &[])], &[]);
    assert_eq!(DirectMethod.estimate(&empty, 0.9, true).unwrap_err(), EstimateError::NoSamples);
}

/// Returns a log of one episode per list of `(reward, old, new)`.
fn log_of(episodes: &[Vec<(f64, f64, f64)>]) -> SampleBatch {
    let rows: Vec<_> = episodes.iter().flatten().copied().collect();
    let ids: Vec<i64> = (0..).zip(episodes).flat_map(|(id, rows)| rows.iter().map(move |_| id)).collect();
    let column = |value: fn(&(f64, f64, f64)) -> f64| rows.iter().map(value).collect::<Vec<f64>>();
    let (rewards, old, new) = (column(|row| row.0), column(|row| row.1), column(|row| row.2));
    batch(&[("rewards", &rewards), ("action_prob", &old), ("new_action_prob", &new)], &ids)
}

/// `2^1100` and `2^-1100` exceed the range of doubles.
#[test]
fn products_over_long_episodes() {
    for (old, new) in [(0.5, 1.0), (1.0, 0.5)] {
        let long = log_of(&[vec![(1.0, old, new); 1100]]);
        let found = WeightedImportanceSampling.estimate(&long, 1.0, true).unwrap();
        assert_eq!((found.v_behavior, found.v_target), (1100.0, 1100.0));
        let twice = log_of(&[vec![(1.0, old, new); 1100], vec![(1.0, old, new); 1100]]);
        let weights = importance_weights(&twice).unwrap();
        assert_eq!(crate::estimate::effective_sample_size(&weights), 2.0);
    }
    let mut sparse = vec![(0.0, 0.5, 1.0); 1100];
    sparse[0].0 = 1.0;
    assert_eq!(ImportanceSampling.estimate(&log_of(&[sparse]), 1.0, true).unwrap().v_target, 2.0);
    // Discounts and ratios may balance.
    let balanced = log_of(&[vec![(1.0, 0.5, 1.0); 1100]]);
    assert_eq!(ImportanceSampling.estimate(&balanced, 0.5, true).unwrap().v_target, 2200.0);
    let error = ImportanceSampling.estimate(&balanced, 1.0, true).unwrap_err();
    assert_eq!(error, EstimateError::Overflow { row: 1022 });
    let unlikely = log_of(&[vec![(1.0, 1e-308, 1e10)], vec![(1.0, 0.5, 0.5)]]);
    assert_close(WeightedImportanceSampling.estimate(&unlikely, 1.0, true).unwrap().v_target, 1.0);
}

#[test]
fn estimators_name_the_value_that_is_not_finite() {
    let log = log_of(&[vec![(1.0, 0.5, 0.5), (f64::INFINITY, 0.5, 0.5)]]);
    for split in [false, true] {
        let error = ImportanceSampling.estimate(&log, 1.0, split).unwrap_err();
        assert_eq!(error.to_string(), "'rewards' is inf at row 1; it must be finite");
    }
    let mut log = log_of(&[vec![(1.0, 0.5, 0.5)]]);
    assert!(matches!(ImportanceSampling.estimate(&log, f64::NAN, true), Err(EstimateError::Gamma(_))));
    log.insert("v_values", ColumnData::scalars(vec![f64::NAN])).unwrap();
    let error = DirectMethod.estimate(&log, 1.0, true).unwrap_err();
    assert!(matches!(error, EstimateError::Value { column: "v_values", row: 0, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn on_policy_estimates_equal_the_returns(
        episodes in vec(vec((-9.0f64..9.0, 0.01f64..1.0), 1..30), 1..6),
        gamma in 0.0f64..=1.0,
    ) {
        let logged = |rows: &Vec<(f64, f64)>| rows.iter().map(|&(reward, prob)| (reward, prob, prob)).collect();
        let log = log_of(&episodes.iter().map(logged).collect::<Vec<_>>());
        for estimator in [ImportanceSampling, WeightedImportanceSampling] {
            for sample in estimator.per_episode(&log, gamma).unwrap() {
                prop_assert!((sample.v_target - sample.v_behavior).abs() < 1e-9, "{sample:?}");
            }
        }
    }

    /// Checks that a single episode has the weight of the mean, however unlikely it is.
    #[test]
    fn weighted_estimate_of_one_episode_equals_its_return(
        rows in vec((-9.0f64..9.0, 1e-12f64..1.0, 1e-12f64..1.0), 1..4000),
        gamma in 0.9f64..=1.0,
    ) {
        let sample = WeightedImportanceSampling.per_episode(&log_of(&[rows]), gamma).unwrap()[0];
        prop_assert_eq!(sample.v_target, sample.v_behavior);
    }
}
