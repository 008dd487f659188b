use super::*;
use crate::{
    column::RowShape,
    filter::{Filter, FilterKind},
    ids::WeightsVersion,
    policy::{MemoryStore, PolicyError, RandomPolicy, Stashed, StoreError},
    weights::{Tensor, Weights},
};

fn random(version: u64) -> PolicyEntry {
    let mut policy = RandomPolicy::new(2, 0);
    let tensors = vec![Tensor { name: "w".into(), shape: vec![2], values: vec![version as f32, 0.5] }];
    policy.set_weights(&Weights::new(WeightsVersion(version), tensors).unwrap()).unwrap();
    PolicyEntry::new("random", Box::new(policy))
}

fn factory(_: &PolicyId, spec: &str) -> Result<PolicyEntry, StashError> {
    assert_eq!(spec, "random");
    Ok(random(0))
}

fn bounded(count: usize, store: impl PolicyStore + 'static) -> PolicyMap {
    PolicyMap::bounded(PolicyMapLimits { count, ..PolicyMapLimits::UNLIMITED }, store, factory)
}

fn id(i: u64) -> PolicyId {
    PolicyId::new(format!("p{i}"))
}

fn version(map: &mut PolicyMap, i: u64) -> u64 {
    map.policy_mut(&id(i)).unwrap().weights().version().0
}

fn places(map: &PolicyMap) -> (Vec<String>, Vec<String>) {
    let text = |id: &PolicyId| id.to_string();
    (map.resident().map(text).collect(), map.stashed().map(text).collect())
}

#[test]
fn ids_are_unique_and_known() {
    let mut map = PolicyMap::single(Box::new(RandomPolicy::new(2, 0)));
    let again = map.add(PolicyId::DEFAULT, random(1));
    assert_eq!(again, Err(PolicyMapError::AlreadyExists(PolicyId::DEFAULT)));
    let unknown = map.policy_mut(&id(0)).err().unwrap().to_string();
    assert_eq!(unknown, "there is no policy 'p0'; there are 'default_policy'");
    map.add(id(0), random(1)).unwrap();
    assert_eq!(map.ids().map(PolicyId::as_str).collect::<Vec<_>>(), ["default_policy", "p0"]);
    assert!(map.remove(&id(0)).is_ok() && map.remove(&id(0)).is_err());
    (1..12).for_each(|i| map.insert(id(i), random(i)).unwrap());
    let unknown = map.get_mut(&id(0)).err().unwrap().to_string();
    assert!(unknown.ends_with("'p2', 'p3', 'p4', 'p5' and 4 more"), "{unknown}");
    assert_eq!(PolicyMap::<PolicyEntry>::new().remove(&id(0)).unwrap_err().to_string(), "there is no policy 'p0'");
}

