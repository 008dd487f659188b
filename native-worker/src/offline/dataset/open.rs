//! Whatever a path leads to.

use std::{fs::File, io::Read as _, path::Path};

use super::{
    super::{d4rl::D4rlFile, hdf5::FileSource, minari::MinariDataset},
    BatchStream, DatasetError,
};

/// Opens a data set, whatever it is: the folder of one of Minari's, a Parquet file, or a D4RL file.
///
/// # Errors
/// [`DatasetError`].
pub fn open(path: &Path, buffer: usize) -> Result<Box<dyn BatchStream>, DatasetError> {
    let io = |source| DatasetError::Io { path: path.display().to_string(), source };
    if path.is_dir() {
        return Ok(Box::new(MinariDataset::open(path, buffer)?.stream()));
    }
    let mut signature = Vec::new();
    File::open(path).and_then(|file| file.take(4).read_to_end(&mut signature)).map_err(io)?;
    if signature == b"PAR1" {
        #[cfg(feature = "offline-parquet")]
        return Ok(Box::new(super::super::parquet::ParquetStream::open(path, buffer)?));
        #[cfg(not(feature = "offline-parquet"))]
        return Err(DatasetError::Corrupt("a Parquet file, which this build does not read".to_string()));
    }
    Ok(Box::new(D4rlFile::open(FileSource::open(path).map_err(io)?, buffer)?.stream()))
}
