//! Reads episodes from Arrow or Parquet files, one folder per episode.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use arrow_array::{Array as _, RecordBatch};
use arrow_select::concat::concat_batches;
use rollmesh_core::column::Column;

use super::{
    super::{
        arrow::{self, IpcBatches},
        dataset::DatasetError,
        parquet::ParquetFile,
    },
    MinariEpisode,
};

pub(super) struct TableEpisodes {
    is_arrow: bool,
    folders: Vec<(u64, PathBuf)>,
    /// Maximum size of an episode with its file in bytes.
    buffer: usize,
}

impl TableEpisodes {
    /// Opens the first `total` episodes, or all of them without a number. Folders beyond it were not finished.
    pub(super) fn open(data: &Path, is_arrow: bool, total: Option<u64>, buffer: usize) -> Result<Self, DatasetError> {
        let mut folders = numbered(data)?;
        folders.truncate(total.and_then(|total| usize::try_from(total).ok()).unwrap_or(usize::MAX));
        Ok(Self { is_arrow, folders, buffer })
    }

    pub(super) fn len(&self) -> usize {
        self.folders.len()
    }

    pub(super) fn read(&self, place: usize) -> Result<Option<MinariEpisode>, DatasetError> {
        let Some((id, folder)) = self.folders.get(place) else { return Ok(None) };
        let rows = self.rows(folder, self.buffer)?;
        // The last row has only an observation.
        let steps = rows.num_rows().saturating_sub(1);
        let part = |name: &str, rows_wanted: usize| -> Result<Vec<(String, Column)>, DatasetError> {
            let Ok(place) = rows.schema_ref().index_of(name) else {
                return if name == "infos" {
                    Ok(Vec::new())
                } else {
                    Err(DatasetError::MissingColumn(name.to_string()))
                };
            };
            let array = rows.column(place).slice(0, rows_wanted);
            let columns = arrow::guarded(|| arrow::columns("", rows.schema_ref().field(place), &array))??;
            // The names of a struct's parts begin with the dot after the empty name.
            Ok(columns.into_iter().map(|(name, column)| (name.trim_start_matches('.').to_string(), column)).collect())
        };
        let one = |name: &str| {
            let column = part(name, steps)?.into_iter().next().map(|(_, column)| column);
            column.ok_or_else(|| DatasetError::Empty(format!("{}", folder.display())))
        };
        Ok(Some(MinariEpisode {
            id: i64::try_from(*id).unwrap_or(i64::MAX),
            observations: part("observations", rows.num_rows())?,
            actions: part("actions", steps)?,
            rewards: one("rewards")?,
            terminations: one("terminations")?,
            truncations: one("truncations")?,
            // Infos can be anything; those that cannot be columns are left out.
            infos: part("infos", rows.num_rows()).unwrap_or_default(),
        }))
    }

    /// Reads all rows of the files in a folder.
    fn rows(&self, folder: &Path, buffer: usize) -> Result<RecordBatch, DatasetError> {
        let ending = if self.is_arrow { "arrow" } else { "parquet" };
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |source| DatasetError::Io { path: path.clone(), source }
        };
        let mut files = Vec::new();
        for entry in folder.read_dir().map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            if path.extension().is_some_and(|found| found == ending) {
                files.push(path);
            }
        }
        files.sort();
        let mut batches = Vec::new();
        let mut left = buffer as u64 / 2;
        for path in files {
            let bytes = fs::metadata(&path).map_err(failed(&path))?.len();
            left = left.checked_sub(bytes).ok_or(DatasetError::TooLarge { what: "an episode", bytes, buffer })?;
            if self.is_arrow {
                let mut file = IpcBatches::new(fs::read(&path).map_err(failed(&path))?);
                while let Some(batch) = file.next()? {
                    batches.push(batch);
                }
            } else {
                let mut file = ParquetFile::open(&path, buffer)?;
                let mut held = 0;
                while let Some(batch) = file.next()? {
                    held += batch.get_array_memory_size() as u64;
                    if held > buffer as u64 {
                        return Err(DatasetError::TooLarge { what: "an episode", bytes: held, buffer });
                    }
                    batches.push(batch);
                }
            }
        }
        let schema = batches.first().map(RecordBatch::schema);
        let schema = schema.ok_or_else(|| DatasetError::Empty(folder.display().to_string()))?;
        match batches.as_slice() {
            [batch] => Ok(batch.clone()),
            batches => arrow::guarded(|| concat_batches(&schema, batches))?.map_err(arrow::corrupt),
        }
    }
}

/// Lists the entries of a folder, by the number in their names.
fn numbered(folder: &Path) -> Result<Vec<(u64, PathBuf)>, DatasetError> {
    let failed = |source: io::Error| DatasetError::Io { path: folder.display().to_string(), source };
    let mut found = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}
