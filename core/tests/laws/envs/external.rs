//! Rows of external episodes are what was driven, in whatever order clients and sampler act.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use rollmesh_core::{
    batch::{AnyBatch, REWARDS, TERMINATEDS, TRUNCATEDS},
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    column::{ColumnKey, DType},
    env::{
        BaseEnv, EnvActions, EnvError, EnvSpaces, EnvUpdates, ExternalEpisodes, ExternalError, Reset, RowsMut, RowsRef,
        multi_agent::{AgentRows, Outcome, Turn},
    },
    ids::{AgentId, PolicyId, SlotId, WeightsVersion, eps_id},
    policy::{ActionInput, ActionOutput, Policy, PolicyError, PolicyMap},
    sampler::{
        BatchMode, Episodic, InputReader as _, Interrupt, SampleError, SampleProgress, SamplerHost, SamplerOptions,
    },
    space::Space,
    time::Micros,
    weights::Weights,
};

/// The state that drivers and sampler share.
#[derive(Clone)]
struct Shared(Arc<Mutex<ExternalEpisodes>>);

impl Shared {
    fn new(lanes: usize) -> Self {
        let spaces = EnvSpaces {
            observation: Space::Discrete { n: 1 << 20 },
            observation_type: DType::I64,
            action: Space::Discrete { n: 10 },
            action_type: DType::I64,
        };
        Self(Arc::new(Mutex::new(ExternalEpisodes::new(lanes, [(AgentId::SINGLE, spaces)]).unwrap())))
    }

    fn with<R>(&self, f: impl FnOnce(&mut ExternalEpisodes) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
}

impl BaseEnv for Shared {
    fn num_envs(&self) -> usize {
        self.with(|episodes| episodes.num_envs())
    }
    fn agents(&self) -> Vec<AgentId> {
        self.with(|episodes| episodes.agents())
    }
    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.with(|episodes| episodes.spaces(agent))
    }
    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        self.with(|episodes| episodes.poll(updates))
    }
    fn may_be_idle(&self) -> bool {
        true
    }
    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        self.with(|episodes| episodes.send_actions(actions))
    }
    fn try_reset(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError> {
        self.with(|episodes| episodes.try_reset(env, turn))
    }
    fn try_restart(&mut self, env: usize) -> Result<(), EnvError> {
        self.with(|episodes| episodes.try_restart(env))
    }
}

/// Does the last digit of what it sees. Fails when it sees 666.
struct Digit(Weights);

impl Policy for Digit {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let (RowsRef::I64(obs), RowsMut::I64(actions)) = (input.obs, out.actions) else {
            return Err(PolicyError::Failed("not int64".into()));
        };
        if obs.contains(&666) {
            return Err(PolicyError::Failed("no".into()));
        }
        actions.iter_mut().zip(obs).for_each(|(action, obs)| *action = obs % 10);
        Ok(())
    }
    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }
    fn weights(&self) -> &Weights {
        &self.0
    }
    fn set_weights(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// A sampler and a worker's part.
struct Bench {
    sampler: Episodic,
    policies: PolicyMap,
    interrupt: Interrupt,
}

impl Bench {
    fn new(env: &Shared, batch_mode: BatchMode) -> Self {
        let slots = (0..env.num_envs() as u32).map(|slot| (SlotId(slot), 0)).collect();
        let options = SamplerOptions { batch_mode, fragment_length: 3, ..SamplerOptions::new(slots) };
        let weights = Weights::new(WeightsVersion(0), Vec::new()).unwrap();
        Self {
            sampler: Episodic::new(options, Box::new(env.clone())).unwrap(),
            policies: PolicyMap::single(Box::new(Digit(weights))),
            interrupt: Interrupt::default(),
        }
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut Episodic, &mut SamplerHost<'_>) -> R) -> R {
        let mapping: PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::DEFAULT);
        let mut host = SamplerHost {
            worker: &WorkerInfo::default(),
            policies: &mut self.policies,
            mapping: &mapping,
            observation_fn: None,
            callbacks: &mut CallbackList::new(),
            clock: &|| Micros(0),
            interrupt: Some(&self.interrupt),
        };
        f(&mut self.sampler, &mut host)
    }

    fn step(&mut self) -> Result<SampleProgress, SampleError> {
        self.with(|sampler, host| sampler.step(host))
    }
}

fn row(value: i64) -> AgentRows {
    AgentRows::single(RowsRef::I64(&[value]))
}

fn reward(reward: f64) -> Outcome {
    Outcome { reward, ..Outcome::default() }
}

