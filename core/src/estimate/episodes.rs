//! Splits logged steps into episodes.

use core::ops::Range;

use super::{EstimateError, scaled::Scaled};
use crate::{
    batch::{ACTION_PROB, BatchError, EPS_ID, REWARDS, SampleBatch},
    column::ColumnData,
    ids::SlotId,
    prelude::*,
    rng::Streams,
};

/// Probability, or density, of the logged action under the policy being evaluated.
pub const NEW_ACTION_PROB: &str = "new_action_prob";

/// Returns a column of one number per row, as doubles.
pub(super) fn numbers(batch: &SampleBatch, name: &str) -> Result<Vec<f64>, EstimateError> {
    let column = batch.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))?;
    if column.shape().elements() != 1 {
        return Err(EstimateError::NotScalar { name: name.to_string(), shape: column.shape() });
    }
    if let Ok(wide) = column.typed::<f64>() {
        return Ok(wide.values().to_vec());
    }
    let narrow = column.typed::<f32>().map_err(|source| BatchError::Column { name: name.to_string(), source })?;
    Ok(narrow.values().iter().copied().map(f64::from).collect())
}

/// Returns [`numbers`] that are all finite.
pub(super) fn finite(batch: &SampleBatch, column: &'static str) -> Result<Vec<f64>, EstimateError> {
    let values = numbers(batch, column)?;
    match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((row, &value)) => Err(EstimateError::Value { column, row, value }),
        None => Ok(values),
    }
}

pub(crate) fn rewards(batch: &SampleBatch) -> Result<Vec<f64>, EstimateError> {
    finite(batch, REWARDS.name())
}

/// Checks the columns that estimators read, while the caller still knows the source of the rows: rewards, and with `probs`
/// the probabilities.
///
/// # Errors
/// [`EstimateError`] with the first invalid row.
pub fn check_rows(batch: &SampleBatch, probs: bool) -> Result<(), EstimateError> {
    rewards(batch)?;
    if probs { ratios(batch).map(drop) } else { Ok(()) }
}

/// Returns the probability of each action under the new policy, divided by that under the policy that took it.
pub(super) fn ratios(batch: &SampleBatch) -> Result<Vec<Scaled>, EstimateError> {
    let (old, new) = (numbers(batch, ACTION_PROB.name())?, numbers(batch, NEW_ACTION_PROB)?);
    let possible = |prob: f64| (0.0..f64::INFINITY).contains(&prob);
    let check = |column, values: &[f64], ok: &dyn Fn(f64) -> bool| match values.iter().position(|&prob| !ok(prob)) {
        Some(row) => Err(EstimateError::Probability { column, row, value: values[row] }),
        None => Ok(()),
    };
    check(ACTION_PROB.name(), &old, &|prob| possible(prob) && prob > 0.0)?;
    check(NEW_ACTION_PROB, &new, &possible)?;
    Ok(new.iter().zip(&old).map(|(&new, &old)| Scaled::new(new) / Scaled::new(old)).collect())
}

/// Returns the rows of each episode: a new one begins where `eps_id` changes, even to an earlier id.
pub(super) fn episodes(batch: &SampleBatch) -> Result<Vec<Range<usize>>, EstimateError> {
    let column = batch.data(EPS_ID)?;
    if column.shape().elements() != 1 {
        return Err(EstimateError::NotScalar { name: EPS_ID.name().to_string(), shape: column.shape() });
    }
    let ids = column.values();
    let mut episodes = Vec::new();
    let mut start = 0;
    for end in 1..=ids.len() {
        if ids.get(end) != ids.get(start) {
            episodes.push(start..end);
            start = end;
        }
    }
    Ok(episodes)
}

/// Draws as many episodes as there are, with replacement, and gives them new ids from 0 on: the training data of a refit for
/// [`refit_interval`](super::refit_interval). The same streams and `draw` give the same episodes.
///
/// # Errors
/// [`EstimateError::Batch`] without `eps_id`, [`EstimateError::NotScalar`].
pub fn draw_episodes(rows: &SampleBatch, streams: &Streams, draw: u32) -> Result<SampleBatch, EstimateError> {
    let episodes = episodes(rows)?;
    let (mut order, mut ids) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for id in 0..episodes.len() {
        let mut rng = streams.at(SlotId(id as u32), 1, draw, 0);
        let drawn = episodes[rng.below(episodes.len() as u32) as usize].clone();
        ids.extend(drawn.clone().map(|_| id as i64));
        order.extend(drawn.map(|row| row as u32));
    }
    let mut drawn = rows.gather(&order)?;
    drawn.insert(EPS_ID.name(), ColumnData::scalars(ids))?;
    Ok(drawn)
}

/// Checks that no id recurs after another one.
pub(super) fn check_unique(batch: &SampleBatch, episodes: &[Range<usize>]) -> Result<(), EstimateError> {
    let ids = batch.get(EPS_ID)?;
    let mut seen = BTreeSet::new();
    for rows in episodes {
        if let Some(&eps_id) = ids.get(rows.start).filter(|id| !seen.insert(**id)) {
            return Err(EstimateError::EpisodeReturns { eps_id, row: rows.start });
        }
    }
    Ok(())
}
