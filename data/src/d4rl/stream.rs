//! Converts a D4RL file to batches.

use rollmesh_core::{
    batch::AnyBatch,
    column::{Column, ColumnData, DType},
};

use super::{
    super::dataset::{BatchStream, DatasetError, Episode, append, beyond_32_bits, cast, has_more_digits},
    ACTIONS, D4rlFile, NEXT_OBSERVATIONS, OBSERVATIONS, REWARDS, TERMINALS, TIMEOUTS,
};

/// The batches of a D4RL file, window by window.
pub struct D4rlStream {
    file: D4rlFile,
    window: Option<EpisodeWindow>,
    /// First unread row.
    at: u64,
    /// Number of the episode, and its steps so far.
    episode: i64,
    t: u64,
    given_up: u64,
    /// True if rewards lost digits by their conversion to 32 bits.
    is_narrowed: bool,
}

/// A window of rows, partly returned.
struct EpisodeWindow {
    /// Columns of the window; observations have one more row if it exists.
    columns: Vec<(String, Column)>,
    terminals: Vec<bool>,
    timeouts: Vec<bool>,
    given: usize,
    is_last: bool,
}

impl D4rlStream {
    pub(super) fn new(file: D4rlFile) -> Self {
        Self { file, window: None, at: 0, episode: 0, t: 0, given_up: 0, is_narrowed: false }
    }

    /// Returns the number of rows so far that provided only their observation, see the [module](super).
    #[must_use]
    pub fn rows_given_up(&self) -> u64 {
        self.given_up
    }

    fn read_window(&mut self) -> Result<Option<EpisodeWindow>, DatasetError> {
        let (file, at) = (&self.file, self.at);
        if at >= file.rows {
            return Ok(None);
        }
        let mut end = file.rows.min(at + file.window());
        // A step whose successor is dropped becomes the truncated one, so both must be in one window.
        if end < file.rows {
            let next = end..end + 1;
            let is_cut = |flags: Vec<bool>| flags.first() == Some(&true);
            let cut = is_cut(file.flags(TERMINALS, next.clone())?) || is_cut(file.flags(TIMEOUTS, next)?);
            end += u64::from(cut || end + 1 == file.rows);
        }
        let mut columns = Vec::with_capacity(file.columns.len());
        for (name, column) in &file.columns {
            let ahead = u64::from(name == OBSERVATIONS);
            let column = column.read_rows(at..end + ahead)?;
            self.is_narrowed |= name == REWARDS && has_more_digits(&column);
            columns.push((name.clone(), if name == REWARDS { cast(name, &column, DType::F32)? } else { column }));
        }
        let (terminals, timeouts) = (file.flags(TERMINALS, at..end)?, file.flags(TIMEOUTS, at..end)?);
        self.at = end;
        Ok(Some(EpisodeWindow { columns, terminals, timeouts, given: 0, is_last: end == file.rows }))
    }

    /// Returns the next piece of the window: up to the end of its episode.
    fn piece(&mut self, window: &mut EpisodeWindow) -> Result<Option<AnyBatch>, DatasetError> {
        let from = window.given;
        let rows = window.terminals.len();
        let cut = (from..rows)
            .find(|row| window.terminals.get(*row) == Some(&true) || window.timeouts.get(*row) == Some(&true));
        let end = cut.map_or(rows, |cut| cut + 1);
        window.given = end;
        let terminal = cut.is_some_and(|cut| window.terminals.get(cut) == Some(&true));
        let timeout = cut.is_some_and(|cut| window.timeouts.get(cut) == Some(&true));
        let recorded = window.columns.iter().any(|(name, _)| name == NEXT_OBSERVATIONS);
        let is_end = cut.is_some() || (end == rows && window.is_last);
        let gives_up = is_end && !terminal && !recorded;
        let steps = end - from - usize::from(gives_up);
        let (id, t) = (self.episode, self.t);
        self.t += steps as u64;
        if is_end {
            (self.episode, self.t) = (id + 1, 0);
        }
        self.given_up += u64::from(gives_up);
        if steps == 0 {
            return Ok(None);
        }
        let flags = |last: bool| {
            let mut flags = vec![false; steps];
            flags.last_mut().into_iter().for_each(|flag| *flag = last);
            Column::from(ColumnData::scalars(flags))
        };
        let mut episode = Episode {
            id,
            t,
            observations: Vec::new(),
            actions: Vec::new(),
            rewards: flags(false),
            terminateds: flags(terminal),
            truncateds: flags(gives_up || timeout),
            others: Vec::new(),
        };
        for (name, column) in &window.columns {
            let part = column.slice(from..from + steps);
            match name.as_str() {
                OBSERVATIONS if recorded => episode.observations.push((String::new(), part)),
                OBSERVATIONS if terminal => {
                    let observations = append(&column.slice(from..end), &column.slice(end - 1..end))?;
                    episode.observations.push((String::new(), observations));
                }
                OBSERVATIONS => episode.observations.push((String::new(), column.slice(from..from + steps + 1))),
                NEXT_OBSERVATIONS => episode.others.push(("new_obs".to_string(), part)),
                ACTIONS => episode.actions.push((String::new(), part)),
                REWARDS => episode.rewards = part,
                TERMINALS | TIMEOUTS => {}
                _ => episode.others.push((name.clone(), part)),
            }
        }
        Ok(Some(episode.batch()?.into()))
    }
}

impl BatchStream for D4rlStream {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        loop {
            let mut window = match self.window.take() {
                Some(window) if window.given < window.terminals.len() => window,
                _ => match self.read_window()? {
                    Some(window) => window,
                    None => return Ok(None),
                },
            };
            let batch = self.piece(&mut window)?;
            self.window = Some(window);
            if batch.is_some() {
                return Ok(batch);
            }
        }
    }

    fn left_out(&self) -> Vec<String> {
        let arrays = self.file.left_out.iter().map(|name| format!("array '{name}', which has other rows"));
        let rows = format!("{} rows that only gave their observation, as the last ones before a cut", self.given_up);
        let digits = self.is_narrowed.then(|| beyond_32_bits("rewards"));
        arrays.chain((self.given_up > 0).then_some(rows)).chain(digits).collect()
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        (self.window, self.at, self.episode, self.t, self.given_up) = (None, 0, 0, 0, 0);
        Ok(())
    }
}
