//! Laws: the map behaves like the simplest implementation.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::policy::{MemoryStore, StoreError};

/// A number that occupies some bytes.
#[derive(Clone, Debug, PartialEq)]
struct Value(u8);

impl Value {
    fn size(&self) -> usize {
        1 + usize::from(self.0 % 4)
    }
}

impl Stash for Value {
    fn spec(&self) -> &str {
        "value"
    }
    fn size_bytes(&self) -> usize {
        self.size()
    }
    fn stash(&self) -> Result<Vec<u8>, StashError> {
        // Neither as long as what it occupies nor in proportion to it.
        Ok(vec![self.0; 9 - 2 * self.size()])
    }
    fn restore(&mut self, state: &[u8]) -> Result<(), StashError> {
        self.0 = *state.first().ok_or(StashError::Damaged)?;
        Ok(())
    }
}

/// A store that fails while it is `broken`.
#[derive(Clone, Default)]
struct Flaky {
    store: Arc<Mutex<MemoryStore>>,
    broken: Arc<AtomicBool>,
}

impl Flaky {
    fn check(&self, id: &PolicyId) -> Result<(), StoreError> {
        let failed = StoreError::Failed { id: id.clone(), reason: "told to".into() };
        if self.broken.load(Relaxed) { Err(failed) } else { Ok(()) }
    }
}

impl PolicyStore for Flaky {
    fn put(&mut self, id: &PolicyId, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.check(id)?;
        self.store.lock().unwrap().put(id, bytes)
    }
    fn read(&mut self, id: &PolicyId) -> Result<Vec<u8>, StoreError> {
        self.check(id)?;
        self.store.lock().unwrap().read(id)
    }
    fn remove(&mut self, id: &PolicyId) -> Result<bool, StoreError> {
        self.check(id)?;
        self.store.lock().unwrap().remove(id)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u8),
    Get(u8),
    Set(u8, u8),
    Remove(u8),
    Visit,
    Change(u8),
    Break(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..6_u8;
    prop_oneof![
        4 => (id.clone(), any::<u8>()).prop_map(|(id, value)| Op::Insert(id, value)),
        4 => id.clone().prop_map(Op::Get),
        2 => (id.clone(), any::<u8>()).prop_map(|(id, value)| Op::Set(id, value)),
        2 => id.prop_map(Op::Remove),
        1 => Just(Op::Visit),
        1 => any::<u8>().prop_map(Op::Change),
        1 => any::<bool>().prop_map(Op::Break),
    ]
}

fn id(i: u8) -> PolicyId {
    PolicyId::new(i.to_string())
}

/// Residents, least recently used first, and what is stashed.
struct Model {
    limits: PolicyMapLimits,
    resident: Vec<(u8, Value)>,
    stashed: Vec<(u8, Value)>,
}

impl Model {
    fn over(&self, more: &[Value]) -> bool {
        let sizes = self.resident.iter().map(|(_, value)| value).chain(more).map(Value::size);
        self.resident.len() + more.len() > self.limits.count || sizes.sum::<usize>() > self.limits.bytes
    }

    fn admit(&mut self, id: u8, value: Value) {
        while !self.resident.is_empty() && self.over(core::slice::from_ref(&value)) {
            self.stashed.push(self.resident.remove(0));
        }
        self.resident.push((id, value));
    }

    fn insert(&mut self, id: u8, value: Value) {
        if self.resident.iter().any(|(other, _)| *other == id) {
            self.take(id);
            self.resident.push((id, value));
            while self.resident.len() > 1 && self.over(&[]) {
                self.stashed.push(self.resident.remove(0));
            }
        } else {
            self.take(id);
            self.admit(id, value);
        }
    }

    fn get(&mut self, id: u8) -> Option<&mut Value> {
        if let Some(at) = self.resident.iter().position(|(other, _)| *other == id) {
            let found = self.resident.remove(at);
            self.resident.push(found);
        } else {
            let value = self.take(id)?;
            self.admit(id, value);
        }
        self.resident.last_mut().map(|(_, value)| value)
    }

    fn take(&mut self, id: u8) -> Option<Value> {
        [&mut self.resident, &mut self.stashed]
            .into_iter()
            .find_map(|list| list.iter().position(|(other, _)| *other == id).map(|at| list.remove(at).1))
    }

