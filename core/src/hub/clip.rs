//! Pictures of a fragment: the shell recomputes it, as an audit does, and its environment draws itself before each step.

use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, AGENT_INDEX, EPS_ID, MultiAgentBatch, REWARDS, SampleBatch, SlotFragment, T, VF_PREDS,
        codec,
    },
    env::{Frame, render::FilmWriter},
    ids::LeaseId,
    lease::{Lease, LeasedSlot, SlotSource},
    prelude::*,
    protocol::{message::EnvClip, printable},
    weights::Weights,
    worker::{RunnerError, SlotRunner},
};

/// Columns that a dashboard shows of a step.
const COLUMNS: [&str; 7] =
    [ACTIONS.name(), REWARDS.name(), ACTION_LOGP.name(), VF_PREDS.name(), EPS_ID.name(), T.name(), AGENT_INDEX.name()];

/// A fragment whose pictures dashboards have requested.
#[derive(Clone, Debug)]
pub struct ClipJob {
    pub(super) run: u32,
    pub(super) fragment: SlotFragment,
    /// State of the slot before the fragment; `None` for a new slot.
    pub(super) start: Option<Vec<u8>>,
    pub(super) weights: Weights,
}

impl ClipJob {
    /// Returns the number of the run.
    #[must_use]
    pub fn run(&self) -> u32 {
        self.run
    }

    /// Recomputes the fragment with a runner of the same run. If that fails, the clip has the reason and no pictures.
    #[must_use]
    pub fn draw(&self, runner: &mut SlotRunner) -> EnvClip {
        self.try_draw(runner).unwrap_or_else(|error| self.without_pictures(&error.to_string()))
    }

    /// Returns a clip that gives the reason why there are no pictures.
    #[must_use]
    pub fn without_pictures(&self, reason: &str) -> EnvClip {
        without_pictures(self.run, &self.fragment, reason)
    }

    fn try_draw(&self, runner: &mut SlotRunner) -> Result<EnvClip, RunnerError> {
        let mut reel = Reel::default();
        let made = runner.replay_shown(self.lease(), &self.weights, &mut |at, picture| reel.add(at, picture))?;
        if made.first().is_none_or(|made| made.state != self.fragment.state) {
            let reason = "its fragments are other ones when they are recomputed: is the environment deterministic?";
            return Ok(self.without_pictures(reason));
        }
        let mut clip = reel.finish(self.without_pictures(""));
        let steps = clip.steps().count();
        let batch = match &self.fragment.agents {
            Some(agents) => {
                let rows =
                    agents.policy_batches.iter().map(|(policy, rows)| (policy.clone(), of_steps(rows, rows.len())));
                codec::encode_multi_agent(&MultiAgentBatch::new(rows.collect_ordered(), agents.env_steps()))
            }
            None => codec::encode(&of_steps(&self.fragment.rows, steps)),
        };
        if batch.len() <= EnvClip::MAX_BATCH_BYTES {
            clip.batch = batch;
        }
        Ok(clip)
    }

    fn lease(&self) -> Lease {
        let SlotFragment { slot, fragment, weights_version, .. } = self.fragment;
        let source = self.start.clone().map_or(SlotSource::New, SlotSource::State);
        Lease { id: LeaseId(0), fragment, weights_version, slots: vec![LeasedSlot::new(slot, source)] }
    }
}

/// Returns a clip that gives the reason why a fragment has no pictures.
pub(super) fn without_pictures(run: u32, fragment: &SlotFragment, reason: &str) -> EnvClip {
    let reason = short(reason);
    let SlotFragment { slot, weights_version, .. } = fragment;
    EnvClip { run, slot: slot.0, weights_version: weights_version.0, reason, ..EnvClip::default() }
}

/// Returns the columns that are shown, of the first rows.
fn of_steps(rows: &SampleBatch, steps: usize) -> SampleBatch {
    let mut shown = SampleBatch::new();
    for (name, column) in rows.iter().filter(|(name, _)| COLUMNS.contains(name)) {
        // Columns of one batch have one length.
        let _ = shown.insert(name.to_owned(), column.clone());
    }
    shown.slice(0, steps.min(shown.len())).unwrap_or_default()
}

/// Returns a reason as a message holds it.
fn short(reason: &str) -> String {
    printable(reason).chars().take(EnvClip::MAX_REASON_BYTES / 4).collect()
}

/// Steps with pictures, as many as a message holds.
#[derive(Debug)]
pub struct Reel {
    film: FilmWriter,
    steps: Vec<(u32, u32)>,
    /// A picture of every `stride`-th step.
    stride: usize,
    has_pictures: bool,
    is_full: bool,
    frame: Frame,
}

