//! The runs of a hub that wait, and those that are over: one runs at a time.

use crate::{
    prelude::*,
    protocol::message::{RunHistory, RunList, RunRow},
    run::RunConfig,
};

/// A hub's waiting and past runs.
#[derive(Clone, Debug, Default)]
pub struct RunQueue {
    waiting: VecDeque<WaitingRun>,
    past: VecDeque<PastRun>,
}

/// A waiting run; its number is assigned already.
#[derive(Clone, Debug)]
pub struct WaitingRun {
    /// The number.
    pub number: u32,
    /// The settings.
    pub config: RunConfig,
}

/// A run that is over.
#[derive(Clone, Debug)]
struct PastRun {
    row: RunRow,
    /// `None` if it could not begin, or was lost in a roll-back.
    history: Option<RunHistory>,
}

impl WaitingRun {
    /// Returns the run as lists show it.
    #[must_use]
    pub fn row(&self) -> RunRow {
        RunRow {
            run: self.number,
            env: self.config.env().into(),
            algo: self.config.algorithm.clone().unwrap_or_default(),
            seed: self.config.rollout.seed,
            episode_return_mean: f32::NAN,
            ..RunRow::default()
        }
    }
}

impl RunQueue {
    /// Most waiting runs.
    pub const MAX_WAITING: usize = 64;
    /// Most past runs that are listed.
    pub const MAX_PAST: usize = 64;

    /// Returns true if no run waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if no more runs may wait.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= Self::MAX_WAITING
    }

    /// Adds a run that waits.
    pub fn push(&mut self, run: WaitingRun) {
        self.waiting.push_back(run);
    }

    /// Removes and returns the run that has waited longest.
    pub fn pop(&mut self) -> Option<WaitingRun> {
        self.waiting.pop_front()
    }

    /// Returns the run that has waited longest.
    #[must_use]
    pub fn first(&self) -> Option<&WaitingRun> {
        self.waiting.front()
    }

    /// Returns true if a run of this number waits.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.waiting.iter().any(|run| run.number == number)
    }

    /// Removes and returns the waiting run of this number, if there is one.
    pub fn remove(&mut self, number: u32) -> Option<WaitingRun> {
        let index = self.waiting.iter().position(|run| run.number == number)?;
        self.waiting.remove(index)
    }

    /// Adds a run that is over, with its curves and settings; `None` if it could not begin, or was lost in a roll-back.
    pub fn add_past(&mut self, row: RunRow, history: Option<RunHistory>) {
        if self.past.len() == Self::MAX_PAST {
            self.past.pop_front();
        }
        self.past.push_back(PastRun { row, history });
    }

    /// Returns the curves and settings of a past run.
    #[must_use]
    pub fn history(&self, number: u32) -> Option<&RunHistory> {
        self.past.iter().filter_map(|run| run.history.as_ref()).find(|history| history.run == number)
    }

    /// Returns all runs by number, the waiting ones last: a run that was rolled back has a higher number than they have, and
    /// comes before them.
    #[must_use]
    pub fn list(&self, current: Option<RunRow>, may_wait: bool) -> RunList {
        let waiting = self.waiting.iter().zip(1..).map(|(run, place)| RunRow { place, ..run.row() });
        let mut runs: Vec<RunRow> = self.past.iter().map(|run| run.row.clone()).chain(waiting).chain(current).collect();
        runs.sort_by_key(|row| (row.place, row.run));
        // Texts of users are shortened; the run's files have the full ones.
        runs.iter_mut().for_each(|row| {
            [(&mut row.env, 150), (&mut row.error, 450), (&mut row.run_dir, 150)]
                .into_iter()
                .for_each(|(text, chars)| *text = first_of(text, chars));
        });
        RunList { may_wait, runs }
    }
}

/// Shortens a text to this many characters, after a word, so that a list of all runs fits into a message: a character has at
/// most four bytes.
fn first_of(text: &str, chars: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(chars) else { return text.into() };
    let first: String = text[..end].chars().take(chars - 1).collect();
    let words = first.rsplit_once(' ').map_or(&*first, |(words, _)| words);
    format!("{words}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Message, MessageFrame};

    #[test]
    fn list_of_all_runs_is_in_order_and_fits_into_a_message() {
        let mut queue = RunQueue::default();
        for number in 0..2 * RunQueue::MAX_WAITING as u32 {
            let text = "ä".repeat(10_000);
            queue.add_past(RunRow { run: number, error: text.clone(), run_dir: text, ..RunRow::default() }, None);
            if !queue.is_full() {
                queue.push(WaitingRun { number: 1_000 + number, config: RunConfig::new("x".repeat(10_000)) });
            }
        }
        assert!(queue.remove(1_001).is_some() && queue.remove(1_001).is_none());
        let list = queue.list(Some(RunRow { run: 2_000, ..RunRow::default() }), true);
        let places: Vec<(u32, u32)> = list.runs.iter().map(|row| (row.place, row.run)).collect();
        let (past, waiting) = (RunQueue::MAX_PAST, RunQueue::MAX_WAITING);
        assert_eq!(places.len(), past + 1 + waiting - 1);
        assert_eq!((places[0], places[past], places[past + 1]), ((0, 64), (0, 2_000), (1, 1_000)));
        assert_eq!(places[past + 2], (2, 1_002), "the places close up");
        assert!(MessageFrame::new(&Message::RunList(list)).is_ok());
        assert_eq!(queue.pop().map(|run| run.number), Some(1_000));
    }
}
