//! Rules of each wrapper, and the contract of environments for all of them.

use super::{
    arcade::{Arcade, FRAME},
    *,
};
use crate::{
    column::Element as _,
    env::{
        CheckOptions, EnvError, EnvSpec, EnvState, Frame, Rng, SnapshotReader, Step, Vectorized, check_env_all,
        pixel::{Asterix, Breakout, Pixel},
        put_rows,
    },
    ids::SlotId,
    preprocess::image::Size,
    rng::{Purpose, Streams},
    space::Space,
};

fn rng(t: u32) -> Rng {
    Streams::new(5, Purpose::EnvStep).at(SlotId(0), 0, t, 0)
}

/// Follows a script: the n-th step since the reset has the n-th reward and the observation [n, -n]; the last one terminates.
#[derive(Clone)]
struct Script {
    rewards: &'static [f64],
    step: u32,
}

impl Script {
    fn observe(&self, obs: &mut [f32]) {
        obs.copy_from_slice(&[self.step as f32, 0.0 - self.step as f32]);
    }
}

impl Env for Script {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0, -99.0], &[99.0, 0.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.step = 0;
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let reward = self.rewards.get(self.step as usize).copied().unwrap_or(0.0);
        self.step += 1;
        self.observe(obs);
        Ok(Step { reward, terminated: self.step as usize >= self.rewards.len(), truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        put_rows(out, i32::erase_rows(&[self.step as i32]));
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let step = reader.u32()?;
        reader.finish()?;
        if step > 99 {
            return Err(EnvError::BadSnapshot(snapshot.len()));
        }
        self.step = step;
        self.observe(obs);
        Ok(())
    }
}

fn script(rewards: &'static [f64]) -> Script {
    Script { rewards, step: 0 }
}

fn check<E>(name: &str, steps: u32, make: impl Fn() -> E + Send + Sync + 'static)
where
    E: Env<Act = i64> + 'static,
{
    let spec =
        EnvSpec::new(name, move |contexts, _| Box::new(Vectorized::new(contexts.iter().map(|_| make()).collect())));
    assert_eq!(check_env_all(&spec, CheckOptions { lanes: 2, steps, seed: 2 }), [], "{name}");
}

#[test]
fn every_wrapper_keeps_the_rules() {
    let game = Pixel::<Asterix>::default;
    check("TimeLimit", 100, move || TimeLimit::new(game(), 9));
    check("ClipReward", 100, move || ClipReward::new(game(), RewardClip::Limit(0.5)));
    check("NormalizeReward", 100, move || NormalizeReward::new(game(), 0.99, 1e-8));
    check("FrameStack", 60, move || FrameStack::new(game(), 3).unwrap());
    check("FrameStack of vectors", 100, || FrameStack::new(script(&[0.0; 9]), 3).unwrap());
    check("RecordEpisode", 100, move || RecordEpisode::new(game(), 50));
    check("NoopReset", 100, move || NoopReset::new(game(), 30).unwrap());
    check("FireReset", 100, move || FireReset::new(game(), &[1, 2]).unwrap());
    check("SkipFrames", 100, move || SkipFrames::new(game(), 3));
    check("ScaleObs", 60, move || ScaleObs::new(game()).unwrap());
    check("ActionMasked", 60, move || ActionMasked::new(game(), |_, mask| mask.fill(1.0)).unwrap());
    check("all around each other", 60, move || {
        let env = TimeLimit::new(SkipFrames::new(NoopReset::new(game(), 5).unwrap(), 2), 40);
        let env = NormalizeReward::new(ClipReward::new(env, RewardClip::Sign), 0.9, 1e-8);
        RecordEpisode::new(FrameStack::new(ScaleObs::new(env).unwrap(), 2).unwrap(), 10)
    });
}

#[test]
fn the_deepmind_chain_keeps_the_rules() {
    check("DeepMind", 100, || {
        let options =
            DeepMindOptions { noop_max: 3, fire_reset: true, size: Size::new(12, 10), ..DeepMindOptions::default() };
        deepmind(Arcade::small(), options).unwrap()
    });
}

#[test]
fn time_limit_truncates_also_in_a_terminal_state() {
    let mut env = TimeLimit::new(script(&[1.0; 3]), 3);
    let mut obs = [0.0; 2];
    for _ in 0..2 {
        env.reset(&mut rng(0), &mut obs).unwrap();
        let flags: Vec<_> = (0..3)
            .map(|t| {
                let step = env.step(&[0], &mut rng(t), &mut obs).unwrap();
                (step.terminated, step.truncated)
            })
            .collect();
        assert_eq!(flags, [(false, false), (false, false), (true, true)]);
    }
}

#[test]
fn vectors_are_stacked_on_a_new_axis() {
    let mut env = FrameStack::new(script(&[0.0; 9]), 3).unwrap();
    let space = env.observation_space();
    assert_eq!(space.shape().dims(), [3, 2]);
    assert_eq!(space.contains_row(&[0.0f32, -99.0, 0.0, -99.0, 99.0, 0.0]), Ok(true));
    let mut obs = [9.0; 6];
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!(obs, [0.0; 6]);
    for t in 0..4 {
        env.step(&[0], &mut rng(t), &mut obs).unwrap();
    }
    assert_eq!(obs, [2.0, -2.0, 3.0, -3.0, 4.0, -4.0]);
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!(obs, [0.0; 6]);
}

#[test]
fn images_are_stacked_on_their_last_axis() {
    let mut env = FrameStack::new(Pixel::<Breakout>::default().with_sticky_action_prob(0.0), 2).unwrap();
    assert_eq!(env.observation_space().shape().dims(), [10, 10, 8]);
    let mut obs = [0; 800];
    env.reset(&mut rng(0), &mut obs).unwrap();
    env.step(&[1], &mut rng(0), &mut obs).unwrap();
    // The paddle, channel 0, was at column 4 and is at 3.
    let bottom = &obs[9 * 80..];
    let paddle: Vec<usize> = (0..80).filter(|i| bottom[*i] == 1).collect();
    assert_eq!(paddle, [3 * 8 + 4, 4 * 8]);
}

#[test]
fn discrete_observations_are_stacked_too() {
    struct Numbered;
    impl Env for Numbered {
        type Obs = i64;
        type Act = i64;
        fn observation_space(&self) -> Space {
            Space::Discrete { n: 7 }
        }
        fn action_space(&self) -> Space {
            Space::Discrete { n: 2 }
        }
        fn reset(&mut self, _: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
            obs.fill(6);
            Ok(())
        }
        fn step(&mut self, action: &[i64], _: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
            obs.copy_from_slice(action);
            Ok(Step::default())
        }
        fn snapshot(&self, _: &mut Vec<u8>) -> EnvState {
            EnvState::Snapshot
        }
        fn restore(&mut self, snapshot: &[u8], _: &mut [i64]) -> Result<(), EnvError> {
            SnapshotReader::new(snapshot).finish()
        }
    }
    let mut env = FrameStack::new(Numbered, 3).unwrap();
    assert_eq!(env.observation_space(), Space::MultiDiscrete { nvec: vec![7; 3] });
    let mut obs = [0; 3];
    env.reset(&mut rng(0), &mut obs).unwrap();
    env.step(&[1], &mut rng(0), &mut obs).unwrap();
    assert_eq!(obs, [6, 6, 1]);
    // Frames that are not in the space.
    let mut snapshot = Vec::new();
    put_rows(&mut snapshot, i64::erase_rows(&[6, 7]));
    assert_eq!(env.restore(&snapshot, &mut obs), Err(EnvError::BadSnapshot(16)));
}

#[test]
fn stacks_that_make_no_space_are_refused() {
    let image = || Arcade::new(None);
    assert!(matches!(FrameStack::new(image(), u16::MAX), Err(WrapError::BadSpace(_))));
    let error = GreyScale::new(Pixel::<Breakout>::default()).unwrap_err();
    let text = "observations are Box(0, 1, (10, 10, 4), uint8), the wrapper needs images of uint8, (height, width, 3)";
    assert_eq!(error.to_string(), text);
    assert!(matches!(Resize::new(image(), Size::new(0, 4)), Err(WrapError::BadSpace(_))));
    assert!(matches!(Resize::new(image(), Size::new(u16::MAX, u16::MAX)), Err(WrapError::BadSpace(_))));
}

#[test]
fn recordings_keep_the_running_and_the_last_episode() {
    let mut env = RecordEpisode::new(script(&[1.0, 2.0, 3.0]), 2);
    let mut obs = [0.0; 2];
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!(env.last(), None);
    for action in [1, 0, 1] {
        env.step(&[action], &mut rng(0), &mut obs).unwrap();
    }
    let episode = env.last().unwrap().clone();
    assert_eq!(
        episode,
        Recording {
            observations: vec![0.0, 0.0, 1.0, -1.0, 2.0, -2.0],
            actions: vec![1, 0],
            rewards: vec![1.0, 2.0],
            terminated: true,
            truncated: false,
            from_reset: true,
            missing: 1,
        }
    );
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!((env.running().observations.len(), env.last()), (2, Some(&episode)));
    env.step(&[0], &mut rng(0), &mut obs).unwrap();
    let mut snapshot = Vec::new();
    env.snapshot(&mut snapshot);
    env.restore(&snapshot, &mut obs).unwrap();
    assert_eq!((env.running().from_reset, &env.running().observations[..]), (false, &[1.0, -1.0][..]));
}

#[test]
fn noops_are_drawn_at_random_and_repeated_after_each_episode() {
    let mut lengths = Vec::new();
    for t in 0..200 {
        let mut env = NoopReset::new(script(&[0.0; 99]), 30).unwrap();
        let mut obs = [0.0; 2];
        env.reset(&mut rng(t), &mut obs).unwrap();
        lengths.push(obs[0] as u32);
    }
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&30)));
    let mut obs = [9.0; 2];
    NoopReset::new(script(&[0.0; 99]), 0).unwrap().reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!(obs, [0.0, 0.0]);
    let mut env = NoopReset::new(script(&[0.0]), 30).unwrap();
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!(obs, [0.0, 0.0]);
}