/// The content of a batch's row.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    eps_id: i64,
    t: i64,
    obs: i64,
    action: i64,
    reward: f32,
    new_obs: i64,
    ends: (bool, bool),
}

fn rows(batch: &AnyBatch) -> Vec<Seen> {
    let batch = batch.single().unwrap();
    let ints = |name| batch.get(ColumnKey::<i64>::new(name)).unwrap();
    let (ids, t, obs, actions, new_obs) = (ints("eps_id"), ints("t"), ints("obs"), ints("actions"), ints("new_obs"));
    let (terminateds, truncateds) = (batch.get(TERMINATEDS).unwrap(), batch.get(TRUNCATEDS).unwrap());
    let rewards = batch.get(REWARDS).unwrap();
    let row = |at: usize| Seen {
        eps_id: ids[at],
        t: t[at],
        obs: obs[at],
        action: actions[at],
        reward: rewards[at],
        new_obs: new_obs[at],
        ends: (terminateds[at], truncateds[at]),
    };
    (0..batch.len()).map(row).collect()
}

/// A driver: its position in its episode, and the rows that must result.
#[derive(Default)]
struct Driver {
    /// The episode's number and lane.
    episode: Option<(u64, usize)>,
    rows: Vec<Seen>,
    /// The last observation, the action if it is known, and its reward.
    last: Option<(i64, Option<i64>, f64)>,
}

/// Drivers in lanes, and their expected rows.
struct Stage {
    env: Shared,
    drivers: Vec<Driver>,
    started: u64,
    observed: i64,
    /// Episodes of each lane that the sampler hears of; none in place of the rows of a lost one.
    expected_rows: BTreeMap<usize, Vec<Option<Vec<Seen>>>>,
}

impl Stage {
    fn new(lanes: usize, drivers: usize) -> Self {
        let drivers = (0..drivers).map(|_| Driver::default()).collect();
        Self { env: Shared::new(lanes), drivers, started: 0, observed: 0, expected_rows: BTreeMap::new() }
    }

    /// Takes the driver's next step, of which there are several kinds.
    fn step_driver(&mut self, driver: usize, way: u8) {
        let Self { env, drivers, started, observed, expected_rows } = self;
        let driver = &mut drivers[driver];
        let Some((id, lane)) = driver.episode else {
            if let Ok(lane) = env.with(|episodes| episodes.start_episode(*started, true)) {
                driver.episode = Some((*started, lane));
                *started += 1;
            }
            return;
        };
        if let Some((seen, None, _)) = driver.last
            && way != 6
        {
            // The driver that has asked waits.
            let mut actions = AgentRows::new();
            if env.with(|episodes| episodes.take_actions(id, &mut actions)).unwrap() {
                let action = actions.row_of::<i64>(&AgentId::SINGLE).unwrap()[0];
                assert_eq!(action, seen % 10);
                driver.last = Some((seen, Some(action), 0.0));
            }
            return;
        }
        *observed += if *observed == 665 { 2 } else { 1 };
        let (obs, number) = (*observed, expected_rows.get(&lane).map_or(0, Vec::len) as u32);
        let row_to = |driver: &mut Driver, ends| {
            if let Some((obs, Some(action), reward)) = driver.last {
                let (t, eps_id) = (driver.rows.len() as i64, eps_id(SlotId(lane as u32), number));
                driver.rows.push(Seen { eps_id, t, obs, action, reward: reward as f32, new_obs: *observed, ends });
            }
        };
        match way {
            0..=2 => {
                let asked = env.with(|episodes| episodes.request_actions(id, &row(obs)));
                if full(asked) {
                    return;
                }
                row_to(driver, (false, false));
                driver.last = Some((obs, None, 0.0));
            }
            3 | 4 => {
                let action = i64::from(way);
                if full(env.with(|episodes| episodes.log_actions(id, &row(obs), &row(action)))) {
                    return;
                }
                row_to(driver, (false, false));
                driver.last = Some((obs, Some(action), 0.0));
            }
            5 => {
                if let Some((_, _, sum)) = &mut driver.last {
                    *sum += 0.5;
                    env.with(|episodes| episodes.log_returns(id, &AgentId::SINGLE, reward(0.5), None)).unwrap();
                }
            }
            6 => {
                env.with(|episodes| episodes.abandon(id)).unwrap();
                if driver.last.is_some() {
                    expected_rows.entry(lane).or_default().push(None);
                }
                *driver = Driver::default();
            }
            _ => {
                let truncated = way == 7;
                if full(env.with(|episodes| episodes.end_episode(id, &row(obs), truncated))) {
                    return;
                }
                row_to(driver, (!truncated, truncated));
                if driver.last.is_some() {
                    expected_rows.entry(lane).or_default().push(Some(core::mem::take(&mut driver.rows)));
                }
                *driver = Driver::default();
            }
        }
    }
}

