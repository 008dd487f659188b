use super::super::test_support::*;
use crate::{
    ids::PolicyId,
    policy::{PolicyState, RandomPolicy},
    prelude::*,
    worker::{NewPolicy, RolloutConfig, RolloutError, RolloutWorker, SetupError},
};

fn worker() -> RolloutWorker {
    counting(4, RolloutConfig::default().rollout_fragment_length(6)).build().unwrap()
}

/// RLlib 2.9.3 refuses the same calls.
#[test]
fn wrong_calls_are_typed_errors() {
    let mut worker = worker();
    let add = |worker: &mut RolloutWorker, id: PolicyId, new| worker.add_policy(id, new, None, None).err().unwrap();
    let taken = add(&mut worker, PolicyId::DEFAULT, NewPolicy::named("mock"));
    assert_eq!(taken.to_string(), "policy 'default_policy' exists already; remove it first");
    let (q, z) = (PolicyId::new("q"), PolicyId::new("z"));
    let neither = add(&mut worker, q.clone(), NewPolicy::default());
    assert_eq!(neither, SetupError::KindOrObject(q.clone()).into());
    let object = Box::new(RandomPolicy::new(2, 0));
    let both = add(&mut worker, q.clone(), NewPolicy { policy: Some(object), ..NewPolicy::named("mock") });
    assert_eq!(both, SetupError::KindOrObject(q.clone()).into());
    let unknown = add(&mut worker, q.clone(), NewPolicy::named("moch")).to_string();
    assert!(unknown.contains("there is no kind of policy 'moch'; known are: mock, net, random"), "{unknown}");
    assert!(matches!(worker.remove_policy(&z, None, None), Err(RolloutError::PolicyMap(_))));
    assert!(worker.policy(&z).is_none());
    assert!(matches!(worker.for_policy(&z, |_| ()), Err(RolloutError::PolicyMap(_))));
    assert_eq!(worker.remove_policy(&PolicyId::DEFAULT, None, None), Err(RolloutError::LastPolicy(PolicyId::DEFAULT)));
    assert_eq!(worker.policies().ids().collect::<Vec<_>>(), [&PolicyId::DEFAULT]);
    let error = worker.set_policy_mapping_fn_by_name("nobody").unwrap_err();
    assert!(error.to_string().contains("there is no policy mapping function 'nobody'"), "{error}");
}

#[test]
fn policies_come_and_go() {
    let mut worker = worker();
    let (a, b) = (PolicyId::new("a"), PolicyId::new("b"));
    let state = PolicyState { weights: weight(7.0), filter: crate::filter::Filter::NoFilter, extra: vec![0; 8] };
    let new = NewPolicy { state: Some(state), ..NewPolicy::named("mock") };
    let added = worker.add_policy(a.clone(), new, None, Some([a.clone()].into())).unwrap();
    assert_eq!(value_of(added.weights()), 7.0);
    worker.add_policy(b.clone(), NewPolicy::object(Box::new(RandomPolicy::new(2, 0))), None, None).unwrap();
    let ids = worker.foreach_policy(|id, _| id.clone()).unwrap();
    assert_eq!(ids, [a.clone(), b.clone(), PolicyId::DEFAULT]);
    assert_eq!(worker.foreach_policy_to_train(|id, _| id.clone()).unwrap(), [a.clone()]);
    assert_eq!(worker.for_policy(&a, |policy| value_of(policy.weights())), Ok(7.0));
    worker.remove_policy(&a, None, None).unwrap();
    assert!(worker.policies_to_train(None).is_empty());
    assert_eq!(worker.foreach_policy(|id, _| id.clone()).unwrap(), [b, PolicyId::DEFAULT]);
}

#[test]
fn one_policy_travels_in_bytes() {
    let mut here = worker();
    here.set_weights(&by_id(&weight(3.0)), None, None).unwrap();
    let bytes = here.export_policy(&PolicyId::DEFAULT).unwrap();
    let mut there = worker();
    let id = PolicyId::new("guest");
    there.import_policy(&id, &bytes).unwrap();
    there.import_policy(&PolicyId::DEFAULT, &bytes).unwrap();
    for id in [&id, &PolicyId::DEFAULT] {
        assert_eq!(there.for_policy(id, |policy| value_of(policy.weights())), Ok(3.0));
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(matches!(there.import_policy(&id, &damaged), Err(RolloutError::State(_))), "byte {at}");
        assert!(matches!(there.import_policy(&id, &bytes[..at]), Err(RolloutError::State(_))), "length {at}");
    }
    // Nobody elsewhere knows how to make an object.
    let object = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
    here.add_policy(PolicyId::new("o"), object, None, None).unwrap();
    let bytes = here.export_policy(&PolicyId::new("o")).unwrap();
    assert!(matches!(there.import_policy(&PolicyId::new("o"), &bytes), Err(RolloutError::Setup(_))));
}

#[test]
fn more_policies_than_there_is_room_for_come_back() {
    let config = RolloutConfig { policy_map_capacity: 2, ..RolloutConfig::default() }.rollout_fragment_length(6);
    let mut worker = counting(4, config).build().unwrap();
    for i in 0..5u8 {
        let state =
            PolicyState { weights: weight(i.into()), filter: crate::filter::Filter::NoFilter, extra: vec![0; 8] };
        let new = NewPolicy { state: Some(state), ..NewPolicy::named("mock") };
        worker.add_policy(PolicyId::new(format!("p{i}")), new, None, None).unwrap();
    }
    assert_eq!(worker.policies().resident().len(), 2);
    let values: Vec<f32> = worker.weights(None).unwrap().values().map(value_of).collect();
    assert_eq!(values, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(worker.sample().unwrap().env_steps(), 6);
}
