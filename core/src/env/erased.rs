//! Type-erased environments, as samplers see them: one match per batch.

use super::{EnvError, EnvState, Frame, Moment, Moments, Rng, RowsMut, RowsRef, StepOut, VectorEnv};
use crate::{
    column::{DType, Element},
    prelude::*,
    space::Space,
};

/// A type-erased [`VectorEnv`], as samplers use it. Implemented for all of them.
pub trait AnyVectorEnv: Send {
    /// See [`VectorEnv::num_envs`].
    fn num_envs(&self) -> usize;

    /// See [`VectorEnv::observation_space`].
    fn observation_space(&self) -> Space;

    /// See [`VectorEnv::action_space`].
    fn action_space(&self) -> Space;

    /// Returns the element types of observations and actions.
    fn dtypes(&self) -> (DType, DType);

    /// See [`VectorEnv::reset_at`].
    ///
    /// # Errors
    /// As there, and [`EnvError::WrongType`].
    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: RowsMut<'_>) -> Result<(), EnvError>;

    /// See [`VectorEnv::step`].
    ///
    /// # Errors
    /// As there, and [`EnvError::WrongType`].
    fn step(
        &mut self,
        actions: RowsRef<'_>,
        moments: Moments<'_>,
        obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError>;

    /// See [`VectorEnv::render_at`].
    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool;

    /// See [`VectorEnv::info_at`].
    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool;

    /// Returns the environment itself, for functions that know its type.
    fn as_any(&mut self) -> &mut dyn core::any::Any;

    /// See [`VectorEnv::snapshot_at`].
    ///
    /// # Errors
    /// [`EnvError::Failed`] if the environment cannot read its state, or panics. The appended bytes are then empty, or
    /// restore the same moment but are not the bytes that other machines would write.
    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> Result<EnvState, EnvError>;

    /// Returns how open episodes move to another instance: the kind of their [snapshots](Self::snapshot_at), by default of one.
    fn state(&self) -> EnvState {
        self.snapshot_at(0, &mut Vec::new()).unwrap_or(EnvState::Snapshot)
    }

    /// See [`VectorEnv::replay_at`].
    ///
    /// # Errors
    /// As there.
    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError>;

    /// See [`VectorEnv::replayed_at`].
    fn replayed_at(&self, _lane: usize) -> Option<Moment> {
        None
    }

    /// See [`VectorEnv::restore_at`].
    ///
    /// # Errors
    /// As there, and [`EnvError::WrongType`].
    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError>;
}

impl<E> AnyVectorEnv for E
where
    E: VectorEnv + 'static,
{
    fn num_envs(&self) -> usize {
        VectorEnv::num_envs(self)
    }

    fn observation_space(&self) -> Space {
        VectorEnv::observation_space(self)
    }

    fn action_space(&self) -> Space {
        VectorEnv::action_space(self)
    }

    fn dtypes(&self) -> (DType, DType) {
        (E::Obs::DTYPE, E::Act::DTYPE)
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: RowsMut<'_>) -> Result<(), EnvError> {
        VectorEnv::reset_at(self, lane, rng, observations(obs)?)
    }

    fn step(
        &mut self,
        actions: RowsRef<'_>,
        moments: Moments<'_>,
        obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let wanted = actions.dtype().name();
        let actions = E::Act::rows(actions).ok_or(EnvError::WrongType {
            what: "actions",
            found: E::Act::DTYPE.name(),
            wanted,
        })?;
        VectorEnv::step(self, actions, moments, observations(obs)?, out)
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        VectorEnv::render_at(self, lane, frame)
    }

    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool {
        VectorEnv::info_at(self, lane, out)
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> Result<EnvState, EnvError> {
        Ok(VectorEnv::snapshot_at(self, lane, out))
    }

    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        VectorEnv::replay_at(self, lane, snapshot, max_steps)
    }

    fn replayed_at(&self, lane: usize) -> Option<Moment> {
        VectorEnv::replayed_at(self, lane)
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError> {
        VectorEnv::restore_at(self, lane, snapshot, observations(obs)?)
    }
}

fn observations<T: Element>(rows: RowsMut<'_>) -> Result<&mut [T], EnvError> {
    let wanted = rows.dtype().name();
    T::rows_mut(rows).ok_or(EnvError::WrongType { what: "observations", found: T::DTYPE.name(), wanted })
}
