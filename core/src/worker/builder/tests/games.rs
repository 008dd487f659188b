use crate::{
    batch::{OBS, REWARDS},
    column::{DType, RowShape},
    config::Config,
    env::{Env, EnvContext, EnvError, EnvSpec, EnvState, Rng, SnapshotReader, Step, Vectorized},
    ids::HomeIndex,
    prelude::*,
    sampler::RewardClipping,
    space::Space,
    worker::{RolloutConfig, RolloutWorker, config::PreprocessorPref},
};

/// A game with a coloured screen that gets brighter, and a reward of 0.3 in every step.
#[derive(Clone)]
struct Game {
    screen: [u32; 3],
    t: u8,
}

impl Game {
    fn draw(&self, obs: &mut [u8]) -> Step {
        obs.fill(self.t);
        Step { reward: 0.3, terminated: self.t >= 60, truncated: false }
    }
}

impl Env for Game {
    type Obs = u8;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::U8, RowShape::new(&self.screen).unwrap(), 0.0, 255.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 4 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
        self.t = 0;
        self.draw(obs);
        Ok(())
    }

    fn step(&mut self, _action: &[i64], _rng: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
        self.t += 1;
        Ok(self.draw(obs))
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.t);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.t = reader.below(61)?;
        reader.finish()?;
        self.draw(obs);
        Ok(())
    }
}

fn game(screen: [u32; 3]) -> EnvSpec {
    named("ALE/Game-v0", screen)
}

fn named(name: &str, screen: [u32; 3]) -> EnvSpec {
    EnvSpec::new(name, move |contexts, _| Box::new(Vectorized::new(vec![Game { screen, t: 0 }; contexts.len()])))
}

/// Returns the shape and type of the observations, and the reward.
fn sampled(pref: PreprocessorPref, clip: RewardClipping, screen: [u32; 3], model: &str) -> (Vec<u32>, DType, f32) {
    let model_config: Config = model.parse().unwrap();
    let config =
        RolloutConfig { preprocessor_pref: pref, clip_rewards: clip, model_config, ..RolloutConfig::default() };
    let config = config.rollout_fragment_length(4).single_policy("random");
    let mut worker = RolloutWorker::builder().config(config).env_spec(game(screen)).build().unwrap();
    let batch = worker.sample().unwrap();
    let batch = batch.single().unwrap();
    let obs = batch.column(OBS.name()).unwrap();
    (obs.shape().dims().to_vec(), obs.dtype().unwrap(), batch.get(REWARDS).unwrap()[0])
}

const ATARI: [u32; 3] = [210, 160, 3];
const AUTO: RewardClipping = RewardClipping::Auto;

