//! Opens data sets of any format.

use std::{path::Path, sync::Arc};

use super::{BatchStream, DatasetError};
#[cfg(feature = "hdf5")]
use crate::hdf5::Hdf5Error;
use crate::{
    minari::MinariDataset,
    source::{FileSource, Source},
};

/// Opens a data set by its format: a folder of Minari, or a file as [`open_file`] does.
///
/// # Errors
/// [`DatasetError`].
pub fn open(path: &Path, buffer: usize) -> Result<Box<dyn BatchStream>, DatasetError> {
    if path.is_dir() {
        return Ok(Box::new(MinariDataset::open(path, buffer)?.stream()));
    }
    let source = FileSource::open(path);
    let source = source.map_err(|source| DatasetError::Io { path: path.display().to_string(), source })?;
    open_file(Arc::new(source), buffer).map_err(|error| error.of(path))
}

/// Opens a file by its format: a Parquet file, or an HDF5 file of D4RL or Minari. Of Minari it is one file of several: without
/// the metadata next to it, observations and actions have the shapes and names that the file has.
///
/// # Errors
/// [`DatasetError`].
pub fn open_file(source: Arc<dyn Source>, buffer: usize) -> Result<Box<dyn BatchStream>, DatasetError> {
    let mut signature = [0; 4];
    if source.read_at(0, &mut signature).is_ok() && signature == *b"PAR1" {
        #[cfg(feature = "parquet")]
        return Ok(Box::new(crate::parquet::ParquetStream::from_source(source, buffer)?));
        #[cfg(not(feature = "parquet"))]
        return Err(DatasetError::NotBuilt { format: "Parquet", feature: "parquet" });
    }
    #[cfg(feature = "hdf5")]
    {
        let episodes = MinariDataset::of_hdf5(source.clone(), buffer).map_err(|error| match error {
            DatasetError::Hdf5(Hdf5Error::NotHdf5) => DatasetError::Corrupt("it is neither Parquet nor HDF5".into()),
            error => error,
        })?;
        if episodes.episodes() > 0 {
            return Ok(Box::new(episodes.stream()));
        }
        Ok(Box::new(crate::d4rl::D4rlFile::open(source, buffer)?.stream()))
    }
    #[cfg(not(feature = "hdf5"))]
    Err(DatasetError::NotBuilt { format: "HDF5", feature: "hdf5" })
}
