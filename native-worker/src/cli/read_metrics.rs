//! What reading logged experience says beside its batches: estimates of the policy, simulated steps and corrupt lines.

use std::collections::BTreeMap;

use rollmesh_core::worker::WorkerMetrics;
use serde_json::{Value, json};

use super::data::numbers::short;

/// Sums of a worker's metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadMetrics {
    /// By estimator: how many samples there are, and the sums of their numbers.
    estimates: BTreeMap<&'static str, (u64, BTreeMap<&'static str, f64>)>,
    pub(super) blackholed_env_steps: u64,
    pub(super) corrupt_lines: u64,
}

impl ReadMetrics {
    /// Without estimates.
    pub(super) fn counted(blackholed_env_steps: u64, corrupt_lines: u64) -> Self {
        Self { blackholed_env_steps, corrupt_lines, ..Self::default() }
    }

    pub(super) fn add(&mut self, metrics: &WorkerMetrics) {
        self.blackholed_env_steps += metrics.blackholed_env_steps;
        self.corrupt_lines += metrics.corrupt_lines;
        for estimate in &metrics.estimates {
            let Some(estimator) = estimate.by.estimator() else { continue };
            let (count, sums) = self.estimates.entry(estimator.name()).or_default();
            *count += 1;
            for (name, value) in estimate.metrics() {
                *sums.entry(name).or_default() += value;
            }
        }
    }

    /// Adds what is known of later steps; estimates of earlier ones, which were of an earlier policy, are forgotten.
    pub(super) fn follow(&mut self, later: Self) {
        self.blackholed_env_steps += later.blackholed_env_steps;
        self.corrupt_lines += later.corrupt_lines;
        self.estimates = later.estimates;
    }

    fn means(&self) -> impl Iterator<Item = (&'static str, u64, Vec<(&'static str, f64)>)> {
        self.estimates.iter().map(|(name, (count, sums))| {
            (*name, *count, sums.iter().map(|(name, sum)| (*name, sum / *count as f64)).collect())
        })
    }

    /// Adds its numbers to an object, those that there are.
    pub(super) fn add_to(&self, object: &mut Value) {
        if !self.estimates.is_empty() {
            let of = |(name, count, means): (&str, u64, Vec<(&str, f64)>)| {
                let mut about = json!(means.into_iter().collect::<BTreeMap<_, _>>());
                about["episodes"] = json!(count);
                (name.to_owned(), about)
            };
            object["estimates"] = self.means().map(of).collect::<serde_json::Map<_, _>>().into();
        }
        for (name, count) in
            [("blackholed_env_steps", self.blackholed_env_steps), ("corrupt_lines", self.corrupt_lines)]
        {
            if count > 0 {
                object[name] = json!(count);
            }
        }
    }

    /// The same for people.
    pub(super) fn print(&self) {
        for (name, count, means) in self.means() {
            let means: Vec<String> = means.iter().map(|(name, mean)| format!("{name} {}", short(*mean))).collect();
            println!("estimate {name}: {} (means of {count} episodes)", means.join(", "));
        }
        if self.blackholed_env_steps > 0 {
            println!("simulated       {} env steps, of which none is in the samples", self.blackholed_env_steps);
        }
        if self.corrupt_lines > 0 {
            println!("passed over     {} lines that are no batches", self.corrupt_lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        estimate::Sample,
        ids::PolicyId,
        worker::{OffPolicyEstimate, config::InputEvaluation},
    };

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
        let mut object = json!({});
        all.add_to(&mut object);
        let wis = json!({"episodes": 2, "v_behavior": 2.0, "v_delta": 0.0, "v_gain": 1.0, "v_target": 2.0});
        assert_eq!(object, json!({"corrupt_lines": 3, "estimates": {"wis": wis}}));
    }
}
