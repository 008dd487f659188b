//! Runs `data.summary`: the content of D4RL, Parquet and Minari data sets.

use std::path::Path;

use rollmesh_core::column::Column;
use rollmesh_data::{
    FileSource,
    d4rl::D4rlFile,
    dataset::{DatasetError, Summary},
    limits::DEFAULT_BUFFER,
    minari::MinariDataset,
    parquet,
};
use serde_json::{Map, Value, json};

use super::{
    Answer, Fault,
    values::{bad, column_json, float_json, text},
};

/// Runs a case. Paths in the cases are relative to `folder`.
pub(super) fn summary(args: &Value, folder: &Path) -> Answer {
    let path = folder.join(text(&args["file"])?);
    let source = || FileSource::open(&path).map_err(|error| bad(&error.to_string()));
    let summary = match text(&args["format"])? {
        "d4rl_hdf5" => D4rlFile::open(source()?, DEFAULT_BUFFER).and_then(|file| file.summary()),
        "parquet" => parquet::summary(source()?, DEFAULT_BUFFER),
        "minari" => MinariDataset::open(&path, DEFAULT_BUFFER).and_then(|dataset| dataset.summary()),
        _ => return Err(bad("a format")),
    };
    summary_json(&summary.map_err(fault)?)
}

fn summary_json(summary: &Summary) -> Answer {
    let mut columns = Map::new();
    for (name, column) in &summary.columns {
        let mut shape = vec![column.rows];
        shape.extend(column.shape.dims().iter().map(|dim| u64::from(*dim)));
        let entry = json!({
            "dtype": json_of(&column.first)?["dtype"],
            "shape": shape,
            "sum": float_json(column.sum),
            "first": row(&column.first)?,
            "last": row(&column.last)?,
            "row_100": row(&column.row_100)?,
        });
        columns.insert(name.clone(), entry);
    }
    let episodes = summary.episode_lengths.len();
    Ok(json!({
        "rows": summary.rows,
        "episodes": episodes,
        "episode_lengths": summary.episode_lengths,
        "columns": columns,
    }))
}

/// Returns the only row of a column: a number, or a list.
fn row(column: &Column) -> Answer {
    let data = &json_of(column)?["data"];
    Ok(if column.shape().dims().is_empty() { data[0].clone() } else { data.clone() })
}

fn json_of(column: &Column) -> Answer {
    column_json(column).ok_or_else(|| bad("a column of numbers"))
}

fn fault(error: DatasetError) -> Fault {
    match error {
        DatasetError::MissingColumn(_) => Fault::MissingColumn,
        DatasetError::LengthMismatch { .. } => Fault::LengthMismatch,
        DatasetError::Shape { .. } => Fault::ShapeMismatch,
        DatasetError::Empty(_) => Fault::NoData,
        _ => Fault::CorruptData,
    }
}
