//! States of many lanes as structure of arrays.

use crate::{
    env::{EnvError, EnvState, SnapshotReader},
    prelude::*,
};

/// `S` variables of every lane, one vector per variable.
#[derive(Clone, Debug)]
pub(super) struct States<const S: usize>([Vec<f64>; S]);

impl<const S: usize> States<S> {
    pub(super) fn new(num_envs: usize) -> Self {
        Self(core::array::from_fn(|_| vec![0.0; num_envs]))
    }

    pub(super) fn num_envs(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    pub(super) fn variables_mut(&mut self) -> &mut [Vec<f64>; S] {
        &mut self.0
    }

    pub(super) fn at(&self, lane: usize) -> Option<[f64; S]> {
        (lane < self.num_envs()).then(|| core::array::from_fn(|i| self.0[i][lane]))
    }

    pub(super) fn set(&mut self, lane: usize, state: [f64; S]) -> Result<(), EnvError> {
        let num_envs = self.num_envs();
        for (values, value) in self.0.iter_mut().zip(state) {
            *values.get_mut(lane).ok_or(EnvError::NoSuchLane { lane, num_envs })? = value;
        }
        Ok(())
    }

    /// Appends the lane's variables, little-endian.
    pub(super) fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        for value in self.at(lane).into_iter().flatten() {
            out.extend_from_slice(&value.to_le_bytes());
        }
        EnvState::Snapshot
    }

    /// Restores a lane's snapshot. States that are not finite or not `possible` are rejected.
    pub(super) fn restore_at(
        &mut self,
        lane: usize,
        snapshot: &[u8],
        possible: impl Fn([f64; S]) -> bool,
    ) -> Result<[f64; S], EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let mut state = [0.0; S];
        for value in &mut state {
            *value = reader.finite()?;
        }
        if !possible(state) {
            return Err(reader.bad());
        }
        reader.finish()?;
        self.set(lane, state)?;
        Ok(state)
    }
}