    fn all(&mut self) -> impl Iterator<Item = (PolicyId, &mut Value)> {
        self.resident.iter_mut().chain(&mut self.stashed).map(|(other, value)| (id(*other), value))
    }
}

fn limits() -> impl Strategy<Value = PolicyMapLimits> {
    (1..5_usize, prop_oneof![Just(usize::MAX), 1..12_usize]).prop_map(|(count, bytes)| PolicyMapLimits { count, bytes })
}

fn build(limits: PolicyMapLimits, swappable: bool, store: Flaky) -> PolicyMap<Value> {
    PolicyMap::bounded(limits, store, |_, _| Ok(Value(0))).with_swapping(swappable)
}

type Done = Result<(), PolicyMapError>;

proptest! {
    #[test]
    fn the_map_does_what_the_model_does(limits in limits(), swappable: bool, ops in vec(op(), 0..40)) {
        let mut map = build(limits, swappable, Flaky::default());
        let mut model = Model { limits, resident: vec![], stashed: vec![] };
        for op in ops {
            match op {
                Op::Insert(i, value) => {
                    map.insert(id(i), Value(value)).unwrap();
                    model.insert(i, Value(value));
                }
                Op::Get(i) => prop_assert_eq!(map.get_mut(&id(i)).ok(), model.get(i)),
                Op::Set(i, value) => {
                    map.get_mut(&id(i)).into_iter().for_each(|held| held.0 = value);
                    model.get(i).into_iter().for_each(|held| held.0 = value);
                }
                Op::Remove(i) => prop_assert_eq!(map.remove(&id(i)).is_ok(), model.take(i).is_some()),
                Op::Visit => {
                    let mut seen = vec![];
                    map.for_each(|id, value| -> Done { seen.push((id.clone(), value.clone())); Ok(()) }).unwrap();
                    let mut wanted: Vec<_> = model.all().map(|(id, value)| (id, value.clone())).collect();
                    wanted.sort_by_key(|(id, _)| id.clone());
                    seen.sort_by_key(|(id, _)| id.clone());
                    prop_assert_eq!(seen, wanted);
                }
                Op::Change(by) => {
                    map.for_each_mut(|_, value| -> Done { value.0 = value.0.wrapping_add(by); Ok(()) }).unwrap();
                    model.all().for_each(|(_, value)| value.0 = value.0.wrapping_add(by));
                }
                Op::Break(_) => {}
            }
            prop_assert!(map.resident().eq(&model.resident.iter().map(|(i, _)| id(*i)).collect::<Vec<_>>()));
            let mut stashed: Vec<_> = model.stashed.iter().map(|(i, _)| id(*i)).collect();
            stashed.sort();
            prop_assert!(map.stashed().eq(&stashed));
        }
    }

    #[test]
    fn a_store_that_fails_loses_nothing(limits in limits(), swappable: bool, ops in vec(op(), 0..40)) {
        let flaky = Flaky::default();
        let (mut map, broken) = (build(limits, swappable, flaky.clone()), flaky.broken.clone());
        let mut wanted: BTreeMap<PolicyId, Value> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Insert(i, value) => {
                    let _ = map.insert(id(i), Value(value));
                    wanted.insert(id(i), Value(value));
                }
                Op::Get(i) | Op::Set(i, _) => if let Ok(held) = map.get_mut(&id(i)) {
                    prop_assert_eq!(Some(&*held), wanted.get(&id(i)));
                    if let Op::Set(_, value) = op {
                        held.0 = value;
                        wanted.insert(id(i), Value(value));
                    }
                },
                Op::Remove(i) => {
                    let _ = map.remove(&id(i));
                    wanted.remove(&id(i));
                }
                Op::Visit => { let _ = map.for_each(|_, _| -> Done { Ok(()) }); }
                // The store breaks in the middle of it.
                Op::Change(by) => {
                    let change = |id: &PolicyId, value: &mut Value| -> Done {
                        value.0 = value.0.wrapping_add(by);
                        wanted.insert(id.clone(), value.clone());
                        broken.fetch_or(value.0.is_multiple_of(5), Relaxed);
                        Ok(())
                    };
                    let _ = map.for_each_mut(change);
                }
                Op::Break(now) => broken.store(now, Relaxed),
            }
            prop_assert!(map.ids().eq(wanted.keys()));
        }
        broken.store(false, Relaxed);
        for (id, value) in &wanted {
            prop_assert_eq!(map.get_mut(id).ok(), Some(&mut value.clone()));
        }
        map.insert(id(9), Value(0)).unwrap();
        prop_assert!(map.resident().len() <= limits.count);
        // Nor is anything left over.
        wanted.keys().chain([&id(9)]).for_each(|id| map.remove(id).unwrap());
        prop_assert_eq!(flaky.store.lock().unwrap().bytes(), 0);
    }
}
