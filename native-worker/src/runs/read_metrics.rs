//! The reports of reading besides batches, summed over many samples.

use std::collections::BTreeMap;

use rollmesh_core::worker::WorkerMetrics;
use serde::{Serialize, Serializer, ser::SerializeMap as _};

use super::outcome::is_zero;

/// Sums of a worker's metrics; serialised as an object of those that exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReadMetrics {
    /// By estimator.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    estimates: BTreeMap<&'static str, Sums>,
    /// Env steps of the input evaluation `simulation`, which are in no sample.
    #[serde(skip_serializing_if = "is_zero")]
    pub blackholed_env_steps: u64,
    /// Number of corrupt lines of the input.
    #[serde(skip_serializing_if = "is_zero")]
    pub corrupt_lines: u64,
}

/// Sums of an estimator's numbers over `episodes`; serialised as their means.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    episodes: u64,
    sums: BTreeMap<&'static str, f64>,
}

impl Sums {
    fn means(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.sums.iter().map(|(name, sum)| (*name, sum / self.episodes as f64))
    }
}

impl Serialize for Sums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("episodes", &self.episodes)?;
        self.means().try_for_each(|(name, mean)| object.serialize_entry(name, &mean))?;
        object.end()
    }
}

impl ReadMetrics {
    /// Returns metrics without estimates.
    pub(crate) fn counted(blackholed_env_steps: u64, corrupt_lines: u64) -> Self {
        Self { blackholed_env_steps, corrupt_lines, ..Self::default() }
    }

    pub(crate) fn add(&mut self, metrics: &WorkerMetrics) {
        self.blackholed_env_steps += metrics.blackholed_env_steps;
        self.corrupt_lines += metrics.corrupt_lines;
        for estimate in &metrics.estimates {
            let Some(estimator) = estimate.by.estimator() else { continue };
            let known = self.estimates.entry(estimator.name()).or_default();
            known.episodes += 1;
            for (name, value) in estimate.metrics() {
                *known.sums.entry(name).or_default() += value;
            }
        }
    }

    /// Adds the metrics of later steps; estimates of earlier ones, which were of an earlier policy, are replaced.
    pub(crate) fn follow(&mut self, later: Self) {
        self.blackholed_env_steps += later.blackholed_env_steps;
        self.corrupt_lines += later.corrupt_lines;
        self.estimates = later.estimates;
    }

    /// Returns every estimator's name, its number of episodes, and the means of its numbers over them.
    pub(crate) fn estimates(&self) -> impl Iterator<Item = (&'static str, u64, Vec<(&'static str, f64)>)> {
        self.estimates.iter().map(|(name, sums)| (*name, sums.episodes, sums.means().collect()))
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        estimate::Sample,
        ids::PolicyId,
        worker::{OffPolicyEstimate, config::InputEvaluation},
    };

    use serde_json::json;

    use super::*;

    #[test]
    fn estimates_are_means_of_the_latest_policy_and_counts_add_up() {
        let metrics = |v_target: &[f64], corrupt_lines| {
            let of = |v_target| {
                let (policy, by) = (PolicyId::DEFAULT, InputEvaluation::Wis);
                OffPolicyEstimate { policy, by, sample: Sample { v_behavior: 2.0, v_target }, legacy: false }
            };
            let estimates = v_target.iter().copied().map(of).collect();
            let mut sums = ReadMetrics::default();
            sums.add(&WorkerMetrics { estimates, corrupt_lines, ..WorkerMetrics::default() });
            sums
        };
        let mut all = metrics(&[100.0], 1);
        all.follow(metrics(&[1.0, 3.0], 2));
        let object = serde_json::to_value(&all).unwrap();
        let wis = json!({"episodes": 2, "v_behavior": 2.0, "v_delta": 0.0, "v_gain": 1.0, "v_target": 2.0});
        assert_eq!(object, json!({"corrupt_lines": 3, "estimates": {"wis": wis}}));
    }
}
