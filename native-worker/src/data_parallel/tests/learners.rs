//! Tests of learners with parts of a batch.

use candle_core::Device;
use rollmesh_core::{
    batch::{ADVANTAGES, SampleBatch},
    column::ColumnData,
    kernels::Kernels,
    policy::{AllReduce, AllReduceError, Gradients, LearnInfo},
    space::Space,
    weights::Weights,
};

use super::{distance, each, ranks};
use crate::learner::{test_support::*, *};

fn learner_of(algorithm: &AlgorithmConfig) -> Learner {
    new_learner(algorithm.clone(), &discrete(2, 2), 3, &weights(2, &[16], 2), Device::Cpu, Kernels::PORTABLE).unwrap()
}

fn algorithms() -> [AlgorithmConfig; 3] {
    let ppo = r#"{"num_sgd_iter": 3, "sgd_minibatch_size": 16, "kl_coeff": 0.2, "entropy_coeff": 0.01, "lr": 0.001,
        "anneal_over_env_steps": 1000}"#;
    let a2c = r#"{"anneal_over_env_steps": 1000}"#;
    [
        AlgorithmConfig::pg(&"{}".parse().unwrap()),
        AlgorithmConfig::a2c(&a2c.parse().unwrap()),
        AlgorithmConfig::ppo(&ppo.parse().unwrap()),
    ]
    .map(Result::unwrap)
}

/// Learns from parts of batches on as many ranks; returns each rank's final weights and statistics.
fn together(algorithm: &AlgorithmConfig, batches: Vec<Vec<SampleBatch>>) -> Vec<(Weights, Vec<UpdateStats>)> {
    let algorithm = algorithm.clone();
    each(ranks(batches.len() as u32), move |rank, mut group| {
        let mut learner = learner_of(&algorithm);
        let update = |batch: &SampleBatch| learner.update_with(batch, &mut group).unwrap().1;
        let stats = batches[rank as usize].iter().map(update).collect();
        (learner.weights().clone(), stats)
    })
}

/// Covers unequal parts, empty ones, and three ranks.
#[test]
fn parts_of_a_batch_are_learned_from_as_the_whole() {
    for algorithm in algorithms() {
        for cuts in [&[50][..], &[1], &[99], &[0], &[30, 30], &[10, 95]] {
            let wholes: Vec<SampleBatch> = (0..3).map(|seed| bandit(100, seed)).collect();
            let bounds: Vec<usize> = [&[0], cuts, &[100]].concat();
            let part = |i: usize, whole: &SampleBatch| match whole.index_slice(bounds[i]..bounds[i + 1]) {
                part if part.is_empty() => SampleBatch::new(),
                part => part,
            };
            let parts: Vec<Vec<SampleBatch>> =
                (0..cuts.len() + 1).map(|i| wholes.iter().map(|whole| part(i, whole)).collect()).collect();
            let mut one = learner_of(&algorithm);
            let alone: Vec<UpdateStats> = wholes.iter().map(|whole| one.update(whole).unwrap().1).collect();
            let all = together(&algorithm, parts.clone());
            for (weights, stats) in &all {
                let apart = distance(weights, one.weights());
                assert!(apart < 1e-6, "{apart} with {cuts:?} for {algorithm:?}");
                assert_eq!((bits(weights), weights.version()), (bits(&all[0].0), one.weights().version()));
                assert_eq!(stats, &all[0].1, "all ranks say the same");
                for (stats, alone) in stats.iter().zip(&alone) {
                    close(&stats.learn_info(), &alone.learn_info());
                }
            }
            let again = together(&algorithm, parts);
            assert!(again.iter().zip(&all).all(|(a, b)| bits(&a.0) == bits(&b.0)), "not a bit may differ");
        }
    }
}

#[track_caller]
fn close(found: &LearnInfo, wanted: &LearnInfo) {
    for ((name, found), wanted) in found.iter().zip(wanted.values()) {
        assert!((found - wanted).abs() < 1e-4 * wanted.abs().max(0.1), "{name}: {found}, not {wanted}");
    }
}

/// Sequences are not split, and padding rows do not count.
#[test]
fn sequences_of_all_ranks_are_learned_from_as_those_of_one() {
    let whole = batch(&Space::Discrete { n: 3 });
    let common = CommonConfig { lr: 1e-3, ..PpoConfig::default().common };
    let ppo = PpoConfig { common, minibatch_size: 3, kl_coeff: 0.2, ..PpoConfig::default() };
    for algorithm in [PolicyGradientConfig::pg().into(), PolicyGradientConfig::a2c().into(), AlgorithmConfig::from(ppo)]
    {
        let learner = |algorithm: &AlgorithmConfig| {
            let weights = lstm_weights(3, 4, 3);
            new_learner(algorithm.clone(), &discrete(3, 3), 1, &weights, Device::Cpu, Kernels::PORTABLE).unwrap()
        };
        let mut one = learner(&algorithm);
        (0..2).for_each(|_| drop(one.update(&whole).unwrap()));
        let parts = [whole.slice_sequences(0..=0), whole.slice_sequences(1..=3).right_zero_pad(5).unwrap()];
        let own = algorithm.clone();
        let all = each(ranks(2), move |rank, mut group| {
            let mut learner = learner(&own);
            (0..2).for_each(|_| drop(learner.update_with(&parts[rank as usize], &mut group).unwrap()));
            learner.weights().clone()
        });
        let apart = distance(&all[0], one.weights());
        assert!(apart < 1e-6, "{apart} for {algorithm:?}");
        assert_eq!(bits(&all[0]), bits(&all[1]));
    }
}

