//! The times at which a run is saved, and the contents of its checkpoints.

use rollmesh_core::time::Micros;

use super::{
    super::saving::{EndedRunDir, SaveReport, Snapshot},
    Run,
};
use crate::{checkpoint::PolicyCheckpoint, envs::without_fingerprint};

impl Run {
    /// Returns whether the run has a directory to be saved in.
    pub(crate) fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// Returns the policies as learned so far, which may act on hosts with any fingerprint.
    pub(crate) fn policy(&self) -> PolicyCheckpoint {
        let mut run = self.config().clone();
        run.rollout.env_config = without_fingerprint(run.rollout.env_config);
        PolicyCheckpoint {
            gamma: self.gamma,
            iteration: self.state.iteration(),
            env_steps: self.state.env_steps(),
            policies: self.state.policies().to_vec(),
            ..PolicyCheckpoint::new(self.state.algo(), run, self.state.weights().clone())
        }
    }

    /// Returns the run after its last update. `None` while the next update is being computed, if a caller takes the rows, and
    /// if only the first rows of the last batch were taken: a process that resumes the run with more env steps needs all of
    /// them.
    fn snapshot(&self, now: Micros) -> Option<Snapshot> {
        self.files.as_ref()?;
        if self.is_last_batch_cut { None } else { self.take_snapshot(now) }
    }

    /// Saves a checkpoint if one is due. The report follows.
    pub(crate) fn save_if_due(&mut self, now: Micros) {
        if self.files.as_ref().is_some_and(|files| files.saver.is_due(self.state.iteration())) {
            self.save_now(now);
        }
    }

    /// Saves a checkpoint, unless one is being saved or the learner is busy. True if the report follows.
    pub(crate) fn save_now(&mut self, now: Micros) -> bool {
        if !self.files.as_ref().is_some_and(|files| files.saver.is_free()) {
            return false;
        }
        let (Some(snapshot), Some(files)) = (self.snapshot(now), &mut self.files) else { return false };
        files.saver.save(snapshot);
        true
    }

    /// Waits for the next report of a checkpoint; `None` if no more come.
    pub(crate) async fn next_save(&mut self) -> Option<SaveReport> {
        self.files.as_mut()?.saver.next_report().await
    }

    /// Counts a checkpoint that could not be saved, or the end of such failures. Returns a notice for the user, if any.
    pub(crate) fn record_save(&mut self, report: &SaveReport) -> Option<String> {
        let files = self.files.as_mut()?;
        match &report.saved {
            Ok(number) => std::mem::take(&mut files.is_failing).then(|| {
                format!("checkpoint {number} after iteration {} is saved: there is room again", report.iteration)
            }),
            Err(error) => {
                files.failed_checkpoints += 1;
                let has_begun = !std::mem::replace(&mut files.is_failing, true);
                has_begun.then(|| {
                    format!(
                        "no checkpoint after iteration {}, the run continues and tries again: {error}",
                        report.iteration
                    )
                })
            }
        }
    }

    /// Saves the last checkpoint, unless the learner is in the middle of an update, and waits until it is on disk.
    pub(super) fn finish_saving(&mut self, now: Micros) -> (Option<EndedRunDir>, Vec<String>) {
        let snapshot = self.snapshot(now);
        let Some(files) = self.files.take() else { return (None, Vec::new()) };
        let (reports, mut ended) = files.finish_saving(snapshot);
        ended.unsaved = reports.last().and_then(|report| report.saved.as_ref().err().cloned());
        let mut faults = std::mem::take(&mut ended.faults);
        faults.extend(reports.into_iter().filter_map(|report| report.saved.err()).map(|error| {
            ended.failed_checkpoints += 1;
            format!("the last checkpoint could not be saved: {error}")
        }));
        (Some(ended), faults)
    }
}
