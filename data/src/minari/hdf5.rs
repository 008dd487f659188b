//! Reads episodes from one HDF5 file, with one group per episode.

use std::path::Path;

use hdf5_pure::{AttrValue, File, Group};
use rollmesh_core::column::Column;

use super::{
    super::{
        dataset::DatasetError,
        hdf5::{self, Member, RowArray},
        source::{FileSource, Source},
    },
    MinariEpisode,
};

/// Maximum nesting of groups; Minari's files do not exceed it.
const MAX_DEPTH: usize = 16;
/// Maximum number of groups of an episode. In a damaged file a group may contain the one that it is in.
const MAX_GROUPS: usize = 10_000;

pub(super) struct Hdf5Episodes {
    file: File,
    episodes: Vec<(u64, Group)>,
    buffer: usize,
}

impl Hdf5Episodes {
    pub(super) fn open(data: &Path, buffer: usize) -> Result<Self, DatasetError> {
        let path = data.join("main_data.hdf5");
        let source = FileSource::open(&path);
        Self::of(source.map_err(|source| DatasetError::Io { path: path.display().to_string(), source })?, buffer)
    }

    pub(super) fn of(source: impl Source + 'static, buffer: usize) -> Result<Self, DatasetError> {
        hdf5::listing(source.size(), buffer / 2, || Self::list(source, buffer))
    }

    fn list(source: impl Source + 'static, buffer: usize) -> Result<Self, DatasetError> {
        let file = hdf5::open(source, buffer / 2)?;
        let mut episodes = Vec::new();
        for (name, group) in file.root().iter_groups().map_err(hdf5::unreadable)? {
            if let Some(id) = name.strip_prefix("episode_").and_then(|id| id.parse().ok()) {
                episodes.push((id, group));
            }
        }
        episodes.sort_by_key(|(id, _)| *id);
        Ok(Self { file, episodes, buffer })
    }

    pub(super) fn len(&self) -> usize {
        self.episodes.len()
    }

    pub(super) fn read(&self, place: usize) -> Result<Option<MinariEpisode>, DatasetError> {
        let Some((id, group)) = self.episodes.get(place) else { return Ok(None) };
        hdf5::listing(self.file.file_size(), self.buffer / 2, || self.episode(*id, group).map(Some))
    }

    fn episode(&self, id: u64, group: &Group) -> Result<MinariEpisode, DatasetError> {
        let attributes = group.attrs().map_err(hdf5::unreadable)?;
        let id =
            attributes.get("id").and_then(AttrValue::as_i64).unwrap_or_else(|| i64::try_from(id).unwrap_or(i64::MAX));
        let mut rest = Rest { bytes: self.buffer as u64 / 2, groups: MAX_GROUPS };
        let mut parts = |name: &str| {
            let mut columns = Vec::new();
            match hdf5::member(group, name, &self.file, self.buffer / 2)? {
                Some(Member::Array(array)) => columns.push((String::new(), self.column(&array, &mut rest)?)),
                Some(Member::Group(group)) => self.collect("", &group, 1, &mut rest, &mut columns)?,
                None if name == "infos" => {}
                None => return Err(DatasetError::MissingColumn(name.to_string())),
            }
            Ok(columns)
        };
        let (observations, actions, infos) = (parts("observations")?, parts("actions")?, parts("infos")?);
        let mut one = |name: &str| {
            let column = parts(name)?.into_iter().next().map(|(_, column)| column);
            column.ok_or_else(|| DatasetError::MissingColumn(name.to_string()))
        };
        let (rewards, terminations, truncations) = (one("rewards")?, one("terminations")?, one("truncations")?);
        Ok(MinariEpisode { id, observations, actions, rewards, terminations, truncations, infos })
    }

    /// Reads a whole array.
    fn column(&self, array: &RowArray, rest: &mut Rest) -> Result<Column, DatasetError> {
        let bytes = array.row_bytes().saturating_mul(array.rows());
        let left = rest.bytes.checked_sub(bytes);
        rest.bytes = left.ok_or(DatasetError::TooLarge { what: "an episode", bytes, buffer: self.buffer })?;
        Ok(array.read_rows(0..array.rows())?)
    }

    /// Reads all arrays below a group, with dotted names.
    fn collect(
        &self,
        name: &str,
        group: &Group,
        depth: usize,
        rest: &mut Rest,
        columns: &mut Vec<(String, Column)>,
    ) -> Result<(), DatasetError> {
        rest.groups = rest.groups.saturating_sub(1);
        if depth > MAX_DEPTH || rest.groups == 0 {
            return Err(DatasetError::Corrupt("groups without end".to_string()));
        }
        let part_name = |part: &str| {
            // The parts of tuples.
            let part = part.strip_prefix("_index_").unwrap_or(part);
            if name.is_empty() { part.to_string() } else { format!("{name}.{part}") }
        };
        for (part, array) in hdf5::arrays(group, &self.file, self.buffer / 2)? {
            columns.push((part_name(&part), self.column(&array, rest)?));
        }
        for (part, group) in group.iter_groups().map_err(hdf5::unreadable)? {
            self.collect(&part_name(&part), &group, depth + 1, rest, columns)?;
        }
        Ok(())
    }
}

/// The remaining limits of reading an episode.
struct Rest {
    bytes: u64,
    groups: usize,
}
