//! Policies allocate nothing once they have seen as many rows, external episodes once they have had as many turns; bytes
//! become turns in the memory that is there.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use rollmesh_core::{
    column::{DType, RowShape},
    env::{
        BaseEnv as _, Env, EnvActions, EnvError, EnvSpaces, EnvState, EnvUpdates, ExternalEpisodes, Moment, Moments,
        Rng, RowsMut, RowsRef, Step, StepOut, VectorEnv as _, Vectorized,
        multi_agent::{AgentRows, Outcome, Turn},
    },
    ids::{AgentId, SlotId},
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, PolicyContext, PolicyRegistry},
    rng::{Purpose, Streams},
    space::Space,
};

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn allocations_are_counted() {
    let before = ALLOCATIONS.get();
    std::hint::black_box(vec![1u8; 7]);
    assert_eq!(ALLOCATIONS.get() - before, 1);
}

#[test]
fn policies_allocate_nothing_after_the_first_rows() {
    // Whole tiles of rows, and some more.
    const ROWS: usize = 22;
    let floats = Space::vector(&[-1.0; 4], &[1.0; 4]);
    let observations: [(Space, DType, RowsRef<'static>); 3] = [
        (floats, DType::F32, RowsRef::F32(&[0.5; 4 * ROWS])),
        (Space::Discrete { n: 90 }, DType::I64, RowsRef::I64(&[8; ROWS])),
        (Space::uniform(DType::U8, RowShape::vector(6), 0.0, 255.0), DType::U8, RowsRef::U8(&[7; 6 * ROWS])),
    ];
    let actions = [
        (Space::Discrete { n: 3 }, DType::I64),
        (Space::MultiDiscrete { nvec: vec![2, 3] }, DType::I64),
        (Space::vector(&[-1.0; 2], &[1.0; 2]), DType::F32),
    ];
    let configs = [r#"{}"#, r#"{"model": {"use_lstm": true}}"#];
    for (observation, observation_type, obs) in &observations {
        for (action, action_type) in &actions {
            let (observation, action) = (observation.clone(), action.clone());
            let len = action.shape().elements();
            let spaces =
                EnvSpaces { observation, observation_type: *observation_type, action, action_type: *action_type };
            for (name, config) in [("net", configs[0]), ("net", configs[1]), ("random", configs[0])] {
                let context = PolicyContext::new(spaces.clone(), 1, Kernels::PORTABLE);
                let context = context.with_config(config.parse().unwrap());
                let mut policy = PolicyRegistry::builtin().spec(name).unwrap().make(&context).unwrap();
                let state_len: usize = policy.state_lens().iter().sum();
                let (state, moments) = (vec![0.0; state_len * ROWS], [Moment::default(); ROWS]);
                let mut next = state.clone();
                let mut dist_inputs = vec![0.0; policy.dist_inputs_len() * ROWS];
                let (mut integers, mut floats) = (vec![0; len * ROWS], vec![0.0; len * ROWS]);
                let mut act = |explore: bool, with_outputs: bool| {
                    let (mut logp, mut vf_preds) = ([0.0; ROWS], [0.0; ROWS]);
                    let actions = match action_type {
                        DType::F32 => RowsMut::F32(&mut floats),
                        _ => RowsMut::I64(&mut integers),
                    };
                    let mut out = ActionOutput::new(actions, &mut logp, &mut vf_preds);
                    out.state = &mut next;
                    if with_outputs {
                        out.dist_inputs = &mut dist_inputs;
                    }
                    let input = ActionInput { obs: *obs, moments: &moments, state: &state, explore };
                    let before = ALLOCATIONS.get();
                    policy.compute_actions(input, out).unwrap();
                    policy.compute_values(*obs, &state, &mut vf_preds).unwrap();
                    ALLOCATIONS.get() - before
                };
                let ways = [(true, false), (true, true), (false, true)];
                ways.iter().for_each(|&(explore, with_outputs)| _ = act(explore, with_outputs));
                for (explore, with_outputs) in ways {
                    assert_eq!(
                        act(explore, with_outputs),
                        0,
                        "{name} {config} {spaces:?}, explore: {explore}, with_outputs: {with_outputs}"
                    );
                }
            }
        }
    }
}

#[test]
fn external_episodes_allocate_nothing_after_the_first_turns() {
    let spaces = EnvSpaces {
        observation: Space::vector(&[-1.0; 4], &[1.0; 4]),
        observation_type: DType::F32,
        action: Space::Discrete { n: 2 },
        action_type: DType::I64,
    };
    let agents = [AgentId::name("left"), AgentId::name("right")];
    let mut episodes = ExternalEpisodes::new(2, agents.clone().map(|agent| (agent, spaces.clone()))).unwrap();
    let (mut obs, mut did, mut taken) = (AgentRows::new(), AgentRows::new(), AgentRows::new());
    for agent in &agents {
        obs.set(agent, RowsRef::F32(&[0.5; 4]));
        did.set(agent, RowsRef::I64(&[1]));
    }
    let answer = [0, 1].map(|env| EnvActions { env, actions: did.clone() });
    let (outcome, mut updates) = (Outcome { reward: 1.0, ..Outcome::default() }, EnvUpdates::new());
    (0..2).for_each(|id| _ = episodes.start_episode(id, true).unwrap());
    let mut turns = |episodes: &mut ExternalEpisodes| {
        let before = ALLOCATIONS.get();
        for turn in 0..4 {
            for id in 0..2 {
                if turn % 2 == 0 {
                    episodes.request_actions(id, &obs).unwrap();
                } else {
                    episodes.log_actions(id, &obs, &did).unwrap();
                }
                agents.iter().for_each(|agent| episodes.log_returns(id, agent, outcome, None).unwrap());
            }
            updates.clear();
            episodes.poll(&mut updates).unwrap();
            episodes.send_actions(&answer).unwrap();
            if turn % 2 == 0 {
                assert!((0..2).all(|id| episodes.take_actions(id, &mut taken).unwrap()));
            }
        }
        ALLOCATIONS.get() - before
    };
    (0..4).for_each(|_| _ = turns(&mut episodes));
    assert_eq!(turns(&mut episodes), 0);
}

#[test]
fn turns_are_decoded_into_the_memory_of_earlier_ones() {
    let agents = [AgentId::Index(0), AgentId::name("car_1"), AgentId::name("car_2")];
    let mut turn = Turn::new();
    for agent in &agents {
        turn.observe(agent, RowsRef::F32(&[0.5; 4]));
        turn.reward(agent, 1.0);
    }
    turn.observe(&agents[2], RowsRef::U8(&[7; 100]));
    let (mut bytes, mut read) = (Vec::new(), Turn::new());
    for warm in [false, true] {
        let before = ALLOCATIONS.get();
        bytes.clear();
        turn.write(&mut bytes);
        read.read(&bytes).unwrap();
        assert!(!warm || ALLOCATIONS.get() == before);
    }
}

/// Counts its steps, and has no snapshot: its actions are recorded.
struct Counter(f32);

impl Env for Counter {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1e6])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0 = 0.0;
        obs[0] = self.0;
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.0 += action[0] as f32;
        obs[0] = self.0;
        Ok(Step { reward: 1.0, ..Step::default() })
    }
}