#[test]
fn skipped_frames_add_up_and_the_last_two_are_pooled() {
    let mut env = SkipFrames::new(script(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), 4);
    let (mut obs, mut again) = ([0.0; 2], [0.0; 2]);
    env.reset(&mut rng(0), &mut obs).unwrap();
    let step = env.step(&[0], &mut rng(0), &mut obs).unwrap();
    assert_eq!((step.reward, step.terminated, obs), (15.0, false, [4.0, -3.0]));
    // The episode ends within the second step: frames 5 and 6.
    let mut snapshot = Vec::new();
    let step = env.step(&[0], &mut rng(0), &mut obs).unwrap();
    assert_eq!((step.reward, step.terminated, obs), (48.0, true, [6.0, -5.0]));
    env.snapshot(&mut snapshot);
    SkipFrames::new(script(&[0.0; 6]), 4).restore(&snapshot, &mut again).unwrap();
    assert_eq!(again, obs);
    for (frames, shown) in [(1, [1.0, -1.0]), (2, [2.0, -1.0]), (3, [3.0, -2.0])] {
        let mut env = SkipFrames::new(script(&[0.0; 4][..frames]), 4);
        env.reset(&mut rng(0), &mut obs).unwrap();
        env.step(&[0], &mut rng(0), &mut obs).unwrap();
        assert_eq!(obs, shown);
        snapshot.clear();
        env.snapshot(&mut snapshot);
        env.restore(&snapshot, &mut again).unwrap();
        assert_eq!(again, shown);
    }
}

