//! The end of a run.

use std::collections::BTreeMap;

use rollmesh_core::{
    group::LeaseGroup,
    hash::Hash128,
    hub::RunEnd,
    ids::{PolicyId, WorkerId},
    protocol::FragmentFailure,
};
use serde::{Serialize, Serializer};

use super::{
    evaluation::{EvaluationCounts, EvaluationMetrics},
    read_metrics::ReadMetrics,
};

/// The results of a run; `summary.json` in its directory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The environment.
    pub env: String,
    /// The algorithm.
    pub algo: String,
    /// The seed.
    pub seed: u64,
    /// True if it reached its stop return.
    pub solved: bool,
    /// Number of updates.
    pub iterations: u64,
    /// Env steps that were learned from. A run without a learner counts those that it has handed out, of its last fragments
    /// perhaps only the first.
    pub env_steps: u64,
    /// Mean return of the last 100 finished episodes, without a learner of all; `None` before the first.
    pub episode_return_mean: Option<f64>,
    /// The result of the latest evaluation alongside the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationMetrics>,
    /// The numbers of evaluations by their outcome.
    #[serde(skip_serializing_if = "EvaluationCounts::is_empty")]
    pub evaluations: EvaluationCounts,
    /// The reports of reading besides batches, in a run that reads.
    #[serde(flatten)]
    pub read: ReadMetrics,
    /// Seconds from start to end, without pauses.
    pub wall_s: f64,
    /// Hash of the final weights.
    #[serde(serialize_with = "as_text")]
    pub weights_hash: Hash128,
    /// Hash of each policy's weights, in runs with other policies than the default one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "as_texts")]
    pub policies: BTreeMap<PolicyId, Hash128>,
    /// True if the same seed gives the same rows, wherever they are computed.
    pub reproducible: bool,
    /// The reasons that it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_reproducible: Vec<String>,
    /// True if divergent rows of an untrusted worker were learned from or handed out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tainted: bool,
    /// Fragments of untrusted workers whose audits were still pending at the end.
    #[serde(skip_serializing_if = "is_zero")]
    pub unaudited: u64,
    /// Number of checkpoints that could not be saved.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_checkpoints: u64,
    /// The reason that the last checkpoint could not be saved, without which the end of the run cannot be resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<String>,
    /// Lines missing in `metrics.jsonl` and `journal.jsonl`, for lack of disk space.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost_lines: u64,
    /// Number of times that another worker than the one before continued a slot in the middle of an episode, since the
    /// run was started or resumed.
    #[serde(skip_serializing_if = "is_zero")]
    pub moved_slots: u64,
    /// Number of episodes that were abandoned since they could not be restored.
    #[serde(skip_serializing_if = "is_zero")]
    pub abandoned_episodes: u64,
    /// Rows whose outputs workers have computed for others, with `inference = "server"`, since the run was started or resumed.
    #[serde(skip_serializing_if = "is_zero")]
    pub inferred_rows: u64,
    /// Failures on its workers.
    #[serde(skip_serializing_if = "Failures::is_empty")]
    pub failures: Failures,
    /// The error, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of the run.
    #[serde(serialize_with = "as_name")]
    pub end: RunEnd,
}

/// Number of latest failures that are kept.
const MAX_FAILURES: usize = 16;

/// Fragments that failed on workers since the run was started or resumed. After transient failures the fragments were
/// re-granted, without an effect on the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// Their number.
    pub count: u64,
    /// The latest ones, at most 16, oldest first.
    pub latest: Vec<FragmentFailed>,
}

/// A fragment that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FragmentFailed {
    /// The worker on which it failed.
    pub worker: u32,
    /// The name of its [kind](rollmesh_core::protocol::FailureKind::name).
    pub kind: &'static str,
    /// The slot, if it is known which of several failed that were stepped together.
    pub slot: Option<u32>,
    /// The episode's number within the slot.
    pub episode: u32,
    /// The step of the episode, counted from 0.
    pub t: u32,
    /// The error message.
    pub message: String,
}

impl FragmentFailed {
    fn of(worker: WorkerId, failure: &FragmentFailure) -> Self {
        Self {
            worker: worker.0,
            kind: failure.kind.name(),
            slot: failure.slot.map(|slot| slot.0),
            episode: failure.episode,
            t: failure.t,
            message: failure.message().into(),
        }
    }
}

impl Failures {
    pub(super) fn of(group: &LeaseGroup) -> Self {
        let (count, latest) = group.failures();
        Self { count, latest: latest.map(|(worker, failure)| FragmentFailed::of(*worker, failure)).collect() }
    }

    /// Adds a failure of the worker of this process.
    pub(crate) fn add(&mut self, failure: FragmentFailure) {
        self.count += 1;
        if self.latest.len() == MAX_FAILURES {
            self.latest.remove(0);
        }
        self.latest.push(FragmentFailed::of(WorkerId(0), &failure));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
pub(super) fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn as_texts<S: Serializer>(hashes: &BTreeMap<PolicyId, Hash128>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(hashes.iter().map(|(id, hash)| (id, hash.to_string())))
}

fn as_name<S: Serializer>(end: &RunEnd, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(end.name())
}

fn as_text<S: Serializer>(hash: &Hash128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(hash)
}
