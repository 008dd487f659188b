//! Writes episodes in a form that the `minari` package can read.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{Array as _, ArrayRef, RecordBatch, StructArray};
use arrow_schema::{Field, Fields, Schema};
use parquet::arrow::ArrowWriter;
use rollmesh_core::{
    batch::{ACTIONS, BatchError, NEW_OBS, OBS, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS},
    column::{Column, DType},
    space::{BoxSpace, Space},
};
use serde_json::{Map, Value, json};

use super::super::{
    arrow::{self, corrupt},
    dataset::{DatasetError, append, cast},
    files::{FileKind, replace},
};

/// The metadata of a data set.
#[derive(Clone, Debug)]
pub struct MinariInfo {
    /// Its id, `cartpole/expert-v0`.
    pub dataset_id: String,
    /// Space of observations.
    pub observation_space: Space,
    /// Space of actions.
    pub action_space: Space,
    /// Further entries: `env_spec` (Gymnasium's JSON, as text), `algorithm_name`, `author`, `description`, ….
    pub more: Map<String, Value>,
}

/// Writes a data set in Minari's Parquet layout, an episode at a time.
///
/// An episode appears as a whole, and the metadata count it afterwards: whenever the program is killed, the data set consists of
/// the episodes that were written before. Of an episode that could not be written, no file is left.
pub struct MinariWriter {
    data: PathBuf,
    info: MinariInfo,
    episodes: u64,
    steps: u64,
}

