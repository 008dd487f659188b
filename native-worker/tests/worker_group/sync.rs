//! Weights and statistics that travel.

use std::{collections::BTreeMap, time::Duration};

use rollmesh::{
    Registry,
    learner::{DeviceSpec, Learner, PpoConfig},
    worker_group::{ForEachWorker, GroupError, ParallelSample, SyncFilters, SyncWeights, WeightsSource},
};
use rollmesh_core::{
    episode::GlobalVars,
    filter::{Filter, FilterKind},
    ids::{PolicyId, WorkerId},
    weights::Weights,
    worker::{RolloutConfig, RolloutWorker, WorkerAnswer, WorkerCommand, WorkerPlace},
};

use super::rig::{builder, cart_pole, group, placements};

fn other_weights(seed: u64) -> BTreeMap<PolicyId, Weights> {
    let config = cart_pole().seed(seed);
    RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL).unwrap().weights(None).unwrap()
}

fn everybodys(group: &mut rollmesh::WorkerGroup) -> Vec<BTreeMap<PolicyId, Weights>> {
    let answers = group.foreach_worker(WorkerCommand::Weights { policies: None }).unwrap();
    let weights = |answer| match answer {
        WorkerAnswer::Weights(weights) => weights,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(weights).collect()
}

pub(crate) fn weights_come_from_where_one_says() {
    for placement in placements() {
        let mut group = group(cart_pole(), &placement, 2);
        let (one, two) = (other_weights(11), other_weights(12));
        // From elsewhere they reach the local worker, too.
        group.sync_weights(SyncWeights::from_weights(&one)).unwrap();
        assert_eq!(everybodys(&mut group), vec![one.clone(); 3]);
        // From the local worker, to one of the others alone.
        group.local_worker().unwrap().set_weights(&two, None, None).unwrap();
        let second = SyncWeights { to_worker_indices: Some(&[WorkerId(2)]), ..SyncWeights::default() };
        group.sync_weights(second).unwrap();
        assert_eq!(everybodys(&mut group), [two.clone(), one.clone(), two.clone()]);
        // Of no policy, but with news; and somebody waits.
        let vars = GlobalVars { timestep: 77, ..GlobalVars::default() };
        let news = SyncWeights {
            policies: Some(&[]),
            global_vars: Some(&vars),
            timeout: Duration::from_secs(60),
            ..SyncWeights::default()
        };
        group.sync_weights(news).unwrap();
        assert_eq!(everybodys(&mut group)[1], one);
        let heard = group.foreach_worker(WorkerCommand::GlobalVars).unwrap();
        assert_eq!(heard, vec![WorkerAnswer::GlobalVars(vars); 3]);
        // What does not fit is said by whoever is first to see it.
        let strange: BTreeMap<_, _> = two.values().map(|w| (PolicyId::new("stranger"), w.clone())).collect();
        assert!(matches!(group.sync_weights(SyncWeights::from_weights(&strange)), Err(GroupError::Local(_))));

        let mut remote = builder(cart_pole(), &placement, 1).local_worker(false).build().unwrap();
        let error = remote.sync_weights(SyncWeights::default()).unwrap_err();
        assert!(matches!(error, GroupError::NoSource("weights")), "{error}");
        let mut learner =
            RolloutWorker::from_config(cart_pole().seed(12), &Registry::builtin(), WorkerPlace::LOCAL).unwrap();
        remote
            .sync_weights(SyncWeights { from: WeightsSource::Worker(&mut learner), ..SyncWeights::default() })
            .unwrap();
        assert_eq!(everybodys(&mut remote), [two]);
        let spaces = group.spaces().unwrap().remove(&PolicyId::DEFAULT).unwrap();
        let first = &one[&PolicyId::DEFAULT];
        let learner = Learner::new(PpoConfig::default(), &spaces, 3, first, DeviceSpec::Cpu.open().unwrap()).unwrap();
        group.sync_weights(SyncWeights { from: WeightsSource::Learner(&learner), ..SyncWeights::default() }).unwrap();
        assert_eq!(everybodys(&mut group), vec![one; 3]);
    }
}

pub(crate) fn filters_count_every_observation_once() {
    for placement in placements() {
        let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..cart_pole() };
        let mut group = group(config, &placement, 2);
        let count = |filter: &Filter| filter.mean_std().unwrap().running().n();
        let everybodys = |group: &mut rollmesh::WorkerGroup| -> Vec<u64> {
            let answers = group.foreach_worker(WorkerCommand::Filters { flush_after: false }).unwrap();
            let n = |answer| match answer {
                WorkerAnswer::Filters(filters) => count(&filters[&PolicyId::DEFAULT]),
                other => panic!("{other:?}"),
            };
            answers.into_iter().map(n).collect()
        };
        let mut seen = 0;
        for round in 1..=3 {
            group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
            let remote: u64 = everybodys(&mut group)[1..].iter().map(|n| n - seen).sum();
            // Two workers with two environments: their steps, and the observations that episodes begin with.
            assert!(remote >= 40, "{remote}");
            seen += remote;
            group.sync_filters(&SyncFilters::default()).unwrap();
            assert_eq!(everybodys(&mut group), [seen; 3], "round {round}");
        }
        // One way only.
        group.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        group.sync_filters(&SyncFilters { update_worker_filter_stats: false, ..SyncFilters::default() }).unwrap();
        let counts = everybodys(&mut group);
        assert!(counts[0] > seen && counts[1] < counts[0], "{counts:?}");

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