#[test]
fn recorded_actions_allocate_nothing_after_an_episode_as_long() {
    let mut env = Vectorized::new(vec![Counter(0.0), Counter(0.0)]);
    let (mut obs, mut rewards, mut terminateds, mut truncateds) = ([0.0; 2], [0.0; 2], [false; 2], [false; 2]);
    let mut allocations = Vec::new();
    for episode in 0..3 {
        let before = ALLOCATIONS.get();
        for lane in 0..2 {
            let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(lane), episode, 0, 0);
            env.reset_at(lane as usize, &mut rng, &mut obs[..1]).unwrap();
        }
        for t in 0..200 {
            let lanes = [0, 1].map(|slot| Moment { slot: SlotId(slot), episode, t, agent: 0 });
            let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &lanes, mark: None };
            let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
            env.step(&[1, 0], moments, &mut obs, out).unwrap();
        }
        allocations.push(ALLOCATIONS.get() - before);
    }
    assert!(allocations[0] > 0 && allocations[1..] == [0, 0], "{allocations:?}");
    let mut snapshot = Vec::new();
    assert_eq!(env.snapshot_at(0, &mut snapshot), EnvState::Replay);
    // A byte for where random numbers come from and one for the action of each step.
    assert!((400..500).contains(&snapshot.len()), "{} bytes", snapshot.len());
}
