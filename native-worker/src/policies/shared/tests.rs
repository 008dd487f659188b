use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use rollmesh_core::policy::{MemoryStore, Stashed, StoreError};

use super::*;
use crate::policies::DiskStore;

/// Counts its uses.
struct Counter(u64);

impl Stash for Counter {
    fn spec(&self) -> &str {
        "counter"
    }
    fn size_bytes(&self) -> usize {
        8
    }
    fn stash(&self) -> Result<Vec<u8>, StashError> {
        Ok(self.0.to_le_bytes().to_vec())
    }
    fn restore(&mut self, state: &[u8]) -> Result<(), StashError> {
        self.0 = u64::from_le_bytes(state.try_into().map_err(|_| StashError::Damaged)?);
        Ok(())
    }
}

type Map = SharedPolicyMap<Counter>;

fn map(count: usize, store: impl PolicyStore + 'static) -> Map {
    SharedPolicyMap::new(PolicyMapLimits { count, ..PolicyMapLimits::UNLIMITED }, store, |_, _| Ok(Counter(0)))
}

fn id(i: usize) -> PolicyId {
    PolicyId::new(format!("p{i}"))
}

fn filled(count: usize, policies: usize) -> Map {
    let map = map(count, MemoryStore::default());
    (0..policies).for_each(|i| map.insert(id(i), Counter(i as u64)).unwrap());
    map
}

fn value(map: &Map, i: usize) -> u64 {
    map.checkout(&id(i)).unwrap().0
}

#[test]
fn the_least_recently_used_makes_room() {
    let map = filled(2, 4);
    assert_eq!(map.resident(), [id(2), id(3)]);
    assert_eq!((value(&map, 0), map.resident()), (0, vec![id(0), id(3)]));
    assert_eq!((value(&map, 1), map.resident()), (1, vec![id(0), id(1)]));
    map.remove(&id(0)).unwrap();
    map.remove(&id(3)).unwrap();
    assert_eq!((map.ids(), map.contains(&id(3))), (vec![id(1), id(2)], false));
    assert_eq!(map.remove(&id(3)).unwrap_err().to_string(), "there is no policy 'p3'; there are 'p1', 'p2'");
    assert!(map.checkout(&id(3)).is_err() && map.try_checkout(&id(3)).is_err());
    map.insert(id(2), Counter(7)).unwrap();
    assert_eq!((value(&map, 2), value(&map, 1)), (7, 1));
}

#[test]
fn what_is_in_use_is_not_put_aside() {
    let map = filled(1, 3);
    let mut a = map.checkout(&id(0)).unwrap();
    let b = map.checkout(&id(1)).unwrap();
    assert_eq!(map.resident(), [id(0), id(1)]);
    a.0 = 10;
    drop((a, b));
    // Returning a policy evicts others.
    assert_eq!((map.resident(), map.stashed(), map.len()), (vec![id(1)], vec![id(0), id(2)], 3));
    assert_eq!((value(&map, 2), map.resident()), (2, vec![id(2)]));
    assert_eq!(value(&map, 0), 10);
}

#[test]
fn who_wants_another_policy_does_not_wait() {
    let map = filled(2, 4);
    let held = map.checkout(&id(0)).unwrap();
    // Resident or not. If they waited for this thread, this would not end.
    thread::scope(|scope| {
        (1..4).for_each(|i| {
            drop(scope.spawn({
                let map = &map;
                move || value(map, i)
            }))
        })
    });
    drop(held);
}

#[test]
fn who_wants_the_same_policy_waits() {
    let map = filled(2, 1);
    let (returned, waiting) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let held = map.checkout(&id(0)).unwrap();
        assert!(scope.spawn(|| map.try_checkout(&id(0)).unwrap().is_none()).join().unwrap());
        scope.spawn(|| {
            waiting.wait();
            let _got = map.checkout(&id(0)).unwrap();
            assert!(returned.load(Ordering::SeqCst));
        });
        waiting.wait();
        returned.store(true, Ordering::SeqCst);
        drop(held);
    });
}

