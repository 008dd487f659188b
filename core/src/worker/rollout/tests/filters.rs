use super::super::test_support::*;
use crate::{
    filter::{Filter, FilterKind},
    ids::PolicyId,
    policy::PolicyState,
    prelude::*,
    worker::{NewPolicy, RolloutConfig, RolloutError, RolloutWorker, SetupError},
};

fn worker() -> RolloutWorker {
    let filter = FilterKind::MeanStdFilter;
    let config = RolloutConfig { observation_filter: filter, ..RolloutConfig::default() }.rollout_fragment_length(7);
    counting(3, config).build().unwrap()
}

fn counts(filters: &BTreeMap<PolicyId, Filter>) -> (u64, u64) {
    let filter = filters[&PolicyId::DEFAULT].mean_std().unwrap();
    (filter.running().n(), filter.buffer().n())
}

/// RLlib 2.9.3: 7 rows of episodes of 3 steps are 10 observations.
#[test]
fn filters_count_all_observations_and_are_flushed_after_the_copy() {
    let mut worker = worker();
    worker.sample().unwrap();
    assert_eq!(counts(&worker.filters(false).unwrap()), (10, 10));
    assert_eq!(counts(&worker.filters(true).unwrap()), (10, 10));
    assert_eq!(counts(&worker.filters(false).unwrap()), (10, 0));
}

#[test]
fn merging_statistics_keeps_the_local_delta() {
    let mut worker = worker();
    worker.sample().unwrap();
    let theirs = worker.filters(true).unwrap();
    worker.sample().unwrap();
    let (_, new) = counts(&worker.filters(false).unwrap());
    assert!(new > 0);
    worker.sync_filters(&theirs).unwrap();
    assert_eq!(counts(&worker.filters(false).unwrap()), (10 + new, new));
    // Its observations are not counted twice.
    worker.sync_filters(&theirs).unwrap();
    assert_eq!(counts(&worker.filters(true).unwrap()), (10 + new, new));
    worker.sync_filters(&theirs).unwrap();
    assert_eq!(counts(&worker.filters(false).unwrap()), (10, 0));
}

#[test]
fn all_filters_are_synced_or_none() {
    let mut worker = worker();
    worker.sample().unwrap();
    let before = worker.filters(false).unwrap();
    assert_eq!(worker.sync_filters(&BTreeMap::new()), Err(RolloutError::MissingFilter(PolicyId::DEFAULT)));
    let wrong: BTreeMap<_, _> = [(PolicyId::DEFAULT, Filter::NoFilter)].into();
    assert!(matches!(worker.sync_filters(&wrong), Err(RolloutError::Filter { .. })));
    assert_eq!(worker.filters(false).unwrap(), before);
}

#[test]
fn a_removed_policy_takes_its_filter_along() {
    let mut worker = worker();
    let id = PolicyId::new("p");
    worker.add_policy(id.clone(), NewPolicy::named("mock"), None, None).unwrap();
    let both = worker.filters(false).unwrap();
    assert_eq!(both.len(), 2);
    worker.remove_policy(&id, None, None).unwrap();
    let mut one = worker.filters(false).unwrap();
    assert_eq!(one.len(), 1);
    worker.sync_filters(&one).unwrap();
    one.clear();
    assert!(worker.sync_filters(&both).is_ok(), "filters of policies that are elsewhere do not matter");
}

/// Weights that fit, with a filter that does not.
#[test]
fn a_filter_of_another_worker_stays_there() {
    let plain = || counting(3, RolloutConfig::default().rollout_fragment_length(7)).build().unwrap();
    let (mut filtering, mut plain) = (worker(), plain());
    filtering.sample().unwrap();
    let id = PolicyId::DEFAULT;
    let (policy, state) = (filtering.export_policy(&id).unwrap(), filtering.save().unwrap());
    let before = plain.save().unwrap();
    assert!(matches!(plain.import_policy(&id, &policy), Err(RolloutError::Filter { .. })));
    assert!(matches!(plain.restore(&state), Err(RolloutError::Filter { .. })));
    assert_eq!(plain.save().unwrap(), before);
    let state = PolicyState { weights: weight(1.0), filter: Filter::NoFilter, extra: vec![0; 8] };
    let new = NewPolicy { state: Some(state), ..NewPolicy::named("mock") };
    let refused = filtering.add_policy(PolicyId::new("p"), new, None, None).map(|_| ());
    assert!(matches!(refused, Err(RolloutError::Setup(SetupError::Filter { .. }))), "{refused:?}");
    // A copy of its own state fits.
    filtering.import_policy(&id, &policy).unwrap();
}
