use super::super::test_support::*;
use crate::{
    episode::GlobalVars,
    ids::PolicyId,
    prelude::*,
    weights::Weights,
    worker::{PoliciesToTrain, RolloutConfig, RolloutError, RolloutWorker},
};

fn worker() -> RolloutWorker {
    counting(4, RolloutConfig::default().rollout_fragment_length(6)).build().unwrap()
}

fn installed(worker: &mut RolloutWorker) -> f32 {
    value_of(&worker.weights(None).unwrap()[&PolicyId::DEFAULT])
}

/// RLlib 2.9.3 installs the same ones.
#[test]
fn known_weights_are_not_reinstalled() {
    let mut worker = worker();
    let calls = [(1.0, Some(7)), (2.0, Some(7)), (3.0, Some(8)), (4.0, None), (5.0, Some(8)), (6.0, None)];
    let mut applied = Vec::new();
    for (value, number) in calls {
        worker.set_weights(&by_id(&weight(value)), None, number).unwrap();
        if installed(&mut worker) == value {
            applied.push(value);
        }
    }
    assert_eq!(applied, [1.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn all_weights_are_installed_or_none() {
    let mut worker = worker();
    let second = PolicyId::new("p");
    worker.add_policy(second.clone(), crate::worker::NewPolicy::named("mock"), None, None).unwrap();
    let other = Weights::new(crate::ids::WeightsVersion(0), vec![]).unwrap();
    let bad: BTreeMap<_, _> = [(PolicyId::DEFAULT, weight(5.0)), (second.clone(), other)].into();
    assert!(matches!(worker.set_weights(&bad, None, Some(1)), Err(RolloutError::Policy { id, .. }) if id == second));
    assert_eq!(installed(&mut worker), 0.0);
    let unknown: BTreeMap<_, _> = [(PolicyId::DEFAULT, weight(5.0)), (PolicyId::new("q"), weight(1.0))].into();
    let error = worker.set_weights(&unknown, None, Some(1)).unwrap_err().to_string();
    assert_eq!(error, "there is no policy 'q'; there are 'default_policy', 'p'");
    assert_eq!(installed(&mut worker), 0.0);
    // The sequence number of a failed call is not kept.
    worker.set_weights(&by_id(&weight(5.0)), None, Some(1)).unwrap();
    assert_eq!(installed(&mut worker), 5.0);
    let only = worker.weights(Some(&[second.clone(), PolicyId::new("unknown")])).unwrap();
    assert_eq!(only.into_keys().collect::<Vec<_>>(), [second]);
}

/// RLlib 2.9.3: the next sample has 3 updates, and the policy timestep 1000.
#[test]
fn progress_reaches_policies_and_samples() {
    let mut worker = worker();
    let updates = [(PolicyId::DEFAULT, 3)].into();
    let vars = GlobalVars { timestep: 1000, num_grad_updates_per_policy: updates };
    assert_eq!(worker.sample().unwrap().single().unwrap().num_grad_updates(), None);
    let before = worker.global_vars();
    worker.set_weights(&by_id(&weight(1.0)), Some(&vars), None).unwrap();
    // The returned value is a copy.
    assert_eq!((before.timestep, worker.global_vars()), (0, vars));
    assert_eq!(worker.sample().unwrap().single().unwrap().num_grad_updates(), Some(3.0));
    let timestep = |worker: &RolloutWorker| worker.policy(&PolicyId::DEFAULT).unwrap().extra_state();
    assert_eq!(timestep(&worker), 1000u64.to_le_bytes());
    // Policies that are not named or not trained are not notified; counts are merged.
    let later = GlobalVars { timestep: 2000, ..GlobalVars::default() };
    worker.set_global_vars(&later, Some(&[PolicyId::new("other")])).unwrap();
    worker.set_is_policy_to_train(PoliciesToTrain::Ids(BTreeSet::new()));
    worker.set_global_vars(&later, None).unwrap();
    assert_eq!(timestep(&worker), 1000u64.to_le_bytes());
    let vars = worker.global_vars();
    assert_eq!((vars.timestep, vars.num_grad_updates_per_policy[&PolicyId::DEFAULT]), (2000, 3));
}
