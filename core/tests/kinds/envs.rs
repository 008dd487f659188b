//! Environments that no program has built in.

use core::marker::PhantomData;

use rollmesh_core::{
    column::{DType, Element, RowShape},
    env::{
        Env, EnvContext, EnvError, EnvMaker, EnvRegistry, EnvSpec, EnvStart, EnvState, InProcess, Rng, SnapshotReader,
        Step, Vectorized,
        pixel::{Breakout, Pixel},
        wrappers::{ActionMasked, ClipReward, FrameStack, NormalizeReward, RewardClip, ScaleObs, TimeLimit},
    },
    ids::SlotId,
    space::Space,
    worker::Registry,
};

pub(super) fn register(registry: Registry) -> Registry {
    let pair = |dtype, low, high| Space::uniform(dtype, RowShape::vector(2), low, high);
    let (many_values, bits) = (Space::MultiDiscrete { nvec: vec![3, 4] }, Space::MultiBinary { n: 3 });
    registry
        .with_env(many("Sides-v0", || Sides(0.0)))
        .with_env(many("Strides-v0", || Strides(Sides(0.0))))
        .with_env(many("Tuples-v0", || Tuples(Sides(0.0))))
        .with_env(many("OpaqueSides-v0", || Opaque(Sides(0.0))))
        .with_env(many("FragileSides-v0", || Fragile(Sides(0.0))))
        .with_env(many("ToldSides-v0", || SideGame(Sides(0.0))))
        .with_env(many("MaskedSides-v0", || {
            // No step towards the middle is possible.
            let mask = |sides: &Sides, mask: &mut [f32]| {
                let open = if sides.0 > 0.0 { [0.0, 1.0, 1.0] } else { [1.0, 1.0, 0.0] };
                mask.copy_from_slice(&open);
            };
            ActionMasked::new(Sides(0.0), mask).expect("discrete actions")
        }))
        .with_env(echo::<f64, f64>("Doubles-v0", pair(DType::F64, -1.0, 2.0), pair(DType::F64, -3.0, 3.0)))
        .with_env(echo::<u8, i64>("Bytes-v0", pair(DType::U8, 0.0, 9.0), many_values.clone()))
        .with_env(echo::<i64, u8>("Choices-v0", many_values, pair(DType::U8, 2.0, 7.0)))
        .with_env(echo::<bool, bool>("Bits-v0", bits.clone(), bits))
        .with_env(many("Console-v0", || Console(0)))
        .with_env(many("Wrapped-v0", || {
            let env = TimeLimit::new(Pixel::<Breakout>::default(), 9);
            let env = NormalizeReward::new(ClipReward::new(env, RewardClip::Sign), 0.9, 1e-8);
            FrameStack::new(ScaleObs::new(env).expect("bytes"), 2).expect("two small images")
        }))
        // Always two environments, whatever number is requested.
        .with_base_env("Base-v0", |contexts, kernels| {
            let spec = EnvRegistry::builtin().spec("CartPole-v1").expect("a built-in environment").clone();
            let start =
                |slot: u32| EnvStart { slot: SlotId(slot), episode: 0, context: contexts[0].with_vector_index(slot) };
            Ok(Box::new(InProcess::new(EnvMaker::single_agent(&spec, kernels), (0..2).map(start).collect(), 1)?))
        })
}

fn many<E>(name: &str, make: impl Fn() -> E + Send + Sync + 'static) -> EnvSpec
where
    E: Env<Obs: Element, Act: Element> + 'static,
{
    EnvSpec::new(name, move |contexts: &[EnvContext], _| {
        Box::new(Vectorized::new(contexts.iter().map(|_| make()).collect()))
    })
}

/// Observes a dict of a number and a side. The number walks to this side, at last out of its bounds.
struct Sides(f32);

impl Env for Sides {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        let parts = [("side", Space::Discrete { n: 3 }), ("place", Space::vector(&[-3.0], &[3.0]))];
        Space::dict(parts).expect("two names")
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0 = rng.uniform_f32();
        obs.copy_from_slice(&[self.0, 1.0]);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.0 += action[0] as f32 - 1.0;
        obs.copy_from_slice(&[self.0, action[0] as f32]);
        Ok(Step { reward: 1.0, terminated: self.0.abs() > 3.0, truncated: false })
    }
}

/// The same walk, with actions of two parts: a side, and a length that is rewarded.
struct Strides(Sides);

impl Env for Strides {
    type Obs = f32;
    type Act = f32;

    fn observation_space(&self) -> Space {
        self.0.observation_space()
    }

    fn action_space(&self) -> Space {
        Space::dict([("side", self.0.action_space()), ("length", Space::vector(&[0.0], &[2.0]))]).expect("two names")
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.reset(rng, obs)
    }

