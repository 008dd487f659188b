//! Changes in the worker reach the thread, and the thread's observations reach the worker.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::{ACTION_LOGP, VF_PREDS},
    env::{RowsMut, RowsRef},
    episode::GlobalVars,
    filter::Filter,
    ids::WeightsVersion,
    policy::{ActionInput, ActionOutput, Policy, PolicyError},
    weights::{Tensor, Weights},
};

use super::*;

/// Maximum number of batches without a change: in the queue, waiting for space, and in progress.
const STALE: usize = AsyncSampler::QUEUE + 2;

/// Returns its weight as the value of every observation, and its time as log-probability.
pub(super) struct WeightPolicy {
    weights: Weights,
    time: u64,
}

pub(super) fn weight(value: f32) -> Weights {
    let tensor = Tensor { name: "w".into(), shape: vec![1], values: vec![value] };
    Weights::new(WeightsVersion(0), vec![tensor]).unwrap()
}

fn value(weights: &Weights) -> f32 {
    weights.tensor("w").unwrap().values[0]
}

impl Policy for WeightPolicy {
    fn compute_actions(&mut self, _input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let value = value(&self.weights);
        if value == -1.0 {
            return Err(PolicyError::Failed("less than nothing".into()));
        }
        assert!(value >= 0.0, "far less than nothing");
        let RowsMut::I64(actions) = out.actions else { return Err(PolicyError::Failed("not int64".into())) };
        actions.fill(0);
        out.logp.fill(self.time as f32);
        out.vf_preds.fill(value);
        Ok(())
    }

    fn compute_values(&mut self, _obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(value(&self.weights));
        Ok(())
    }

    fn on_global_var_update(&mut self, vars: &GlobalVars) {
        self.time = vars.timestep;
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.weights = weights.clone();
        Ok(())
    }

    fn extra_state(&self) -> Vec<u8> {
        self.time.to_le_bytes().to_vec()
    }

    fn set_extra_state(&mut self, bytes: &[u8]) -> Result<(), PolicyError> {
        self.time = u64::from_le_bytes(bytes.try_into().map_err(|_| PolicyError::Failed("no time".into()))?);
        Ok(())
    }
}

/// Returns a custom policy with an initial weight.
pub(super) fn weight_policy(begin: f32) -> NewPolicy {
    NewPolicy::of(PolicySpec::new("weight_policy", move |_| {
        Ok(Box::new(WeightPolicy { weights: weight(begin), time: 0 }))
    }))
}

/// Makes a worker with one environment, fragments of ten steps and [`WeightPolicy`].
pub(super) fn weight_worker() -> RolloutWorker {
    let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(10);
    builder(on_a_thread(config)).policy(PolicyId::DEFAULT, weight_policy(1.0)).build().unwrap()
}

pub(super) fn set(worker: &mut RolloutWorker, value: f32) {
    worker.set_weights(&BTreeMap::from([(PolicyId::DEFAULT, weight(value))]), None, None).unwrap();
}

/// Returns the only value in the next sample, and the only time.
fn sample_values(worker: &mut RolloutWorker) -> (f32, f32) {
    let batch = worker.sample().unwrap();
    let batch = batch.single().unwrap();
    let (values, times) = (batch.get(VF_PREDS).unwrap(), batch.get(ACTION_LOGP).unwrap());
    assert!(values.iter().all(|value| *value == values[0]) && times.iter().all(|time| *time == times[0]));
    (values[0], times[0])
}

#[test]
fn new_weights_begin_with_a_fragment_and_soon() {
    let mut worker = weight_worker();
    assert_eq!(sample_values(&mut worker), (1.0, 0.0));
    for new in [2.0, 3.0] {
        set(&mut worker, new);
        let values: Vec<f32> = (0..2 * STALE).map(|_| sample_values(&mut worker).0).collect();
        assert!(values.is_sorted() && values[STALE..].iter().all(|value| *value == new), "{values:?}");
    }
    worker.set_global_vars(&GlobalVars { timestep: 7, ..GlobalVars::default() }, None).unwrap();
    let times: Vec<f32> = (0..2 * STALE).map(|_| sample_values(&mut worker).1).collect();
    assert!(times.is_sorted() && times[STALE..].iter().all(|time| *time == 7.0), "{times:?}");
}

