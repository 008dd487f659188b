//! Assembles logged batches episode by episode.

use super::EstimateError;
use crate::{
    batch::{AGENT_INDEX, BatchError, Continuation, EPS_ID, OpenEpisodes, SampleBatch, T, TERMINATEDS},
    column::ColumnData,
    prelude::*,
};

/// Collects batches in the order in which they were written. The rows of an episode need not be contiguous: samples of
/// several environments alternate, and long episodes continue in the next batch.
///
/// ```
/// use rollmesh_core::{
///     batch::{EPS_ID, REWARDS, SampleBatch, TERMINATEDS},
///     column::ColumnData,
///     estimate::EpisodeLog,
/// };
///
/// let batch = SampleBatch::new()
///     .with(EPS_ID, ColumnData::scalars(vec![7, 9, 7]))?
///     .with(REWARDS, ColumnData::scalars(vec![1.0, 2.0, 3.0]))?
///     .with(TERMINATEDS, ColumnData::scalars(vec![false, false, true]))?;
/// let mut log = EpisodeLog::new(&["rewards"]);
/// log.add(&batch)?;
/// let logged = log.finish()?;
/// assert_eq!(logged.rows.get(REWARDS)?, [1.0, 3.0, 2.0]);
/// assert_eq!((logged.episodes, logged.unfinished), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EpisodeLog {
    columns: Vec<String>,
    parts: Vec<SampleBatch>,
    /// Number of the episode of each row so far.
    places: Vec<u32>,
    /// Numbers of the open episodes, by id and agent.
    open: OpenEpisodes<u32>,
    episodes: u32,
    begun_late: usize,
    /// Episodes that will not continue although their end was not found.
    abandoned: usize,
}

/// The rows of an [`EpisodeLog`].
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedEpisodes {
    /// The requested columns, as far as they exist, and `eps_id`, which counts from 0.
    pub rows: SampleBatch,
    /// Number of episodes; with several agents, each agent's episode counts.
    pub episodes: usize,
    /// The number of those without an end.
    pub unfinished: usize,
    /// The number of those without their beginning.
    pub begun_late: usize,
}