impl Default for Reel {
    fn default() -> Self {
        let (film, frame) = (FilmWriter::default(), Frame::new());
        Self { film, steps: Vec::new(), stride: 1, has_pictures: true, is_full: false, frame }
    }
}

impl Reel {
    /// Adds a step, its episode and `t`, unless the clip is full. `picture` draws it, or returns false if it cannot.
    pub fn add(&mut self, at: (u32, u32), picture: &mut dyn FnMut(&mut Frame) -> bool) {
        if self.is_full || self.steps.last() == Some(&at) {
            return;
        }
        if self.has_pictures && self.steps.len().is_multiple_of(self.stride) {
            self.has_pictures = picture(&mut self.frame);
            self.is_full = self.has_pictures && !self.add_frame();
        }
        if !self.is_full {
            self.steps.push(at);
        }
        self.is_full |= self.steps.len() == EnvClip::MAX_STEPS;
    }

    /// Adds the picture of a step to the film. The second one decides how many steps are skipped between two pictures; if
    /// some are, it is dropped: picture `i` shows step `i * stride`.
    fn add_frame(&mut self) -> bool {
        let first = (self.steps.len() == 1).then(|| self.film.clone());
        let is_added = self.film.add(&self.frame);
        if let Some(first) = first.filter(|_| is_added) {
            // LZ4 halves what photographs change from one step to the next; drawings are much smaller.
            let bytes = self.film.latest_bytes() / 2 * EnvClip::MAX_STEPS;
            self.stride = bytes.div_ceil(4 * EnvClip::MAX_FILM_BYTES).max(1);
            if self.stride > 1 {
                self.film = first;
            }
        }
        is_added
    }

    /// Completes a clip with the steps, or with the reason why there are no pictures.
    #[must_use]
    pub fn finish(mut self, clip: EnvClip) -> EnvClip {
        let (film, pictures) = self.film.finish(EnvClip::MAX_FILM_BYTES);
        let reason = match (pictures, self.has_pictures, self.frame.take_failure()) {
            (0, true, _) if !self.steps.is_empty() => "a picture of the environment is too large for a message".into(),
            (0, false, Some(reason)) => short(&format!("the environment cannot be rendered: {reason}")),
            (0, false, None) => "the environment draws none: implement `render`".into(),
            _ => String::new(),
        };
        let steps = if pictures > 0 { (pictures * self.stride).min(self.steps.len()) } else { self.steps.len() };
        let steps = self.steps.into_iter().take(steps).flat_map(|(episode, t)| [episode, t]);
        let (width, height) = self.film.size();
        let steps = steps.flat_map(u32::to_le_bytes).collect();
        EnvClip { steps, width, height, stride: self.stride as u32, film, reason, ..clip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::render::Film;

    /// Draws noise that no compression reduces, with the number of the step in the first pixel.
    fn noise(step: u32, side: u32, frame: &mut Frame) -> bool {
        let mut word = step + 1;
        let noise = (0..3 * side * side).map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word.to_be_bytes()[0]
        });
        let mut rgb: Vec<u8> = noise.collect();
        rgb[0] = step as u8;
        frame.set(side, side, &rgb)
    }

    fn reel(steps: u32, side: u32) -> EnvClip {
        let mut reel = Reel::default();
        (0..steps).for_each(|t| reel.add((0, t), &mut |frame| noise(t, side, frame)));
        reel.finish(EnvClip::default())
    }

    #[test]
    fn every_picture_of_a_thinned_reel_belongs_to_its_step() {
        let clip = reel(EnvClip::MAX_STEPS as u32, 48);
        let mut film = Film::read(clip.width, clip.height, &clip.film).expect("a film");
        assert!(clip.stride > 1 && film.len() > 4, "{} pictures of every {}th step", film.len(), clip.stride);
        let shown: Vec<u32> = (0..film.len())
            .map(|index| {
                film.picture(index).and_then(|frame| frame.pixel(0, 0)).map_or(u32::MAX, |[step, ..]| step.into())
            })
            .collect();
        let expected: Vec<u32> = (0..film.len() as u32).map(|index| index * clip.stride).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn reel_of_pictures_that_fit_into_no_message_has_a_reason() {
        let clip = reel(8, FilmWriter::MAX_SIDE);
        assert!(clip.film.is_empty() && clip.reason.contains("too large"), "{:?}", clip.reason);
    }

    #[test]
    fn reel_of_failed_render_names_the_error() {
        let mut reel = Reel::default();
        reel.add((0, 0), &mut |frame| frame.fail("pygame is missing".into()));
        let clip = reel.finish(EnvClip::default());
        assert_eq!(clip.reason, "the environment cannot be rendered: pygame is missing");
    }
}
