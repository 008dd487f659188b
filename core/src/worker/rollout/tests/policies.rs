use super::super::test_support::*;
use crate::{
    ids::PolicyId,
    policy::{PolicyState, RandomPolicy},
    prelude::*,
    worker::{NeedsEpisodic, NewPolicy, RolloutConfig, RolloutError, RolloutWorker, SetupError},
};

fn worker() -> RolloutWorker {
    counting(4, RolloutConfig::default().rollout_fragment_length(6)).build().unwrap()
}

/// RLlib 2.9.3 rejects the same calls.
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
    assert!(
        unknown.contains(
            "there is no kind of policy 'moch'; did you mean mock? known are: a2c, mock, net, pg, ppo, random"
        ),
        "{unknown}"
    );
    assert!(matches!(worker.remove_policy(&z, None, None), Err(RolloutError::PolicyMap(_))));
    assert!(worker.policy(&z).is_none());
    assert!(matches!(worker.for_policy(&z, |_| ()), Err(RolloutError::PolicyMap(_))));
    assert_eq!(worker.remove_policy(&PolicyId::DEFAULT, None, None), Err(RolloutError::LastPolicy(PolicyId::DEFAULT)));
    assert_eq!(worker.policies().ids().collect::<Vec<_>>(), [&PolicyId::DEFAULT]);
    let error = worker.set_policy_mapping_fn_by_name("unknown").unwrap_err();
    assert!(error.to_string().contains("there is no policy mapping function 'unknown'"), "{error}");
}

#[test]
fn policies_are_added_and_removed() {
    let mut worker = worker();
    let (a, b) = (PolicyId::new("a"), PolicyId::new("b"));
    let state = PolicyState { weights: weight(7.0), filter: crate::filter::Filter::NoFilter, extra: vec![0; 8] };
    let new = NewPolicy { state: Some(state), ..NewPolicy::named("mock") };
    let added = worker.add_policy(a.clone(), new, None, Some([a.clone()].into())).unwrap();
    assert_eq!(value_of(added.weights()), 7.0);
    worker.add_policy(b.clone(), NewPolicy::object(Box::new(RandomPolicy::new(2, 0))), None, None).unwrap();
    let ids = worker.foreach_policy(|id, _| id.clone()).unwrap();
    assert_eq!(ids, [a.clone(), b.clone(), PolicyId::DEFAULT]);
    assert_eq!(worker.foreach_policy_to_train(|id, _| id.clone()).unwrap(), core::slice::from_ref(&a));
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
    // Another worker cannot recreate an object.
    let object = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
    here.add_policy(PolicyId::new("o"), object, None, None).unwrap();
    let bytes = here.export_policy(&PolicyId::new("o")).unwrap();
    assert!(matches!(there.import_policy(&PolicyId::new("o"), &bytes), Err(RolloutError::Setup(_))));
}

#[test]
fn policies_beyond_the_capacity_are_stashed_and_restored() {
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

/// Neither an object nor an unregistered class can be recreated.
#[test]
fn policies_without_a_registered_kind_are_not_evicted() {
    let config = RolloutConfig { policy_map_capacity: 1, ..RolloutConfig::default() }.rollout_fragment_length(6);
    let mut worker = counting(4, config).build().unwrap();
    let objects = ["o1", "o2"].map(PolicyId::new);
    for id in &objects {
        let object = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
        worker.add_policy(id.clone(), object, None, None).unwrap();
    }
    worker.add_policy(PolicyId::new("kind"), NewPolicy::of(mock()), None, None).unwrap();
    assert_eq!(worker.policies().stashed().collect::<Vec<_>>(), [&PolicyId::DEFAULT]);
    for id in objects.iter().chain([&PolicyId::DEFAULT, &PolicyId::new("kind")]) {
        assert_eq!(worker.for_policy(id, |_| ()), Ok(()), "{id}");
    }
    assert_eq!(worker.weights(None).unwrap().len(), 4);
    assert_eq!(worker.sample().unwrap().env_steps(), 6);
}

#[test]
fn objects_change_places_only_if_they_may() {
    let made = |swappable| {
        let config = RolloutConfig {
            policy_map_capacity: 1,
            policy_states_are_swappable: swappable,
            ..RolloutConfig::default()
        };
        let mut worker = counting(4, config).build().unwrap();
        let other = PolicyId::new("p");
        worker.add_policy(other.clone(), NewPolicy::named("mock"), None, None).unwrap();
        worker.set_weights(&by_id(&weight(3.0)), None, None).unwrap();
        for _ in 0..3 {
            let value = |worker: &mut RolloutWorker, id| worker.for_policy(id, |policy| value_of(policy.weights()));
            assert_eq!((value(&mut worker, &other), value(&mut worker, &PolicyId::DEFAULT)), (Ok(0.0), Ok(3.0)));
        }
        worker.policies().constructions()
    };
    assert_eq!(made(true), 2);
    assert!(made(false) > 6);
}

#[test]
fn mapping_that_would_never_be_called_is_refused() {
    use crate::worker::SamplerChoice::{Auto, Episodic, Lockstep};
    let to_x: crate::callbacks::PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::new("x"));
    let config = || RolloutConfig::default().rollout_fragment_length(6);
    let ids = |worker: &mut RolloutWorker| {
        worker.sample().map(|batch| batch.as_multi_agent().policy_batches.into_keys().collect::<Vec<_>>())
    };
    // All environments are in lockstep, under one policy.
    let mut worker = counting(4, config()).sampler(Lockstep).build().unwrap();
    let (x, map) = (PolicyId::new("x"), Some(to_x.clone()));
    let refused = worker.add_policy(x.clone(), NewPolicy::named("mock"), map.clone(), None).map(|_| ());
    assert_eq!(refused, Err(RolloutError::FixedMapping));
    assert_eq!(worker.policies().len(), 1);
    assert_eq!(worker.set_policy_mapping_fn(map.clone()), Err(RolloutError::FixedMapping));
    assert_eq!(worker.set_policy_mapping_fn_by_name("agent_id"), Err(RolloutError::FixedMapping));
    worker.set_policy_mapping_fn_by_name("default").unwrap();
    assert_eq!(ids(&mut worker).unwrap(), [PolicyId::DEFAULT]);
    // Sampled separately, they call the mapping function.
    let mut worker = counting(4, config()).sampler(Episodic).build().unwrap();
    worker.add_policy(x.clone(), NewPolicy::named("mock"), map, None).unwrap();
    assert_eq!(ids(&mut worker).unwrap(), [x]);
    let mapped = |sampler| counting(4, config()).policy_mapping_fn(|_, _, _, _| PolicyId::new("x")).sampler(sampler);
    assert_eq!(mapped(Lockstep).build().err(), Some(SetupError::NeedsEpisodic(NeedsEpisodic::Mapping)));
    let error = mapped(Auto).build().unwrap().sample().unwrap_err().to_string();
    assert!(error.contains("'x'") && error.contains("default_policy"), "{error}");
}