impl MinariWriter {
    /// Creates a data set in a folder, which must not contain one.
    ///
    /// # Errors
    /// [`DatasetError::Io`].
    pub fn create(folder: &Path, info: MinariInfo) -> Result<Self, DatasetError> {
        let data = folder.join("data");
        if data.join("metadata.json").exists() {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "there is a data set already");
            return Err(DatasetError::Io { path: folder.display().to_string(), source });
        }
        fs::create_dir_all(&data).map_err(failed(&data))?;
        let writer = Self { data, info, episodes: 0, steps: 0 };
        writer.write_metadata()?;
        Ok(writer)
    }

    /// Writes an episode: `obs`, `new_obs`, whose last row is the last observation, `actions`, `rewards`, `terminateds` and
    /// `truncateds`. Other columns are left out.
    ///
    /// # Errors
    /// [`DatasetError::MissingColumn`], [`DatasetError::Empty`], and others.
    pub fn write_episode(&mut self, batch: &SampleBatch) -> Result<(), DatasetError> {
        let steps = batch.len();
        let Some(last) = steps.checked_sub(1) else { return Err(DatasetError::Empty("the batch".to_string())) };
        let mut batch = batch.clone();
        batch.decompress_if_needed()?;
        let after = |name: &str, rest: &str| -> Result<Column, DatasetError> {
            let rest = if rest.is_empty() { NEW_OBS.name().to_string() } else { format!("{}.{rest}", NEW_OBS.name()) };
            let last = named(&batch, &rest)?.slice(last..last + 1);
            Ok(append(named(&batch, name)?, &last)?)
        };
        // Minari removes this row.
        let padded = |name: &str| -> Result<Column, DatasetError> {
            let column = named(&batch, name)?;
            Ok(append(column, &column.slice(last..last + 1))?)
        };
        let observed = nested(OBS.name(), "", &self.info.observation_space, &|name, rest| after(name, rest))?;
        let acted = nested(ACTIONS.name(), "", &self.info.action_space, &|name, _| padded(name))?;
        let one = |name: &str, dtype| -> Result<ArrayRef, DatasetError> {
            arrow::array(&cast(name, &padded(name)?, dtype)?, None)
        };
        let arrays = vec![
            observed,
            acted,
            one(REWARDS.name(), DType::F32)?,
            one(TERMINATEDS.name(), DType::Bool)?,
            one(TRUNCATEDS.name(), DType::Bool)?,
        ];
        let names = ["observations", "actions", "rewards", "terminations", "truncations"];
        let field = |(name, array): (&&str, &ArrayRef)| Field::new(*name, array.data_type().clone(), true);
        let fields: Vec<Field> = names.iter().zip(&arrays).map(field).collect();
        let schema = Arc::new(Schema::new(fields));
        let rows = RecordBatch::try_new(schema, arrays).map_err(corrupt)?;

        let folder = self.data.join(self.episodes.to_string());
        let part = folder.with_added_extension("part");
        let added = self.write_folder(&part, &rows, steps).and_then(|()| self.add_folder(&part, &folder, steps));
        added.inspect_err(|_| {
            // Frees space on a full disk; only the first error is reported.
            let _ = fs::remove_dir_all(&part);
        })
    }

    /// Writes an episode's files into a folder that is not part of the data set yet.
    fn write_folder(&self, folder: &Path, rows: &RecordBatch, steps: usize) -> Result<(), DatasetError> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Left over from an interrupted write.
            removed => removed.map_err(failed(folder))?,
        }
        fs::create_dir(folder).map_err(failed(folder))?;
        let path = folder.join("part-0.parquet");
        let file = File::create(&path).map_err(failed(&path))?;
        let write = || {
            let mut writer = ArrowWriter::try_new(file.try_clone()?, rows.schema(), None)?;
            writer.write(rows)?;
            writer.close()
        };
        write().map_err(|error: parquet::errors::ParquetError| failed(&path)(io::Error::other(error)))?;
        file.sync_all().map_err(failed(&path))?;
        // Also syncs the folder.
        write_json(&folder.join("metadata.json"), &json!({"id": self.episodes, "total_steps": steps}))
    }

    /// Gives an episode's folder its name, and counts it in the metadata.
    fn add_folder(&mut self, part: &Path, folder: &Path, steps: usize) -> Result<(), DatasetError> {
        fs::rename(part, folder).map_err(failed(folder))?;
        let before = (self.episodes, self.steps);
        (self.episodes, self.steps) = (self.episodes + 1, self.steps + steps as u64);
        self.write_metadata().inspect_err(|_| {
            (self.episodes, self.steps) = before;
            // The one with the episode may have its name already.
            let _ = self.write_metadata();
            // Readers do not read it, but it has the name of the next episode.
            let _ = fs::remove_dir_all(folder);
        })
    }

    fn write_metadata(&self) -> Result<(), DatasetError> {
        let mut metadata = self.info.more.clone();
        let space = |space: &Space| Value::from(space_text(space));
        for (key, value) in [
            ("total_episodes", self.episodes.into()),
            ("total_steps", self.steps.into()),
            ("data_format", "parquet".into()),
            ("jpeg_encoding", false.into()),
            ("observation_space", space(&self.info.observation_space)),
            ("action_space", space(&self.info.action_space)),
            ("dataset_id", self.info.dataset_id.clone().into()),
            ("minari_version", "0.5.4".into()),
        ] {
            metadata.insert(key.to_string(), value);
        }
        write_json(&self.data.join("metadata.json"), &Value::Object(metadata))
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> DatasetError {
    let path = path.display().to_string();
    move |source| DatasetError::Io { path: path.clone(), source }
}

/// Replaces the file atomically; on an error, the old one stays.
fn write_json(path: &Path, value: &Value) -> Result<(), DatasetError> {
    let text = value.to_string();
    replace(path, FileKind::Durable, |file| file.write_all(text.as_bytes())).map_err(failed(path))
}

fn named<'a>(batch: &'a SampleBatch, name: &str) -> Result<&'a Column, DatasetError> {
    batch.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()).into())
}

/// Returns the array of a space's points, whose parts are columns with dotted names. `rest` is the name after its first
/// part.
fn nested(
    name: &str,
    rest: &str,
    space: &Space,
    column: &dyn Fn(&str, &str) -> Result<Column, DatasetError>,
) -> Result<ArrayRef, DatasetError> {
    let parts: Vec<(String, &Space)> = match space {
        Space::Dict(parts) => parts.iter().map(|(name, part)| (name.clone(), part)).collect(),
        Space::Tuple(parts) => parts.iter().enumerate().map(|(place, part)| (place.to_string(), part)).collect(),
        _ => {
            let found = column(name, rest)?;
            if found.shape().elements() != space.shape().elements() {
                let problem = format!("its rows are {}, not those of {space}", found.shape());
                return Err(DatasetError::Shape { name: name.to_owned(), problem });
            }
            let array = arrow::array(&found, None)?;
            // Minari stores all boxes as lists, even single numbers.
            let single = found.shape().dims().is_empty() && !matches!(space, Space::Discrete { .. });
            return if single { listed(array) } else { Ok(array) };
        }
    };
    let mut fields = Vec::with_capacity(parts.len());
    let mut arrays = Vec::with_capacity(parts.len());
    for (part, space) in parts {
        let rest = if rest.is_empty() { part.clone() } else { format!("{rest}.{part}") };
        let array = nested(&format!("{name}.{part}"), &rest, space, column)?;
        fields.push(Field::new(part, array.data_type().clone(), true));
        arrays.push(array);
    }
    let structs = StructArray::try_new(Fields::from(fields), arrays, None).map_err(corrupt)?;
    Ok(Arc::new(structs))
}

