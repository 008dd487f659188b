//! Observations as the environments return them, if the policy sees others.

use crate::{
    column::{Element, RowBuffer},
    env::{EnvError, RowsMut, RowsRef},
    filter::{Filter, FilterError, FilterFloat},
    ids::AgentId,
    policy::PolicyEntry,
    prelude::*,
    preprocess::Preprocessor,
    sampler::SampleError,
};

/// The environments' rows of a fragment, time-major, and the last ones of the episodes that ended in the latest step.
#[derive(Debug, Default)]
pub(super) struct SeenRows {
    rows: RowBuffer,
    finals: RowBuffer,
    lanes: usize,
    /// Elements of a row.
    width: usize,
    /// The policy's view of lanes' first rows that the filter has already counted.
    known: Vec<(usize, Vec<f64>)>,
}

impl SeenRows {
    /// Creates it for lanes with these first rows.
    pub(super) fn new(first: RowBuffer, lanes: usize) -> Self {
        let finals = RowBuffer::new(first.all().dtype());
        Self { width: first.len() / lanes.max(1), rows: first, finals, lanes, known: Vec::new() }
    }

    /// Sets the policy's view of a lane's first row, instead of computing it.
    pub(super) fn know(&mut self, lane: usize, row: &[f64]) {
        self.known.push((lane, row.to_vec()));
    }

    /// Returns the view that was set for a lane since the lanes were opened.
    pub(super) fn known(&self, lane: usize) -> &[f64] {
        self.known.iter().find_map(|(known, row)| (*known == lane).then_some(&**row)).unwrap_or_default()
    }

    /// Moves the rows after the last step to the front.
    pub(super) fn begin_fragment(&mut self, steps_before: usize, steps: usize) {
        let row = self.lanes * self.width;
        self.rows.move_to_front(steps_before * row);
        self.rows.resize((steps + 1) * row);
    }

    /// Returns the buffer for the rows after `steps` steps.
    pub(super) fn after(&mut self, steps: usize) -> RowsMut<'_> {
        let row = self.lanes * self.width;
        let dtype = self.finals.all().dtype();
        self.finals.start(dtype);
        self.rows.part_mut(steps * row..(steps + 1) * row)
    }

    /// Keeps a lane's row after `steps` steps, and returns the buffer for the first one of the next episode.
    pub(super) fn put_away(&mut self, steps: usize, lane: usize) -> RowsMut<'_> {
        let start = (steps * self.lanes + lane) * self.width;
        self.finals.push(self.rows.part(start..start + self.width));
        self.rows.part_mut(start..start + self.width)
    }

    /// Computes the policy's view of the rows after `steps` steps: in `obs` a row per lane, in `finals` one per ended
    /// episode, of the lanes `ended` in ascending order. A filter counts a lane's last row before its first one.
    pub(super) fn observe<O: Element>(
        &mut self,
        steps: usize,
        entry: &mut PolicyEntry,
        obs: &mut [O],
        finals: &mut [O],
        ended: impl Iterator<Item = usize>,
    ) -> Result<(), SampleError> {
        let row = self.lanes * self.width;
        let (preprocessor, width) = (entry.preprocessor.as_ref(), (obs.len() / self.lanes.max(1)).max(1));
        written(preprocessor, self.rows.part(steps * row..(steps + 1) * row), obs)?;
        written(preprocessor, self.finals.all(), finals)?;
        let filter = Some(&mut entry.filter).filter(|filter| **filter != Filter::NoFilter);
        match (filter, O::erase_rows_mut(obs), O::erase_rows_mut(finals)) {
            (Some(filter), RowsMut::F32(obs), RowsMut::F32(finals)) => {
                self.filter(filter, width, obs, finals, ended)?
            }
            (Some(filter), RowsMut::F64(obs), RowsMut::F64(finals)) => {
                self.filter(filter, width, obs, finals, ended)?
            }
            // Only floats are filtered.
            _ => {}
        }
        for (lane, row) in self.known.drain(..) {
            obs[lane * width..].iter_mut().zip(row).for_each(|(x, known)| *x = O::from_f64(known));
        }
        Ok(())
    }

    fn filter<T: FilterFloat>(
        &self,
        filter: &mut Filter,
        width: usize,
        obs: &mut [T],
        finals: &mut [T],
        ended: impl Iterator<Item = usize>,
    ) -> Result<(), FilterError> {
        let (mut ended, mut finals) = (ended.peekable(), finals.chunks_exact_mut(width));
        for (lane, row) in obs.chunks_exact_mut(width).enumerate() {
            if ended.next_if_eq(&lane).is_some()
                && let Some(last) = finals.next()
            {
                filter.filter_rows(last, true)?;
            }
            if !self.known.iter().any(|(known, _)| *known == lane) {
                filter.filter_rows(row, true)?;
            }
        }
        Ok(())
    }

    /// Returns the rows of the whole fragment.
    pub(super) fn rows(&self) -> &RowBuffer {
        &self.rows
    }
}

fn written<O: Element>(
    preprocessor: Option<&Preprocessor>,
    from: RowsRef<'_>,
    to: &mut [O],
) -> Result<(), SampleError> {
    match (preprocessor, O::rows(from)) {
        (None, Some(from)) if from.len() == to.len() => to.copy_from_slice(from),
        (Some(preprocessor), _) if let RowsMut::F32(to) = O::erase_rows_mut(to) => {
            let failed = |source| SampleError::Preprocess { agent: AgentId::SINGLE, source };
            preprocessor.transform_rows(from, to).map_err(failed)?
        }
        _ => {
            let (wanted, found) = (O::DTYPE.name(), from.dtype().name());
            return Err(EnvError::WrongType { what: "observations", found, wanted }.into());
        }
    }
    Ok(())
}
