//! Changes logged actions between the forms of policies and environments.

use rollmesh_core::{
    action::ActionTransform,
    batch::{ACTIONS, BatchError, SampleBatch},
    column::{Column, ColumnData, DType, Element},
    sampler::SampleError,
    space::Space,
};

/// A change of logged actions. Policies act within [-1, 1] where the environment's box of floats is bounded, and from 0 on
/// where that of integers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionChange {
    /// Clamps actions to the environment's bounds.
    Clip,
    /// The environment's actions become those of policies.
    ToPolicy,
    /// Policies' actions become the environment's, clamped to its bounds.
    ToEnv,
}

impl ActionChange {
    /// Changes the actions of rows in a space, which is the environment's. Actions of spaces without boxes stay unchanged;
    /// those of a box get its element type.
    ///
    /// Returns whether the environment clamped any: it took another action than the policy's.
    ///
    /// # Errors
    /// [`SampleError::Batch`] for a missing column, [`SampleError::Input`] for rows that are not actions of the space.
    pub fn apply(self, rows: &mut SampleBatch, space: &Space) -> Result<bool, SampleError> {
        let mut has_clamped = false;
        for (name, space) in parts(space, ACTIONS.name().to_string()) {
            let column = rows.column(&name).ok_or_else(|| BatchError::MissingColumn(name.clone()))?;
            let failed = |error: &dyn std::fmt::Display| SampleError::Input(format!("column '{name}': {error}"));
            let plain = column.decompress().map_err(|error| failed(&error))?;
            let Space::Box(of) = space else { continue };
            let changed = match of.dtype() {
                DType::F32 => self.column::<f32>(&plain, space, &mut has_clamped),
                DType::F64 => self.column::<f64>(&plain, space, &mut has_clamped),
                DType::U8 => self.column::<u8>(&plain, space, &mut has_clamped),
                DType::I32 => self.column::<i32>(&plain, space, &mut has_clamped),
                DType::I64 => self.column::<i64>(&plain, space, &mut has_clamped),
                DType::Bool => continue,
            };
            rows.insert(name.clone(), changed.map_err(|error| failed(&error))?)?;
        }
        Ok(has_clamped)
    }

    fn column<T: Element>(
        self,
        column: &Column,
        space: &Space,
        has_clamped: &mut bool,
    ) -> Result<Column, Box<dyn std::error::Error>> {
        let mut rows = column.array()?.cast::<T>();
        let unsquash = ActionTransform::for_space(space, true, false);
        match self {
            Self::Clip => ActionTransform::Clip.apply_rows(space, &mut rows)?,
            Self::ToPolicy => unsquash.undo_rows(space, &mut rows)?,
            Self::ToEnv => {
                // The bounds of a part without a transform are the environment's own business.
                let is_bounded = unsquash == ActionTransform::Unsquash;
                *has_clamped |= is_bounded && unsquash.policy_space(space).first_outside(&rows)?.is_some();
                unsquash.apply_rows(space, &mut rows)?;
            }
        }
        Ok(Column::from_typed(ColumnData::new(rows, column.shape())?))
    }
}

/// Returns the fundamental spaces that a space consists of, and the columns of their points.
fn parts(space: &Space, name: String) -> Vec<(String, &Space)> {
    match space {
        Space::Tuple(inner) => {
            inner.iter().enumerate().flat_map(|(i, part)| parts(part, format!("{name}.{i}"))).collect()
        }
        Space::Dict(inner) => inner.iter().flat_map(|(key, part)| parts(part, format!("{name}.{key}"))).collect(),
        _ => vec![(name, space)],
    }
}
