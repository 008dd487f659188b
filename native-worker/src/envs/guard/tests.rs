//! A panic in an environment is a failure of that environment only.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};

use rollmesh_core::{
    env::{
        BaseEnv as _, Env, EnvActions, EnvContext, EnvMaker, EnvStart, EnvState, EnvUpdates, InProcess, RowsRef,
        SnapshotReader, Step, Vectorized, check_env, check_multi_agent_env,
    },
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    rng::{Purpose, Streams},
    space::Space,
};

use super::*;

/// Counts its calls, and panics where it is configured to.
#[derive(Clone)]
struct Bomb {
    steps: u8,
    panics_in: &'static str,
    calls: Arc<AtomicU32>,
}

impl Bomb {
    fn enter(&self, place: &'static str) {
        self.calls.fetch_add(1, SeqCst);
        assert!(self.panics_in != place, "boom in {place}");
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.panics_in == "step" {
            panic!("once more");
        }
    }
}

impl Env for Bomb {
    type Obs = i64;
    type Act = i64;

    fn observation_space(&self) -> Space {
        self.enter("spaces");
        Space::Discrete { n: 256 }
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        self.enter("reset");
        (self.steps, obs[0]) = (0, 0);
        Ok(())
    }

    fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
        self.enter("step");
        self.steps += 1;
        obs[0] = i64::from(self.steps);
        Ok(Step { reward: 1.0, terminated: self.steps == 5, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.steps);
        self.enter("snapshot");
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [i64]) -> Result<(), EnvError> {
        self.enter("restore");
        let mut reader = SnapshotReader::new(snapshot);
        let steps = reader.below(6)?;
        reader.finish()?;
        (self.steps, obs[0]) = (steps, i64::from(steps));
        Ok(())
    }
}

fn bomb(panics_in: &'static str) -> (Result<Box<dyn AnyVectorEnv>, EnvError>, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let made = caught(|| Ok(Box::new(Vectorized::new(vec![Bomb { steps: 0, panics_in, calls: counted }])) as _));
    (made.and_then(guard), calls)
}

#[test]
fn panic_is_a_failure_and_its_environment_is_called_no_more() {
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
    for place in ["reset", "restore"] {
        let (env, calls) = bomb(place);
        let (mut env, mut obs) = (env.unwrap(), [0i64]);
        let mut call = || match place {
            "reset" => env.reset_at(0, &mut rng, RowsMut::I64(&mut obs)),
            _ => env.restore_at(0, &[1], RowsMut::I64(&mut obs)),
        };
        let error = call().unwrap_err();
        assert_eq!(error, EnvError::Failed(format!("panicked: boom in {place}")));
        let before = calls.load(SeqCst);
        assert_eq!(call(), Err(error.clone()));
        assert_eq!(env.reset_at(0, &mut rng, RowsMut::I64(&mut obs)), Err(error));
        let mut snapshot = Vec::new();
        assert!(env.snapshot_at(0, &mut snapshot).is_err());
        assert!(snapshot.is_empty() && env.num_envs() == 1 && !env.render_at(0, &mut Frame::new()));
        assert_eq!(calls.load(SeqCst), before);
    }
    assert!(matches!(bomb("spaces").0.map(|_| ()), Err(EnvError::Failed(_))));
}

#[test]
fn environment_that_panicked_is_rebuilt_for_its_next_episode() {
    let mut registry = EnvRegistry::default();
    let made = AtomicU32::new(0);
    registry.register(EnvSpec::new("Bomb", move |_, _| {
        let panics_in = if made.fetch_add(1, SeqCst) == 0 { "reset" } else { "nowhere" };
        Box::new(Vectorized::new(vec![Bomb { steps: 0, panics_in, calls: Arc::default() }]))
    }));
    let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
    let mut env = guarded(&registry).spec("Bomb").unwrap().make(&[context], Kernels::PORTABLE).unwrap();
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
    let mut obs = [0i64];
    let error = env.reset_at(0, &mut rng, RowsMut::I64(&mut obs)).unwrap_err();
    assert_eq!(error.to_string(), "the environment failed: panicked: boom in reset");
    assert_eq!(env.restore_at(0, &[3], RowsMut::I64(&mut obs)), Ok(()));
    assert_eq!(obs, [3]);
}