/// Converts each number to a list of one.
fn listed(array: ArrayRef) -> Result<ArrayRef, DatasetError> {
    let field = Arc::new(Field::new("element", array.data_type().clone(), false));
    Ok(Arc::new(arrow_array::FixedSizeListArray::try_new(field, 1, array, None).map_err(corrupt)?))
}

/// Writes a space as Minari does: with Python's infinities.
fn space_text(space: &Space) -> String {
    let list = |parts: Vec<String>| format!("[{}]", parts.join(", "));
    match space {
        Space::Box(space) => {
            let dims: Vec<usize> = space.shape().dims().iter().map(|dim| *dim as usize).collect();
            let bounds = |bound: &dyn Fn((f64, f64)) -> f64| {
                let bounds: Vec<String> = space.bounds().map(|bounds| number(space, bound(bounds))).collect();
                nest(&bounds, &dims)
            };
            let (low, high) = (bounds(&|bounds| bounds.0), bounds(&|bounds| bounds.1));
            let (dtype, shape) = (space.dtype().name(), list(dims.iter().map(usize::to_string).collect()));
            format!(r#"{{"type": "Box", "dtype": "{dtype}", "shape": {shape}, "low": {low}, "high": {high}}}"#)
        }
        Space::Discrete { n } => format!(r#"{{"type": "Discrete", "dtype": "int64", "start": 0, "n": {n}}}"#),
        Space::MultiDiscrete { nvec } => {
            let start = list(vec!["0".to_string(); nvec.len()]);
            let nvec = list(nvec.iter().map(u32::to_string).collect());
            format!(r#"{{"type": "MultiDiscrete", "dtype": "int64", "nvec": {nvec}, "start": {start}}}"#)
        }
        Space::MultiBinary { n } => format!(r#"{{"type": "MultiBinary", "n": {n}}}"#),
        Space::Tuple(parts) => {
            format!(r#"{{"type": "Tuple", "subspaces": {}}}"#, list(parts.iter().map(space_text).collect()))
        }
        Space::Dict(parts) => {
            let part = |(name, part): (&String, &Space)| format!("{}: {}", json!(name), space_text(part));
            let parts: Vec<String> = parts.iter().map(part).collect();
            format!(r#"{{"type": "Dict", "subspaces": {{{}}}}}"#, parts.join(", "))
        }
    }
}

fn number(space: &BoxSpace, value: f64) -> String {
    match (value.is_infinite(), space.dtype().is_float()) {
        (true, _) if value > 0.0 => "Infinity".to_string(),
        (true, _) => "-Infinity".to_string(),
        (false, true) => format!("{value:?}"),
        (false, false) => format!("{value}"),
    }
}

/// Writes numbers as nested lists with these dimensions, or a single number without dimensions.
fn nest(numbers: &[String], dims: &[usize]) -> String {
    match dims.split_first() {
        None => numbers.first().cloned().unwrap_or_default(),
        Some((_, rest)) => {
            let size = rest.iter().product::<usize>().max(1);
            let parts: Vec<String> = numbers.chunks(size).map(|part| nest(part, rest)).collect();
            format!("[{}]", parts.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::column::RowShape;

    use super::*;

    #[test]
    fn spaces_are_written_as_minari_writes_them() {
        let shape = RowShape::new(&[2, 1]).unwrap();
        let space = BoxSpace::new(DType::F32, shape, vec![f64::NEG_INFINITY, -1.0], vec![f64::INFINITY, 1.5]).unwrap();
        let space = Space::dict([("p", Space::Box(space)), ("q", Space::discrete(3).unwrap())]).unwrap();
        let text = r#"{"type": "Dict", "subspaces": {"p": {"type": "Box", "dtype": "float32", "shape": [2, 1], "low": [[-Infinity], [-1.0]], "high": [[Infinity], [1.5]]}, "q": {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}}}"#;
        assert_eq!(space_text(&space), text);
    }
}
