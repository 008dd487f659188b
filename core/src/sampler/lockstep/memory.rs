//! Recurrent states: those of the lanes, and those at the starts of sequences and at cuts.

use crate::{
    batch::{SampleBatch, state_in},
    column::{Column, ColumnName, Recycler, RowShape},
    env::{EnvError, RowsRef},
    policy::{Policy, PreviousStep},
    prelude::*,
    sampler::{LaneStart, RecurrentShape, wants::Wants},
};

/// Recurrent states of the lanes; empty, and without cost, under a policy without memory.
#[derive(Debug)]
pub(super) struct Memory {
    shape: RecurrentShape,
    /// Elements of all states of a lane.
    width: usize,
    /// The states at the start of an episode.
    initial: Vec<f32>,
    /// Lanes whose first episode began before its policy was known.
    unset: Vec<usize>,
    /// A row per lane: the states before the next step, and those after it.
    now: Vec<f32>,
    next: Vec<f32>,
    /// Remaining steps of each lane's sequence.
    left: Vec<u32>,
    /// Lane of each sequence of the fragment and the row of `states` that it begins with, in order of time.
    starts: Vec<(usize, usize)>,
    states: Vec<f32>,
    /// A row per cut, in order of time.
    at_cuts: Vec<f32>,
    columns: Vec<(ColumnName, Recycler)>,
    seq_lens: Recycler,
    previous: Option<PreviousStep>,
    /// An encoded action.
    encoded: Vec<f32>,
}

impl Memory {
    /// Creates it without lanes.
    pub(super) fn new(wants: &Wants, policy: &dyn Policy) -> Self {
        Self {
            shape: wants.recurrent().clone(),
            width: wants.state_len(),
            initial: wants.initial_state(policy),
            unset: Vec::new(),
            now: Vec::new(),
            next: Vec::new(),
            left: Vec::new(),
            starts: Vec::new(),
            states: Vec::new(),
            at_cuts: Vec::new(),
            columns: (0..wants.recurrent().state_lens.len())
                .map(|index| (state_in(index), Recycler::default()))
                .collect(),
            seq_lens: Recycler::default(),
            previous: wants.previous().cloned(),
            encoded: Vec::new(),
        }
    }

    /// Checks the recurrent states of the starts.
    ///
    /// # Errors
    /// [`EnvError::WrongLength`] for a start with the recurrent states of another policy.
    pub(super) fn check(&self, starts: &[LaneStart]) -> Result<(), EnvError> {
        let lens = starts.iter().filter_map(|start| start.state.as_ref()).map(|state| state.recurrent.len());
        let (what, wanted) = ("recurrent state elements", self.width);
        lens.filter(|&found| found != 0 && found != wanted)
            .map(|found| EnvError::WrongLength { what, wanted, found })
            .next()
            .map_or(Ok(()), Err)
    }

    /// Sets the lanes, whose starts were checked.
    pub(super) fn open(&mut self, starts: &[LaneStart]) {
        self.now.clear();
        self.unset.clear();
        for (lane, start) in starts.iter().enumerate() {
            match start.state.as_ref().map_or(&[][..], |state| &state.recurrent) {
                [] => {
                    self.now.extend_from_slice(&self.initial);
                    self.unset.push(lane);
                }
                state => self.now.extend_from_slice(state),
            }
        }
        self.next.resize(self.now.len(), 0.0);
        self.left.resize(starts.len(), 0);
    }

    pub(super) fn of_lane(&self, lane: usize) -> &[f32] {
        &self.now[lane * self.width..(lane + 1) * self.width]
    }

    /// Sets the initial states of episodes to those of this policy.
    pub(super) fn prepare(&mut self, policy: &dyn Policy) {
        if self.width == 0 {
            return;
        }
        self.initial.fill(0.0);
        policy.initial_state(&mut self.initial);
        for lane in self.unset.drain(..) {
            self.now[lane * self.width..(lane + 1) * self.width].copy_from_slice(&self.initial);
        }
    }

