//! Synchronisation of weights and statistics.

use std::{collections::BTreeMap, net::TcpListener, time::Duration};

use rollmesh::{
    Registry, WorkerGroup,
    kernels::AUTO,
    learner::{DeviceSpec, Learner, PpoConfig},
    worker_group::{
        FailureSettings, ForEachWorker, GroupError, ParallelSample, Placement, SyncFilters, SyncWeights, WeightsSource,
    },
};
use rollmesh_core::{
    batch::AnyBatch,
    episode::GlobalVars,
    filter::{Filter, FilterKind},
    ids::{PolicyId, WorkerId},
    policy::{ModelConfig, ModelSpec},
    worker::{PolicyConfig, PolicyRoles, RolloutConfig, RolloutWorker, WorkerAnswer, WorkerCommand, WorkerPlace},
};

use super::rig::{
    builder, cart_pole, connected, everywhere, group, lose_all, notices, other_weights, placements, waiting_at,
    weights_of_all,
};

const SOON: Duration = Duration::from_secs(60);

pub(crate) fn weights_come_from_the_configured_source() {
    for placement in everywhere() {
        let mut group = group(cart_pole(), &placement, 2);
        let (one, two) = (other_weights(11), other_weights(12));
        // From elsewhere they reach the local worker, too.
        group.sync_weights(SyncWeights::from_weights(&one)).unwrap();
        assert_eq!(weights_of_all(&mut group), vec![one.clone(); 3]);
        // From the local worker, to one of the others alone.
        group.local_worker().unwrap().set_weights(&two, None, None).unwrap();
        let second = SyncWeights { to_worker_indices: Some(&[WorkerId(2)]), ..SyncWeights::default() };
        group.sync_weights(second).unwrap();
        assert_eq!(weights_of_all(&mut group), [two.clone(), one.clone(), two.clone()]);
        // The weights of no policy, but global variables; and the caller waits.
        let vars = GlobalVars { timestep: 77, ..GlobalVars::default() };
        let update =
            SyncWeights { policies: Some(&[]), global_vars: Some(&vars), timeout: SOON, ..SyncWeights::default() };
        group.sync_weights(update).unwrap();
        assert_eq!(weights_of_all(&mut group)[1], one);
        let heard = group.foreach_worker(WorkerCommand::GlobalVars).unwrap();
        assert_eq!(heard, vec![WorkerAnswer::GlobalVars(vars); 3]);
        // The first worker that finds a mismatch reports it.
        let strange: BTreeMap<_, _> = two.values().map(|w| (PolicyId::new("stranger"), w.clone())).collect();
        assert!(matches!(group.sync_weights(SyncWeights::from_weights(&strange)), Err(GroupError::Local(_))));

        let builder = builder(cart_pole(), &placement, 1).local_worker(false);
        let mut remote = connected(builder, &placement, 1);
        let error = remote.sync_weights(SyncWeights::default()).unwrap_err();
        assert!(matches!(error, GroupError::NoSource("weights")), "{error}");
        let mut learner =
            RolloutWorker::from_config(cart_pole().seed(12), &Registry::builtin(), WorkerPlace::LOCAL).unwrap();
        remote
            .sync_weights(SyncWeights { from: WeightsSource::Worker(&mut learner), ..SyncWeights::default() })
            .unwrap();
        assert_eq!(weights_of_all(&mut remote), [two]);
        let spaces = group.spaces().unwrap().remove(&PolicyId::DEFAULT).unwrap();
        let first = &one[&PolicyId::DEFAULT];
        let model = ModelConfig::of_widths(&[8]);
        let spec = ModelSpec::for_spaces(&spaces, &model).unwrap();
        let device = DeviceSpec::Cpu.open().unwrap();
        let learner = Learner::new(PpoConfig::default(), &spaces, &spec, 3, first, device, AUTO).unwrap();
        group.sync_weights(SyncWeights { from: WeightsSource::Learner(&learner), ..SyncWeights::default() }).unwrap();
        assert_eq!(weights_of_all(&mut group), vec![one; 3]);
    }
}

