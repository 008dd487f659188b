//! Laws: after any events in any order, the counters are consistent.

use proptest::{collection::vec, prelude::*};

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Add,
    Remove(u32),
    Clear,
    Foreach {
        workers: Option<Vec<u32>>,
        healthy_only: bool,
        timeout: Option<u64>,
        mark: bool,
        sample: bool,
    },
    Async {
        workers: Option<Vec<u32>>,
        healthy_only: bool,
        tag: bool,
    },
    Fetch {
        tag: bool,
        mark: bool,
    },
    Probe(bool),
    Mark(u32, bool),
    Left(u32),
    Joined(u32),
    Progress(u32),
    /// Lets a worker answer one of the calls sent to it, the first or a later one, once or twice.
    Answer {
        place: usize,
        ok: bool,
        twice: bool,
    },
    Take(usize),
    GiveUp(usize),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let worker = || 0..6u32;
    let workers = || proptest::option::of(vec(1..5u32, 0..5));
    prop_oneof![
        2 => Just(Op::Add),
        1 => worker().prop_map(Op::Remove),
        1 => Just(Op::Clear),
        6 => (workers(), any::<bool>(), proptest::option::of(0..3u64), any::<bool>(), any::<bool>()).prop_map(
            |(workers, healthy_only, timeout, mark, sample)| Op::Foreach { workers, healthy_only, timeout, mark, sample }
        ),
        6 => (workers(), any::<bool>(), any::<bool>())
            .prop_map(|(workers, healthy_only, tag)| Op::Async { workers, healthy_only, tag }),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(tag, mark)| Op::Fetch { tag, mark }),
        2 => any::<bool>().prop_map(Op::Probe),
        3 => (worker(), any::<bool>()).prop_map(|(worker, healthy)| Op::Mark(worker, healthy)),
        2 => worker().prop_map(Op::Left),
        2 => worker().prop_map(Op::Joined),
        2 => worker().prop_map(Op::Progress),
        12 => (0..4usize, any::<bool>(), any::<bool>())
            .prop_map(|(place, ok, twice)| Op::Answer { place, ok, twice }),
        3 => (0..8usize).prop_map(Op::Take),
        1 => (0..8usize).prop_map(Op::GiveUp),
        3 => (0..3u64).prop_map(Op::Wait),
    ]
}

/// The manager, and an observer's own counts.
struct Onlooker {
    calls: CallManager<Ask, u32>,
    sent: Vec<CallCommand<Ask>>,
    sets: Vec<CallSetId>,
    now: Micros,
    /// Asynchronous calls that the caller knows to have started.
    asynchronous: u64,
    fetched: u64,
    taken: u64,
    answered: u64,
}

