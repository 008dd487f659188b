//! Reads and writes Minari's data sets: folders with metadata and one record per episode, in HDF5, Arrow or Parquet.
//!
//! An episode has one more observation than it has steps, so the last one is never lost; it is the last row of `new_obs`.
//! Parts of dict and tuple observations and actions have dotted names, `obs.pos` and `obs.0`, like the parts of this crate's
//! spaces. `terminations` and `truncations` become `terminateds` and `truncateds`, the id of an episode becomes its
//! `eps_id`, and `infos` become `infos.…`, each with its step; the reset's infos are left out. Boxes have the shape in the
//! metadata. Frames encoded as JPEG are not supported.
//!
//! An episode is read as a whole, so it must fit into the buffer; all others stay on disk.
//!
//! ```no_run
//! use rollmesh_data::{dataset::BatchStream as _, limits::DEFAULT_BUFFER, minari::MinariDataset};
//!
//! let dataset = MinariDataset::open("datasets/D4RL/door/human-v2".as_ref(), DEFAULT_BUFFER)?;
//! println!("{} episodes of {:?}", dataset.episodes(), dataset.metadata().get("env_spec"));
//! let mut stream = dataset.stream();
//! while let Some(batch) = stream.next_batch()? {
//!     println!("{batch:?}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod episode;
#[cfg(feature = "hdf5")]
mod hdf5;
mod spaces;
mod stream;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(feature = "parquet")]
mod write;

use std::{fs::File, io::Read as _, path::Path};

use serde_json::{Map, Value};

use super::dataset::{DatasetError, Summary, SummaryBuilder};

pub use episode::MinariEpisode;
pub use stream::MinariStream;
#[cfg(feature = "parquet")]
pub use write::{MinariInfo, MinariWriter};

/// Maximum size of the metadata in bytes.
const MAX_METADATA: u64 = 16 << 20;

/// An open data set.
pub struct MinariDataset {
    metadata: Map<String, Value>,
    storage: Storage,
    observation_space: Option<Value>,
    action_space: Option<Value>,
}

enum Storage {
    #[cfg(feature = "hdf5")]
    Hdf5(hdf5::Hdf5Episodes),
    #[cfg(feature = "parquet")]
    Tables(tables::TableEpisodes),
}

impl MinariDataset {
    /// Opens a data set by its folder, or by the `data` folder in it.
    ///
    /// # Errors
    /// [`DatasetError::Io`] without metadata, [`DatasetError::Unsupported`] for JPEG frames, and others.
    pub fn open(folder: &Path, buffer: usize) -> Result<Self, DatasetError> {
        let data = if folder.join("metadata.json").is_file() { folder.to_path_buf() } else { folder.join("data") };
        let metadata = read_json(&data.join("metadata.json"))?;
        let Value::Object(metadata) = metadata else {
            return Err(DatasetError::Corrupt("the metadata are no JSON object".to_string()));
        };
        let space = |key: &str| metadata.get(key).and_then(Value::as_str).and_then(spaces::parse);
        let (observation_space, action_space) = (space("observation_space"), space("action_space"));
        if metadata.get("jpeg_encoding") != Some(&Value::Bool(false)) {
            for (name, space) in [("observations", &observation_space), ("actions", &action_space)] {
                if space.as_ref().is_some_and(spaces::has_frames) {
                    return Err(DatasetError::Unsupported { name: name.to_string(), found: "JPEG frames".to_string() });
                }
            }
        }
        let storage = match metadata.get("data_format").and_then(Value::as_str).unwrap_or("hdf5") {
            #[cfg(feature = "hdf5")]
            "hdf5" => Storage::Hdf5(hdf5::Hdf5Episodes::open(&data, buffer)?),
            #[cfg(feature = "parquet")]
            format @ ("arrow" | "parquet") => {
                let total = metadata.get("total_episodes").and_then(Value::as_u64);
                Storage::Tables(tables::TableEpisodes::open(&data, format == "arrow", total, buffer)?)
            }
            format => {
                return Err(DatasetError::Unsupported {
                    name: "data_format".to_string(),
                    found: format!("'{format}', which this build does not read"),
                });
            }
        };
        Ok(Self { metadata, storage, observation_space, action_space })
    }

    /// Opens the episodes of one HDF5 file, without the metadata next to it; there are none in files of another layout.
    #[cfg(feature = "hdf5")]
    pub(crate) fn of_hdf5(source: impl crate::Source + 'static, buffer: usize) -> Result<Self, DatasetError> {
        let storage = Storage::Hdf5(hdf5::Hdf5Episodes::of(source, buffer)?);
        Ok(Self { metadata: Map::new(), storage, observation_space: None, action_space: None })
    }

    /// Returns the data set's metadata: `dataset_id`, `env_spec`, spaces, authors, ….
    #[must_use]
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// Returns the number of episodes.
    #[must_use]
    pub fn episodes(&self) -> usize {
        match &self.storage {
            #[cfg(feature = "hdf5")]
            Storage::Hdf5(episodes) => episodes.len(),
            #[cfg(feature = "parquet")]
            Storage::Tables(episodes) => episodes.len(),
        }
    }

    /// Returns an episode as stored, by its place in the order of ids; none beyond the last.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn episode(&self, place: usize) -> Result<Option<MinariEpisode>, DatasetError> {
        let episode = match &self.storage {
            #[cfg(feature = "hdf5")]
            Storage::Hdf5(episodes) => episodes.read(place)?,
            #[cfg(feature = "parquet")]
            Storage::Tables(episodes) => episodes.read(place)?,
        };
        let Some(mut episode) = episode else { return Ok(None) };
        for (space, columns) in
            [(&self.observation_space, &mut episode.observations), (&self.action_space, &mut episode.actions)]
        {
            if let Some(space) = space {
                spaces::reshape(space, columns);
            }
        }
        episode.check().map(Some)
    }

    /// Returns the batches, one per episode.
    #[must_use]
    pub fn stream(self) -> MinariStream {
        MinariStream::new(self)
    }

    /// Returns a summary of the content with Minari's names. Reads all episodes in order.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn summary(&self) -> Result<Summary, DatasetError> {
        let mut builder = SummaryBuilder::default();
        let mut lengths = Vec::with_capacity(self.episodes());
        for place in 0..self.episodes() {
            let Some(episode) = self.episode(place)? else { break };
            lengths.push(episode.steps() as u64);
            for (name, column) in episode.columns() {
                builder.push(&name, column)?;
            }
        }
        Ok(builder.finish(lengths))
    }
}

/// Reads a JSON document from a file, up to a maximum size.
fn read_json(path: &Path) -> Result<Value, DatasetError> {
    let failed = |source| DatasetError::Io { path: path.display().to_string(), source };
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_METADATA).read_to_end(&mut text)).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| DatasetError::Corrupt(format!("{}: {error}", path.display())))
}
