//! Pictures of a fragment: the shell recomputes it, as an audit does, and its environment draws itself before each step.

use crate::{
    batch::{ACTION_LOGP, ACTIONS, AGENT_INDEX, EPS_ID, MultiAgentBatch, REWARDS, SampleBatch, SlotFragment, T, VF_PREDS, codec},
    env::{Frame, render::FilmWriter},
    ids::LeaseId,
    lease::{Lease, LeasedSlot, SlotSource},
    prelude::*,
    protocol::{message::EnvClip, printable},
    weights::Weights,
    worker::{RunnerError, SlotRunner},
};

/// Columns that a dashboard shows of a step.
const COLUMNS: [&str; 7] = [
    ACTIONS.name(),
    REWARDS.name(),
    ACTION_LOGP.name(),
    VF_PREDS.name(),
    EPS_ID.name(),
    T.name(),
    AGENT_INDEX.name(),
];

/// A fragment of which dashboards want pictures.
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

    /// Returns a clip that says why there are no pictures.
    #[must_use]
    pub fn without_pictures(&self, reason: &str) -> EnvClip {
        let reason = printable(reason).chars().take(EnvClip::MAX_REASON_BYTES / 4).collect();
        EnvClip {
            run: self.run,
            slot: self.fragment.slot.0,
            weights_version: self.fragment.weights_version.0,
            reason,
            ..EnvClip::default()
        }
    }

    fn try_draw(&self, runner: &mut SlotRunner) -> Result<EnvClip, RunnerError> {
        let mut reel = Reel::default();
        let made = runner.replay_shown(self.lease(), &self.weights, &mut |at, picture| reel.add(at, picture))?;
        if made.first().is_none_or(|made| made.state != self.fragment.state) {
            let reason = "its fragments are other ones when they are recomputed: is the environment deterministic?";
            return Ok(self.without_pictures(reason));
        }
        let reason = if reel.has_pictures { "" } else { "the environment draws none: implement `render`" };
        let mut clip = reel.finish(self.without_pictures(reason));
        let steps = clip.steps().count();
        let batch = match &self.fragment.agents {
            Some(agents) => {
                let rows = agents.policy_batches.iter().map(|(policy, rows)| (policy.clone(), of_steps(rows, rows.len())));
                codec::encode_multi_agent(&MultiAgentBatch::new(rows.collect(), agents.env_steps()))
            }
            None => codec::encode(&of_steps(&self.fragment.rows, steps)),
        };
        if batch.len() <= EnvClip::MAX_BATCH_BYTES {
            (clip.batch, clip.by_policy) = (batch, self.fragment.agents.is_some());
        }
        Ok(clip)
    }

    fn lease(&self) -> Lease {
        let SlotFragment { slot, fragment, weights_version, .. } = self.fragment;
        let source = self.start.clone().map_or(SlotSource::New, SlotSource::State);
        Lease { id: LeaseId(0), fragment, weights_version, slots: vec![LeasedSlot { slot, source }] }
    }
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
    /// Adds a step, its episode and `t`, unless there is no more room. `picture` draws it, or returns false if it cannot.
    pub fn add(&mut self, at: (u32, u32), picture: &mut dyn FnMut(&mut Frame) -> bool) {
        if self.is_full || self.steps.last() == Some(&at) {
            return;
        }
        if self.has_pictures && self.steps.len().is_multiple_of(self.stride) {
            self.has_pictures = picture(&mut self.frame);
            self.is_full = self.has_pictures && !self.film.add(&self.frame);
            if let (bytes, 2) = self.film.latest() {
                // LZ4 halves what photographs change from one step to the next; drawings are much smaller.
                self.stride = (bytes / 2 * EnvClip::MAX_STEPS).div_ceil(4 * EnvClip::MAX_FILM_BYTES).max(1);
            }
        }
        if !self.is_full {
            self.steps.push(at);
        }
        self.is_full |= self.steps.len() == EnvClip::MAX_STEPS;
    }

    /// Completes a clip with the steps.
    #[must_use]
    pub fn finish(self, clip: EnvClip) -> EnvClip {
        let (film, pictures) = self.film.finish(EnvClip::MAX_FILM_BYTES);
        let steps = if pictures > 0 { (pictures * self.stride).min(self.steps.len()) } else { self.steps.len() };
        let steps = self.steps.into_iter().take(steps).flat_map(|(episode, t)| [episode, t]);
        let (width, height) = self.film.size();
        EnvClip { steps: steps.flat_map(u32::to_le_bytes).collect(), width, height, stride: self.stride as u32, film, ..clip }
    }
}
