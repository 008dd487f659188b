//! Conversion of observations to the networks' inputs.

use super::{encoder::ObsEncoder, mask::ActionMask};
use crate::{
    env::{EnvSpaces, RowsRef},
    policy::{PolicyError, normalizer::Normalizer},
    prelude::*,
};

/// Encodes observations, takes their action masks out, and normalises the rest.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) encoder: ObsEncoder,
    pub(super) mask: Option<ActionMask>,
    pub(super) normalizer: Normalizer,
    /// Encoded observations.
    floats: Vec<f32>,
}

impl Inputs {
    pub(super) fn new(spaces: &EnvSpaces, normalizer: Normalizer) -> Result<Self, PolicyError> {
        let encoder = ObsEncoder::for_space(&spaces.observation)?;
        let mask = ActionMask::of(&spaces.observation, &spaces.action)?;
        Ok(Self { encoder, mask, normalizer, floats: Vec::new() })
    }

    /// Returns the inputs of the networks for this number of observations, and their masks.
    pub(super) fn of<'a>(
        &'a mut self,
        obs: RowsRef<'a>,
        rows: usize,
    ) -> Result<(&'a [f32], Option<&'a ActionMask>), PolicyError> {
        let Self { encoder, mask, normalizer, floats } = self;
        let encoded = encoder.encode(obs, rows, floats)?;
        let Some(mask) = mask else { return Ok((normalizer.apply(encoded)?, None)) };
        mask.split(encoded, encoder.len());
        let mask = &*mask;
        Ok((normalizer.apply(mask.rows())?, Some(mask)))
    }
}
