//! Rows of the fragment in progress, time-major, and their columns, lane-major.

use crate::{
    batch::{ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, OBS, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS, VF_PREDS},
    column::{Column, ColumnData, DType, Element, Recycler, RowBuffer, RowShape, by_type},
    prelude::*,
};

/// Rows by step, lane, element.
#[derive(Debug)]
pub(super) struct Arena<O> {
    pub(super) shapes: Shapes,
    pub(super) lanes: usize,
    pub(super) steps: usize,
    /// One step more than the others: includes the observations after the last step.
    pub(super) obs: Vec<O>,
    pub(super) actions: RowBuffer,
    pub(super) logp: Vec<f32>,
    pub(super) vf_preds: Vec<f32>,
    /// Empty unless they are recorded.
    pub(super) dist_inputs: Vec<f32>,
    pub(super) rewards: Vec<f32>,
    pub(super) terminateds: Vec<bool>,
    pub(super) truncateds: Vec<bool>,
}

/// Shapes of rows; observations as the policy sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shapes {
    pub(super) obs: RowShape,
    pub(super) action: RowShape,
    pub(super) dist_inputs: RowShape,
}

/// Reused buffers of the columns.
#[derive(Debug, Default)]
pub(super) struct ColumnRecyclers {
    obs: Recycler,
    actions: Recycler,
    logp: Recycler,
    vf_preds: Recycler,
    dist_inputs: Recycler,
    rewards: Recycler,
    terminateds: Recycler,
    truncateds: Recycler,
    final_obs: Recycler,
}

impl<O: Element> Arena<O> {
    /// Creates it without lanes, for actions of this type.
    pub(super) fn new(shapes: Shapes, action_type: DType) -> Self {
        Self {
            shapes,
            lanes: 0,
            steps: 0,
            obs: Vec::new(),
            actions: RowBuffer::new(action_type),
            logp: Vec::new(),
            vf_preds: Vec::new(),
            dist_inputs: Vec::new(),
            rewards: Vec::new(),
            terminateds: Vec::new(),
            truncateds: Vec::new(),
        }
    }

    /// Sets the lanes with their first observations.
    pub(super) fn open(&mut self, lanes: usize, obs: Vec<O>) {
        (self.lanes, self.steps, self.obs) = (lanes, 0, obs);
    }

    /// Begins a fragment: the observations after the last step become the first ones.
    pub(super) fn begin(&mut self, steps: usize) {
        let (n, row) = (self.lanes, self.lanes * self.shapes.obs.elements());
        self.obs.copy_within(self.steps * row.., 0);
        self.obs.resize((steps + 1) * row, O::default());
        self.actions.resize(steps * n * self.shapes.action.elements());
        for column in [&mut self.logp, &mut self.vf_preds, &mut self.rewards] {
            column.resize(steps * n, 0.0);
        }
        self.dist_inputs.resize(steps * n * self.shapes.dist_inputs.elements(), 0.0);
        for column in [&mut self.terminateds, &mut self.truncateds] {
            // Clear everything: an environment that leaves a flag unwritten must not see the previous fragment's.
            column.clear();
            column.resize(steps * n, false);
        }
        self.steps = steps;
    }

    /// Returns the rows as columns, lane-major.
    pub(super) fn columns(&self, to: &mut ColumnRecyclers) -> SampleBatch {
        let Shapes { obs, action, dist_inputs } = self.shapes;
        let actions = by_type!(RowBuffer, &self.actions, rows => self.lane_major(&mut to.actions, rows, action));
        let mut columns = vec![
            (OBS.name(), self.lane_major(&mut to.obs, &self.obs, obs)),
            (ACTIONS.name(), actions),
            (REWARDS.name(), self.lane_major(&mut to.rewards, &self.rewards, RowShape::SCALAR)),
            (TERMINATEDS.name(), self.lane_major(&mut to.terminateds, &self.terminateds, RowShape::SCALAR)),
            (TRUNCATEDS.name(), self.lane_major(&mut to.truncateds, &self.truncateds, RowShape::SCALAR)),
            (ACTION_LOGP.name(), self.lane_major(&mut to.logp, &self.logp, RowShape::SCALAR)),
            (VF_PREDS.name(), self.lane_major(&mut to.vf_preds, &self.vf_preds, RowShape::SCALAR)),
        ];
        if dist_inputs.elements() > 0 {
            let column = self.lane_major(&mut to.dist_inputs, &self.dist_inputs, dist_inputs);
            columns.push((ACTION_DIST_INPUTS.name(), column));
        }
        SampleBatch::from_columns(columns)
    }

    /// Transposes a column of rows from step, lane, element to lane, step, element.
    fn lane_major<T: Element>(&self, to: &mut Recycler, from: &[T], shape: RowShape) -> Column {
        let (lanes, steps, width) = (self.lanes, self.steps, shape.elements());
        let data: ColumnData<T> = to.column(shape, lanes * steps, |values| {
            for lane in 0..lanes {
                for step in 0..steps {
                    values.extend_from_slice(&from[(step * lanes + lane) * width..][..width]);
                }
            }
        });
        Column::from_typed(data)
    }
}

impl ColumnRecyclers {
    /// Returns the observations at the cuts as a batch.
    pub(super) fn finals<O: Element>(&mut self, shape: RowShape, obs: &[O]) -> SampleBatch {
        let rows = obs.len() / shape.elements().max(1);
        let column = self.final_obs.column(shape, rows, |values| values.extend_from_slice(obs));
        SampleBatch::from_columns(vec![(OBS.name(), Column::from_typed(column))])
    }
}