#[test]
fn policy_with_its_environment_alone_acts_like_a_worker() {
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
    let seen = |screen, model: &str| {
        let env = game(screen).preprocessed(
            &context,
            &RolloutConfig { model_config: model.parse().unwrap(), ..RolloutConfig::default() },
        );
        env.map(|env| env.spaces_in(&context).unwrap().observation.shape().dims().to_vec())
    };
    for model in ["{}", r#"{"dim": 42, "framestack": 2}"#] {
        assert_eq!(seen(ATARI, model), Ok(sampled(PreprocessorPref::DeepMind, AUTO, ATARI, model).0));
    }
    assert_eq!(seen([32, 32, 3], "{}"), Ok(vec![32, 32, 3]));
    assert!(matches!(seen(ATARI, r#"{"dim": 0}"#), Err(EnvError::Config(_))));
}

#[test]
fn games_of_atari_are_wrapped_by_default() {
    let (shape, dtype, reward) = sampled(PreprocessorPref::Auto, AUTO, ATARI, "{}");
    assert_eq!((shape, dtype, reward), (vec![84, 84, 4], DType::U8, 1.0));
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
    for (name, is_atari) in [
        ("gym:ale_py:ALE/Pong-v5", true),
        ("gym:ALE/Pong-v5", true),
        ("gym:ale_py:PongNoFrameskip-v4", true),
        ("gym:CarRacing-v3", false),
        ("py:my_package:ScreenALE/Env", false),
        ("Game-v0", false),
    ] {
        for (pref, is_wrapped) in [(PreprocessorPref::Auto, is_atari), (PreprocessorPref::DeepMind, true)] {
            let config = RolloutConfig { preprocessor_pref: pref, ..RolloutConfig::default() };
            let spaces = named(name, [96, 96, 3]).preprocessed(&context, &config).unwrap().spaces_in(&context).unwrap();
            let dims = if is_wrapped { [84, 84, 4] } else { [96, 96, 3] };
            assert_eq!(spaces.observation.shape().dims(), dims, "{name}, {pref:?}");
        }
    }
}

#[test]
fn games_are_wrapped_as_the_model_says() {
    let small = sampled(PreprocessorPref::DeepMind, AUTO, ATARI, r#"{"dim": 42, "framestack": false}"#);
    assert_eq!(small, (vec![42, 42, 1], DType::U8, 1.0));
    let two = sampled(PreprocessorPref::DeepMind, AUTO, [64, 64, 3], r#"{"dim": 42, "framestack": 2}"#);
    assert_eq!(two.0, [42, 42, 2]);
    // An explicit clipping of rewards takes precedence.
    assert_eq!(sampled(PreprocessorPref::DeepMind, RewardClipping::Off, ATARI, "{}").2, 0.3);
    assert_eq!(sampled(PreprocessorPref::DeepMind, RewardClipping::Limit(0.2), ATARI, "{}").2, 0.2);
}

#[test]
fn games_are_preprocessed_by_space_if_wanted() {
    let (shape, dtype, reward) = sampled(PreprocessorPref::RlLib, AUTO, ATARI, "{}");
    assert_eq!((dtype, reward), (DType::F32, 0.3));
    assert_eq!(shape, [84, 84, 3], "an Atari console's screen, made smaller");
    assert_eq!(sampled(PreprocessorPref::RlLib, RewardClipping::Sign, ATARI, "{}").2, 1.0);
}

#[test]
fn games_stay_as_they_are_if_wanted() {
    let raw = sampled(PreprocessorPref::None, AUTO, ATARI, "{}");
    assert_eq!(raw, (vec![210, 160, 3], DType::U8, 0.3));
}

#[test]
fn small_pictures_are_no_games() {
    let (shape, dtype, reward) = sampled(PreprocessorPref::DeepMind, AUTO, [63, 64, 3], "{}");
    assert_eq!((shape, dtype, reward), (vec![63, 64, 3], DType::U8, 0.3));
}

#[test]
fn numbers_that_no_wrapper_takes_are_refused() {
    for model in [
        r#"{"dim": 0}"#,
        r#"{"framestack": 0}"#,
        r#"{"dim": "x"}"#,
        r#"{"dim": 65535}"#,
        r#"{"dim": 1024, "framestack": 65535}"#,
    ] {
        let config = RolloutConfig { model_config: model.parse().unwrap(), ..RolloutConfig::default() };
        let builder = RolloutWorker::builder().config(config.single_policy("random")).env_spec(game(ATARI));
        assert!(builder.build().is_err(), "{model}");
    }
}

#[test]
fn samples_that_no_memory_holds_are_refused() {
    let config = RolloutConfig { preprocessor_pref: PreprocessorPref::None, ..RolloutConfig::default() };
    let config = config.num_envs(8).rollout_fragment_length(65_536).single_policy("random");
    let error = RolloutWorker::builder().config(config.clone()).env_spec(game(ATARI)).build().unwrap_err();
    assert!(error.to_string().contains("lower num_envs or rollout_fragment_length"), "{error}");
    let mut worker =
        RolloutWorker::builder().config(config.rollout_fragment_length(2)).env_spec(game(ATARI)).build().unwrap();
    assert!(worker.sample_fragments(65_536).is_err());
    assert_eq!(worker.sample().unwrap().env_steps(), 16);
}
