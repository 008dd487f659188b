//! Keeps some steps of a file, to be replayed.

use std::{collections::BTreeMap, mem};

use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, AnyBatch, Continuation, OBS, OpenEpisodes, REWARDS, SampleBatch, VF_PREDS, codec},
    column::{Column, ColumnData, RowShape},
    env::Frame,
    hub::Reel,
    protocol::message::EnvClip,
};

use super::{EpisodeStats, Steps, kind_of};

/// The columns of a step that are shown, except those with more than [`MAX_ELEMENTS`] numbers.
const COLUMNS: [&str; 5] = [OBS.name(), ACTIONS.name(), REWARDS.name(), ACTION_LOGP.name(), VF_PREDS.name()];
/// Maximum number of numbers in a shown column of a step.
const MAX_ELEMENTS: usize = 32;

/// The steps from the beginning of an episode on, in the order of the file, as many as a clip holds. They have pictures if the
/// observations are pictures.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Index of the first episode to keep.
    first: u32,
    /// Open episodes: the index by first appearance, and the number of the next step.
    open: OpenEpisodes<(u32, u32)>,
    /// Number of episodes that have begun.
    begun: u32,
    reel: Reel,
    /// The reason why an observation is not a picture.
    reason: Option<String>,
    /// By name: the elements of a row, and those of all steps.
    columns: BTreeMap<&'static str, (usize, Vec<f64>)>,
    steps: usize,
    is_over: bool,
}

impl Replay {
    pub(super) fn new(first: u32) -> Self {
        Self { first, ..Self::default() }
    }

    /// Ends the file.
    pub(super) fn finish(&mut self) {
        self.is_over = true;
    }

    /// Adds the next batch of the file. Batches of several agents are left out.
    pub(super) fn add(&mut self, batch: &AnyBatch) {
        let Some(mut batch) = batch.single().ok().filter(|_| !self.is_over).cloned() else { return };
        // The survey reports damaged columns.
        let _ = batch.decompress_if_needed();
        let (steps, mut kept) = (Steps::of(&batch), Vec::new());
        for (row, (&key, &end)) in steps.keys.iter().zip(&steps.ends).enumerate() {
            let at = self.place(key, steps.t(row), end);
            if at.0 >= self.first && self.steps < EnvClip::MAX_STEPS {
                let (obs, reason) = (batch.column(OBS.name()), &mut self.reason);
                self.reel.add(at, &mut |frame| draw(obs, row, frame).map_err(|why| *reason = Some(why)).is_ok());
                kept.push(row);
                self.steps += 1;
            }
        }
        self.is_over = self.steps == EnvClip::MAX_STEPS;
        if !kept.is_empty() {
            self.add_rows(&batch, &kept);
        }
    }

    /// Returns the episode and `t` of the next row. Episodes are distinguished as by the survey, which counts them.
    fn place(&mut self, key: (i64, i64), t: Option<i64>, end: bool) -> (u32, u32) {
        let at = match self.open.place(key, t, false) {
            Continuation::GoesOn(at) => at,
            Continuation::Begins | Continuation::Instead(_) => {
                self.begun = self.begun.saturating_add(1);
                (self.begun - 1, t.and_then(|t| u32::try_from(t).ok()).unwrap_or(0))
            }
        };
        if !end {
            self.open.leave(key, t.map(|t| t.saturating_add(1)), (at.0, at.1.wrapping_add(1)));
        }
        if self.open.len() > EpisodeStats::MOST_OPEN {
            self.open.pop_first();
        }
        at
    }

    fn add_rows(&mut self, batch: &SampleBatch, rows: &[usize]) {
        for name in COLUMNS {
            let Some(column) = batch.column(name) else { continue };
            let elements = column.shape().elements();
            let (known, values) = self.columns.entry(name).or_insert((elements, Vec::new()));
            if *known == elements && elements <= MAX_ELEMENTS {
                let numbers = column.numbers().unwrap_or_default();
                let of_row = |row: &usize| numbers.get(row * elements..(row + 1) * elements);
                values.extend(rows.iter().filter_map(of_row).flatten());
            }
        }
    }

    /// Returns the steps once they are complete, and `None` before and after that, and if there is no such episode.
    pub(super) fn take(&mut self) -> Option<EnvClip> {
        if !self.is_over || self.steps == 0 {
            return None;
        }
        let mut clip = mem::take(&mut self.reel).finish(EnvClip::default());
        if clip.film.is_empty()
            && let Some(reason) = self.reason.take()
        {
            clip.reason = reason;
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

/// Draws an observation of height x width x 3 (or 1, grey) bytes.
///
/// # Errors
/// The reason why it is not a picture.
fn draw(obs: Option<&Column>, row: usize, frame: &mut Frame) -> Result<(), String> {
    let obs = obs.ok_or("the file has no observations")?;
    let (Column::U8(pixels), &[height, width, channels @ (1 | 3)]) = (obs, obs.shape().dims()) else {
        let kind = kind_of(obs);
        return Err(format!(
            "observations of (height, width, 3) or (height, width, 1) uint8 are drawn, these are {kind}"
        ));
    };
    let pixels = pixels.row(row).unwrap_or_default();
    let is_drawn = width.max(height) <= Frame::MAX_SIDE
        && match channels {
            3 => frame.set(width, height, pixels),
            _ => frame.set(width, height, &pixels.iter().flat_map(|grey| [*grey; 3]).collect::<Vec<_>>()),
        };
    is_drawn.then_some(()).ok_or_else(|| format!("an observation of {width} x {height} pixels is too large"))
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        batch::{EPS_ID, T, TERMINATEDS},
        env::render::Film,
    };

    use super::{super::Survey, *};

    /// Returns rows of episodes, each with its reward; the last row may end its episode.
    fn rows(episodes: &[i64], rewards: &[f32], ends: bool) -> SampleBatch {
        let last = rewards.len() - 1;
        let ends = (0..=last).map(|row| ends && row == last).collect();
        let batch = SampleBatch::new()
            .with(EPS_ID, ColumnData::scalars(episodes.to_vec()))
            .and_then(|batch| batch.with(REWARDS, ColumnData::scalars(rewards.to_vec())))
            .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(ends)));
        batch.expect("columns of as many rows")
    }

