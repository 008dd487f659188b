//! Finished episodes of an upload by policy, with their custom metrics.

use super::{EncodeError, EpisodeFault, UploadError, ValueFault, fragment::check_table};
use crate::{batch::EpisodeMetrics, column::append_le, ids::SlotId, prelude::*, protocol::message::AgentUpload};

/// Appends a slot's episodes to an upload.
pub(super) fn push_episodes(
    upload: &mut AgentUpload,
    slot: SlotId,
    episodes: &[EpisodeMetrics],
) -> Result<(), EncodeError> {
    upload.episodes.push(episodes.len() as u32);
    for EpisodeMetrics { episode, len, episode_return, custom_metrics } in episodes {
        upload.episode_numbers.push(*episode);
        upload.episode_lens.push(*len);
        append_le(&mut upload.episode_returns, &[*episode_return]);
        let is_small = custom_metrics.len() <= EpisodeMetrics::MAX_CUSTOM_METRICS;
        if !is_small || !custom_metrics.keys().all(|name| EpisodeMetrics::is_name(name)) {
            return Err(EncodeError::CustomMetrics(slot));
        }
        upload.metrics.push(custom_metrics.len() as u32);
        for (name, value) in custom_metrics {
            upload.metric_names.push_str(name);
            upload.metric_ends.push(upload.metric_names.len() as u32);
            append_le(&mut upload.metric_values, &[*value]);
        }
    }
    Ok(())
}

/// Reads the episodes of an upload, slot by slot. The tables have been checked against each other.
pub(super) struct EpisodeReader<'a> {
    upload: &'a AgentUpload,
    episode: usize,
    metric: usize,
    name_start: usize,
}

impl<'a> EpisodeReader<'a> {
    /// Creates a reader of the upload's episodes.
    ///
    /// # Errors
    /// [`UploadError::Table`] for tables that do not agree on the number of episodes and of custom metrics.
    pub(super) fn new(upload: &'a AgentUpload) -> Result<Self, UploadError> {
        let total = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        let (episodes, metrics) = (total(&upload.episodes), total(&upload.metrics));
        let tables = [
            ("episode_numbers", upload.episode_numbers.len(), episodes),
            ("episode_lens", upload.episode_lens.len(), episodes),
            ("episode_returns", upload.episode_returns.len(), episodes.saturating_mul(8)),
            ("metrics", upload.metrics.len(), episodes),
            ("metric_ends", upload.metric_ends.len(), metrics),
            ("metric_values", upload.metric_values.len(), metrics.saturating_mul(8)),
            ("metric_names", upload.metric_names.len(), upload.metric_ends.last().map_or(0, |&end| end.into())),
        ];
        tables.into_iter().try_for_each(|(table, found, expected)| check_table(table, found as u64, expected))?;
        Ok(Self { upload, episode: 0, metric: 0, name_start: 0 })
    }

    /// Reads the next `count` episodes, which belong to this slot.
    pub(super) fn read(&mut self, slot: SlotId, count: u32) -> Result<Vec<EpisodeMetrics>, UploadError> {
        (0..count).map(|_| self.read_one(slot)).collect()
    }

    fn read_one(&mut self, slot: SlotId) -> Result<EpisodeMetrics, UploadError> {
        let (upload, at) = (self.upload, self.episode);
        self.episode += 1;
        let metrics = upload.metrics[at];
        if metrics as usize > EpisodeMetrics::MAX_CUSTOM_METRICS {
            return Err(UploadError::Episodes { slot, fault: EpisodeFault::Metrics(metrics) });
        }
        let mut custom_metrics = BTreeMap::new();
        for _ in 0..metrics {
            let start = self.name_start;
            self.name_start = upload.metric_ends[self.metric] as usize;
            let name = upload.metric_names.get(start..self.name_start).filter(|name| EpisodeMetrics::is_name(name));
            let follows = |name: &&str| {
                custom_metrics.last_key_value().is_none_or(|(last, _): (&String, _)| last.as_str() < *name)
            };
            let fault = UploadError::Episodes { slot, fault: EpisodeFault::Name };
            let name = name.filter(follows).ok_or(fault)?;
            custom_metrics.insert(name.into(), float(&upload.metric_values, self.metric, "custom_metrics", slot)?);
            self.metric += 1;
        }
        Ok(EpisodeMetrics {
            episode: upload.episode_numbers[at],
            len: upload.episode_lens[at],
            episode_return: float(&upload.episode_returns, at, "episode_return", slot)?,
            custom_metrics,
        })
    }
}

/// Reads the number at a place of a table of 64-bit floats.
fn float(bytes: &[u8], at: usize, column: &'static str, slot: SlotId) -> Result<f64, UploadError> {
    let value = f64::from_le_bytes(bytes.as_chunks().0[at]);
    if value.is_finite() { Ok(value) } else { Err(UploadError::Value { column, slot, fault: ValueFault::NotFinite }) }
}