#[test]
fn policies_are_added_and_removed() {
    let config = on_a_thread(RolloutConfig { horizon: Some(20), ..games() });
    let mut worker = builder(config).policy_mapping_fn(|id, _, _, _| by_parity(id)).build().unwrap();
    let ids = |worker: &mut RolloutWorker| -> Vec<String> {
        worker.sample().unwrap().as_multi_agent().policy_batches.keys().map(ToString::to_string).collect()
    };
    assert_eq!(ids(&mut worker), ["even", "odd"]);
    let late = PolicyId::new("late");
    let mapping: PolicyMappingFn = Arc::new(|id, _, _, _| match by_parity(id) {
        odd if odd == PolicyId::new("odd") => odd,
        _ => PolicyId::new("late"),
    });
    worker.add_policy(late.clone(), NewPolicy::named("random"), Some(mapping), None).unwrap();
    let seen: Vec<_> = (0..2 * STALE).map(|_| ids(&mut worker)).collect();
    assert_eq!(seen.last().unwrap(), &["late", "odd"], "{seen:?}");
    worker.remove_policy(&late, Some(Arc::new(|_, _, _, _| PolicyId::new("odd"))), None).unwrap();
    let seen: Vec<_> = (0..2 * STALE).map(|_| ids(&mut worker)).collect();
    assert_eq!(seen.last().unwrap(), &["odd"], "{seen:?}");
    // A policy that is added again under the same id is a different one.
    worker.add_policy(late.clone(), NewPolicy::named("net"), None, None).unwrap();
    worker.sample().unwrap();
    worker.stop().unwrap();
}

fn filtered() -> RolloutConfig {
    RolloutConfig { observation_filter: FilterKind::ConcurrentMeanStdFilter, ..cartpoles() }
}

/// Returns the number of rows in the statistics, and in the buffer.
fn counts(worker: &mut RolloutWorker, flush: bool) -> (u64, u64) {
    let filters = worker.filters(flush).unwrap();
    let filter = filters[&PolicyId::DEFAULT].mean_std().unwrap();
    (filter.running().n(), filter.buffer().n())
}

#[test]
fn filters_count_the_rows_of_the_batches_that_were_taken() {
    let mut there = builder(on_a_thread(filtered())).build().unwrap();
    let mut here = builder(filtered()).build().unwrap();
    for sample in 0..8 {
        assert_eq!(there.sample(), here.sample());
        let flush = sample % 3 == 2;
        assert_eq!(counts(&mut there, flush), counts(&mut here, flush));
    }
    let mean = |worker: &mut RolloutWorker| {
        worker.filters(false).unwrap()[&PolicyId::DEFAULT].mean_std().unwrap().running().mean().to_vec()
    };
    for (there, here) in mean(&mut there).iter().zip(mean(&mut here)) {
        assert!((there - here).abs() < 1e-12, "{there} {here}");
    }
    // Batches that were sampled ahead are not counted, and no counted observation is lost.
    there.stop().unwrap();
    assert_eq!(counts(&mut there, true), counts(&mut here, true));
}

#[test]
fn statistics_of_others_are_heeded_and_ones_own_kept() {
    let mut worker = builder(on_a_thread(filtered())).build().unwrap();
    for _ in 0..3 {
        worker.sample().unwrap();
    }
    let (own, buffered) = counts(&mut worker, false);
    assert_eq!((own, own), (buffered, counts(&mut worker, true).1));
    worker.sample().unwrap();
    let (_, delta) = counts(&mut worker, false);
    // Statistics from elsewhere that have seen large values.
    let mut others = worker.filters(false).unwrap();
    for filter in others.values_mut() {
        let Filter::MeanStdFilter(filter) = filter else { panic!("a filter with statistics") };
        filter.reset_buffer();
        filter.filter_rows(&mut vec![1e6; 4 * 1_000], true).unwrap();
    }
    let theirs = others[&PolicyId::DEFAULT].mean_std().unwrap().running().n();
    worker.sync_filters(&others).unwrap();
    assert_eq!(counts(&mut worker, false), (theirs + delta, delta));
    // Then CartPole's usual values are far below the mean: about -1 after scaling.
    let batches: Vec<AnyBatch> = (0..2 * STALE).map(|_| worker.sample().unwrap()).collect();
    let last = batches.last().and_then(|batch| batch.single().ok()).unwrap();
    assert!(last.get(rollmesh_core::batch::OBS).unwrap().iter().all(|obs| (-3.0..-0.1).contains(obs)));
    // Each batch has added its observations, including earlier batches: at least its rows.
    let (all, new) = counts(&mut worker, false);
    assert!(new >= delta + 2 * STALE as u64 * 80);
    assert_eq!(all, theirs + new);
}
