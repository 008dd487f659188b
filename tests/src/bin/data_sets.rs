//! Reads data sets of other programs and writes data sets, for `tests/peers/data_sets.py`.
//!
//! ```text
//! data_sets convert FROM FOLDER   its batches as Parquet files in this project's format
//! data_sets minari FROM FOLDER    a Minari data set of the script's spaces
//! ```

use std::{env, error::Error, path::Path};

use rollmesh_core::{
    column::{DType, RowShape},
    space::{BoxSpace, Space},
};
use rollmesh_data::{
    dataset::{self, BatchStream as _},
    limits::DEFAULT_BUFFER,
    minari::{MinariDataset, MinariInfo, MinariWriter},
    parquet::{ParquetOptions, ParquetWriter},
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["convert", from, folder] => convert(Path::new(from), Path::new(folder)),
        ["minari", from, folder] => minari(Path::new(from), Path::new(folder)),
        _ => Err("see the first lines of the program".into()),
    }
}

fn convert(from: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut stream = dataset::open(from, DEFAULT_BUFFER)?;
    let mut writer = ParquetWriter::new(folder, "converted", ParquetOptions::default())?;
    while let Some(batch) = stream.next_batch()? {
        writer.write(&batch)?;
    }
    for file in writer.finish()? {
        println!("{}", file.display());
    }
    Ok(())
}

/// Writes a data set with the script's spaces.
fn minari(from: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let dataset = MinariDataset::open(from, DEFAULT_BUFFER)?;
    let pos = BoxSpace::uniform(DType::F32, RowShape::new(&[2, 2])?, f64::NEG_INFINITY, f64::INFINITY)?;
    let arm = BoxSpace::uniform(DType::F64, RowShape::vector(3), -1.0, 1.0)?;
    let info = MinariInfo {
        dataset_id: "rollmesh/nested-v0".to_string(),
        observation_space: Space::dict([("pos", Space::Box(pos)), ("goal", Space::discrete(5)?)])?,
        action_space: Space::tuple([Space::Box(arm), Space::discrete(3)?])?,
        more: serde_json::Map::new(),
    };
    let mut writer = MinariWriter::create(folder, info)?;
    let mut stream = dataset.stream();
    while let Some(batch) = stream.next_batch()? {
        writer.write_episode(batch.single()?)?;
    }
    Ok(())
}