#[test]
fn gradients_are_those_of_all_rows_and_change_nothing() {
    for algorithm in algorithms() {
        let whole = bandit(60, 4);
        let parts = [whole.index_slice(0..20), whole.index_slice(20..60)];
        let mut one = learner_of(&algorithm);
        let (Gradients(wanted), _) = one.compute_gradients(&whole).unwrap();
        let own = algorithm.clone();
        let all = each(ranks(2), move |rank, mut group| {
            let mut learner = learner_of(&own);
            let before = learner.weights().clone();
            let (gradients, _) = learner.compute_gradients_with(&parts[rank as usize], &mut group).unwrap();
            assert_eq!(learner.weights(), &before);
            // Each applies the step by itself.
            learner.apply_gradients(&gradients).unwrap();
            (gradients.0, learner.weights().clone())
        });
        assert!(distance(&all[0].0, &wanted) < 1e-6);
        assert_eq!((bits(&all[0].0), bits(&all[0].1)), (bits(&all[1].0), bits(&all[1].1)));
    }
}

/// Checks that no rank steps if the gradients of one of them are not finite.
#[test]
fn all_ranks_skip_the_same_steps() {
    for algorithm in algorithms() {
        let all = each(ranks(2), move |rank, mut group| {
            let mut learner = learner_of(&algorithm);
            let before = bits(learner.weights());
            let bad = bandit(20, 1).with(ADVANTAGES, ColumnData::scalars(vec![f32::NAN; 20])).unwrap();
            let batch = if rank == 1 { bad } else { bandit(20, 1) };
            let result = learner.update_with(&batch, &mut group);
            assert_eq!(bits(learner.weights()), before);
            match result {
                Ok((_, stats)) => (stats.gradient_steps, stats.skipped_steps),
                Err(LearnError::Diverged { .. }) => (0, MAX),
                Err(other) => panic!("{other}"),
            }
        });
        assert_eq!(all[0], all[1]);
        assert!([(0, 1), (0, MAX)].contains(&all[0]), "{:?}", all[0]);
    }
}

/// A rank that leaves.
const MAX: u32 = u32::MAX;

#[test]
fn the_first_rank_says_how_far_the_run_is() {
    let common = CommonConfig { anneal_over_env_steps: Some(100), anneal_to: 0.0, ..PpoConfig::default().common };
    let config = PpoConfig { common, ..PpoConfig::default() };
    let all = each(ranks(2), move |rank, mut group| {
        let mut learner = learner_of(&config.clone().into());
        learner.set_env_steps([0, 77][rank as usize]);
        let rates = [1, 2].map(|seed| learner.update_with(&bandit(25, seed), &mut group).unwrap().1.learning_rate);
        (rates, bits(learner.weights()))
    });
    // 50 rows of both.
    assert_eq!(all[0].0, [1.5e-3, 0.75e-3]);
    assert_eq!(all[0], all[1]);
}

#[test]
fn other_weights_or_moments_are_noticed() {
    let errors = each(ranks(2), |rank, mut group| {
        let mut learner = learner_of(&algorithms()[0]);
        learner.update_with(&bandit(9, 1), &mut group).unwrap();
        if rank == 1 {
            // The same weights, but no optimiser moments.
            learner.set_state(&[]).unwrap();
        }
        learner.update_with(&bandit(9, 1), &mut group).map(drop).unwrap_err().to_string()
    });
    let wanted = AllReduceError::Diverged { rank: 1 }.to_string();
    assert_eq!(errors, [wanted.clone(), wanted]);
}

/// A second rank with the same rows, which leaves after some steps.
struct Leaving(u32);

impl AllReduce for Leaving {
    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        2
    }

    fn all_reduce(&mut self, _step: &str, _values: &mut [f32], _weight: f64) -> Result<(), AllReduceError> {
        self.0 = self.0.checked_sub(1).ok_or(AllReduceError::Left { rank: 1 })?;
        Ok(())
    }

    fn all_gather(&mut self, _step: &str, bytes: &[u8], _limit: usize) -> Result<Vec<Vec<u8>>, AllReduceError> {
        Ok(vec![bytes.to_vec(); 2])
    }

    fn give_up(&mut self, _reason: &str) {}
}

/// Ensures that earlier progress is kept.
#[test]
fn an_update_that_others_do_not_finish_changes_nothing() {
    for algorithm in algorithms() {
        let mut learner = learner_of(&algorithm);
        learner.update_with(&bandit(40, 1), &mut Leaving(100)).unwrap();
        let before = (learner.weights().clone(), learner.state().unwrap());
        let steps = if matches!(algorithm, AlgorithmConfig::Ppo(_)) { 3 } else { 0 };
        let error = learner.update_with(&bandit(40, 2), &mut Leaving(steps)).unwrap_err();
        assert!(matches!(error, LearnError::AllReduce(AllReduceError::Left { rank: 1 })), "{error}");
        assert_eq!((learner.weights(), learner.state().unwrap()), (&before.0, before.1.clone()));
        // Learning continues from the state before.
        let mut other = learner_of(&algorithm);
        other.set_weights(&before.0).unwrap();
        other.set_state(&before.1).unwrap();
        for learner in [&mut learner, &mut other] {
            learner.update_with(&bandit(40, 3), &mut Leaving(100)).unwrap();
        }
        assert_eq!(bits(learner.weights()), bits(other.weights()));
    }
}

#[test]
fn no_rows_on_any_rank_are_an_error_on_all() {
    let errors = each(ranks(2), |_, mut group| {
        let error = learner_of(&algorithms()[0]).update_with(&SampleBatch::new(), &mut group).unwrap_err();
        // The error does not end the group.
        (error.to_string(), group.all_gather("still there", &[], 0).is_ok())
    });
    assert_eq!(errors, [("the train batch is empty".to_owned(), true), ("the train batch is empty".to_owned(), true)]);
}