impl Onlooker {
    fn act(&mut self, op: Op) {
        let (calls, now) = (&mut self.calls, self.now);
        let targets = |what: ForEach<Ask>, workers: Option<Vec<u32>>| match workers {
            Some(workers) => what.workers(ids(&workers)),
            None => what,
        };
        match op {
            Op::Add if calls.num_workers() < 5 => _ = calls.add_worker(),
            Op::Add => {}
            Op::Remove(id) => _ = calls.remove_worker(WorkerId(id)),
            Op::Clear => calls.clear(),
            Op::Foreach { workers, healthy_only, timeout, mark, sample } => {
                let request = if sample { Ask::Sample } else { Ask::Number(1) };
                let what = targets(ForEach::new(request), workers).healthy_only(healthy_only).mark_healthy(mark);
                self.sets.extend(calls.foreach(what.timeout(timeout.map(Micros)), now));
            }
            Op::Async { workers, healthy_only, tag } => {
                let what = targets(ask(), workers).healthy_only(healthy_only);
                self.asynchronous += calls.foreach_async(what, tag.then_some("tag"), now).unwrap_or(0) as u64;
            }
            Op::Fetch { tag, mark } => {
                self.fetched += calls.fetch_ready_async(if tag { &["tag"] } else { &[] }, mark).len() as u64;
            }
            Op::Probe(mark) => self.sets.push(calls.probe_unhealthy(Ask::Number(2), Some(Micros(2)), mark, now)),
            Op::Mark(id, healthy) => _ = calls.set_worker_state(WorkerId(id), healthy),
            Op::Left(id) => calls.handle_left(WorkerId(id)),
            Op::Joined(id) => calls.handle_joined(WorkerId(id)),
            Op::Progress(id) => calls.handle_progress(WorkerId(id), now),
            Op::Answer { place, ok, twice } => {
                while let Some(command) = calls.poll_command() {
                    self.sent.push(command);
                }
                if place < self.sent.len() {
                    let CallCommand { worker, call, .. } = self.sent.remove(place);
                    for _ in 0..=u8::from(twice) {
                        self.answered += 1;
                        calls.handle_result(worker, call, if ok { Ok(0) } else { Err(broken()) }, now);
                    }
                }
            }
            Op::Take(place) => {
                if let Some(set) = self.sets.get(place)
                    && let Some(results) = calls.poll_results(*set)
                {
                    self.taken += results.len() as u64;
                    self.sets.remove(place);
                }
            }
            Op::GiveUp(place) if place < self.sets.len() => {
                let set = self.sets.remove(place);
                self.taken += calls.give_up(set).len() as u64;
            }
            Op::GiveUp(_) => {}
            Op::Wait(span) => {
                self.now = now + Micros(span);
                calls.handle_timeout(self.now);
                assert!(calls.poll_timeout().is_none_or(|timeout| timeout > self.now));
            }
        }
        assert!(self.calls.is_consistent(), "{:#?}", self.calls);
    }
}

proptest! {
    #[test]
    fn every_call_ends_in_one_place(ops in vec(op(), 0..80)) {
        let config = CallConfig {
            max_in_flight: 2,
            max_sample_failures: 2,
            call_timeout: Some(Micros(4)),
            progress_timeout: Some(Micros(2)),
        };
        let (sent, sets) = (vec![], vec![]);
        let (asynchronous, fetched, taken, answered) = (0, 0, 0, 0);
        let calls = CallManager::new(config);
        let mut onlooker = Onlooker { calls, sent, sets, now: Micros(0), asynchronous, fetched, taken, answered };
        for op in ops {
            onlooker.act(op);
        }
        // In the end all workers disconnect, and no call is open.
        let calls = &mut onlooker.calls;
        let workers: Vec<_> = calls.workers().map(|worker| worker.worker).collect();
        workers.into_iter().for_each(|worker| calls.handle_left(worker));
        onlooker.fetched += calls.fetch_ready_async(&[], false).len() as u64;
        let counters = *calls.counters();
        prop_assert_eq!(counters.started, counters.ended());
        prop_assert!(onlooker.fetched <= onlooker.asynchronous);
        prop_assert!(counters.returned + counters.late <= onlooker.answered);
        for set in onlooker.sets {
            let results = calls.poll_results(set);
            prop_assert!(results.is_some(), "a set is never complete");
        }
        prop_assert_eq!(calls.num_in_flight_async(), 0);
        prop_assert_eq!(calls.num_healthy_workers(), 0);
    }

    /// The outputs depend on nothing but the inputs.
    #[test]
    fn the_same_calls_give_the_same_answers(ops in vec(op(), 0..40)) {
        let run = || {
            let (call_timeout, progress_timeout) = (Some(Micros(4)), Some(Micros(2)));
            let config = CallConfig { call_timeout, progress_timeout, ..CallConfig::default() };
            let mut onlooker = Onlooker {
                calls: CallManager::new(config),
                sent: vec![],
                sets: vec![],
                now: Micros(0),
                asynchronous: 0,
                fetched: 0,
                taken: 0,
                answered: 0,
            };
            ops.iter().for_each(|op| onlooker.act(op.clone()));
            alloc::format!("{:?} {}", onlooker.calls, onlooker.taken)
        };
        prop_assert_eq!(run(), run());
    }
}