    fn with_obs(mut batch: SampleBatch, obs: Column) -> AnyBatch {
        batch.insert(OBS.name().to_owned(), obs).expect("as many rows");
        batch.into()
    }

    fn bytes(rows: usize, shape: &[u32], of: impl FnMut(usize) -> u8) -> Column {
        let shape = RowShape::new(shape).expect("a shape");
        Column::U8(ColumnData::new((0..rows * shape.elements()).map(of).collect(), shape).expect("whole rows"))
    }

    /// Returns two rows of an episode with pictures, which ends with them or not.
    fn batch(episode: i64, rewards: [f32; 2], ends: bool) -> AnyBatch {
        with_obs(rows(&[episode; 2], &rewards, ends), bytes(2, &[2, 2, 1], |at| rewards[at / 4] as u8))
    }

    fn rewards(clip: &EnvClip) -> Option<Vec<f64>> {
        codec::decode(&clip.batch).expect("rows").column(REWARDS.name()).and_then(Column::numbers)
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
        assert_eq!(rewards(&clip), Some(vec![3.0, 4.0, 5.0, 6.0]));
        let mut film = Film::read(clip.width, clip.height, &clip.film).expect("a film");
        assert_eq!(film.picture(2).map(|frame| frame.rgb()[0]), Some(5));
        assert_eq!(replayed(3, &file), None, "there are three episodes");
    }

    #[test]
    fn interleaved_episodes_are_numbered_by_their_first_appearance_and_counted_by_the_survey() {
        let both = || rows(&[7, 8, 7, 8], &[1.0, 2.0, 3.0, 4.0], false);
        let file = [both().into(), batch(7, [5.0, 6.0], true), batch(8, [7.0, 8.0], true)];
        let clip = replayed(0, &file).expect("an episode");
        assert_eq!(clip.steps().collect::<Vec<_>>(), [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
        let clip = replayed(1, &file).expect("another episode");
        assert_eq!(clip.steps().collect::<Vec<_>>(), [(1, 0), (1, 1), (1, 2), (1, 3)]);
        assert_eq!(rewards(&clip), Some(vec![2.0, 4.0, 7.0, 8.0]));
        let mut survey = Survey::default();
        file.iter().for_each(|batch| survey.add(batch).expect("whole columns"));
        assert_eq!(survey.report(1).policies["default_policy"].episodes, 2);
        assert_eq!(replayed(2, &file), None);

        // Their steps are those of the file, if it has them. An episode that restarts is another one.
        let at = |ts: [i64; 4]| both().with(T, ColumnData::scalars(ts.to_vec())).expect("four rows").into();
        let clip = replayed(0, &[at([5, 0, 6, 1]), at([7, 0, 8, 1])]).expect("an episode");
        assert_eq!(clip.steps().collect::<Vec<_>>(), [(0, 5), (1, 0), (0, 6), (1, 1), (0, 7), (2, 0), (0, 8), (2, 1)]);
    }

    #[test]
    fn observations_without_pictures_have_their_own_reason() {
        let reason = |obs| replayed(0, &[with_obs(rows(&[7], &[1.0], true), obs)]).expect("a step").reason;
        let four = reason(Column::F32(ColumnData::new(vec![0.0; 4], RowShape::vector(4)).expect("a row")));
        assert!(four.ends_with("these are float32 (4)"), "{four}");
        let stacked = reason(bytes(1, &[8, 8, 4], |_| 0));
        assert!(stacked.ends_with("these are uint8 (8, 8, 4)"), "{stacked}");
        let wide = reason(bytes(1, &[1, Frame::MAX_SIDE + 1, 1], |_| 0));
        assert_eq!(wide, "an observation of 4097 x 1 pixels is too large");
        let mut word = 1_u32;
        let noise = reason(bytes(1, &[320, 320, 3], |_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word.to_be_bytes()[0]
        }));
        assert!(noise.contains("too large for a message"), "{noise}");
    }

    #[test]
    fn column_of_another_width_before_the_episode_does_not_hide_it() {
        let wide = with_obs(rows(&[7, 7], &[1.0, 2.0], true), bytes(2, &[3], |_| 0));
        let clip = replayed(1, &[wide, batch(8, [3.0, 4.0], true)]).expect("a second episode");
        assert!(codec::decode(&clip.batch).expect("rows").column(OBS.name()).is_some());
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