#[test]
fn an_order_that_could_deadlock_is_refused() {
    let map = filled(2, 3);
    let held = map.checkout(&id(1)).unwrap();
    for wanted in [0, 1] {
        let error = map.checkout(&id(wanted)).unwrap_err();
        assert_eq!(error, SharedPolicyMapError::OutOfOrder { held: id(1), wanted: id(wanted) });
    }
    assert!(map.try_checkout(&id(1)).unwrap().is_none());
    let both = (map.try_checkout(&id(0)).unwrap().unwrap(), map.checkout(&id(2)).unwrap());
    // Policies that other threads hold do not matter.
    thread::scope(|scope| {
        scope.spawn(|| map.insert(id(5), Counter(0)).and_then(|()| map.remove(&id(5)))).join().unwrap()
    })
    .unwrap();
    drop((both, held));
    assert_eq!(value(&map, 0), 0);
}

#[test]
fn a_policy_that_was_replaced_or_removed_does_not_come_back() {
    let map = filled(2, 2);
    let (old, gone) = (map.checkout(&id(0)).unwrap(), map.checkout(&id(1)).unwrap());
    map.insert(id(0), Counter(9)).unwrap();
    map.remove(&id(1)).unwrap();
    assert_eq!((old.0, gone.id()), (0, &id(1)));
    drop((old, gone));
    assert_eq!((value(&map, 0), map.ids()), (9, vec![id(0)]));
}

#[test]
fn a_disk_that_fails_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = DiskStore::open(dir.path().join("store")).unwrap();
    let blocked = store.path(&id(1)).with_extension("tmp");
    let map = map(1, store);
    map.insert(id(0), Counter(0)).unwrap();
    map.insert(id(1), Counter(1)).unwrap();
    // A directory blocks the file's name.
    std::fs::create_dir(&blocked).unwrap();
    let failed = |error| matches!(error, PolicyMapError::Store(StoreError::Failed { .. }));
    assert!(failed(map.insert(id(2), Counter(2)).unwrap_err()));
    let SharedPolicyMapError::Map(error) = map.checkout(&id(0)).unwrap_err() else { panic!() };
    assert!(failed(error));
    assert_eq!(map.ids(), [id(0), id(1), id(2)]);
    std::fs::remove_dir(blocked).unwrap();
    (0..3).for_each(|i| assert_eq!(value(&map, i), i as u64));
    map.insert(id(3), Counter(3)).unwrap();
    assert_eq!(map.resident(), [id(3)]);
}

/// Refuses to remove anything while `broken` is set.
struct Sticky {
    store: DiskStore,
    broken: Arc<AtomicBool>,
}

impl PolicyStore for Sticky {
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.store.put(id, bytes)
    }
    fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, StoreError> {
        self.store.read(id)
    }
    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        let failed = StoreError::Failed { id: id.clone(), reason: "told to".into() };
        if self.broken.load(Ordering::SeqCst) { Err(failed) } else { self.store.remove(id) }
    }
}

#[test]
fn what_could_not_be_forgotten_is_forgotten_later() {
    let dir = tempfile::tempdir().unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let map = map(1, Sticky { store: DiskStore::open(dir.path()).unwrap(), broken: broken.clone() });
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    (0..3).for_each(|i| map.insert(id(i), Counter(i as u64)).unwrap());
    broken.store(true, Ordering::SeqCst);
    assert!(map.insert(id(0), Counter(9)).is_err());
    // The limits are enforced nevertheless.
    assert_eq!((map.resident(), files()), (vec![id(0)], 3));
    assert_eq!((value(&map, 1), value(&map, 0), files()), (1, 9, 3));
    assert!(map.remove(&id(0)).is_err() && map.remove(&id(2)).is_err());
    broken.store(false, Ordering::SeqCst);
    (3..5).for_each(|i| map.insert(id(i), Counter(i as u64)).unwrap());
    assert_eq!((map.resident(), map.stashed(), files()), (vec![id(4)], vec![id(1), id(3)], 2));
    [1, 3, 4].iter().for_each(|&i| assert_eq!(value(&map, i), i as u64));
}

