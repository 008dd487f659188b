//! Creates fragments without an environment: their rows are hashes, and a pure function of their input like real ones.

use rollmesh_core::{
    batch::{Cut, CutReason, EpisodeMetrics, OBS, REWARDS, SampleBatch, SlotFragment, TERMINATEDS},
    column::{ColumnData, RowShape},
    ids::{FragmentNo, SlotId, WeightsVersion},
    lease::FailedStep,
};

/// Returns the next number of a SplitMix64 sequence, whose quality suffices to distinguish any two inputs.
#[must_use]
pub fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The state of a fake slot: its next fragment, and a digest of all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeState {
    /// The slot.
    pub slot: SlotId,
    /// The fragment that starts from this state.
    pub next: FragmentNo,
    digest: u64,
}

impl FakeState {
    /// Returns the initial state of a slot.
    #[must_use]
    pub fn new(slot: SlotId) -> Self {
        Self { slot, next: FragmentNo(0), digest: u64::from(slot.0) }
    }

    /// Encodes the state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.slot.0.to_le_bytes()[..], &self.next.0.to_le_bytes(), &self.digest.to_le_bytes()].concat()
    }

    /// Decodes the bytes of [`encode`](Self::encode).
    ///
    /// # Panics
    /// For other bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let (slot, rest) = bytes.split_first_chunk().expect("slot");
        let (next, rest) = rest.split_first_chunk().expect("next fragment");
        let digest = rest.try_into().expect("digest");
        Self {
            slot: SlotId(u32::from_le_bytes(*slot)),
            next: FragmentNo(u64::from_le_bytes(*next)),
            digest: u64::from_le_bytes(digest),
        }
    }

    /// Samples the fragment from this state with these weights, and includes the state after it.
    #[must_use]
    pub fn fragment(&self, weights_version: WeightsVersion, length: u32) -> SlotFragment {
        let mut stream = self.digest ^ weights_version.0.rotate_left(32) ^ self.next.0;
        let rows = length as usize;
        let mut number = || (splitmix64(&mut stream) >> 40) as f32 / 16_777_216.0;
        let obs: Vec<f32> = (0..2 * rows).map(|_| number()).collect();
        let rewards: Vec<f32> = (0..rows).map(|_| number()).collect();
        let final_obs: Vec<f32> = (0..2).map(|_| number()).collect();
        let bootstrap_value = number();
        let vectors = |values| ColumnData::new(values, RowShape::vector(2)).expect("whole rows");
        let after = Self { next: FragmentNo(self.next.0 + 1), digest: splitmix64(&mut stream), ..*self };
        SlotFragment {
            slot: self.slot,
            fragment: self.next,
            weights_version,
            first_episode: self.next.0 as u32,
            first_t: 0,
            episodes: vec![EpisodeMetrics {
                episode: self.next.0 as u32,
                len: length,
                episode_return: f64::from(rewards[0]),
                ..EpisodeMetrics::default()
            }],
            rows: SampleBatch::new()
                .with(OBS, vectors(obs))
                .and_then(|batch| batch.with(REWARDS, ColumnData::scalars(rewards)))
                .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(vec![false; rows])))
                .expect("equal lengths"),
            cuts: vec![Cut { end: length, reason: CutReason::Truncated, bootstrap_value }],
            final_obs: SampleBatch::new().with(OBS, vectors(final_obs)).expect("one row"),
            agents: None,
            state: after.encode(),
        }
    }
}

impl FakeState {
    /// Returns the steps at which a fragile environment fails in the fragment from this state.
    #[must_use]
    pub fn failing_steps(&self) -> Vec<FailedStep> {
        let (number, episode) = (u64::from(self.slot.0) + 3 * self.next.0, self.next.0 as u32);
        let fails =
            [(4, episode, 1), (8, episode + 1, 0)].into_iter().filter(|(every, ..)| number.is_multiple_of(*every));
        fails.map(|(_, episode, t)| FailedStep { episode, t }).collect()
    }

    /// Samples the fragment with a fragile environment, which is restarted where it fails and continues with other rows.
    #[must_use]
    pub fn fragile_fragment(&self, weights_version: WeightsVersion, length: u32) -> SlotFragment {
        let mut fragment = self.fragment(weights_version, length);
        if !self.failing_steps().is_empty() {
            flip_a_reward_bit(&mut fragment);
            flip_a_state_bit(&mut fragment);
        }
        fragment
    }
}

/// Returns the expected batches of any run: iteration `k` uses weights `k`.
#[must_use]
pub fn calm_batches(num_slots: u32, length: u32, iterations: u64) -> Vec<Vec<SlotFragment>> {
    calm_batches_of(num_slots, length, iterations, 1)
}

/// Returns [`calm_batches`] with new weights only before every `per_version` iterations.
///
/// # Panics
/// If `per_version` is 0.
#[must_use]
pub fn calm_batches_of(num_slots: u32, length: u32, iterations: u64, per_version: u64) -> Vec<Vec<SlotFragment>> {
    let mut states: Vec<FakeState> = (0..num_slots).map(|slot| FakeState::new(SlotId(slot))).collect();
    let mut iteration = |iteration: u64| {
        let version = iteration / per_version;
        let batch: Vec<SlotFragment> =
            states.iter().map(|state| state.fragment(WeightsVersion(version), length)).collect();
        states = batch.iter().map(|fragment| FakeState::decode(&fragment.state)).collect();
        batch
    };
    (0..iterations).map(&mut iteration).collect()
}

/// Flips one bit in the state after the fragment, so that the next fragment has other rows.
///
/// # Panics
/// If it has no state.
pub fn flip_a_state_bit(fragment: &mut SlotFragment) {
    *fragment.state.last_mut().expect("a digest") ^= 1;
}

/// Flips one bit in a reward of the fragment, as a dishonest worker does.
///
/// # Panics
/// If the fragment has no rows.
pub fn flip_a_reward_bit(fragment: &mut SlotFragment) {
    let mut rewards = fragment.rows.get(REWARDS).expect("rewards").to_vec();
    rewards[0] = f32::from_bits(rewards[0].to_bits() ^ 1);
    fragment.rows.insert(REWARDS.name(), ColumnData::scalars(rewards)).expect("equal lengths");
}
