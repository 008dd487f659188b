//! Changes logged actions between the forms of policies and environments.

use std::cmp::Ordering;

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
    /// Policies' actions become the environment's; floats are clamped to its bounds.
    ToEnv,
}

impl ActionChange {
    /// Changes the actions of rows in a space, which is the environment's. Actions of spaces without boxes stay unchanged;
    /// those of a box get its element type. Actions of a tuple or dict are one column of floats, as samplers record them, or
    /// a column for each part.
    ///
    /// Returns whether any were clamped: the environment took another action than the policy's.
    ///
    /// # Errors
    /// [`SampleError::Batch`] for a missing column, [`SampleError::Input`] for rows that are not actions of the space.
    pub fn apply(self, rows: &mut SampleBatch, space: &Space) -> Result<bool, SampleError> {
        let name = ACTIONS.name().to_string();
        let parts = if rows.column(&name).is_some() { vec![(name, space)] } else { parts(space, name) };
        let mut has_clamped = false;
        for (name, space) in parts {
            let column = rows.column(&name).ok_or_else(|| BatchError::MissingColumn(name.clone()))?;
            if !matches!(space, Space::Box(_) | Space::Tuple(_) | Space::Dict(_)) {
                continue;
            }
            let failed = |error: &dyn std::fmt::Display| SampleError::Input(format!("column '{name}': {error}"));
            let plain = column.decompress().map_err(|error| failed(&error))?;
            let dtype = match space {
                Space::Box(of) => of.dtype(),
                _ if plain.dtype() == Some(DType::F32) => DType::F32,
                _ => DType::F64,
            };
            let changed = match dtype {
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
            Self::Clip => {
                let given = rows.clone();
                ActionTransform::Clip.apply_rows(space, &mut rows)?;
                // NaN stays NaN.
                *has_clamped |=
                    given.iter().zip(&rows).any(|(given, taken)| given.partial_cmp(taken).is_some_and(Ordering::is_ne));
            }
            Self::ToPolicy => unsquash.undo_rows(space, &mut rows)?,
            Self::ToEnv => {
                *has_clamped |= is_clamped(space, &rows);
                unsquash.apply_rows(space, &mut rows)?;
            }
        }
        Ok(Column::from_typed(ColumnData::new(rows, column.shape())?))
    }
}

/// Returns whether unsquashing clamps any of these policies' actions.
fn is_clamped<T: Element>(space: &Space, rows: &[T]) -> bool {
    let mut are_clamped = Vec::new();
    clamped_elements(space, &mut are_clamped);
    let is_outside = |(x, is_clamped): (&T, &bool)| *is_clamped && x.to_f64().abs() > 1.0;
    rows.chunks_exact(are_clamped.len().max(1)).any(|row| row.iter().zip(&are_clamped).any(is_outside))
}

/// Adds for each element of a row whether unsquashing clamps it: floats of bounded boxes, not integers. The environment itself
/// handles those of boxes without bounds.
fn clamped_elements(space: &Space, found: &mut Vec<bool>) {
    let is_clamped = match space {
        Space::Tuple(parts) => return parts.iter().for_each(|part| clamped_elements(part, found)),
        Space::Dict(parts) => return parts.values().for_each(|part| clamped_elements(part, found)),
        Space::Box(of) => of.is_bounded() && of.dtype().is_float(),
        _ => false,
    };
    found.resize(found.len() + space.shape().elements(), is_clamped);
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