    pub(super) fn begin_fragment(&mut self) {
        self.left.fill(0);
        self.starts.clear();
        self.states.clear();
        self.at_cuts.clear();
    }

    /// Returns the states before the step, and the buffer for those after it.
    pub(super) fn request(&mut self) -> (&[f32], &mut [f32]) {
        // A policy that leaves a value unwritten must not see that of another step.
        self.next.fill(0.0);
        (&self.now, &mut self.next)
    }

    /// Records that the policy has chosen.
    pub(super) fn acted(&mut self) {
        if self.width == 0 {
            return;
        }
        for (lane, left) in self.left.iter_mut().enumerate() {
            if *left == 0 {
                *left = self.shape.max_seq_len.get();
                self.starts.push((lane, self.starts.len()));
                self.states.extend_from_slice(&self.now[lane * self.width..(lane + 1) * self.width]);
            }
            *left -= 1;
        }
        core::mem::swap(&mut self.now, &mut self.next);
    }

    /// Returns whether the policy sees each step in the states after it.
    pub(super) fn sees_steps(&self) -> bool {
        self.previous.is_some()
    }

    /// Writes a lane's step to the states after it, if the policy sees it.
    pub(super) fn stepped(&mut self, lane: usize, action: RowsRef<'_>, reward: f32) -> Result<(), EnvError> {
        let Some(previous) = &self.previous else { return Ok(()) };
        let state = &mut self.now[lane * self.width..(lane + 1) * self.width];
        let written = previous.write(action, reward, state, &mut self.encoded);
        written.map_err(|error| EnvError::InvalidAction { lane, action: error.to_string() })
    }

    /// Ends a lane's piece here.
    pub(super) fn cut(&mut self, lane: usize) {
        self.at_cuts.extend_from_slice(&self.now[lane * self.width..(lane + 1) * self.width]);
    }

    /// Begins the lane's next episode.
    pub(super) fn reset(&mut self, lane: usize) {
        if self.width > 0 {
            self.now[lane * self.width..(lane + 1) * self.width].copy_from_slice(&self.initial);
            self.left[lane] = 0;
        }
    }

    /// Returns the states at the cuts, a row each, in order of time until [`sort_cuts`](Self::sort_cuts).
    pub(super) fn at_cuts(&self) -> &[f32] {
        &self.at_cuts
    }

    /// Sorts the rows of the cuts.
    pub(super) fn sort_cuts(&mut self, order: impl Iterator<Item = usize>) {
        if self.width > 0 {
            let sorted = order.flat_map(|cut| &self.at_cuts[cut * self.width..(cut + 1) * self.width]);
            self.at_cuts = sorted.copied().collect();
        }
    }

    /// Cuts lane-major rows of the fragment into sequences; `pieces` are the lengths of the pieces in their order.
    pub(super) fn sequences(&mut self, rows: SampleBatch, pieces: impl Iterator<Item = usize>) -> SampleBatch {
        if self.width == 0 {
            return rows;
        }
        self.starts.sort_unstable();
        let (starts, width, shape) = (&self.starts, self.width, &self.shape);
        let seq_lens = self.seq_lens.column(RowShape::SCALAR, starts.len(), |lens| {
            pieces.for_each(|piece| lens.extend(shape.seq_lens(piece)));
        });
        let (states, mut first) = (&self.states, 0);
        let columns = self.columns.iter_mut().zip(&shape.state_lens).map(|((name, recycler), &len)| {
            let column = recycler.column(RowShape::vector(len as u32), starts.len(), |values| {
                for (_, row) in starts {
                    values.extend_from_slice(&states[row * width + first..][..len]);
                }
            });
            first += len;
            (name.clone(), Column::from_typed(column))
        });
        rows.in_sequences(seq_lens, columns)
    }
}
