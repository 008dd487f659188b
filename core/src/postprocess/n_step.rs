//! Computes n-step rewards and successors.

use super::{PostprocessError, advantages::check_single_trajectory, discount::discount_cumsum, read::scalars};
use crate::{
    batch::{BatchError, NEW_OBS, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS},
    column::{Column, ColumnData, ColumnError, ColumnKey, DType},
    prelude::*,
};

/// Converts one trajectory to `n_step` steps per transition.
///
/// Each reward becomes `r_t + gamma r_(t+1) + …` over the next `n_step` rows, as far as they exist; `new_obs`, its nested
/// columns `new_obs.…`, `terminateds` and `truncateds` become those of the last row in the sum. Rewards keep their type, 32-
/// or 64-bit floats; sums are in double precision. All other columns stay the same.
/// # Errors
/// [`PostprocessError::ZeroSteps`]; [`PostprocessError::NotOneTrajectory`] if a flag is set before the last row or
/// episodes, fragments or agents change; [`PostprocessError::Batch`] without `rewards`, `new_obs` or `terminateds`.
pub fn adjust_nstep(batch: &SampleBatch, n_step: usize, gamma: f64) -> Result<SampleBatch, PostprocessError> {
    if n_step == 0 {
        return Err(PostprocessError::ZeroSteps);
    }
    check_single_trajectory(batch)?;
    scalars(batch, TERMINATEDS)?;
    let is_new_obs =
        |name: &str| name.strip_prefix(NEW_OBS.name()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if !batch.iter().any(|(name, _)| is_new_obs(name)) {
        return Err(BatchError::MissingColumn(NEW_OBS.name().to_string()).into());
    }
    let mut adjusted = batch.clone();
    for (name, column) in batch.iter() {
        if is_new_obs(name) || name == TERMINATEDS.name() || name == TRUNCATEDS.name() {
            adjusted.insert(name.to_string(), shifted(name, column, n_step - 1)?)?;
        }
    }
    if let Some(wide) = batch.column(REWARDS.name()).filter(|column| column.dtype() == Some(DType::F64)) {
        let key = ColumnKey::<f64>::new(REWARDS.name());
        let sums = ColumnData::new(summed(scalars(batch, key)?, n_step, gamma), wide.shape());
        return Ok(adjusted.with(key, sums.map_err(in_rewards)?)?);
    }
    let rewards: Vec<f64> = scalars(batch, REWARDS)?.iter().copied().map(f64::from).collect();
    let sums = summed(&rewards, n_step, gamma).into_iter().map(|sum| sum as f32).collect();
    let sums = ColumnData::new(sums, batch.data(REWARDS)?.shape());
    Ok(adjusted.with(REWARDS, sums.map_err(in_rewards)?)?)
}

fn in_rewards(source: ColumnError) -> BatchError {
    BatchError::Column { name: REWARDS.name().to_string(), source }
}

/// Returns the rows from `by` on, and repeats the last one to keep the number of rows.
fn shifted(name: &str, column: &Column, by: usize) -> Result<Column, PostprocessError> {
    if !column.is_array() {
        return Err(PostprocessError::NoNumbers { name: name.to_string(), found: column.column_type() });
    }
    let last = column.rows().saturating_sub(1);
    let rows: Vec<u32> = (0..=last).map(|row| row.saturating_add(by).min(last) as u32).take(column.rows()).collect();
    column.gather(&rows).map_err(|source| BatchError::Column { name: name.to_string(), source }.into())
}

/// Returns discounted sums over windows of `n_step` rows, in time independent of `n_step`: with blocks of `n_step` rows,
/// each window is the end of a block and the beginning of the next one.
fn summed(rewards: &[f64], n_step: usize, gamma: f64) -> Vec<f64> {
    let mut sums = rewards.to_vec();
    let mut heads = vec![0.0; rewards.len()];
    for (block, heads) in rewards.chunks(n_step).zip(heads.chunks_mut(n_step)) {
        let (mut sum, mut discount) = (0.0, 1.0);
        for (reward, head) in block.iter().zip(heads) {
            sum += discount * reward;
            discount *= gamma;
            *head = sum;
        }
    }
    for (number, block) in sums.chunks_mut(n_step).enumerate() {
        discount_cumsum(block, gamma);
        let next = heads.get((number + 1).saturating_mul(n_step)..).unwrap_or_default();
        let Some(end) = next.last() else { break };
        let mut discount = 1.0;
        for (row, sum) in block.iter_mut().enumerate().skip(1).rev() {
            discount *= gamma;
            *sum += discount * next.get(row - 1).unwrap_or(end);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{batch::OBS, column::RowShape};

    fn batch(rewards: &[f64], ends: [bool; 2]) -> SampleBatch {
        let rows = rewards.len();
        let flags = |last: bool| (0..rows).map(|row| last && row + 1 == rows).collect();
        let mut batch = SampleBatch::new()
            .with(TERMINATEDS, ColumnData::scalars(flags(ends[0])))
            .and_then(|b| b.with(TRUNCATEDS, ColumnData::scalars(flags(ends[1]))))
            .unwrap();
        batch.insert(REWARDS.name(), ColumnData::scalars(rewards.to_vec())).unwrap();
        batch.insert(OBS.name(), ColumnData::scalars((0..rows as i64).collect())).unwrap();
        batch.insert(NEW_OBS.name(), ColumnData::scalars((1..=rows as i64).collect())).unwrap();
        batch
    }

    fn integers(batch: &SampleBatch, name: &'static str) -> Vec<i64> {
        batch.get(ColumnKey::<i64>::new(name)).unwrap().to_vec()
    }

    #[test]
    fn three_steps_to_the_end() {
        let done =
            adjust_nstep(&batch(&[10.0, 0.0, 100.0, 100.0, 100.0, 100.0, 100.0], [true, false]), 3, 0.9).unwrap();
        let rewards = done.get(ColumnKey::<f64>::new("rewards")).unwrap();
        for (reward, expected) in rewards.iter().zip([91.0, 171.0, 271.0, 271.0, 271.0, 190.0, 100.0]) {
            assert!((reward - expected).abs() < 1e-9, "{rewards:?}");
        }
        assert_eq!(integers(&done, "new_obs"), [3, 4, 5, 6, 7, 7, 7]);
        assert_eq!(integers(&done, "obs"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(done.get(TERMINATEDS).unwrap(), [false, false, false, false, true, true, true]);
    }

    #[test]
    fn truncation_moves_forward_too() {
        let mut short = batch(&[1.0, 2.0, 4.0], [false, true]);
        let floats = ColumnData::scalars(vec![1.0f32, 2.0, 4.0]);
        short.insert(REWARDS.name(), floats).unwrap();
        let nested = ColumnData::new(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], RowShape::vector(2)).unwrap();
        short.insert("new_obs.pos", nested).unwrap();
        let done = adjust_nstep(&short, 2, 0.5).unwrap();
        assert_eq!(done.get(REWARDS).unwrap(), [2.0, 4.0, 4.0]);
        assert_eq!(done.get(TRUNCATEDS).unwrap(), [false, true, true]);
        assert_eq!(done.get(TERMINATEDS).unwrap(), [false; 3]);
        assert_eq!(done.get(ColumnKey::<f32>::new("new_obs.pos")).unwrap(), [3.0, 4.0, 5.0, 6.0, 5.0, 6.0]);
    }

    #[test]
    fn one_step_changes_nothing_and_more_than_all_reach_the_end() {
        let whole = batch(&[1.0, 2.0, 4.0], [true, false]);
        assert_eq!(adjust_nstep(&whole, 1, 0.5).unwrap(), whole);
        let done = adjust_nstep(&whole, usize::MAX, 0.5).unwrap();
        assert_eq!(integers(&done, "new_obs"), [3, 3, 3]);
        assert_eq!(adjust_nstep(&batch(&[], [true, true]), 3, 0.5).unwrap().len(), 0);
    }

    #[test]
    fn errors_name_the_row() {
        let mut two = batch(&[1.0, 2.0, 4.0], [false, false]);
        two.insert(TERMINATEDS.name(), ColumnData::scalars(vec![false, true, false])).unwrap();
        let error = adjust_nstep(&two, 3, 1.0).unwrap_err();
        assert_eq!(error, PostprocessError::NotOneTrajectory { column: "terminateds", row: 1 });
        assert_eq!(adjust_nstep(&two, 0, 1.0).unwrap_err(), PostprocessError::ZeroSteps);
        let bare = SampleBatch::new().with(TERMINATEDS, ColumnData::scalars(vec![true])).unwrap();
        assert_eq!(adjust_nstep(&bare, 2, 1.0).unwrap_err().to_string(), "the batch has no column 'new_obs'");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn as_defined(rewards in vec(-9.0f64..9.0, 1..60), n_step in 1usize..80, gamma in 0.0f64..=1.0) {
            let rows = rewards.len();
            let done = adjust_nstep(&batch(&rewards, [true, false]), n_step, gamma).unwrap();
            let (new_obs, sums) = (integers(&done, "new_obs"), done.get(ColumnKey::<f64>::new("rewards")).unwrap());
            for row in 0..rows {
                let end = (row + n_step).min(rows);
                let sum: f64 = rewards[row..end].iter().rev().fold(0.0, |sum, reward| reward + gamma * sum);
                prop_assert!((sums[row] - sum).abs() < 1e-9, "{sums:?} {sum} at {row}");
                prop_assert_eq!(new_obs[row], end as i64);
                prop_assert_eq!(done.get(TERMINATEDS).unwrap()[row], end == rows);
            }
        }
    }
}