#[test]
fn a_full_store_lets_policies_change_places() {
    let one = Stashed::of(&id(0), &Counter(0)).unwrap().encode().unwrap().len();
    let map = map(1, MemoryStore::bounded(one));
    (0..2).for_each(|i| map.insert(id(i), Counter(i as u64)).unwrap());
    (0..4).for_each(|i| assert_eq!(value(&map, i % 2), i as u64 % 2));
    map.insert(id(0), Counter(7)).unwrap();
    assert_eq!((value(&map, 1), value(&map, 0), map.resident()), (1, 7, vec![id(0)]));
}

#[test]
fn all_are_visited_where_they_lie() {
    let map = filled(2, 5);
    let mut seen = Vec::new();
    let visit = |id: &PolicyId, counter: &Counter| -> Result<(), SharedPolicyMapError> {
        seen.push((id.clone(), counter.0));
        Ok(())
    };
    map.for_each(visit).unwrap();
    assert_eq!(seen, [3, 4, 0, 1, 2].map(|i| (id(i), i as u64)));
    let change = |_: &PolicyId, counter: &mut Counter| -> Result<(), SharedPolicyMapError> {
        counter.0 += 10;
        Ok(())
    };
    map.for_each_mut(change).unwrap();
    assert_eq!((map.resident(), map.stashed()), (vec![id(3), id(4)], vec![id(0), id(1), id(2)]));
    // Visits do not count as uses: the least recently used policy is evicted first.
    assert_eq!((value(&map, 0), map.resident()), (10, vec![id(0), id(4)]));
    (0..5).for_each(|i| assert_eq!(value(&map, i), i as u64 + 10));
    // A thread that holds a policy could wait for itself.
    let held = map.checkout(&id(4)).unwrap();
    let error = map.for_each_mut(change).unwrap_err();
    assert_eq!(error, SharedPolicyMapError::OutOfOrder { held: id(4), wanted: id(0) });
    drop(held);
    // A visit that fails changes nothing in the store.
    let fail = |_: &PolicyId, counter: &mut Counter| {
        counter.0 = 99;
        Err(SharedPolicyMapError::OutOfOrder { held: id(0), wanted: id(0) })
    };
    map.remove(&id(3)).unwrap();
    map.remove(&id(4)).unwrap();
    assert!(map.resident().is_empty() && map.for_each_mut(fail).is_err());
    (0..3).for_each(|i| assert_eq!(value(&map, i), i as u64 + 10));
}

/// Panics when asked for its size while the flag is set.
struct Unsized(Arc<AtomicBool>);

impl Stash for Unsized {
    fn spec(&self) -> &str {
        "unsized"
    }
    fn size_bytes(&self) -> usize {
        if self.0.load(Ordering::SeqCst) { panic!("no size") } else { 8 }
    }
    fn stash(&self) -> Result<Vec<u8>, StashError> {
        Ok(Vec::new())
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), StashError> {
        Ok(())
    }
}

#[test]
fn a_panic_over_sizes_loses_nothing() {
    let broken = Arc::new(AtomicBool::new(false));
    let new = || Unsized(broken.clone());
    let limits = PolicyMapLimits { count: 1, ..PolicyMapLimits::UNLIMITED };
    let again = broken.clone();
    let map = SharedPolicyMap::new(limits, MemoryStore::default(), move |_, _| Ok(Unsized(again.clone())));
    (0..2).for_each(|i| map.insert(id(i), new()).unwrap());
    thread::scope(|scope| {
        // While it is restored, and when it is returned.
        let come = || {
            broken.store(true, Ordering::SeqCst);
            drop(map.checkout(&id(0)))
        };
        assert!(scope.spawn(come).join().is_err());
        broken.store(false, Ordering::SeqCst);
        let back = || {
            let held = map.checkout(&id(1)).unwrap();
            broken.store(true, Ordering::SeqCst);
            drop(held);
        };
        let _ = scope.spawn(back).join();
        broken.store(false, Ordering::SeqCst);
    });
    (0..2).for_each(|i| assert!(map.try_checkout(&id(i)).unwrap().is_some()));
}