#[test]
fn skipped_frames_show_flickering_objects() {
    let mut env = SkipFrames::new(Arcade::new(None), 4);
    let mut obs = vec![0; FRAME];
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!(obs[0], 0);
    env.step(&[0], &mut rng(0), &mut obs).unwrap();
    assert_eq!((obs[0], obs[160 * 3]), (255, 4));
}

#[test]
fn a_lost_life_ends_the_episode_and_only_the_last_one_the_game() {
    let mut env = EpisodicLife::new(Arcade::new(Some(10))).unwrap();
    let mut obs = vec![0; FRAME];
    let mut lengths = Vec::new();
    for _ in 0..6 {
        env.reset(&mut rng(0), &mut obs).unwrap();
        let mut length = 0;
        loop {
            length += 1;
            if env.step(&[0], &mut rng(0), &mut obs).unwrap().terminated {
                break;
            }
        }
        lengths.push((length, env.env().resets, env.lives()));
    }
    // A reset within a game takes a step of its own.
    let games = [(10, 1, 2), (9, 1, 1), (9, 1, 0), (10, 2, 2), (9, 2, 1), (9, 2, 0)];
    assert_eq!(lengths, games);
}

#[test]
fn a_game_that_ends_with_the_step_of_a_reset_is_reset() {
    let mut env = EpisodicLife::new(Arcade::new(Some(1))).unwrap();
    let mut obs = vec![0; FRAME];
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert!(env.step(&[0], &mut rng(0), &mut obs).unwrap().terminated);
    // The second life is lost in the reset, the third one in the step after it.
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!((env.lives(), env.env().resets), (1, 1));
    assert!(env.step(&[0], &mut rng(0), &mut obs).unwrap().terminated);
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!((env.lives(), env.env().resets), (3, 2));
}

