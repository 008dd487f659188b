//! Small tasks that every algorithm solves, and one that needs memory.

use candle_core::Device;
use rollmesh_core::{
    batch::{ACTIONS, BatchParts, OBS, SampleBatch, state_in},
    column::{Column, ColumnData, RowShape},
    distribution::{Categorical, DiagGaussian, Distribution},
    ids::SlotId,
    kernels::Kernels,
    rng::{Purpose, Streams},
    space::Space,
    weights::Weights,
};

use super::super::{test_support::*, *};

/// Steps of an episode in the memory task.
const EPISODE: usize = 5;
/// Width of the LSTMs here.
const HIDDEN: usize = 8;

/// Returns the observations of a batch, in sequences of episodes, with empty actions.
fn observations(obs: Vec<f32>, width: u32, action: Column) -> SampleBatch {
    let rows = action.rows();
    let episodes = rows.div_ceil(EPISODE);
    let zeros = || Column::from(ColumnData::new(vec![0.0f32; episodes * HIDDEN], RowShape::vector(8)).unwrap());
    let obs = ColumnData::new(obs, RowShape::vector(width)).unwrap();
    let parts = BatchParts {
        columns: vec![
            (OBS.name().into(), obs.into()),
            (ACTIONS.name().into(), action),
            (state_in(0), zeros()),
            (state_in(1), zeros()),
        ],
        seq_lens: Some(ColumnData::scalars(vec![EPISODE as i32; episodes])),
        ..BatchParts::default()
    };
    learnable(SampleBatch::from_parts(parts).unwrap(), &vec![0.0; rows], &vec![0.0; rows])
}

/// Lets the learner's own model act on observations and returns the batch to learn from, and the sum of the rewards.
fn experience<D: Distribution>(
    learner: &mut Learner,
    batch: &SampleBatch,
    distribution: &D,
    seed: u64,
    reward: impl Fn(usize, &D::Action) -> f32,
) -> (SampleBatch, f32)
where
    ColumnData<D::Action>: Into<Column>,
    D::Action: rollmesh_core::column::Element,
{
    let rows = learner.train_rows(batch).unwrap();
    let (inputs, values) = rows.outputs(&learner.model).unwrap();
    let inputs: Vec<f32> = inputs.flatten_all().unwrap().to_vec1().unwrap();
    let values: Vec<f32> = values.to_vec1().unwrap();
    let streams = Streams::new(seed, Purpose::Action);
    let (mut actions, mut logp) = (vec![D::Action::default(); batch.len()], vec![0.0; batch.len()]);
    for (row, inputs) in inputs.chunks_exact(distribution.input_len()).enumerate() {
        let mut rng = streams.at(SlotId(row as u32), 0, 0, 0);
        let action = &mut actions[row * distribution.action_len()..][..distribution.action_len()];
        logp[row] = distribution.sample(inputs, &mut rng, action).unwrap();
    }
    let rewards: Vec<f32> = actions.iter().enumerate().map(|(row, action)| reward(row, action)).collect();
    let advantages: Vec<f32> = rewards.iter().zip(&values).map(|(reward, value)| reward - value).collect();
    let mut batch = learnable(batch.clone(), &logp, &rewards);
    batch.insert("actions", ColumnData::scalars(actions)).unwrap();
    batch.insert("advantages", ColumnData::scalars(advantages)).unwrap();
    batch.insert("vf_preds", ColumnData::scalars(values)).unwrap();
    (batch, rewards.iter().sum())
}

fn pg(lr: f64) -> AlgorithmConfig {
    let common = CommonConfig { lr, ..PolicyGradientConfig::pg().common };
    PolicyGradientConfig { common, ..PolicyGradientConfig::pg() }.into()
}

fn a2c(lr: f64) -> AlgorithmConfig {
    let common = CommonConfig { lr, ..PolicyGradientConfig::a2c().common };
    PolicyGradientConfig { common, entropy_coeff: 0.0, ..PolicyGradientConfig::a2c() }.into()
}

fn ppo(lr: f64) -> AlgorithmConfig {
    let common = CommonConfig { lr, anneal_over_env_steps: None, ..PpoConfig::default().common };
    PpoConfig { common, minibatch_size: 64, ..PpoConfig::default() }.into()
}

