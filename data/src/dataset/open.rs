//! Opens data sets of any format.

use std::{fs::File, io::Read as _, path::Path};

use super::{BatchStream, DatasetError};
use crate::minari::MinariDataset;

/// Opens a data set by its format: a folder of Minari, a Parquet file, or a D4RL file.
///
/// # Errors
/// [`DatasetError`].
pub fn open(path: &Path, buffer: usize) -> Result<Box<dyn BatchStream>, DatasetError> {
    if path.is_dir() {
        return Ok(Box::new(MinariDataset::open(path, buffer)?.stream()));
    }
    let mut signature = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut signature));
    read.map_err(|source| DatasetError::Io { path: path.display().to_string(), source })?;
    if signature == b"PAR1" {
        #[cfg(feature = "parquet")]
        return Ok(Box::new(crate::parquet::ParquetStream::open(path, buffer)?));
        #[cfg(not(feature = "parquet"))]
        return Err(DatasetError::NotBuilt { format: "Parquet", feature: "parquet" });
    }
    #[cfg(feature = "hdf5")]
    return Ok(Box::new(crate::d4rl::D4rlFile::open_path(path, buffer)?.stream()));
    #[cfg(not(feature = "hdf5"))]
    Err(DatasetError::NotBuilt { format: "HDF5", feature: "hdf5" })
}
