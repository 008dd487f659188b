//! Stacking of the last observations.

use super::WrapError;
use crate::{
    column::{Element as _, RowShape},
    env::{Env, EnvError, EnvState, Frame, Rng, SnapshotReader, Step, put_rows},
    prelude::*,
    space::{BoxSpace, Space, SpaceError},
};

/// Stacks the last `k` observations, the oldest first. A reset fills all of them with the first one.
///
/// Images, which have three axes, are stacked along the last one: (84, 84, 1) becomes (84, 84, k), as DeepMind and RLlib do
/// it. Everything else gets a new first axis: (4) becomes (k, 4), as in Gymnasium's `FrameStackObservation`; a discrete
/// space becomes a multi-discrete one with a component for each observation.
#[derive(Clone, Debug)]
#[doc(alias = "FrameStackObservation")]
pub struct FrameStack<E: Env> {
    pub(super) env: E,
    /// Space of one frame, and of the stack.
    frame_space: Space,
    space: Space,
    /// Ring buffer of the last observations; `oldest` is the index of the oldest one.
    frames: Vec<E::Obs>,
    oldest: usize,
    k: usize,
    /// Elements of a frame, and of a contiguous run of it.
    width: usize,
    run: usize,
}

impl<E: Env> FrameStack<E> {
    /// Wraps an environment, stacking `k` observations, at least one.
    ///
    /// # Errors
    /// [`WrapError::BadSpace`] if they would be too large, [`WrapError::TooManyAxes`], [`WrapError::WrongType`] for compound
    /// spaces and for environments whose rows do not fit their space.
    pub fn new(env: E, k: u16) -> Result<Self, WrapError> {
        let frame_space = env.observation_space();
        if !frame_space.takes_rows_of(E::Obs::DTYPE) {
            return Err(WrapError::WrongType { space: frame_space.to_string(), found: E::Obs::DTYPE });
        }
        frame_space.validate()?;
        let k = usize::from(k.max(1));
        let width = frame_space.shape().elements();
        let run = match frame_space.shape().dims() {
            [_, _, channels] => *channels as usize,
            _ => width,
        };
        let elements = width as u64 * k as u64;
        if elements > Space::MAX_ELEMENTS {
            return Err(SpaceError::TooLarge { elements }.into());
        }
        let space = stacked(&frame_space, k, run)?;
        let frames = vec![E::Obs::default(); width * k];
        Ok(Self { env, frame_space, space, frames, oldest: 0, k, width, run })
    }

    /// Writes the stack, run by run.
    fn observe(&self, obs: &mut [E::Obs]) {
        for (pixel, obs) in obs.chunks_exact_mut(self.run * self.k).enumerate() {
            for (age, obs) in obs.chunks_exact_mut(self.run).enumerate() {
                let frame = (self.oldest + age) % self.k;
                obs.copy_from_slice(&self.frames[frame * self.width + pixel * self.run..][..self.run]);
            }
        }
    }
}

/// Returns the space of `k` frames, in runs of `run` elements.
fn stacked(frame: &Space, k: usize, run: usize) -> Result<Space, WrapError> {
    Ok(match frame {
        Space::Box(frame) => {
            let mut dims = frame.shape().dims().to_vec();
            match dims.as_mut_slice() {
                [_, _, channels] => *channels *= k as u32,
                _ => dims.insert(0, k as u32),
            }
            let shape = RowShape::new(&dims).map_err(|_| WrapError::TooManyAxes(frame.shape()))?;
            let bounds: Vec<_> = frame.bounds().collect();
            let (low, high) =
                bounds.chunks(run).flat_map(|run| core::iter::repeat_n(run, k).flatten()).copied().unzip();
            BoxSpace::new(frame.dtype(), shape, low, high)?.into()
        }
        Space::Discrete { n } => Space::multi_discrete(vec![*n; k])?,
        Space::MultiDiscrete { nvec } => Space::multi_discrete(nvec.repeat(k))?,
        Space::MultiBinary { n } => Space::multi_binary(n * k as u32)?,
        Space::Tuple(_) | Space::Dict(_) => Space::tuple(vec![frame.clone(); k])?,
    })
}

impl<E: Env> Env for FrameStack<E> {
    type Obs = E::Obs;
    type Act = E::Act;

    fn observation_space(&self) -> Space {
        self.space.clone()
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn accepts(&self, action: &[E::Act]) -> bool {
        self.env.accepts(action)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.oldest = 0;
        self.env.reset(rng, &mut self.frames[..self.width])?;
        for frame in 1..self.k {
            self.frames.copy_within(..self.width, frame * self.width);
        }
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let (oldest, width) = (self.oldest, self.width);
        let step = self.env.step(action, rng, &mut self.frames[oldest * width..][..width])?;
        self.oldest = (oldest + 1) % self.k;
        self.observe(obs);
        Ok(step)
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.env.render(frame)
    }

    fn info(&self, out: &mut Vec<u8>) -> bool {
        self.env.info(out)
    }

    /// Appends all frames but the newest, which is part of the inner snapshot.
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        for age in 0..self.k - 1 {
            let frame = (self.oldest + age) % self.k;
            put_rows(out, E::Obs::erase_rows(&self.frames[frame * self.width..][..self.width]));
        }
        self.env.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let mut frames = vec![E::Obs::default(); self.frames.len()];
        let (older, newest) = frames.split_at_mut((self.k - 1) * self.width);
        for frame in older.chunks_exact_mut(self.width) {
            reader.rows(E::Obs::erase_rows_mut(frame))?;
            if !self.frame_space.contains_row(frame).unwrap_or(false) {
                return Err(reader.bad());
            }
        }
        self.env.restore(reader.rest(), newest)?;
        (self.frames, self.oldest) = (frames, 0);
        self.observe(obs);
        Ok(())
    }
}
