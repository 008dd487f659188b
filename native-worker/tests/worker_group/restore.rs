//! The state from which lost workers continue in a group without a local worker.

use rollmesh::{
    WorkerGroup,
    worker_group::{FailureSettings, ForEachWorker, ParallelSample, Placement, SyncWeights},
};
use rollmesh_core::{
    episode::GlobalVars,
    filter::FilterKind,
    ids::{PolicyId, WorkerId},
    worker::{PolicyConfig, PolicyRoles, RolloutConfig, WorkerAnswer, WorkerCommand},
};

use super::rig::{builder, cart_pole, everywhere, group, lose_all, notices, other_weights, placements, weights_of_all};

fn without_local(config: RolloutConfig, placement: &Placement, workers: u32) -> WorkerGroup {
    let failures = FailureSettings { recreate_failed_workers: true, ..FailureSettings::default() };
    builder(config, placement, workers).local_worker(false).failures(failures).build().unwrap()
}

/// Loses all workers, of which none can be restored.
fn stay_away(group: &mut WorkerGroup) {
    lose_all(group);
    assert_eq!(group.probe_unhealthy_workers().unwrap(), []);
    assert_eq!(group.num_healthy_remote_workers(), 0);
    let notices = notices(group);
    assert!(notices.iter().any(|notice| notice.contains("what it had is lost")), "{notices:?}");
}

pub(crate) fn last_synced_weights_are_restored_without_another_worker() {
    for placement in placements() {
        let mut group = without_local(cart_pole(), &placement, 2);
        let (one, two) = (other_weights(11), other_weights(12));
        let vars = GlobalVars { timestep: 77, ..GlobalVars::default() };
        let sync = SyncWeights { global_vars: Some(&vars), ..SyncWeights::from_weights(&one) };
        group.sync_weights(sync).unwrap();
        group.sync_weights(SyncWeights::from_weights(&two)).unwrap();
        lose_all(&mut group);
        assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1), WorkerId(2)]);
        assert_eq!(weights_of_all(&mut group), vec![two.clone(); 2]);
        let heard = group.foreach_worker(WorkerCommand::GlobalVars).unwrap();
        assert_eq!(heard, vec![WorkerAnswer::GlobalVars(vars); 2]);
        // A new worker gets them, too, also where there is no other.
        lose_all(&mut group);
        group.add_workers(1, true).unwrap();
        let last = ForEachWorker::remote().remote_workers([WorkerId(3)]);
        let weights = group.foreach_worker_with(&last, WorkerCommand::Weights { policies: None }).unwrap();
        assert_eq!(weights, [WorkerAnswer::Weights(two)]);
    }
}

pub(crate) fn connected_workers_are_restored_automatically() {
    for placement in everywhere() {
        let mut group = group(cart_pole(), &placement, 2);
        let second = ForEachWorker::remote().remote_workers([WorkerId(2)]).unhealthy_too();
        let weights = WorkerCommand::Weights { policies: None };
        let before = group.foreach_worker_with(&second, weights.clone()).unwrap();
        group.set_worker_state(WorkerId(2), false).unwrap();
        let synced = other_weights(11);
        group.sync_weights(SyncWeights::from_weights(&synced)).unwrap();
        // It was unhealthy when the weights were synced.
        assert_eq!(group.foreach_worker_with(&second, weights).unwrap(), before);
        assert_eq!(group.restore(&[]).unwrap(), []);
        assert_eq!(group.restore(&[WorkerId(2)]).unwrap(), [WorkerId(2)]);
        assert_eq!((group.num_healthy_remote_workers(), group.num_remote_worker_restarts()), (2, 1));
        assert_eq!(weights_of_all(&mut group), vec![synced; 3]);
    }
}

pub(crate) fn lost_state_is_not_replaced_by_first_weights() {
    for placement in placements() {
        let mut group = without_local(cart_pole(), &placement, 1);
        stay_away(&mut group);
        // They get weights to act with.
        let weights = other_weights(11);
        group.sync_weights(SyncWeights::from_weights(&weights)).unwrap();
        assert_eq!(group.probe_unhealthy_workers().unwrap(), [WorkerId(1)]);
        assert_eq!(weights_of_all(&mut group), [weights]);
    }
    // The lost state was more than the weights.
    let filtering = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..cart_pole() };
    let mut filtering = without_local(filtering, &Placement::Threads, 1);
    filtering.sync_weights(SyncWeights::from_weights(&other_weights(11))).unwrap();
    stay_away(&mut filtering);
    // The group can be reset.
    filtering.reset(1).unwrap();
    assert_eq!(filtering.synchronous_parallel_sample(ParallelSample::default()).unwrap().len(), 1);

    let mut changed = without_local(cart_pole(), &Placement::Threads, 1);
    let second = PolicyId::new("second");
    let kind = PolicyConfig::new("random");
    changed.add_policy(&ForEachWorker::default(), second, kind, None, PolicyRoles::default()).unwrap();
    changed.sync_weights(SyncWeights::from_weights(&other_weights(11))).unwrap();
    stay_away(&mut changed);
}
