//! Defines an episode in Minari's form.

use rollmesh_core::{
    batch::SampleBatch,
    column::{Column, DType},
};

use super::super::dataset::{DatasetError, Episode, cast};

/// One episode in Minari's form: parts of nested observations, actions and infos have names; an only part has an empty one.
#[derive(Clone, Debug, PartialEq)]
pub struct MinariEpisode {
    /// Its number.
    pub id: i64,
    /// Observations, one more than there are steps.
    pub observations: Vec<(String, Column)>,
    /// Actions, one per step.
    pub actions: Vec<(String, Column)>,
    /// Rewards, one per step.
    pub rewards: Column,
    /// One flag per step: true if it reached a terminal state.
    pub terminations: Column,
    /// One flag per step: true if the episode was truncated at it.
    pub truncations: Column,
    /// Infos, mostly one per observation.
    pub infos: Vec<(String, Column)>,
}

impl MinariEpisode {
    /// Returns the number of steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.rewards.rows()
    }

    /// Checks that all columns have the right length.
    pub(super) fn check(self) -> Result<Self, DatasetError> {
        let steps = self.steps();
        if self.observations.is_empty() {
            return Err(DatasetError::MissingColumn("observations".to_string()));
        }
        if self.actions.is_empty() && steps > 0 {
            return Err(DatasetError::MissingColumn("actions".to_string()));
        }
        for (name, column) in self.columns() {
            let expected = steps + usize::from(name.starts_with("observations"));
            if column.rows() != expected && !name.starts_with("infos") {
                return Err(DatasetError::LengthMismatch {
                    name,
                    expected: expected as u64,
                    found: column.rows() as u64,
                });
            }
        }
        Ok(self)
    }

    /// Iterates over all columns with their stored names.
    pub(super) fn columns(&self) -> impl Iterator<Item = (String, &Column)> {
        let named = |prefix: &'static str, columns: &'_ [(String, Column)]| -> Vec<(String, usize)> {
            let name = |(place, (name, _)): (usize, &(String, Column))| match name.as_str() {
                "" => (prefix.to_string(), place),
                name => (format!("{prefix}.{name}"), place),
            };
            columns.iter().enumerate().map(name).collect()
        };
        let parts = [("observations", &self.observations), ("actions", &self.actions), ("infos", &self.infos)];
        let parts = parts.into_iter().flat_map(move |(prefix, columns)| {
            let names = named(prefix, columns);
            names.into_iter().filter_map(|(name, place)| Some((name, &columns.get(place)?.1)))
        });
        let singles =
            [("rewards", &self.rewards), ("terminations", &self.terminations), ("truncations", &self.truncations)];
        parts.chain(singles.into_iter().map(|(name, column)| (name.to_string(), column)))
    }

    /// Returns the episode with the well-known columns.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn batch(self) -> Result<SampleBatch, DatasetError> {
        let steps = self.steps();
        let mut others = Vec::new();
        for (name, column) in self.infos {
            // The reset gave the first one. Infos that are not present at every step belong to no row.
            let per_step = match column.rows().checked_sub(steps) {
                Some(0) => column,
                Some(1) => column.slice(1..steps + 1),
                _ => continue,
            };
            let name = if name.is_empty() { "infos".to_string() } else { format!("infos.{name}") };
            others.push((name, per_step));
        }
        let episode = Episode {
            id: self.id,
            t: 0,
            observations: self.observations,
            actions: self.actions,
            rewards: cast("rewards", &self.rewards, DType::F32)?,
            terminateds: cast("terminations", &self.terminations, DType::Bool)?,
            truncateds: cast("truncations", &self.truncations, DType::Bool)?,
            others,
        };
        Ok(episode.batch()?)
    }
}
