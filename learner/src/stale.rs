//! Rows of weights older than the learner's, as in the asynchronous and the deadline mode.
//!
//! Their advantages and value targets are estimates of an earlier policy. V-trace (Espeholt et al.: "IMPALA: Scalable
//! distributed deep-RL with importance weighted actor-learner architectures", 2018, equation 1, with both clips at 1) replaces
//! them when an update begins. With the learner's values `V`, `rho = min(1, pi(a|s) / mu(a|s))` of its policy `pi` and the acting
//! policy `mu`, and the traces of remark 2, `c = lambda rho`, along each piece of an episode that one version sampled:
//!
//! ```text
//! A_t = r_t + gamma V_(t+1) - V_t + gamma lambda (v_(t+1) - V_(t+1))
//! v_t = V_t + rho_t A_t
//! ```
//!
//! `v` are the value targets. A policy gradient takes the advantages `rho_t A_t`; with clipped ratios they are `A_t`, and the
//! ratios start from `mu`, so that no row is weighted twice. With `lambda` 1 this is the paper's `r_t + gamma v_(t+1) - V_t`, and
//! if both policies are one it is generalised advantage estimation. `RLlib`'s APPO puts its target network's policy in the
//! place of `pi`, clips the ratio to that policy and weights advantages with `rho`.
//!
//! The state after a piece's last row has the value of the acting weights: the batch's target of that row is
//! `r + gamma V_(t+1)`. Without a critic all other values are 0, and the targets are returns.

use candle_core::{Device, Tensor};
use rollmesh_core::{
    batch::{
        ACTION_LOGP, ADVANTAGES, AGENT_INDEX, EPS_ID, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS, UNROLL_ID,
        VALUE_TARGETS, WEIGHTS_VERSION,
    },
    ids::WeightsVersion,
    postprocess::{AdvantageConfig, VTraceConfig, VTraceInput, piece_ends, vtrace},
};

use super::{columns::Columns, error::LearnError};

/// The number of versions by which the weights of each row are behind the learner's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lags(Vec<u64>);

/// Mean and largest lag of a batch's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LagStats {
    pub(super) mean: f64,
    pub(super) max: f64,
}

impl Lags {
    /// Returns the lags of rows. Rows without a version count as those of the learner's weights.
    pub(super) fn of(columns: &Columns<'_>, newest: WeightsVersion) -> Result<Self, LearnError> {
        let versions = columns.optional_integers(WEIGHTS_VERSION.name())?.unwrap_or_default();
        Ok(Self(versions.into_iter().map(|version| newest.0.saturating_sub(version.max(0) as u64)).collect()))
    }

    pub(super) fn stats(&self) -> LagStats {
        let sum: f64 = self.0.iter().map(|&lag| lag as f64).sum();
        let max = self.0.iter().copied().max().unwrap_or(0);
        LagStats { mean: sum / self.0.len().max(1) as f64, max: max as f64 }
    }

    pub(super) fn has_stale(&self) -> bool {
        self.0.iter().any(|&lag| lag > 0)
    }

    /// Returns `[rows]`: 1 for each stale row, else 0.
    pub(super) fn mask(&self, rows: usize, device: &Device) -> candle_core::Result<Tensor> {
        Tensor::from_iter((0..rows).map(|row| u8::from(self.is_stale(row))), device)
    }

    fn is_stale(&self, row: usize) -> bool {
        self.0.get(row).is_some_and(|&lag| lag > 0)
    }
}

/// The learner's outputs for all rows when an update begins.
pub(super) struct Current<'a> {
    /// Log-probabilities of the actions.
    pub(super) logp: &'a [f32],
    /// Values of the observations; 0 without a critic.
    pub(super) values: &'a [f32],
}

/// Advantages and value targets of all rows; those of stale rows are V-trace's.
pub(super) struct Targets {
    pub(super) advantages: Vec<f32>,
    pub(super) value_targets: Vec<f32>,
}

impl Targets {
    /// Returns the targets with those of V-trace for stale rows. With clipped ratios the advantages of stale rows are
    /// not weighted, since the ratios are.
    pub(super) fn corrected(
        columns: &Columns<'_>,
        lags: &Lags,
        now: &Current<'_>,
        config: &AdvantageConfig,
        has_ratios: bool,
    ) -> Result<Self, LearnError> {
        let logp = columns.floats(ACTION_LOGP.name(), 1)?;
        let rewards = columns.floats(REWARDS.name(), 1)?;
        let mut advantages = columns.floats(ADVANTAGES.name(), 1)?;
        let mut value_targets = columns.floats(VALUE_TARGETS.name(), 1)?;
        let lambda = if config.use_gae { config.lambda } else { 1.0 };
        let settings = VTraceConfig { gamma: config.gamma, lambda, ..VTraceConfig::default() };
        let mut start = 0;
        for end in piece_ends(&pieces(columns)?)? {
            let piece = start..end;
            start = end;
            let Some(last) = piece.clone().last().filter(|&last| lags.is_stale(last)) else { continue };
            let at_last = if config.use_critic { value_targets[last] } else { advantages[last] };
            let follows = f64::from(at_last) - f64::from(rewards[last]);
            let bootstrap_value = if config.gamma > 0.0 { (follows / config.gamma) as f32 } else { 0.0 };
            let input = VTraceInput {
                behavior_logp: &logp[piece.clone()],
                target_logp: &now.logp[piece.clone()],
                rewards: &rewards[piece.clone()],
                values: &now.values[piece.clone()],
                bootstrap_value,
            };
            let (vs, out) = (&mut value_targets[piece.clone()], &mut advantages[piece]);
            vtrace(&input, &settings, vs, out)?;
            for (t, advantage) in out.iter_mut().enumerate() {
                *advantage = if has_ratios { unweighted(&input, &settings, vs, t) } else { vs[t] - input.values[t] };
            }
        }
        Ok(Self { advantages, value_targets })
    }
}

/// Returns `A_t` for the targets of a piece.
fn unweighted(input: &VTraceInput<'_>, config: &VTraceConfig, vs: &[f32], t: usize) -> f32 {
    let next = |values: &[f32]| f64::from(values.get(t + 1).copied().unwrap_or(input.bootstrap_value));
    let (value, target) = (next(input.values), next(vs));
    let expected = f64::from(input.rewards[t]) + config.gamma * (value + config.lambda * (target - value));
    (expected - f64::from(input.values[t])) as f32
}

/// Returns the columns that define the ends of pieces.
fn pieces(columns: &Columns<'_>) -> Result<SampleBatch, LearnError> {
    let mut batch = SampleBatch::new();
    for name in [TERMINATEDS.name(), TRUNCATEDS.name(), EPS_ID.name(), UNROLL_ID.name(), AGENT_INDEX.name()] {
        if let Some(column) = columns.optional_column(name)? {
            batch.insert(name, column)?;
        }
    }
    Ok(batch)
}
