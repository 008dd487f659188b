//! Defines which columns and steps a model and the learner need.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::{
    Shift,
    series::{suffix, window},
};
use crate::{
    batch::{NEW_OBS, OBS, SampleBatch, state_out},
    column::{DType, RowShape},
    prelude::*,
    space::Space,
};

/// States have one row per sequence.
pub(super) const STATE_IN: &str = "state_in_";

/// A view of one data column: which of its rows appear in the row of a step.
///
/// Serialises to and from JSON-like forms; missing fields have their defaults, and unknown fields are rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ViewRequirement {
    /// The data column; the view's own name if `None`. `new_obs` is `obs` one step later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_col: Option<String>,
    /// Type and shape of the data's rows, for values that do not exist yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
    /// The steps in the view, relative to the row's own.
    pub shift: Shift,
    /// Number of steps per view row: rows are for steps 0, n, 2n, … of a fragment.
    pub batch_repeat_value: NonZeroU32,
    /// Whether the policy gets the view when it acts.
    pub used_for_compute_actions: bool,
    /// Whether the learner gets the view. Postprocessing gets all views.
    pub used_for_training: bool,
}

/// View requirements by the name of the view.
pub type ViewRequirements = BTreeMap<String, ViewRequirement>;

impl Default for ViewRequirement {
    fn default() -> Self {
        Self {
            data_col: None,
            space: None,
            shift: Shift::NONE,
            batch_repeat_value: NonZeroU32::MIN,
            used_for_compute_actions: true,
            used_for_training: true,
        }
    }
}

impl ViewRequirement {
    /// Creates a view of a column, shifted by `shift` steps.
    #[must_use]
    pub fn shifted(data_col: impl Into<String>, shift: Shift) -> Self {
        Self { data_col: Some(data_col.into()), shift, ..Self::default() }
    }

    /// Creates the view `state_in_<index>` of a recurrent policy: the output state of the previous step, one per sequence of
    /// `max_seq_len` steps; when acting, the latest one.
    #[must_use]
    pub fn state_in(index: usize, max_seq_len: NonZeroU32) -> Self {
        let shift = Shift::single(-1).unwrap_or_default();
        Self { batch_repeat_value: max_seq_len, ..Self::shifted(state_out(index).as_str(), shift) }
    }

    /// Hides the view from the policy when it acts.
    #[must_use]
    pub fn only_for_training(self) -> Self {
        Self { used_for_compute_actions: false, ..self }
    }

    /// Returns the shape of the view's rows in a batch for training, over data with rows of this shape; `None` if the learner
    /// does not get the view, or one row of it stands for several steps.
    pub(crate) fn training_shape(&self, data: RowShape) -> Option<RowShape> {
        let is_row_by_row = self.used_for_training && self.batch_repeat_value == NonZeroU32::MIN;
        window(&self.shift, data).filter(|_| is_row_by_row)
    }

    /// Returns the data column of a view with this name.
    #[must_use]
    pub fn data_col<'a>(&'a self, view: &'a str) -> &'a str {
        self.data_col.as_deref().unwrap_or(view)
    }
}

/// Converts views of `new_obs` to views of `obs`, one step later, since only `obs` is stored.
pub(super) fn in_terms_of_obs(mut views: ViewRequirements) -> ViewRequirements {
    for (view, requirement) in &mut views {
        let obs = suffix(requirement.data_col(view), NEW_OBS.name()).map(|part| format!("{}{part}", OBS.name()));
        if obs.is_some() {
            *requirement = ViewRequirement { data_col: obs, shift: requirement.shift.later(), ..requirement.clone() };
        }
    }
    views
}

/// Returns the requirement that defines a column, or whose data is nested and includes it.
pub(super) fn owner<'a>(views: &'a ViewRequirements, name: &str) -> Option<(&'a str, &'a ViewRequirement)> {
    let parts = views.iter().filter(|(view, _)| suffix(name, view).is_some());
    parts.max_by_key(|(view, _)| view.len()).map(|(view, requirement)| (view.as_str(), requirement))
}

/// Returns the batch without the views that training does not use, and without the parts of nested ones. Columns without a
/// requirement stay. Shares all buffers.
#[must_use]
pub fn drop_unused_for_training(batch: &SampleBatch, views: &ViewRequirements) -> SampleBatch {
    let mut kept = batch.clone();
    let unused = |name: &str| owner(views, name).is_some_and(|(_, view)| !view.used_for_training);
    for (name, _) in batch.iter().filter(|(name, _)| unused(name)) {
        kept.remove(name);
    }
    kept
}

/// Returns type and shape of the rows that store points of a space.
pub(super) fn layout(space: &Space) -> (DType, RowShape) {
    let dtype = match space {
        Space::Box(space) => space.dtype(),
        Space::Discrete { .. } | Space::MultiDiscrete { .. } => DType::I64,
        Space::MultiBinary { .. } => DType::U8,
        Space::Tuple(_) | Space::Dict(_) => DType::F32,
    };
    (dtype, space.shape())
}

#[cfg(test)]
mod tests {
    use serde::de::value::MapDeserializer;

    use super::*;
    use crate::{batch::REWARDS, column::ColumnData};

    #[test]
    fn training_keeps_what_it_uses() {
        let batch = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0])).unwrap();
        let mut with_hint = batch.clone();
        with_hint.insert("hint", ColumnData::scalars(vec![1i64])).unwrap();
        let hidden = ViewRequirement { used_for_training: false, ..ViewRequirement::default() };
        let views = ViewRequirements::from([("hint".to_string(), hidden)]);
        assert_eq!(drop_unused_for_training(&with_hint, &views), batch);
    }

    #[test]
    fn parts_of_nested_views_go_with_them() {
        let mut batch = SampleBatch::new();
        for name in ["ctx.pos", "ctx.speed", "ctxt", "obs.pos"] {
            batch.insert(name, ColumnData::scalars(vec![1.0f32])).unwrap();
        }
        let hidden = ViewRequirement { used_for_training: false, ..ViewRequirement::default() };
        let views = ViewRequirements::from([
            ("ctx".to_string(), hidden),
            ("ctx.speed".to_string(), ViewRequirement::default()),
            ("obs".to_string(), ViewRequirement::default()),
        ]);
        let kept = drop_unused_for_training(&batch, &views);
        assert_eq!(kept.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["ctx.speed", "ctxt", "obs.pos"]);
    }

    #[test]
    fn forms_have_no_other_fields() {
        let read = |field: &'static str| {
            let fields = MapDeserializer::<_, serde::de::value::Error>::new([(field, -1i32)].into_iter());
            ViewRequirement::deserialize(fields)
        };
        assert_eq!(read("shift").unwrap().shift, Shift::single(-1).unwrap());
        assert!(read("shifts").unwrap_err().to_string().contains("unknown field"));
    }
}
