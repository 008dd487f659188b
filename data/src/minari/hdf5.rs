//! Reads episodes from one HDF5 file, with one group per episode.

use std::path::Path;

use rollmesh_core::column::Column;

use super::{
    super::{
        dataset::DatasetError,
        hdf5::{Attribute, Hdf5File, Link, Node},
        source::FileSource,
    },
    MinariEpisode,
};

/// Maximum nesting of groups; Minari's files do not exceed it.
const MAX_DEPTH: usize = 16;

pub(super) struct Episodes {
    episodes: Vec<(u64, Link)>,
}

impl Episodes {
    pub(super) fn open(data: &Path, buffer: usize) -> Result<Self, DatasetError> {
        let path = data.join("main_data.hdf5");
        let source = FileSource::open(&path);
        let source = source.map_err(|source| DatasetError::Io { path: path.display().to_string(), source })?;
        let root = Hdf5File::open(source, buffer / 2)?.root()?;
        let mut episodes = Vec::new();
        for (name, link) in root.links()? {
            if let Some(id) = name.strip_prefix("episode_").and_then(|id| id.parse().ok()) {
                episodes.push((id, link));
            }
        }
        episodes.sort_by_key(|(id, _)| *id);
        Ok(Self { episodes })
    }

    pub(super) fn len(&self) -> usize {
        self.episodes.len()
    }

    pub(super) fn read(&self, place: usize, buffer: usize) -> Result<Option<MinariEpisode>, DatasetError> {
        let Some((id, link)) = self.episodes.get(place) else { return Ok(None) };
        let group = link.open()?;
        let id = group
            .attributes()?
            .into_iter()
            .find_map(|(name, value)| match value {
                Attribute::Int(id) if name == "id" => Some(id),
                _ => None,
            })
            .unwrap_or_else(|| i64::try_from(*id).unwrap_or(i64::MAX));
        let mut left = buffer as u64 / 2;
        let mut parts = |name: &str| {
            let mut columns = Vec::new();
            match group.links()?.into_iter().find(|(link, _)| link == name) {
                Some((_, link)) => collect(String::new(), &link.open()?, 0, buffer, &mut left, &mut columns)?,
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
        Ok(Some(MinariEpisode { id, observations, actions, rewards, terminations, truncations, infos }))
    }
}

/// Collects all data sets below a node, with dotted names.
fn collect(
    name: String,
    node: &Node,
    depth: usize,
    buffer: usize,
    left: &mut u64,
    columns: &mut Vec<(String, Column)>,
) -> Result<(), DatasetError> {
    if node.is_dataset() {
        let dataset = node.dataset(&name)?;
        let bytes = (dataset.row_bytes() as u64).saturating_mul(dataset.rows());
        *left = left.checked_sub(bytes).ok_or(DatasetError::TooLarge { what: "an episode", bytes, buffer })?;
        columns.push((name, dataset.read_rows(0..dataset.rows())?));
        return Ok(());
    }
    if depth >= MAX_DEPTH {
        return Err(DatasetError::Corrupt("groups without end".to_string()));
    }
    for (part, link) in node.links()? {
        // The parts of tuples.
        let part = part.strip_prefix("_index_").unwrap_or(&part);
        let name = if name.is_empty() { part.to_string() } else { format!("{name}.{part}") };
        collect(name, &link.open()?, depth + 1, buffer, left, columns)?;
    }
    Ok(())
}