#[test]
fn games_are_fired_up() {
    let mut env = FireReset::new(Arcade::new(Some(1000)), &[1, 2]).unwrap();
    let mut obs = vec![0; FRAME];
    env.reset(&mut rng(0), &mut obs).unwrap();
    assert_eq!((env.env().fired, env.env().frame), (true, 2));
}

#[test]
fn an_atari_game_as_deepmind_sees_it() {
    let options = DeepMindOptions { fire_reset: true, ..DeepMindOptions::default() };
    let mut env = deepmind(Arcade::new(Some(400)), options).unwrap();
    let space = env.observation_space();
    assert_eq!((space.shape().dims(), env.action_space()), (&[84, 84, 4][..], Space::Discrete { n: 4 }));
    let mut obs = vec![0; space.shape().elements()];
    env.reset(&mut rng(0), &mut obs).unwrap();
    let step = env.step(&[2], &mut rng(0), &mut obs).unwrap();
    assert_eq!(step, Step { reward: 10.0, terminated: false, truncated: false });
    assert!(space.contains_row(&obs).unwrap());
    // In the last row, the number of each frame in red, as grey: 3 frames of the reset, and one four frames later.
    let last = &obs[obs.len() - 4..];
    let grey = |red: f64| (red * 0.299 + 0.5) as u8;
    let game = env.env().env().env().env().env().env().env().env();
    let shown = [game.frame - 4, game.frame - 4, game.frame - 4, game.frame].map(|frame| grey(f64::from(frame)));
    assert_eq!(last, shown);
    // The flickering row is visible in every frame.
    assert!(obs[3] > 80, "{}", obs[3]);
}

#[test]
fn a_game_at_a_standstill_is_reset_after_its_frames() {
    let options = DeepMindOptions { max_frames: 10, noop_max: 0, frame_skip: 2, ..DeepMindOptions::default() };
    let mut env = deepmind(Arcade::new(Some(1000)), options).unwrap();
    let mut obs = vec![0; env.observation_space().shape().elements()];
    env.reset(&mut rng(0), &mut obs).unwrap();
    let mut cut = || (0..5).map(|t| env.step(&[0], &mut rng(t), &mut obs).unwrap().truncated).collect::<Vec<_>>();
    assert_eq!(cut(), [false, false, false, false, true]);
    env.reset(&mut rng(0), &mut obs).unwrap();
    let game = env.env().env().env().env().env().env().env().env();
    assert_eq!((game.resets, game.frame), (2, 0));
}

/// Accepts numbers from 1 to 2, and of those only the first half.
struct Picky;

impl Env for Picky {
    type Obs = f32;
    type Act = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1.0])
    }

    fn action_space(&self) -> Space {
        Space::vector(&[1.0], &[2.0])
    }

    fn accepts(&self, action: &[f32]) -> bool {
        action[0] <= 1.5
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        obs.fill(0.0);
        Ok(())
    }

    fn step(&mut self, _: &[f32], _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        obs.fill(1.0);
        Ok(Step::default())
    }

    fn snapshot(&self, _: &mut Vec<u8>) -> EnvState {
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        obs.fill(0.0);
        SnapshotReader::new(snapshot).finish()
    }
}