#[test]
fn a_panic_loses_nothing() {
    let factory = |id: &PolicyId, _: &str| if id.as_str() == "p0" { panic!("no") } else { Ok(Counter(0)) };
    let limits = PolicyMapLimits { count: 1, ..PolicyMapLimits::UNLIMITED };
    let map = Map::new(limits, MemoryStore::default(), factory);
    (0..3).for_each(|i| map.insert(id(i), Counter(i as u64)).unwrap());
    thread::scope(|scope| {
        // While it is restored, and while it is held.
        assert!(scope.spawn(|| value(&map, 0)).join().is_err());
        let holder = || {
            let _held = map.checkout(&id(1)).unwrap();
            panic!("no")
        };
        assert!(scope.spawn(holder).join().is_err());
    });
    assert_eq!((map.ids().len(), value(&map, 1), value(&map, 2)), (3, 1, 2));
}

/// Many threads, few places: every use counts once, and no more policies are resident than are in use or allowed.
#[test]
fn no_use_is_lost_under_stress() {
    const THREADS: usize = 8;
    const POLICIES: usize = 12;
    const ROUNDS: usize = 400;
    const COUNT: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let map = map(COUNT, DiskStore::open(dir.path()).unwrap());
    (0..POLICIES).for_each(|i| map.insert(id(i), Counter(0)).unwrap());
    let in_use: Vec<AtomicBool> = (0..POLICIES).map(|_| AtomicBool::new(false)).collect();
    let (uses, churned) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, in_use, uses, churned) = (&map, &in_use, &uses, churned.0.clone());
            scope.spawn(move || {
                let mut random = thread as u64 + 1;
                let mut draw = |n: usize| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random as usize % n
                };
                let using = |i: usize, policy: &mut Counter| {
                    assert!(!in_use[i].swap(true, Ordering::SeqCst), "p{i} is in use twice");
                    policy.0 += 1;
                    uses.fetch_add(1, Ordering::SeqCst);
                    in_use[i].store(false, Ordering::SeqCst);
                };
                for round in 0..ROUNDS {
                    let (a, b) = (draw(POLICIES), draw(POLICIES));
                    let mut first = map.checkout(&id(a)).unwrap();
                    using(a, &mut first);
                    match map.checkout(&id(b)) {
                        Ok(mut second) => using(b, &mut second),
                        Err(SharedPolicyMapError::OutOfOrder { .. }) => {
                            map.try_checkout(&id(b)).unwrap().into_iter().for_each(|mut second| using(b, &mut second));
                        }
                        Err(error) => panic!("{error}"),
                    }
                    // Other policies are added and removed meanwhile.
                    if round % 7 == 0 {
                        let own = PolicyId::new(format!("own{thread}"));
                        map.insert(own.clone(), Counter(0)).unwrap();
                        drop(first);
                        map.remove(&own).unwrap();
                        churned.send(()).unwrap();
                    }
                }
            });
        }
    });
    drop(churned.0);
    assert_eq!(churned.1.into_iter().count(), THREADS * ROUNDS.div_ceil(7));
    let total: u64 = (0..POLICIES).map(|i| value(&map, i)).sum();
    assert_eq!((total as usize, map.ids().len()), (uses.into_inner(), POLICIES));
    assert!(map.resident().len() <= COUNT);
    // The store has exactly the policies that are not resident.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), POLICIES - map.resident().len());
}
