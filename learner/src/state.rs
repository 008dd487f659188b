//! The state of a learner besides its weights, as bytes.

use super::{error::LearnError, optimizer::OptimizerState, update::Learner};

/// Version of the encoding, its first byte.
const VERSION: u8 = 1;
/// Version, env steps, weight of the divergence, skipped steps, optimiser's steps.
const HEADER_BYTES: usize = 1 + 8 + 8 + 4 + 8;

impl Learner {
    /// Returns the state as bytes, little-endian: the encoding's version (8 bits), env steps (64), PPO's weight of the
    /// KL divergence or MARWIL's mean of squared advantages (64), steps skipped in a row (32), steps of the optimiser
    /// (64), its first and its second moments. With it and the weights another learner resumes bit-identically.
    ///
    /// # Errors
    /// [`LearnError::Device`].
    pub fn state(&self) -> Result<Vec<u8>, LearnError> {
        let mut bytes = Vec::with_capacity(self.state_bytes());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.env_steps.to_le_bytes());
        bytes.extend_from_slice(&self.adaptive.to_le_bytes());
        bytes.extend_from_slice(&self.skipped_in_a_row.to_le_bytes());
        self.write_optimizer(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the optimiser's part of the state.
    pub(super) fn optimizer_bytes(&self) -> Result<Vec<u8>, LearnError> {
        let mut bytes = Vec::with_capacity(self.state_bytes());
        self.write_optimizer(&mut bytes)?;
        Ok(bytes)
    }

    fn write_optimizer(&self, bytes: &mut Vec<u8>) -> Result<(), LearnError> {
        let OptimizerState { steps, moments } = self.optimizer.state()?;
        bytes.extend_from_slice(&steps.to_le_bytes());
        moments.iter().flatten().for_each(|moment| bytes.extend_from_slice(&moment.to_le_bytes()));
        Ok(())
    }

    /// Returns the length of [`state`](Self::state).
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        HEADER_BYTES + 2 * size_of::<f32>() * self.optimizer.len()
    }

    /// Restores a [`state`](Self::state). An empty one is that of a learner that has not learned yet.
    ///
    /// # Errors
    /// [`LearnError::State`] for other bytes; nothing has changed then.
    pub fn set_state(&mut self, bytes: &[u8]) -> Result<(), LearnError> {
        let params = self.optimizer.len();
        let bad = |reason| LearnError::State { params, reason };
        if bytes.is_empty() {
            let fresh = OptimizerState { steps: 0, moments: [vec![0.0; params], vec![0.0; params]] };
            self.optimizer.set_state(&fresh)?;
            (self.env_steps, self.skipped_in_a_row) = (0, 0);
            self.adaptive = self.objective().first_adaptive();
            return Ok(());
        }
        let (header, moments) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or_else(|| bad("it is too short"))?;
        if header[0] != VERSION {
            return Err(bad("it is of another version"));
        }
        if bytes.len() != self.state_bytes() {
            return Err(bad("it has another number of moments"));
        }
        let adaptive = f64::from_le_bytes(field(header, 9));
        let moments: Vec<f32> = moments.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        let (first, second) = moments.split_at(params);
        let sound = first.iter().all(|m| m.is_finite()) && second.iter().all(|v| v.is_finite() && *v >= 0.0);
        if !sound || !adaptive.is_finite() || adaptive < 0.0 {
            return Err(bad("it holds numbers out of range"));
        }
        let steps = u64::from_le_bytes(field(header, 21));
        self.optimizer.set_state(&OptimizerState { steps, moments: [first.to_vec(), second.to_vec()] })?;
        self.env_steps = u64::from_le_bytes(field(header, 1));
        self.adaptive = adaptive;
        self.skipped_in_a_row = u32::from_le_bytes(field(header, 17));
        Ok(())
    }
}

/// Returns the bytes at an offset of the header.
fn field<const N: usize>(header: &[u8; HEADER_BYTES], start: usize) -> [u8; N] {
    std::array::from_fn(|i| header[start + i])
}