#[test]
fn actions_that_a_game_does_not_have_are_refused() {
    let error = FireReset::new(script(&[0.0]), &[1, 2]).err().unwrap();
    assert_eq!(error.to_string(), "the wrapper takes action [2], which is not in the action space Discrete(2)");
    assert!(matches!(NoopReset::new(Picky, 3).err(), Some(WrapError::NoSuchAction { .. })));
    assert!(FireReset::new(Picky, &[1.0, 1.5]).is_ok());
    assert!(matches!(FireReset::new(Picky, &[1.0, 1.6]).err(), Some(WrapError::NoSuchAction { .. })));
    assert!(!TimeLimit::new(FrameStack::new(Picky, 2).unwrap(), 5).accepts(&[1.6]));
}

#[test]
fn frames_outside_of_the_space_are_refused() {
    let mut env = SkipFrames::new(Pixel::<Asterix>::default(), 4);
    let (mut obs, mut snapshot) = ([0; 400], Vec::new());
    env.reset(&mut rng(0), &mut obs).unwrap();
    env.step(&[0], &mut rng(1), &mut obs).unwrap();
    env.snapshot(&mut snapshot);
    assert_eq!(env.restore(&snapshot, &mut obs), Ok(()));
    snapshot[1..401].fill(255);
    assert_eq!(env.restore(&snapshot, &mut obs), Err(EnvError::BadSnapshot(snapshot.len())));
}

#[test]
fn recordings_of_large_images_are_short() {
    let mut env = RecordEpisode::new(FrameStack::new(Pixel::<Asterix>::default(), 16_384).unwrap(), u16::MAX);
    let mut obs = vec![0; env.observation_space().shape().elements()];
    env.reset(&mut rng(0), &mut obs).unwrap();
    for t in 0..12 {
        env.step(&[0], &mut rng(t), &mut obs).unwrap();
    }
    // 6.5 million bytes each.
    assert_eq!((env.running().rewards.len(), env.running().missing), (10, 2));
}

#[test]
fn frozen_statistics_stay() {
    let mut env = NormalizeReward::new(script(&[5.0; 9]), f64::NAN, f64::NAN);
    let mut obs = [0.0; 2];
    env.reset(&mut rng(0), &mut obs).unwrap();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    assert!(env.step(&[0], &mut rng(0), &mut obs).unwrap().reward.is_finite());
    env.snapshot(&mut before);
    env.freeze(true);
    env.step(&[0], &mut rng(0), &mut obs).unwrap();
    env.snapshot(&mut after);
    // All but the step count of the script.
    assert_eq!(before[..32], after[..32]);
    env.freeze(false);
    after.clear();
    env.step(&[0], &mut rng(0), &mut obs).unwrap();
    env.snapshot(&mut after);
    assert_ne!(before[..32], after[..32]);
}

/// Pictures and infos are those of the environment inside, whatever policies observe.
#[test]
fn combined_wrappers_display_the_inner_environment() {
    let env = deepmind(Arcade::new(Some(50)), DeepMindOptions::default()).unwrap();
    let env = NormalizeReward::new(ClipReward::new(env, RewardClip::Sign), 0.99, 1e-8);
    let mut env = ScaleObs::new(RecordEpisode::new(env, 1)).unwrap();
    let mut obs = vec![0.0; env.observation_space().shape().elements()];
    env.reset(&mut rng(0), &mut obs).unwrap();
    let (mut before, mut after) = (Frame::new(), Frame::new());
    assert!(env.render(&mut before));
    env.step(&[0], &mut rng(1), &mut obs).unwrap();
    assert!(env.render(&mut after));
    // As many pixels as frames, in the colour of three lives; a step skips four frames.
    assert_eq!((after.width() - before.width(), after.pixel(0, 0)), (4, Some([3; 3])));
    let mut info = Vec::new();
    assert!(TimeLimit::new(env, 9).info(&mut info));
    assert_eq!(info, after.width().to_le_bytes());
}
