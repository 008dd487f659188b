//! Converts logged observations to the form that policies take.

use rollmesh_core::{
    batch::{NEW_OBS, OBS, SampleBatch},
    column::{Column, ColumnData},
    preprocess::Preprocessor,
    sampler::SampleError,
    space::Space,
};

/// The columns of observations.
const COLUMNS: [&str; 2] = [OBS.name(), NEW_OBS.name()];

/// Encodes observations as a policy's preprocessor does, such as numbers as one-hot vectors. Runs log the environment's own
/// observations, workers of their own the encoded ones; those that are encoded already stay unchanged.
///
/// # Errors
/// [`SampleError::Input`] for an observation outside of the space.
pub fn encode_observations(rows: &mut SampleBatch, preprocessor: &Preprocessor) -> Result<(), SampleError> {
    for name in COLUMNS {
        let Some(column) = rows.column(name) else { continue };
        if !is_own(column, preprocessor) {
            continue;
        }
        let failed = |error: &dyn std::fmt::Display| SampleError::Input(format!("column '{name}': {error}"));
        let plain = column.decompress().map_err(|error| failed(&error))?;
        let own = plain.array().map_err(|error| failed(&error))?;
        let mut encoded = vec![0.0; plain.rows().saturating_mul(preprocessor.output_len())];
        preprocessor.transform_rows(own, &mut encoded).map_err(|error| failed(&error))?;
        let encoded = ColumnData::new(encoded, preprocessor.output_shape()).map_err(|error| failed(&error))?;
        rows.insert(name, Column::from(encoded))?;
    }
    Ok(())
}

/// Returns whether a column has rows of the environment's own space, by their type and their number of elements.
fn is_own(column: &Column, preprocessor: &Preprocessor) -> bool {
    let (Some(dtype), width) = (column.dtype(), column.shape().elements()) else { return false };
    let is_encoded = dtype.is_float() && width == preprocessor.output_len();
    let space = preprocessor.space();
    !is_encoded && width == space.shape().elements() && space.takes_rows_of(dtype)
}

/// Checks that observations have as many numbers as those of the environment, or as encoded ones.
///
/// # Errors
/// [`SampleError::Input`], which names the column.
pub(super) fn check_observations(rows: &SampleBatch, space: &Space, encoded: Option<usize>) -> Result<(), SampleError> {
    let wanted = space.shape().elements();
    for name in COLUMNS {
        let Some(column) = rows.column(name).filter(|column| column.dtype().is_some()) else { continue };
        let found = column.shape().elements();
        if !rows.is_empty() && found != wanted && Some(found) != encoded {
            let problem = format!("'{name}' has {found} numbers per row, observations in {space} have {wanted}");
            return Err(SampleError::Input(problem));
        }
    }
    Ok(())
}
