//! Keeps some steps of a file, to be replayed.

use std::{collections::BTreeMap, mem, ops::Range};

use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, AnyBatch, OBS, REWARDS, SampleBatch, VF_PREDS, codec},
    column::{Column, ColumnData, RowShape},
    env::Frame,
    hub::Reel,
    protocol::message::EnvClip,
};

use super::Steps;

/// Columns of a step that are shown, …
const COLUMNS: [&str; 5] = [OBS.name(), ACTIONS.name(), REWARDS.name(), ACTION_LOGP.name(), VF_PREDS.name()];
/// … unless they have more numbers than this.
const MAX_ELEMENTS: usize = 32;

/// The steps from the beginning of an episode on, as many as a clip holds. They have pictures if the observations are pictures.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Number of episodes of the file that come before.
    first: u32,
    /// The open episode, the number of its steps so far, and its key in the file.
    episode: u32,
    t: u32,
    key: Option<(i64, i64)>,
    reel: Reel,
    /// By name: the elements of a row, and those of all steps.
    columns: BTreeMap<&'static str, (usize, Vec<f64>)>,
    steps: usize,
    is_over: bool,
}

impl Replay {
    pub(super) fn new(first: u32) -> Self {
        Self { first, ..Self::default() }
    }

    /// The file has no more batches.
    pub(super) fn finish(&mut self) {
        self.is_over = true;
    }

    /// Adds the next batch of the file. Batches of several agents are left out.
    pub(super) fn add(&mut self, batch: &AnyBatch) {
        let Some(mut batch) = batch.single().ok().filter(|_| !self.is_over).cloned() else { return };
        // The survey reports damaged columns.
        let _ = batch.decompress_if_needed();
        let steps = Steps::of(&batch);
        let mut kept = batch.len()..0;
        for (row, (&key, &ends)) in steps.keys.iter().zip(&steps.ends).enumerate() {
            if self.t > 0 && self.key != Some(key) {
                (self.episode, self.t) = (self.episode.saturating_add(1), 0);
            }
            self.key = Some(key);
            if self.episode >= self.first && !self.is_over {
                let obs = batch.column(OBS.name());
                self.reel.add((self.episode, self.t), &mut |frame| obs.is_some_and(|obs| draw(obs, row, frame)));
                kept = kept.start.min(row)..row + 1;
                self.steps += 1;
                self.is_over = self.steps == EnvClip::MAX_STEPS;
            }
            self.t = self.t.saturating_add(1);
            if ends {
                (self.episode, self.t) = (self.episode.saturating_add(1), 0);
            }
        }
        self.add_rows(&batch, kept);
    }

    fn add_rows(&mut self, batch: &SampleBatch, rows: Range<usize>) {
        for name in COLUMNS {
            let Some(column) = batch.column(name) else { continue };
            let elements = column.shape().elements();
            let rows = rows.start * elements..rows.end * elements;
            let (known, values) = self.columns.entry(name).or_insert((elements, Vec::new()));
            if *known == elements && elements <= MAX_ELEMENTS {
                let numbers = column.numbers().unwrap_or_default();
                values.extend(numbers.get(rows).unwrap_or_default());
            }
        }
    }

    /// Returns the steps once they are complete, and `None` before and after that, and if there is no such episode.
    pub(super) fn take(&mut self) -> Option<EnvClip> {
        if !self.is_over || self.steps == 0 {
            return None;
        }
        let mut clip = mem::take(&mut self.reel).finish(EnvClip::default());
        if clip.film.is_empty() {
            clip.reason = "the observations are not images".into();
        }
        let (steps, mut rows) = (clip.steps().count(), SampleBatch::new());
        for (name, (elements, mut values)) in mem::take(&mut self.columns) {
            let is_whole = values.len() == self.steps * elements;
            values.truncate(steps * elements);
            let column = ColumnData::new(values, RowShape::vector(elements as u32));
            // A column that not every batch has is left out.
            let _ = column.is_ok_and(|column| is_whole && rows.insert(name, Column::F64(column)).is_ok());
        }
        self.steps = 0;
        clip.batch = codec::encode(&rows);
        Some(clip)
    }
}

/// Draws an observation of height x width x 3 (or 1, grey) bytes; false for others.
fn draw(obs: &Column, row: usize, frame: &mut Frame) -> bool {
    let Column::U8(pixels) = obs else { return false };
    let Some(pixels) = pixels.row(row) else { return false };
    match *obs.shape().dims() {
        [height, width, 3] => frame.set(width, height, pixels),
        [height, width, 1] => {
            let grey: Vec<u8> = pixels.iter().flat_map(|pixel| [*pixel; 3]).collect();
            frame.set(width, height, &grey)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        batch::{EPS_ID, TERMINATEDS},
        env::render::Film,
    };

    use super::*;

    /// Two rows of an episode, which ends with them or not.
    fn batch(episode: i64, rewards: [f32; 2], ends: bool) -> AnyBatch {
        let pixels = ColumnData::new(
            rewards.iter().flat_map(|reward| [*reward as u8; 4]).collect(),
            RowShape::new(&[2, 2, 1]).expect("a shape"),
        );
        let batch = SampleBatch::new()
            .with(EPS_ID, ColumnData::scalars(vec![episode; 2]))
            .and_then(|batch| batch.with(REWARDS, ColumnData::scalars(rewards.to_vec())))
            .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(vec![false, ends])));
        let mut batch = batch.expect("columns of two rows");
        batch.insert(OBS.name().to_owned(), Column::U8(pixels.expect("two pictures"))).expect("two rows");
        batch.into()
    }

    fn replayed(first: u32, batches: &[AnyBatch]) -> Option<EnvClip> {
        let mut replay = Replay::new(first);
        batches.iter().for_each(|batch| replay.add(batch));
        assert_eq!(replay.take(), None, "there may be more");
        replay.finish();
        let clip = replay.take();
        assert_eq!(replay.take(), None, "it was taken");
        clip
    }

    #[test]
    fn steps_of_an_episode_and_of_those_after_it_are_kept_with_their_pictures() {
        let file = [batch(7, [1.0, 2.0], true), batch(8, [3.0, 4.0], false), batch(9, [5.0, 6.0], true)];
        let clip = replayed(1, &file).expect("a second episode");
        assert_eq!(clip.steps().collect::<Vec<_>>(), [(1, 0), (1, 1), (2, 0), (2, 1)]);
        let rows = codec::decode(&clip.batch).expect("rows");
        assert_eq!(rows.column(REWARDS.name()).and_then(Column::numbers), Some(vec![3.0, 4.0, 5.0, 6.0]));
        let mut film = Film::read(clip.width, clip.height, &clip.film).expect("a film");
        assert_eq!(film.picture(2).map(|frame| frame.rgb()[0]), Some(5));
        assert_eq!(replayed(3, &file), None, "there are three episodes");
    }

    #[test]
    fn clip_is_complete_before_the_end_of_a_long_file() {
        let mut replay = Replay::new(0);
        for _ in 0..=EnvClip::MAX_STEPS / 2 {
            replay.add(&batch(1, [1.0, 1.0], false));
        }
        let clip = replay.take().expect("it is full");
        assert_eq!(clip.steps().last(), Some((0, EnvClip::MAX_STEPS as u32 - 1)));
    }
}