impl EpisodeLog {
    /// Creates a log that keeps these columns.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| String::from(*name)).collect();
        let (parts, places, open) = (Vec::new(), Vec::new(), OpenEpisodes::default());
        Self { columns, parts, places, open, episodes: 0, begun_late: 0, abandoned: 0 }
    }

    /// Returns the number of rows so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no rows so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Begins another file: without `t`, episodes cannot be matched across files, so they end here.
    pub fn begin_file(&mut self) {
        self.abandoned += self.open.begin_file().len();
    }

    /// Adds rows. Episodes are identified by `eps_id` and `agent_index`, and by flags: an id that recurs after an end is
    /// another episode. So is one whose `t` does not continue, as where another run has the same ids.
    ///
    /// # Errors
    /// [`EstimateError::Batch`] with neither `eps_id` nor `terminateds`, for columns of other types, for damaged compressed
    /// ones, and beyond 2^32 rows.
    pub fn add(&mut self, batch: &SampleBatch) -> Result<(), EstimateError> {
        self.add_rows(batch, false)
    }

    /// Does the same as [`add`](Self::add) for rows of a policy among several agents, which need not act at every step:
    /// `t` may have gaps.
    ///
    /// # Errors
    /// The errors of [`add`](Self::add).
    pub fn add_of_agents(&mut self, batch: &SampleBatch) -> Result<(), EstimateError> {
        self.add_rows(batch, true)
    }

    fn add_rows(&mut self, batch: &SampleBatch, gaps: bool) -> Result<(), EstimateError> {
        let mut batch = batch.clone();
        batch.decompress_if_needed()?;
        let rows = batch.len();
        let total = self.len().saturating_add(rows);
        if u32::try_from(total).is_err() {
            return Err(BatchError::TooManyRows(total).into());
        }
        let has = |name: &str| batch.column(name).is_some();
        if !has(EPS_ID.name()) && !has(TERMINATEDS.name()) {
            return Err(BatchError::MissingColumn(EPS_ID.name().to_string()).into());
        }
        let nothing = vec![0; rows];
        let ids = batch.get_or(EPS_ID, &nothing)?;
        let agents = batch.get_or(AGENT_INDEX, &nothing)?;
        let steps = if has(T.name()) { Some(batch.get(T)?) } else { None };
        let ends = if has(TERMINATEDS.name()) { batch.dones()? } else { vec![false; rows] };
        for (row, ((&id, &agent), end)) in ids.iter().zip(agents).zip(ends).enumerate() {
            let t = steps.and_then(|steps| steps.get(row)).copied();
            let continuation = self.open.place((id, agent), t, gaps);
            self.abandoned += usize::from(matches!(continuation, Continuation::Instead(_)));
            let place = match continuation {
                Continuation::GoesOn(place) => place,
                Continuation::Begins | Continuation::Instead(_) => {
                    self.begun_late += usize::from(t > Some(0));
                    self.episodes += 1;
                    self.episodes - 1
                }
            };
            self.places.push(place);
            if !end {
                self.open.leave((id, agent), t.map(|t| t.saturating_add(1)), place);
            }
        }
        let mut part = SampleBatch::new();
        for name in &self.columns {
            if let Some(column) = batch.column(name) {
                part.insert(name.clone(), column.clone())?;
            }
        }
        self.parts.push(part);
        Ok(())
    }

    /// Returns all rows, episode by episode in the order of their beginnings.
    ///
    /// # Errors
    /// [`EstimateError::Batch`] if the batches differ in their columns.
    pub fn finish(self) -> Result<LoggedEpisodes, EstimateError> {
        let joined = SampleBatch::concat(&self.parts)?;
        if joined.len() != self.places.len() {
            // A batch with rows must have had other columns.
            return Err(BatchError::MissingColumn(self.columns.join(", ")).into());
        }
        let mut order: Vec<u32> = (0..self.places.len() as u32).collect();
        order.sort_by_key(|row| self.places.get(*row as usize));
        let mut ids: Vec<i64> = self.places.iter().map(|place| i64::from(*place)).collect();
        ids.sort_unstable();
        let mut rows = joined.gather(&order)?;
        rows.insert(EPS_ID.name(), ColumnData::scalars(ids))?;
        let (episodes, unfinished) = (self.episodes as usize, self.open.len() + self.abandoned);
        Ok(LoggedEpisodes { rows, episodes, unfinished, begun_late: self.begun_late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::REWARDS;

    fn batch(ids: &[i64], rewards: &[f32], ends: &[bool]) -> SampleBatch {
        let batch = SampleBatch::new().with(REWARDS, ColumnData::scalars(rewards.to_vec())).unwrap();
        let batch = batch.with(TERMINATEDS, ColumnData::scalars(ends.to_vec())).unwrap();
        if ids.is_empty() { batch } else { batch.with(EPS_ID, ColumnData::scalars(ids.to_vec())).unwrap() }
    }

    #[test]
    fn episodes_continue_in_later_batches_until_they_end() {
        let mut log = EpisodeLog::new(&["rewards", "nothing"]);
        log.add(&batch(&[5, 6], &[1.0, 2.0], &[false, false])).unwrap();
        log.add(&batch(&[5, 6, 6], &[3.0, 4.0, 5.0], &[true, true, false])).unwrap();
        let later = batch(&[5], &[6.0], &[true]).with(T, ColumnData::scalars(vec![3])).unwrap();
        log.add(&later).unwrap();
        assert_eq!(log.len(), 6);
        let logged = log.finish().unwrap();
        assert_eq!(logged.rows.get(REWARDS).unwrap(), [1.0, 3.0, 2.0, 4.0, 5.0, 6.0]);
        assert_eq!(logged.rows.get(EPS_ID).unwrap(), [0, 0, 1, 1, 2, 3]);
        assert_eq!((logged.episodes, logged.unfinished, logged.begun_late), (4, 1, 1));
        assert_eq!(logged.rows.iter().count(), 2);
    }

    #[test]
    fn other_runs_with_the_same_ids_have_other_episodes() {
        let at = |steps: &[i64], end: bool| {
            let mut ends = vec![false; steps.len()];
            ends[steps.len() - 1] = end;
            let rewards: Vec<f32> = steps.iter().map(|t| *t as f32).collect();
            batch(&vec![5; steps.len()], &rewards, &ends).with(T, ColumnData::scalars(steps.to_vec())).unwrap()
        };
        let mut log = EpisodeLog::new(&["rewards"]);
        log.add(&at(&[0, 1], false)).unwrap();
        log.begin_file();
        log.add(&at(&[2, 3], false)).unwrap();
        log.begin_file();
        log.add(&at(&[0, 1], true)).unwrap();
        // A step is missing, so its reward is unknown.
        log.add(&at(&[0, 2], true)).unwrap();
        log.add_of_agents(&at(&[0, 2], true)).unwrap();
        let logged = log.finish().unwrap();
        assert_eq!(logged.rows.get(EPS_ID).unwrap(), [0, 0, 0, 0, 1, 1, 2, 3, 4, 4]);
        assert_eq!((logged.episodes, logged.unfinished, logged.begun_late), (5, 2, 1));

        let mut log = EpisodeLog::new(&["rewards"]);
        let nameless = || batch(&[5], &[1.0], &[false]);
        log.add(&nameless()).unwrap();
        log.add(&nameless()).unwrap();
        log.begin_file();
        log.add(&nameless()).unwrap();
        let logged = log.finish().unwrap();
        assert_eq!((logged.rows.get(EPS_ID).unwrap(), logged.unfinished), (&[0, 0, 1][..], 2));
    }

    #[test]
    fn episodes_are_split_by_flags_alone_and_per_agent() {
        let mut log = EpisodeLog::new(&["rewards"]);
        log.add(&batch(&[], &[1.0, 2.0, 3.0], &[false, true, true])).unwrap();
        assert_eq!(log.finish().unwrap().rows.get(EPS_ID).unwrap(), [0, 0, 1]);
        let agents = batch(&[1; 4], &[1.0, 2.0, 3.0, 4.0], &[false; 4]);
        let mut log = EpisodeLog::new(&["rewards"]);
        log.add(&agents.with(AGENT_INDEX, ColumnData::scalars(vec![0, 1, 0, 1])).unwrap()).unwrap();
        assert_eq!(log.finish().unwrap().rows.get(REWARDS).unwrap(), [1.0, 3.0, 2.0, 4.0]);
    }

    #[test]
    fn log_without_its_columns_is_refused() {
        let mut log = EpisodeLog::new(&["rewards", "terminateds"]);
        let rewards = |n| SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![0.0; n])).unwrap();
        let missing = EstimateError::Batch(BatchError::MissingColumn("eps_id".into()));
        assert_eq!(log.add(&rewards(1)).unwrap_err(), missing);
        assert!(log.is_empty() && EpisodeLog::new(&[]).finish().unwrap().rows.is_empty());
        log.add(&rewards(1).with(EPS_ID, ColumnData::scalars(vec![0])).unwrap()).unwrap();
        log.add(&batch(&[0], &[1.0], &[true])).unwrap();
        assert!(matches!(log.finish(), Err(EstimateError::Batch(BatchError::MissingColumn(_)))));
    }
}