    fn step(&mut self, action: &[f32], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let [length, side] = action else { return Err(EnvError::Failed(format!("{action:?} has not two parts"))) };
        let step = self.0.step(&[*side as i64], rng, obs)?;
        Ok(Step { reward: step.reward + f64::from(*length), ..step })
    }
}

/// The same walk, with tuples: a place and a side are observed, a side and a length are chosen.
struct Tuples(Sides);

impl Env for Tuples {
    type Obs = f32;
    type Act = f32;

    fn observation_space(&self) -> Space {
        Space::Tuple(vec![Space::vector(&[-3.0], &[3.0]), Space::Discrete { n: 3 }])
    }

    fn action_space(&self) -> Space {
        Space::Tuple(vec![self.0.action_space(), Space::vector(&[0.0], &[2.0])])
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.0.reset(rng, obs)
    }

    fn step(&mut self, action: &[f32], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let [side, length] = action else { return Err(EnvError::Failed(format!("{action:?} has not two parts"))) };
        let step = self.0.step(&[*side as i64], rng, obs)?;
        Ok(Step { reward: step.reward + f64::from(*length), ..step })
    }
}

/// The spaces and the reset of the walk within.
macro_rules! walks {
    () => {
        type Obs = f32;
        type Act = i64;

        fn observation_space(&self) -> Space {
            self.0.observation_space()
        }

        fn action_space(&self) -> Space {
            self.0.action_space()
        }

        fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
            self.0.reset(rng, obs)
        }
    };
}

/// The same walk, which no other instance can continue.
struct Opaque(Sides);

impl Env for Opaque {
    walks!();

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.0.step(action, rng, obs)
    }

    fn snapshot(&self, _out: &mut Vec<u8>) -> EnvState {
        EnvState::Opaque
    }
}

/// The same walk, of which one in twenty steps fails.
struct Fragile(Sides);

impl Env for Fragile {
    walks!();

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        if rng.below(20) == 0 {
            return Err(EnvError::Failed("a stone in the way".into()));
        }
        self.0.step(action, rng, obs)
    }
}

/// The same walk, with infos.
struct SideGame(Sides);

impl Env for SideGame {
    walks!();

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.0.step(action, rng, obs)
    }

    fn info(&self, out: &mut Vec<u8>) -> bool {
        out.extend(format!(r#"{{"is_right": {}}}"#, self.0.0 > 0.0).bytes());
        true
    }
}

/// A coloured screen that gets brighter, which workers wrap as DeepMind's agents see a game.
struct Console(u8);

impl Console {
    fn draw(&self, obs: &mut [u8]) {
        obs.iter_mut().enumerate().for_each(|(i, pixel)| *pixel = self.0.wrapping_mul(7).wrapping_add(i as u8));
    }
}

impl Env for Console {
    type Obs = u8;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::U8, RowShape::new(&[64, 64, 3]).expect("three axes"), 0.0, 255.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 4 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
        self.0 = 0;
        self.draw(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
        self.0 += 1 + action[0] as u8;
        self.draw(obs);
        Ok(Step { reward: 0.3, terminated: self.0 > 30, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.0);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.0 = reader.below(31)?;
        reader.finish()?;
        self.draw(obs);
        Ok(())
    }
}

/// Observes its steps and the actions it receives, in any spaces. An episode has five steps.
struct Echo<O, A> {
    spaces: (Space, Space),
    shown: u32,
    t: u32,
    types: PhantomData<(O, A)>,
}

fn echo<O: Element, A: Element>(name: &str, observation: Space, action: Space) -> EnvSpec {
    let spaces = (observation, action);
    many(name, move || Echo::<O, A> { spaces: spaces.clone(), shown: 0, t: 0, types: PhantomData })
}

impl<O: Element, A: Element> Echo<O, A> {
    fn show(&self, obs: &mut [O]) {
        for (i, x) in obs.iter_mut().enumerate() {
            *x = O::from_f64(f64::from((self.shown + self.t + i as u32) % 2));
        }
    }
}

impl<O: Element, A: Element> Env for Echo<O, A> {
    type Obs = O;
    type Act = A;

    fn observation_space(&self) -> Space {
        self.spaces.0.clone()
    }

    fn action_space(&self) -> Space {
        self.spaces.1.clone()
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        (self.shown, self.t) = (0, 0);
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: &[A], _: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        let reward: f64 = action.iter().map(|x| x.to_f64()).sum();
        self.shown = reward.abs() as u32;
        self.t += 1;
        self.show(obs);
        Ok(Step { reward, terminated: self.t == 5, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend([self.shown.to_le_bytes(), self.t.to_le_bytes()].concat());
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [O]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        (self.shown, self.t) = (reader.u32()?, reader.u32()?);
        reader.finish()?;
        self.show(obs);
        Ok(())
    }
}