#[test]
fn least_recently_used_policy_is_evicted() {
    let mut map = bounded(2, MemoryStore::default());
    (0..4).for_each(|i| map.insert(id(i), random(i)).unwrap());
    let places = |map: &PolicyMap| {
        let (resident, stashed) = places(map);
        [resident.concat(), stashed.concat()]
    };
    assert_eq!(places(&map), ["p2p3", "p0p1"]);
    assert_eq!((version(&mut map, 0), places(&map)), (0, ["p3p0".into(), "p1p2".into()]));
    assert_eq!((version(&mut map, 1), places(&map)), (1, ["p0p1".into(), "p2p3".into()]));
    map.remove(&id(0)).unwrap();
    map.remove(&id(3)).unwrap();
    assert_eq!((map.len(), places(&map)), (2, ["p1".into(), "p2".into()]));
    assert!(map.get_mut(&id(3)).is_err());
    // An id that is stashed is replaced like any other.
    map.insert(id(2), random(7)).unwrap();
    assert_eq!((version(&mut map, 2), places(&map)), (7, ["p1p2".into(), String::new()]));
    assert_eq!((map.peek(&id(1)).unwrap().policy.weights().version().0, places(&map)[0].as_str()), (1, "p1p2"));
    assert!(map.peek(&id(3)).is_none());
    assert_eq!(format!("{map:?}"), r#"PolicyMap { resident: [PolicyId("p1"), PolicyId("p2")], stashed: [] }"#);
}

#[test]
fn filters_go_and_come_with_their_policy() {
    let mut map = bounded(1, MemoryStore::default());
    let mut filter = Filter::new(FilterKind::MeanStdFilter, RowShape::vector(2)).unwrap();
    filter.filter_rows(&mut [0.1, 0.2, 0.3, 0.4], true).unwrap();
    map.insert(id(0), random(0).with_filter(filter.clone())).unwrap();
    map.insert(id(1), random(1)).unwrap();
    assert!(map.peek(&id(0)).is_none());
    assert_eq!(map.get_mut(&id(0)).unwrap().filter, filter);
    assert_eq!(map.get_mut(&id(1)).unwrap().filter, Filter::NoFilter);
}

#[test]
fn bytes_are_a_limit_too() {
    let limits = PolicyMapLimits { bytes: 20, ..PolicyMapLimits::UNLIMITED };
    let mut map = PolicyMap::bounded(limits, MemoryStore::default(), factory);
    (0..4).for_each(|i| map.insert(id(i), random(i)).unwrap()); // 8 bytes each.
    assert_eq!(places(&map), (vec!["p2".into(), "p3".into()], vec!["p0".into(), "p1".into()]));
    // One that has grown evicts all others; the one used last is resident, however large.
    let big = vec![Tensor { name: "w".into(), shape: vec![9], values: vec![0.0; 9] }];
    map.policy_mut(&id(3)).unwrap().set_weights(&Weights::new(WeightsVersion(3), big).unwrap()).unwrap();
    assert_eq!(version(&mut map, 1), 1);
    assert_eq!(places(&map).0, ["p1"]);
    assert_eq!((version(&mut map, 3), places(&map).0), (3, vec!["p3".into()]));
}

#[test]
fn objects_change_places_only_with_their_like() {
    let run = |swappable: bool| {
        let mut map = bounded(2, MemoryStore::default()).with_swapping(swappable);
        (0..4).for_each(|i| map.insert(id(i), random(i)).unwrap());
        (0..4).for_each(|i| assert_eq!(version(&mut map, i), i));
        map.constructions()
    };
    assert_eq!((run(false), run(true)), (8, 4));
    // A policy of unknown kind resembles no other.
    let make = |_: &PolicyId, _: &str| Ok(PolicyEntry::from(random(0).policy));
    let limits = PolicyMapLimits { count: 1, ..PolicyMapLimits::UNLIMITED };
    let mut map = PolicyMap::bounded(limits, MemoryStore::default(), make).with_swapping(true);
    (0..2).for_each(|i| map.insert(id(i), random(i).policy).unwrap());
    assert_eq!((version(&mut map, 0), map.constructions()), (0, 3));
}

#[test]
fn all_policies_are_visited_in_place() {
    let mut map = bounded(2, MemoryStore::default());
    (0..5).for_each(|i| map.insert(id(i), random(i)).unwrap());
    let before = places(&map);
    let mut seen = Vec::new();
    let visit = |id: &PolicyId, entry: &PolicyEntry| {
        seen.push((id.to_string(), entry.policy.weights().version().0));
        Ok::<(), PolicyMapError>(())
    };
    map.for_each(visit).unwrap();
    let wanted = [3, 4, 0, 1, 2].map(|i| (id(i).to_string(), i));
    assert_eq!((seen, places(&map)), (wanted.to_vec(), before.clone()));

    let update = |_: &PolicyId, entry: &mut PolicyEntry| {
        let version = WeightsVersion(entry.policy.weights().version().0 + 10);
        entry.policy.set_weights(&Weights::new(version, vec![])?)?;
        Ok::<(), Error>(())
    };
    map.for_each_mut(update).unwrap();
    assert_eq!(places(&map), before);
    (0..5).for_each(|i| assert_eq!(version(&mut map, i), i + 10));

    // With objects that change places, one is made for all.
    let mut map = bounded(1, MemoryStore::default()).with_swapping(true);
    (0..5).for_each(|i| map.insert(id(i), random(i)).unwrap());
    map.for_each(|_, _| Ok::<(), PolicyMapError>(())).unwrap();
    assert_eq!(map.constructions(), 6);
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Map(#[from] PolicyMapError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Weights(#[from] crate::weights::WeightsError),
}

#[test]
fn a_full_store_loses_nothing() {
    let one = Stashed::of(&id(0), &random(0)).unwrap().encode().unwrap().len();
    let mut map = bounded(1, MemoryStore::bounded(one));
    (0..2).for_each(|i| map.insert(id(i), random(i)).unwrap());
    let full = |error| matches!(error, Err(PolicyMapError::Store(StoreError::Full { .. })));
    assert!(full(map.insert(id(2), random(2))));
    assert_eq!(places(&map), (vec!["p1".into(), "p2".into()], vec!["p0".into()]));
    // A restored policy frees its place in the store for an evicted one.
    assert!(full(map.get_mut(&id(0)).map(drop)));
    assert_eq!(places(&map), (vec!["p2".into(), "p0".into()], vec!["p1".into()]));
    assert_eq!((version(&mut map, 0), version(&mut map, 2)), (0, 2));
    map.remove(&id(2)).unwrap();
    // Now the store holds all, and a restored policy is exchanged for the other.
    for _ in 0..2 {
        assert_eq!((version(&mut map, 1), version(&mut map, 0)), (1, 0));
        assert_eq!(places(&map), (vec!["p0".into()], vec!["p1".into()]));
    }
    // So does one that replaces what was stashed.
    map.insert(id(1), random(7)).unwrap();
    assert_eq!((version(&mut map, 0), version(&mut map, 1), map.len()), (0, 7, 2));
}

#[test]
fn object_is_exchanged_if_the_store_holds_both() {
    let one = Stashed::of(&id(0), &random(0)).unwrap().encode().unwrap().len();
    let run = |capacity| {
        let mut map = bounded(1, MemoryStore::bounded(capacity)).with_swapping(true);
        (0..2).for_each(|i| map.insert(id(i), random(i)).unwrap());
        (0..4).for_each(|i| assert_eq!(version(&mut map, i % 2), i % 2));
        map.constructions()
    };
    assert_eq!((run(2 * one), run(one)), (2, 6));
}

/// Gives other bytes than it was given.
struct Mixed(MemoryStore);

impl PolicyStore for Mixed {
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.0.put(id, bytes)
    }
    fn read(&mut self, asked: &PolicyId) -> Result<Vec<u8>, StoreError> {
        match asked.as_str() {
            "p0" => self.0.read(&id(1)),
            _ => self.0.read(asked).map(|bytes| bytes[1..].to_vec()),
        }
    }
    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        self.0.remove(id)
    }
}

#[test]
fn bytes_of_others_are_refused() {
    let mut map = bounded(1, Mixed(MemoryStore::default()));
    (0..3).for_each(|i| map.insert(id(i), random(i)).unwrap());
    let error = map.get_mut(&id(0)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "policy 'p0': these are the bytes of policy 'p1'");
    assert!(matches!(map.get_mut(&id(1)).map(drop), Err(PolicyMapError::Stash { .. })));
    assert!(map.for_each(|_, _| Ok::<(), PolicyMapError>(())).is_err());
    assert_eq!((version(&mut map, 2), map.len()), (2, 3));
}

#[test]
fn policy_that_cannot_be_restored_stays_stashed() {
    let make = |_: &PolicyId, _: &str| -> Result<PolicyEntry, StashError> { Err(StashError::Damaged) };
    let limits = PolicyMapLimits { count: 0, ..PolicyMapLimits::UNLIMITED };
    let mut map = PolicyMap::bounded(limits, MemoryStore::default(), make);
    (0..2).for_each(|i| map.insert(id(i), random(i)).unwrap());
    assert!(map.get_mut(&id(0)).is_err());
    assert_eq!(map.len(), 2);
    assert!(map.stashed().any(|stashed| *stashed == id(0)));
}