fn full(said: Result<(), ExternalError>) -> bool {
    match said {
        Ok(()) => false,
        Err(ExternalError::QueueFull { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #[test]
    fn batches_hold_what_was_driven(script in prop::collection::vec((0usize..4, 0u8..9), 0..400)) {
        let mut stage = Stage::new(2, 3);
        let mut bench = Bench::new(&stage.env, BatchMode::CompleteEpisodes);
        for (driver, way) in script {
            if driver == 3 {
                bench.step().unwrap();
            } else {
                stage.step_driver(driver, way);
            }
        }
        while bench.step().unwrap() != SampleProgress::Idle {}
        let mut found: BTreeMap<usize, Vec<Vec<Seen>>> = BTreeMap::new();
        while let Some(batch) = bench.sampler.take() {
            let rows = rows(&batch);
            found.entry((rows[0].eps_id >> 32) as usize).or_default().push(rows);
        }
        let whole = |episodes: &Vec<Option<Vec<Seen>>>| episodes.iter().flatten().cloned().collect::<Vec<_>>();
        let wanted = stage.expected_rows.iter().map(|(lane, episodes)| (*lane, whole(episodes)));
        let wanted: BTreeMap<_, _> = wanted.filter(|(_, episodes)| !episodes.is_empty()).collect();
        prop_assert_eq!(found, wanted);
        let metrics = bench.sampler.metrics();
        let faulty = |wanted: bool| metrics.iter().filter(|episode| episode.faulty.is_some() == wanted).count();
        let expected_rows: Vec<_> = stage.expected_rows.values().flatten().collect();
        prop_assert_eq!(faulty(true), expected_rows.iter().filter(|episode| episode.is_none()).count());
        prop_assert_eq!(faulty(false), expected_rows.iter().filter(|episode| episode.is_some()).count());
    }
}

#[test]
fn poll_without_updates_returns_when_interrupted() {
    let env = Shared::new(1);
    let mut bench = Bench::new(&env, BatchMode::TruncateEpisodes);
    assert_eq!(bench.step(), Ok(SampleProgress::Idle));
    bench.interrupt.set(true);
    assert_eq!(bench.with(|sampler, host| sampler.next(host)), Err(SampleError::Stopped));
    // Nothing is lost by that.
    bench.interrupt.set(false);
    env.with(|episodes| {
        episodes.start_episode(1, true)?;
        (0..4).try_for_each(|t| episodes.log_actions(1, &row(t), &row(5)))
    })
    .unwrap();
    let batch = bench.with(|sampler, host| sampler.next(host)).unwrap();
    assert_eq!(rows(&batch).iter().map(|row| (row.obs, row.action)).collect::<Vec<_>>(), [(0, 5), (1, 5), (2, 5)]);
}

#[test]
fn drivers_hear_when_the_sampler_has_to_begin_anew() {
    let env = Shared::new(2);
    let mut bench = Bench::new(&env, BatchMode::TruncateEpisodes);
    for id in [1, 2] {
        env.with(|episodes| episodes.start_episode(id, true)).unwrap();
    }
    env.with(|episodes| episodes.request_actions(1, &row(666))).unwrap();
    env.with(|episodes| episodes.request_actions(2, &row(1))).unwrap();
    bench.step().unwrap();
    assert!(matches!(bench.step(), Err(SampleError::Policy { .. })));
    // Those that the sampler had begun.
    env.with(|episodes| episodes.start_episode(3, true)).unwrap_err();
    bench.step().unwrap();
    let mut actions = AgentRows::new();
    for id in [1, 2] {
        let taken = env.with(|episodes| episodes.take_actions(id, &mut actions));
        assert_eq!(taken, Err(ExternalError::LostEpisode(id)));
    }
    // Then everything continues.
    env.with(|episodes| {
        episodes.start_episode(3, true)?;
        (0..4).try_for_each(|t| episodes.log_actions(3, &row(t), &row(5)))
    })
    .unwrap();
    let batch = bench.with(|sampler, host| sampler.next(host)).unwrap();
    assert_eq!(rows(&batch).iter().map(|row| (row.t, row.obs)).collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 2)]);
}