pub(crate) fn weights_of_some_policies_are_those_policies_alone() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 1);
        let (first, second) = (PolicyId::DEFAULT, PolicyId::new("second"));
        let (all, kind) = (ForEachWorker::default(), PolicyConfig::default());
        group.add_policy(&all, second.clone(), kind, None, PolicyRoles::default()).unwrap();
        let before = group.weights(None).unwrap();
        let [other] = <[_; 1]>::try_from(other_weights(77).into_values().collect::<Vec<_>>()).unwrap();
        let from = BTreeMap::from([(first.clone(), other.clone()), (second.clone(), other.clone())]);
        let only = [second.clone()];
        group.sync_weights(SyncWeights { policies: Some(&only), ..SyncWeights::from_weights(&from) }).unwrap();
        let expected = BTreeMap::from([(first.clone(), before[&first].clone()), (second, other)]);
        assert_eq!(weights_of_all(&mut group), vec![expected; 2]);
        // From the local worker, too.
        let two = [first.clone()];
        group.local_worker().unwrap().set_weights(&from, None, None).unwrap();
        group.sync_weights(SyncWeights { policies: Some(&two), ..SyncWeights::default() }).unwrap();
        assert_eq!(weights_of_all(&mut group), vec![from; 2]);
    }
}

pub(crate) fn weights_that_do_not_fit_are_an_error() {
    for placement in placements() {
        let failures = FailureSettings { recreate_failed_workers: true, ..FailureSettings::default() };
        let mut group = builder(cart_pole(), &placement, 1).local_worker(false).failures(failures).build().unwrap();
        let strange: BTreeMap<_, _> = other_weights(3).into_values().map(|w| (PolicyId::new("stranger"), w)).collect();
        // A caller that does not wait is notified later.
        group.sync_weights(SyncWeights::from_weights(&strange)).unwrap();
        group.foreach_worker(WorkerCommand::Ping).unwrap();
        let heard = notices(&mut group);
        let says =
            |notice: &String| notice.contains("for which no caller waits, has failed") && notice.contains("stranger");
        assert!(heard.iter().any(says), "{heard:?}");
        let waits = SyncWeights { timeout: SOON, ..SyncWeights::from_weights(&strange) };
        let error = group.sync_weights(waits).unwrap_err();
        assert!(matches!(&error, GroupError::Worker { worker: WorkerId(1), .. }), "{error}");

        // Nor does it keep a worker from being restored with what does fit.
        let good = other_weights(4);
        group.sync_weights(SyncWeights { timeout: SOON, ..SyncWeights::from_weights(&good) }).unwrap();
        lose_all(&mut group);
        assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1)]);
        assert_eq!(weights_of_all(&mut group), [good]);
    }
}

/// Returns the number of observations that each worker's filter has counted, the local worker's first.
fn counts(group: &mut WorkerGroup) -> Vec<u64> {
    let answers = group.foreach_worker(WorkerCommand::Filters { flush_after: false }).unwrap();
    let count = |filter: &Filter| filter.mean_std().unwrap().running().n();
    let n = |answer| match answer {
        WorkerAnswer::Filters(filters) => count(&filters[&PolicyId::DEFAULT]),
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(n).collect()
}

/// Returns a group with filters that has synced them once and sampled once more, and the counts of each.
fn with_unmerged_statistics<const N: usize>(placement: &Placement) -> (WorkerGroup, [u64; N]) {
    let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..cart_pole() };
    let mut group = group(config, placement, N as u32 - 1);
    group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    group.sync_filters(&SyncFilters::default()).unwrap();
    group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
    let counted = counts(&mut group).try_into().unwrap();
    (group, counted)
}

