//! Advantages of policies with different discount factors.

use crate::{
    batch::{
        ADVANTAGES, AGENT_INDEX, EPS_ID, NEW_OBS, REWARDS, SampleBatch, TERMINATEDS, UNROLL_ID, VALUE_TARGETS, VF_PREDS,
    },
    env::RowsRef,
    ids::PolicyId,
    prelude::*,
    worker::{PolicyConfig, Registry, RolloutConfig, RolloutWorker, WorkerPlace},
};

/// Episode, agent and unroll id of a row.
type Piece = (i64, i64, i64);

/// Counts how the pieces of a batch end.
#[derive(Debug, Default)]
struct Ends {
    arrived: usize,
    cut: usize,
}

/// Computes advantages and value targets with lambda 1 from the definition: the discounted rewards that follow and, unless
/// the car arrived, the discounted value of its last observation.
fn by_hand(batch: &SampleBatch, gamma: f64, mut value: impl FnMut(&[f32]) -> f32) -> (Vec<[f64; 2]>, Ends) {
    let [eps, agents, unrolls] = [EPS_ID, AGENT_INDEX, UNROLL_ID].map(|key| batch.get(key).unwrap());
    let (rewards, values) = (batch.get(REWARDS).unwrap(), batch.get(VF_PREDS).unwrap());
    let (terminateds, new_obs) = (batch.get(TERMINATEDS).unwrap(), batch.get(NEW_OBS).unwrap());
    let width = new_obs.len() / batch.len();
    let mut pieces: BTreeMap<Piece, Vec<usize>> = BTreeMap::new();
    for row in 0..batch.len() {
        pieces.entry((eps[row], agents[row], unrolls[row])).or_default().push(row);
    }
    let (mut out, mut ends) = (vec![[0.0; 2]; batch.len()], Ends::default());
    for rows in pieces.values() {
        let last = rows[rows.len() - 1];
        let follows = if terminateds[last] { 0.0 } else { f64::from(value(&new_obs[last * width..][..width])) };
        *(if terminateds[last] { &mut ends.arrived } else { &mut ends.cut }) += 1;
        for (first, &row) in rows.iter().enumerate() {
            let (mut target, mut discount) = (0.0, 1.0);
            for &later in &rows[first..] {
                target += discount * f64::from(rewards[later]);
                discount *= gamma;
            }
            target += discount * follows;
            out[row] = [target - f64::from(values[row]), target];
        }
    }
    (out, ends)
}

/// Returns the largest difference between a batch and [`by_hand`].
fn gap(batch: &SampleBatch, wanted: &[[f64; 2]]) -> f64 {
    let found = batch.get(ADVANTAGES).unwrap().iter().zip(batch.get(VALUE_TARGETS).unwrap());
    let gaps = found.zip(wanted).map(|((advantage, target), wanted)| {
        (f64::from(*advantage) - wanted[0]).abs().max((f64::from(*target) - wanted[1]).abs())
    });
    gaps.fold(0.0, f64::max)
}

#[test]
fn each_policy_of_the_traffic_grid_discounts_with_its_own_gamma() {
    let kind = |gamma: f64| PolicyConfig::new("net").with_config(format!(r#"{{"gamma": {gamma}}}"#).parse().unwrap());
    let config = RolloutConfig {
        policy_mapping_fn: Some("traffic".into()),
        seed: 7,
        ..RolloutConfig::new("MultiAgentTrafficGrid-v0").rollout_fragment_length(45).fcnet_hiddens(&[8])
    }
    .policy(PolicyId::new("car_policy1"), kind(0.99))
    .policy(PolicyId::new("car_policy2"), kind(0.95))
    .policy(PolicyId::new("traffic_light_policy"), kind(0.9));
    let mut worker = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::default()).unwrap();
    // Journeys are longer than a sample, so the second one begins and ends with cuts.
    for _ in 0..2 {
        let batch = worker.sample().unwrap().as_multi_agent();
        for (id, gamma, other) in [("car_policy1", 0.99, 0.95), ("car_policy2", 0.95, 0.99)] {
            let (id, rows) = (PolicyId::new(id), &batch.policy_batches[&PolicyId::new(id)]);
            let policy = worker.policy_mut(&id).unwrap();
            let mut value = |obs: &[f32]| {
                let mut value = [0.0];
                policy.compute_values(RowsRef::F32(obs), &[], &mut value).unwrap();
                value[0]
            };
            let (wanted, ends) = by_hand(rows, gamma, &mut value);
            assert!(ends.arrived > 0 && ends.cut > 0, "{id}: {ends:?}");
            assert!(gap(rows, &wanted) < 1e-5, "{id}: {}", gap(rows, &wanted));
            assert!(gap(rows, &by_hand(rows, other, &mut value).0) > 0.1, "{id} must not discount with {other}");
        }
    }
}