/// Returns the share of right answers in a bandit of two contexts after some updates.
fn bandit_after(algorithm: AlgorithmConfig, updates: u64) -> f32 {
    let mut learner =
        new_learner(algorithm, &discrete(2, 2), 1, &weights(2, &[8], 2), Device::Cpu, Kernels::PORTABLE).unwrap();
    let mut share = 0.0;
    for update in 0..updates {
        let contexts: Vec<i64> = (0..200).map(|row| (row * 7 + row / 3) % 2).collect();
        let obs = contexts.iter().flat_map(|&context| [context as f32, 1.0 - context as f32]).collect();
        let batch = observations(obs, 2, ColumnData::scalars(vec![0i64; 200]).into());
        let right = |row: usize, action: &i64| f32::from(u8::from(contexts[row] == *action));
        let (batch, sum) = experience(&mut learner, &batch, &Categorical::new(2).unwrap(), update, right);
        learner.update(&batch).unwrap();
        share = sum / 200.0;
    }
    share
}

#[test]
fn every_algorithm_learns_a_bandit() {
    for (algorithm, updates) in [(pg(0.03), 60), (a2c(0.03), 60), (ppo(0.01), 15)] {
        let share = bandit_after(algorithm.clone(), updates);
        assert!(share > 0.95, "{share} of {algorithm:?}");
    }
}

/// Returns the distance from a target that depends on the observation, of actions from a normal distribution.
fn distance_after(algorithm: AlgorithmConfig, updates: u64) -> f32 {
    let mut learner = new_learner(
        algorithm,
        &spaces(1, Space::vector(&[-1.0], &[1.0])),
        1,
        &weights(1, &[8], 2),
        Device::Cpu,
        Kernels::PORTABLE,
    )
    .unwrap();
    let mut distance = 0.0;
    for update in 0..updates {
        let obs: Vec<f32> = (0..200).map(|row| (row as f32 * 0.7).sin()).collect();
        let batch = observations(obs.clone(), 1, ColumnData::scalars(vec![0.0f32; 200]).into());
        let gap = |row: usize, action: &f32| -(action - 0.5 * obs[row] - 1.0).abs();
        let (batch, sum) = experience(&mut learner, &batch, &DiagGaussian::new(1).unwrap(), update, gap);
        learner.update(&batch).unwrap();
        distance = -sum / 200.0;
    }
    distance
}

#[test]
fn continuous_actions_find_their_target() {
    let before = distance_after(a2c(0.02), 1);
    assert!(before > 0.8, "{before}");
    for (algorithm, updates) in [(a2c(0.02), 200), (ppo(0.01), 50)] {
        let distance = distance_after(algorithm.clone(), updates);
        assert!(distance < 0.25, "{distance} of {algorithm:?}");
    }
}

/// Returns the share of episodes whose last action equals the first observation.
fn recall_after(weights: &Weights, updates: u64) -> f32 {
    let episodes = 60;
    let mut learner = new_learner(ppo(0.01), &discrete(2, 2), 1, weights, Device::Cpu, Kernels::PORTABLE).unwrap();
    let mut share = 0.0;
    for update in 0..updates {
        let bit = |episode: usize| ((episode * 7 + episode / 3) % 2) as i64;
        let is_last = |row: usize| row % EPISODE == EPISODE - 1;
        let obs = (0..episodes * EPISODE).flat_map(|row| {
            let signal = if row % EPISODE == 0 { 2.0 * bit(row / EPISODE) as f32 - 1.0 } else { 0.0 };
            [signal, f32::from(u8::from(is_last(row)))]
        });
        let batch = observations(obs.collect(), 2, ColumnData::scalars(vec![0i64; episodes * EPISODE]).into());
        let right = |row: usize, action: &i64| f32::from(u8::from(is_last(row) && *action == bit(row / EPISODE)));
        let (batch, sum) = experience(&mut learner, &batch, &Categorical::new(2).unwrap(), update, right);
        learner.update(&batch).unwrap();
        share = sum / episodes as f32;
    }
    share
}

#[test]
fn memory_solves_what_takes_memory() {
    let lstm = recall_after(&lstm_weights(2, HIDDEN as u32, 2), 40);
    assert!(lstm > 0.95, "{lstm}");
    let mlp = recall_after(&weights(2, &[HIDDEN as u32], 2), 40);
    assert!(mlp < 0.75, "{mlp}");
}
