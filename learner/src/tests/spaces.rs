//! Learning with actions of several parts, with action masks, and from the previous step.

use rollmesh_core::{
    env::{Env, EnvError, EnvSpec, Rng, Step, Vectorized, wrappers::ActionMasked},
    ids::PolicyId,
    space::Space,
    worker::{PolicyConfig, RolloutConfig, RolloutWorker, WorkerPlace},
};

use super::super::test_support::registry;

/// Steps of an episode.
const EPISODE: u32 = 8;

fn flag(x: bool) -> f32 {
    f32::from(u8::from(x))
}

/// An environment whose action has two parts: the choice that the observation names, and the number that it shows.
#[derive(Clone, Default)]
struct Aim {
    choice: bool,
    target: f32,
    t: u32,
}

impl Aim {
    fn show(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        (self.choice, self.target) = (rng.below(2) == 1, rng.uniform_f32() * 2.0 - 1.0);
        obs.copy_from_slice(&[flag(self.choice), self.target]);
    }
}

impl Env for Aim {
    type Obs = f32;
    type Act = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0, -1.0], &[1.0, 1.0])
    }

    fn action_space(&self) -> Space {
        Space::Tuple(vec![Space::Discrete { n: 2 }, Space::vector(&[-1.0], &[1.0])])
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.t = 0;
        self.show(rng, obs);
        Ok(())
    }

    fn step(&mut self, action: &[f32], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let [choice, number] = action else { return Err(EnvError::Failed(format!("{action:?} has not two parts"))) };
        let right = f64::from(flag(*choice == flag(self.choice)));
        let reward = right - f64::from((number - self.target).abs().min(1.0));
        self.t += 1;
        self.show(rng, obs);
        Ok(Step { reward, terminated: self.t == EPISODE, truncated: false })
    }
}

/// An environment of four doors: some are open, and the last open one pays. Closed doors cannot be chosen.
#[derive(Clone, Default)]
struct Doors {
    open: [bool; 4],
    t: u32,
}

impl Doors {
    fn shut(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        let open = rng.below(15) + 1;
        self.open = [0, 1, 2, 3].map(|door| open >> door & 1 == 1);
        obs.fill(1.0);
    }
}

impl Env for Doors {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 4 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.t = 0;
        self.shut(rng, obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        if !self.open[action[0] as usize] {
            return Err(EnvError::InvalidAction { lane: 0, action: format!("{action:?}, a closed door,") });
        }
        let reward = f64::from(flag(self.open.iter().rposition(|open| *open) == Some(action[0] as usize)));
        self.t += 1;
        self.shut(rng, obs);
        Ok(Step { reward, terminated: self.t == EPISODE, truncated: false })
    }
}

/// An environment where one of two actions pays in an episode. Only its reward shows which.
#[derive(Clone, Default)]
struct Habit {
    right: i64,
    t: u32,
}

impl Env for Habit {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.right, self.t) = (rng.below(2).into(), 0);
        obs.fill(0.0);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.t += 1;
        obs.fill(0.0);
        let reward = f64::from(flag(action == [self.right]));
        Ok(Step { reward, terminated: self.t == EPISODE, truncated: false })
    }
}

/// Returns the mean return of the last episodes after this number of PPO updates.
fn learned(env: EnvSpec, updates: usize, config: &str) -> f64 {
    let name = env.name.clone();
    let policy = PolicyConfig::new("ppo").with_config(config.parse().unwrap());
    let config = RolloutConfig::new(&*name).num_envs(16).rollout_fragment_length(32).seed(5);
    let config = config.policy(PolicyId::DEFAULT, policy);
    let mut worker = RolloutWorker::from_config(config, &registry().with_env(env), WorkerPlace::default()).unwrap();
    for _ in 0..updates {
        worker.metrics();
        let batch = worker.sample().unwrap();
        worker.learn_on_batch(&batch).unwrap();
    }
    let episodes = worker.metrics().episodes;
    episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / episodes.len() as f64
}

fn lanes<E>(name: &str, env: E) -> EnvSpec
where
    E: Env<Obs = f32> + Clone + Sync + 'static,
{
    EnvSpec::new(name, move |contexts, _| Box::new(Vectorized::new(vec![env.clone(); contexts.len()])))
}

/// Random actions give less than 1.
#[test]
fn both_parts_of_an_action_are_learned() {
    let config = r#"{"lr": 0.01, "entropy_coeff": 0.0, "num_epochs": 6, "minibatch_size": 128, "model": {"fcnet_hiddens": [32]}}"#;
    let found = learned(lanes("Aim", Aim::default()), 40, config);
    assert!(found > 5.5, "{found}");
}

/// A closed door would be an error.
#[test]
fn possible_actions_are_learned_from_masks_alone() {
    let doors = EnvSpec::new("Doors", |contexts, _| {
        let masked = |_| {
            let write =
                |doors: &Doors, mask: &mut [f32]| mask.iter_mut().zip(doors.open).for_each(|(m, o)| *m = flag(o));
            ActionMasked::new(Doors::default(), write).expect("discrete actions")
        };
        Box::new(Vectorized::new(contexts.iter().map(masked).collect()))
    });
    let config = r#"{"lr": 0.02, "entropy_coeff": 0.0, "minibatch_size": 128, "model": {"fcnet_hiddens": [8]}}"#;
    let found = learned(doors, 30, config);
    assert!(found > 7.5, "{found}");
}

/// Without the previous step the best return is 4.
#[test]
fn memory_learns_from_its_own_actions_and_rewards() {
    let config = r#"{"lr": 0.01, "entropy_coeff": 0.0, "minibatch_size": 128, "gamma": 0.5, "model": {
        "fcnet_hiddens": [8], "use_lstm": true, "lstm_cell_size": 16, "max_seq_len": 8, "lstm_use_prev_action": true,
        "lstm_use_prev_reward": true}}"#;
    let found = learned(lanes("Habit", Habit::default()), 60, config);
    assert!(found > 6.5, "{found}");
}