#[test]
fn a_snapshot_that_panics_is_an_error() {
    let (env, _) = bomb("snapshot");
    let mut snapshot = vec![7];
    let mut env = env.unwrap();
    let error = env.snapshot_at(0, &mut snapshot).unwrap_err();
    assert_eq!((error.to_string(), snapshot), ("the environment failed: panicked: boom in snapshot".into(), vec![7]));
    // It has panicked, so it is not called again.
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
    assert!(env.reset_at(0, &mut rng, RowsMut::I64(&mut [0])).is_err());
}

#[test]
fn guarded_environments_behave_as_before() {
    let registry = guarded(&EnvRegistry::builtin());
    for spec in EnvRegistry::builtin().iter() {
        let guarded = registry.spec(&spec.name).unwrap();
        let limits = |spec: &EnvSpec| (spec.max_episode_steps, spec.reward_threshold);
        assert_eq!((limits(&guarded), guarded.spaces()), (limits(spec), spec.spaces()));
    }
    check_env(&registry.spec("CartPole-v1").unwrap(), 2).unwrap();
    assert_eq!(registry.iter_multi_agent().len(), EnvRegistry::builtin().iter_multi_agent().len());
    check_multi_agent_env(&registry.multi_agent("MultiAgentTrafficGrid-v0").unwrap(), 1).unwrap();
    // Downcasting finds its type.
    let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
    let mut env = registry.spec("CartPole-v1").unwrap().make(&[context], Kernels::PORTABLE).unwrap();
    assert!(env.as_any().is::<rollmesh_core::env::CartPole>());
}

/// Lets the second environment panic in its first step, and again while it is dropped. The others are not affected.
#[test]
fn sampling_continues_after_a_panic() {
    let mut registry = EnvRegistry::default();
    let made = AtomicU32::new(0);
    registry.register(EnvSpec::new("Bomb", move |_, _| {
        let panics_in = if made.fetch_add(1, SeqCst) == 1 { "step" } else { "nowhere" };
        Box::new(Vectorized::new(vec![Bomb { steps: 0, panics_in, calls: Arc::default() }]))
    }));
    let registry = guarded(&registry);
    let maker = EnvMaker::single_agent(&registry.spec("Bomb").unwrap(), Kernels::PORTABLE);
    let start = |index| {
        let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: index });
        EnvStart { slot: SlotId(index), episode: 0, context }
    };
    let mut envs = InProcess::new(maker, (0..3).map(start).collect(), 1).unwrap().with_restarts(true);
    let mut updates = EnvUpdates::new();
    envs.poll(&mut updates).unwrap();
    let mut actions = AgentRows::new();
    actions.set(&AgentId::SINGLE, RowsRef::I64(&[0]));
    let act = |envs: &mut InProcess| {
        let answers = (0..3).map(|env| EnvActions { env, actions: actions.clone() });
        envs.send_actions(&answers.collect::<Vec<_>>())
    };
    act(&mut envs).unwrap();
    updates.clear();
    envs.poll(&mut updates).unwrap();
    let faults: Vec<bool> = updates.entries().iter().map(|entry| entry.fault.is_some()).collect();
    assert_eq!(faults, [false, true, false]);
    let mut turn = Turn::new();
    envs.try_reset(1, &mut turn).unwrap();
    act(&mut envs).unwrap();
    updates.clear();
    envs.poll(&mut updates).unwrap();
    let seen = updates.entries().iter().map(|entry| entry.turn.obs().row_of::<i64>(&AgentId::SINGLE).unwrap()[0]);
    assert_eq!(seen.collect::<Vec<_>>(), [2, 1, 2]);
}