pub(crate) fn statistics_of_workers_are_kept_local_if_configured() {
    for placement in placements() {
        let (mut group, [shared, one, two]) = with_unmerged_statistics(&placement);
        assert!(one > shared && two > shared, "{shared} {one} {two}");
        group.sync_filters(&SyncFilters { use_worker_filter_stats: false, ..SyncFilters::default() }).unwrap();
        assert_eq!(counts(&mut group), [shared, one, two]);
        // They are still theirs to hand over.
        group.sync_filters(&SyncFilters::default()).unwrap();
        assert_eq!(counts(&mut group), [one + two - shared; 3]);
    }
}

pub(crate) fn statistics_that_are_late_are_merged_the_next_time() {
    for placement in placements() {
        let (mut group, [shared, one]) = with_unmerged_statistics(&placement);
        let gate = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = waiting_at(&gate);
        group.foreach_worker_async(&ForEachWorker::remote(), closed, None).unwrap();
        group.sync_filters(&SyncFilters { timeout: Duration::from_millis(200), ..SyncFilters::default() }).unwrap();
        drop(gate.accept().unwrap());
        assert_eq!(counts(&mut group), [shared; 2]);
        group.sync_filters(&SyncFilters::default()).unwrap();
        assert_eq!(counts(&mut group), [one; 2]);
    }
}

pub(crate) fn filters_count_every_observation_once() {
    for placement in placements() {
        let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..cart_pole() };
        let mut group = group(config, &placement, 2);
        let mut seen = 0;
        for round in 1..=3 {
            group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
            let remote: u64 = counts(&mut group)[1..].iter().map(|n| n - seen).sum();
            // Two workers with two environments: their steps, and the observations that episodes begin with.
            assert!(remote >= 40, "{remote}");
            seen += remote;
            group.sync_filters(&SyncFilters::default()).unwrap();
            assert_eq!(counts(&mut group), [seen; 3], "round {round}");
        }
        // One way only.
        group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        group.sync_filters(&SyncFilters { update_worker_filter_stats: false, ..SyncFilters::default() }).unwrap();
        let counted = counts(&mut group);
        assert!(counted[0] > seen && counted[1] < counted[0], "{counted:?}");

        let mut remote = builder(cart_pole(), &placement, 1).local_worker(false).build().unwrap();
        let error = remote.sync_filters(&SyncFilters::default()).unwrap_err();
        assert!(matches!(error, GroupError::NoSource("filters")), "{error}");
    }
}

pub(crate) fn steps_of_the_run_are_shared_out() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        group.sync_filters(&SyncFilters { env_steps_sampled: Some(100), ..SyncFilters::default() }).unwrap();
        let heard = group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::GlobalVars).unwrap();
        let share = GlobalVars { timestep: 50, ..GlobalVars::default() };
        assert_eq!(heard, vec![WorkerAnswer::GlobalVars(share); 2]);
    }
}

/// Does the rounds of RLlib's `SyncSamplesOptimizer.step`.
pub(crate) fn rounds_of_sampling_and_learning_bring_all_workers_the_same_weights() {
    let learned = placements().map(|placement| {
        let mut group = group(cart_pole().single_policy("ppo"), &placement, 2);
        let mut seen = weights_of_all(&mut group)[..1].to_vec();
        for _ in 0..2 {
            let batches = group.synchronous_parallel_sample(ParallelSample::env_steps(80)).unwrap();
            let batch = AnyBatch::concat(&batches).unwrap();
            let infos = group.local_worker().unwrap().learn_on_batch(&batch).unwrap();
            assert!(infos[&PolicyId::DEFAULT].contains_key("policy_loss"));
            group.sync_weights(SyncWeights { timeout: SOON, ..SyncWeights::default() }).unwrap();
            let weights = weights_of_all(&mut group);
            assert_eq!(weights, vec![weights[0].clone(); 3]);
            assert!(!seen.contains(&weights[0]), "something was learned");
            seen.push(weights[0].clone());
        }
        seen
    });
    assert_eq!(learned[0], learned[1]);
}
