//! The playback of clips at a chosen speed.

use std::sync::Arc;

use rollmesh_core::env::{Frame, render::Film};

use crate::state::Clip;

/// The longest pause that counts as time; longer ones, for example of a hidden page, are skipped.
const LONGEST_PAUSE_MS: f64 = 250.0;

/// A moment of a clip.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) clip: Arc<Clip>,
    /// The number of steps since the start of the clip.
    pub(crate) step: usize,
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.step == other.step && Arc::ptr_eq(&self.clip, &other.clip)
    }
}

/// A clip and the position in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Playback {
    now: Option<Now>,
    next: Option<Arc<Clip>>,
}

#[derive(Clone, Debug)]
struct Now {
    clip: Arc<Clip>,
    film: Film,
    /// The position in steps.
    place: f64,
}

impl Now {
    fn new(clip: Arc<Clip>) -> Self {
        let report = &clip.report;
        let film = Film::read(report.width, report.height, &report.film).unwrap_or_default();
        Self { film, clip, place: 0.0 }
    }

    fn last(&self) -> usize {
        self.clip.steps.len().saturating_sub(1)
    }
}

impl Playback {
    /// Takes the newest clip. It is shown when the one being shown has ended, or immediately if it is of another slot or run or of a
    /// file, or if the one being shown does not play and is at its start.
    pub(crate) fn offer(&mut self, clip: &Arc<Clip>, is_playing: bool) {
        let key = |clip: &Clip| (clip.report.run, clip.report.slot);
        // Runs are numbered from 1; clips of files have run 0.
        let continues = |now: &Now| clip.report.run > 0 && key(&now.clip) == key(clip);
        let stays = |now: &Now| continues(now) && !now.clip.steps.is_empty() && (is_playing || now.place > 0.0);
        match &self.now {
            Some(now) if Arc::ptr_eq(&now.clip, clip) => {}
            Some(now) if stays(now) => self.next = Some(clip.clone()),
            _ => *self = Self { now: Some(Now::new(clip.clone())), next: None },
        }
    }

    /// Removes all clips.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Advances the playback by a time. At the end of a clip its last moment stays until there is a newer clip, or the
    /// clip is played again.
    pub(crate) fn advance(&mut self, ms: f64, steps_per_s: f64, again: bool) {
        let Some(now) = &mut self.now else { return };
        now.place += ms.clamp(0.0, LONGEST_PAUSE_MS) * steps_per_s / 1_000.0;
        let end = now.last() as f64 + 1.0;
        if now.place < end {
            return;
        }
        match self.next.take() {
            Some(next) => *now = Now::new(next),
            None if again => now.place = 0.0,
            None => now.place = end - 1.0,
        }
    }

    /// Sets the position to a step.
    pub(crate) fn seek(&mut self, step: usize) {
        if let Some(now) = &mut self.now {
            now.place = step.min(now.last()) as f64;
        }
    }

    /// Returns the moment to show; `None` without a clip.
    #[must_use]
    pub(crate) fn moment(&self) -> Option<Moment> {
        let now = self.now.as_ref()?;
        Some(Moment { clip: now.clip.clone(), step: (now.place as usize).min(now.last()) })
    }

    /// Returns the moment's picture, or the one of the latest earlier step that has one.
    pub(crate) fn picture(&mut self) -> Option<&Frame> {
        let now = self.now.as_mut()?;
        let step = (now.place as usize).min(now.last());
        let index = step / (now.clip.report.stride as usize).max(1);
        now.film.picture(index.min(now.film.len().checked_sub(1)?))
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{env::render::FilmWriter, protocol::message::EnvClip};

    use super::*;

    fn clip(slot: u32, steps: u32) -> Arc<Clip> {
        let (mut writer, mut frame) = (FilmWriter::default(), Frame::new());
        for step in 0..steps {
            frame.fill(4, 2, [step as u8 + 1, 0, 0]);
            assert!(writer.add(&frame));
        }
        let numbers = (0..steps).flat_map(|t| [0, t]).flat_map(u32::to_le_bytes).collect();
        let (film, _) = writer.finish(10_000);
        let report =
            EnvClip { run: 1, slot, steps: numbers, width: 4, height: 2, stride: 1, film, ..EnvClip::default() };
        Arc::new(Clip::read(report))
    }

    fn shown(playback: &mut Playback) -> Option<(u32, usize, u8)> {
        let Moment { clip, step } = playback.moment()?;
        Some((clip.report.slot, step, playback.picture()?.rgb()[0]))
    }

    #[test]
    fn steps_are_shown_at_the_chosen_speed_and_the_last_one_stays() {
        let mut playback = Playback::default();
        assert_eq!(shown(&mut playback), None);
        playback.offer(&clip(0, 3), true);
        assert_eq!(shown(&mut playback), Some((0, 0, 1)));
        playback.advance(100.0, 10.0, false);
        assert_eq!(shown(&mut playback), Some((0, 1, 2)));
        playback.advance(100.0, 90.0, false);
        assert_eq!(shown(&mut playback), Some((0, 2, 3)));
        playback.advance(100.0, 10.0, true);
        assert_eq!(shown(&mut playback), Some((0, 0, 1)));
        playback.seek(9);
        assert_eq!(shown(&mut playback), Some((0, 2, 3)));
    }

    #[test]
    fn newest_clip_follows_and_another_slot_comes_immediately() {
        let mut playback = Playback::default();
        playback.offer(&clip(0, 2), true);
        playback.offer(&clip(0, 3), true);
        playback.offer(&clip(0, 4), true);
        assert_eq!(playback.moment().map(|moment| moment.clip.steps.len()), Some(2));
        playback.advance(250.0, 10.0, false);
        assert_eq!(playback.moment().map(|moment| moment.clip.steps.len()), Some(4));
        playback.offer(&clip(7, 1), true);
        assert_eq!(shown(&mut playback), Some((7, 0, 1)));
    }

    #[test]
    fn clip_that_stands_at_its_start_is_replaced_and_a_chosen_step_stays() {
        let mut playback = Playback::default();
        playback.offer(&clip(0, 2), false);
        playback.offer(&clip(0, 3), false);
        assert_eq!(playback.moment().map(|moment| moment.clip.steps.len()), Some(3));
        playback.seek(1);
        playback.offer(&clip(0, 4), false);
        assert_eq!(playback.moment().map(|moment| (moment.clip.steps.len(), moment.step)), Some((3, 1)));
    }

    #[test]
    fn clip_of_a_file_is_shown_immediately_while_another_one_plays_or_stands_at_a_later_step() {
        let of_file = |steps| {
            let report = clip(0, steps).report.clone();
            Arc::new(Clip::read(EnvClip { run: 0, ..report }))
        };
        let mut playback = Playback::default();
        for (steps, is_playing) in [(4, true), (3, true), (2, false)] {
            playback.offer(&of_file(steps), is_playing);
            let shown = playback.moment().map(|moment| (moment.clip.steps.len(), moment.step));
            assert_eq!(shown, Some((steps as usize, 0)));
            playback.seek(1);
        }
    }

    #[test]
    fn clips_without_pictures_have_moments_only() {
        let report = EnvClip { steps: vec![0; 16], film: vec![1, 2, 3], width: 4, ..EnvClip::default() };
        let mut playback = Playback::default();
        playback.offer(&Arc::new(Clip::read(report)), true);
        assert_eq!(playback.picture(), None);
        assert_eq!(playback.moment().map(|moment| moment.clip.steps.len()), Some(2));
    }
}
