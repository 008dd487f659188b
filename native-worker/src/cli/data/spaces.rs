//! The information that Minari needs besides the rows: spaces, as the rows show them, and an id.

use std::path::Path;

use rollmesh_core::{
    batch::{ACTIONS, OBS, SampleBatch},
    column::{Column, DType, RowShape},
    space::{BoxSpace, Space},
};

use crate::{cli::exit::Failure, offline::inputs::has_version};

/// The spaces that the rows have shown so far, for the parts of an observation or action: `obs` itself, or `obs.pos`
/// and others.
#[derive(Debug, Default)]
pub(super) struct SeenSpaces {
    observation: Vec<SpacePart>,
    action: Vec<SpacePart>,
}

#[derive(Debug)]
struct SpacePart {
    /// The name after the first part; empty for the whole value.
    name: String,
    dtype: DType,
    shape: RowShape,
    min: f64,
    max: f64,
}

impl SeenSpaces {
    pub(super) fn add(&mut self, batch: &SampleBatch) {
        if batch.is_empty() {
            return;
        }
        for (first, parts) in [(OBS.name(), &mut self.observation), (ACTIONS.name(), &mut self.action)] {
            for (name, column) in batch.iter() {
                let Some(rest) = name.strip_prefix(first).filter(|rest| rest.is_empty() || rest.starts_with('.'))
                else {
                    continue;
                };
                see(parts, rest.trim_start_matches('.'), column);
            }
        }
    }

    /// Returns the spaces of observations and actions. Integer actions from 0 on are discrete; everything else is a box,
    /// unbounded if it holds floats.
    pub(super) fn finish(self) -> Result<(Space, Space), Failure> {
        Ok((space(self.observation, "obs")?, space(self.action, "actions")?))
    }
}

fn see(parts: &mut Vec<SpacePart>, name: &str, column: &Column) {
    let (Some(dtype), Some(values)) = (column.dtype(), column.numbers()) else { return };
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let (min, max) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    match parts.iter_mut().find(|part| part.name == name) {
        Some(part) => (part.min, part.max) = (part.min.min(min), part.max.max(max)),
        None => parts.push(SpacePart { name: name.into(), dtype, shape: column.shape(), min, max }),
    }
}

fn space(parts: Vec<SpacePart>, what: &str) -> Result<Space, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::usage(format!("{what}: {error}; name the environment with --env"));
    let mut named = Vec::with_capacity(parts.len());
    for part in parts {
        let single = part.shape.dims().is_empty();
        let space = if part.dtype.is_float() {
            BoxSpace::uniform(part.dtype, part.shape, f64::NEG_INFINITY, f64::INFINITY).map(Space::Box)
        } else if single && part.min >= 0.0 && part.max < f64::from(u32::MAX) {
            Space::discrete(part.max as u32 + 1)
        } else if part.dtype == DType::U8 {
            BoxSpace::uniform(part.dtype, part.shape, 0.0, 255.0).map(Space::Box)
        } else {
            BoxSpace::uniform(part.dtype, part.shape, part.min, part.max).map(Space::Box)
        };
        named.push((part.name, space.map_err(|error| failed(&error))?));
    }
    match <[(String, Space); 1]>::try_from(named) {
        Ok([(name, only)]) if name.is_empty() => Ok(only),
        Ok([(name, only)]) => Space::dict([(name, only)]).map_err(|error| failed(&error)),
        Err(named) if named.is_empty() => Err(Failure::usage(format!("there are no {what} in the rows"))),
        Err(named) => Space::dict(named).map_err(|error| failed(&error)),
    }
}

/// Returns a data set's id: `cartpole/mine-v0` for `…/cartpole/mine-v0`.
pub(super) fn dataset_id(folder: &Path) -> String {
    let names: Vec<String> = folder.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let id = names[names.len().saturating_sub(2)..].join("/");
    let id = id.trim_matches('/').to_owned();
    // Minari's ids end in a version.
    if has_version(&id) { id } else { format!("{id}-v0") }
}
