//! Environments of PettingZoo, Box2D, MuJoCo and the Arcade Learning Environment. They need packages that take minutes to install, so
//! no bare `cargo test` runs them: `cargo xtask test python-packages` does.

use rollmesh_core::{
    env::{
        AnyVectorEnv, CheckOptions, EnvContext, EnvState, Moment, Moments, RowsMut, RowsRef, StepOut, check_env_all,
        check_multi_agent_env,
    },
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    rng::{Purpose, Streams},
    space::Space,
};

use super::{interpreter, matrix::Run, registry};

fn context() -> EnvContext {
    EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 })
}

/// An environment with one lane, and rows of its types: bytes or doubles in, numbers of actions or floats out.
struct One {
    env: Box<dyn AnyVectorEnv>,
    obs: Obs,
    t: u32,
}

enum Obs {
    Bytes(Vec<u8>),
    Doubles(Vec<f64>),
}

impl Obs {
    fn rows(&mut self) -> RowsMut<'_> {
        match self {
            Self::Bytes(row) => RowsMut::U8(row),
            Self::Doubles(row) => RowsMut::F64(row),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(row) => row.clone(),
            Self::Doubles(row) => row.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

impl One {
    fn make(name: &str, config: &str) -> Self {
        let context = context().with_config(config.parse().unwrap());
        let env = registry().spec(name).unwrap().make(&[context], Kernels::PORTABLE).unwrap();
        let len = env.observation_space().shape().elements();
        let obs = match env.dtypes().0 {
            rollmesh_core::column::DType::U8 => Obs::Bytes(vec![0; len]),
            _ => Obs::Doubles(vec![0.0; len]),
        };
        Self { env, obs, t: 0 }
    }

    fn reset(&mut self) {
        let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        self.env.reset_at(0, &mut rng, self.obs.rows()).unwrap();
    }

    /// Steps with actions that follow from the time; returns the observation and the reward.
    fn step(&mut self) -> (Vec<u8>, f64) {
        let moment = Moment { slot: SlotId(0), t: self.t, ..Moment::default() };
        let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &[moment], mark: None };
        let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
        let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
        let discrete = [i64::from(self.t * 7 % 4)];
        let space = self.env.action_space();
        let wave: Vec<f32> = (0..space.shape().elements() as u32).map(|at| ((self.t * 3 + at) as f32).sin()).collect();
        let actions = match space {
            Space::Discrete { .. } => RowsRef::I64(&discrete),
            _ => RowsRef::F32(&wave),
        };
        self.env.step(actions, moments, self.obs.rows(), out).unwrap();
        self.t += 1;
        (self.obs.bytes(), reward[0])
    }
}

#[test]
fn simulators_continue_bit_identically_from_their_own_states() {
    let cases = [
        ("gym:HalfCheetah-v5", "{}", EnvState::Snapshot),
        ("gym:Ant-v5", "{}", EnvState::Snapshot),
        ("gym:ALE/Breakout-v5", r#"{"repeat_action_probability": 0, "obs_type": "ram"}"#, EnvState::Snapshot),
        // Sticky, as `ALE/…-v5` is without settings, and stickier.
        ("gym:ALE/Breakout-v5", r#"{"obs_type": "ram"}"#, EnvState::Replay),
        ("gym:ALE/Breakout-v5", r#"{"repeat_action_probability": 0.9, "obs_type": "ram"}"#, EnvState::Replay),
    ];
    for (name, config, wanted) in cases {
        let mut one = One::make(name, config);
        one.reset();
        (0..30).for_each(|_| _ = one.step());
        let mut snapshot = Vec::new();
        assert_eq!(one.env.snapshot_at(0, &mut snapshot), Ok(wanted), "{name} {config}");
        let last = one.obs.bytes();
        let rest: Vec<_> = (0..30).map(|_| one.step()).collect();
        // In the same environment, in another one, and from the state that the other one saves immediately.
        let mut other = One::make(name, config);
        for (turn, env) in [&mut one, &mut other].into_iter().enumerate() {
            env.t = 30;
            let row = env.obs.rows();
            env.env.restore_at(0, &snapshot, row).unwrap();
            assert_eq!(env.obs.bytes(), last, "{name} {config} {turn}");
            assert_eq!((0..30).map(|_| env.step()).collect::<Vec<_>>(), rest, "{name} {config} {turn}");
        }
        let mut damaged = snapshot.clone();
        damaged.truncate(snapshot.len() / 2);
        let row = other.obs.rows();
        assert!(other.env.restore_at(0, &damaged, row).is_err(), "{name} {config}");
    }
    let errors =
        check_env_all(&registry().spec("gym:HalfCheetah-v5").unwrap(), CheckOptions { lanes: 2, steps: 40, seed: 3 });
    assert!(errors.is_empty(), "{errors:?}");
}

/// Checks the reason that games with sticky actions are replayed: a later version of ALE may save the last action as
/// well.
#[test]
fn states_of_ale_lack_the_action_that_a_sticky_one_repeats() {
    let script = r#"
import ale_py, gymnasium, numpy
def continues(probability, seed):
    make = lambda: gymnasium.make("ALE/Breakout-v5", obs_type="ram", repeat_action_probability=probability)
    env, other, actions = make(), make(), numpy.random.default_rng(seed).integers(4, size=80)
    env.reset(seed=seed), other.reset(seed=seed + 1)
    for action in actions[:40]:
        env.step(action)
    other.unwrapped.restore_state(env.unwrapped.clone_state(include_rng=True))
    return all((env.step(action)[0] == other.step(action)[0]).all() for action in actions[40:])
print(*(all(continues(probability, seed) for seed in range(10)) for probability in (0.0, 0.9)))
"#;
    let found = std::process::Command::new(interpreter()).args(["-c", script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), "True False", "{found:?}");
}

#[test]
fn games_of_pettingzoo_keep_the_rules_of_environments_with_several_agents() {
    let registry = registry();
    // Simultaneously, sequentially with an action mask in the observation, and sequentially although they could act simultaneously.
    let games =
        ["pettingzoo:classic/rps_v2", "pettingzoo:classic/tictactoe_v3", "pettingzoo:pettingzoo.classic.rps_v2:env"];
    for (name, n) in games.iter().zip([3, 9, 3]) {
        let spec = registry.multi_agent(name).unwrap();
        check_multi_agent_env(&spec, 3).unwrap_or_else(|error| panic!("{name}: {error}"));
        let game = spec.make(&context()).unwrap();
        let agents = game.agents();
        assert_eq!(agents.len(), 2, "{name}: {agents:?}");
        assert!(agents.iter().all(|agent| game.spaces(agent).unwrap().action == Space::Discrete { n }), "{name}");
    }
}

/// Trains environments of packages; the packages of `CartPole-v1` are those of the short suite.
#[tokio::test]
async fn weights_are_the_same_for_any_workers_and_any_death() {
    // Pictures of 84x84, four of them, into a dense net: the wrappers are DeepMind's. Few slots, since a reset of Breakout loads the
    // game, which takes as long as hundreds of steps.
    let smooth = ["--max-env-steps", "480", "--env-config", r#"{"repeat_action_probability": 0}"#];
    let cases: [(&str, u32, &[&str]); 6] = [
        ("gym:LunarLander-v3", 8, &["--max-env-steps", "3200", "--python-processes", "2"]),
        ("gym:HalfCheetah-v5", 8, &["--max-env-steps", "1600"]),
        ("gym:ALE/Breakout-v5", 3, &["--max-env-steps", "480"]),
        ("gym:ALE/Breakout-v5", 3, &smooth),
        ("pettingzoo:classic/rps_v2", 8, &["--max-env-steps", "1600"]),
        ("pettingzoo:classic/tictactoe_v3", 8, &["--max-env-steps", "1600"]),
    ];
    for (env, slots, more) in cases {
        let directory = tempfile::tempdir().unwrap();
        Run { env, more, python_path: "", slots }.check(directory.path()).await;
    }
}
