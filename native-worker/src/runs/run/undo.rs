//! Rolling a run back to before a divergent fragment.

use std::{fs, path::Path};

use rollmesh_core::time::Micros;

use super::{
    super::{
        consumer::Consumer,
        local::LocalWorker,
        output::{OutputPlace, RunOutput},
        recording::Recording,
        saving::{ResumeError, SavedRun, Snapshot, progress},
    },
    Resumed, Run, RunTask, StartError,
};
use crate::checkpoint::{CHECKPOINTS_DIR, PolicyCheckpoint};

/// Maximum number of snapshots in memory. If none is early enough, a checkpoint in the run's directory is used, or the run
/// starts again.
const MAX_SNAPSHOTS: usize = 64;

impl Run {
    /// Keeps a snapshot of the run if untrusted workers are about to commit fragments, together with earlier snapshots from
    /// before each principal's first unaudited fragment.
    pub(super) fn keep_snapshot(&mut self, now: Micros) {
        if self.state.is_sampling_only() || !self.state.group.has_untrusted() {
            return;
        }
        let iteration = self.state.iteration();
        if !self.snapshots.contains_key(&iteration)
            && let Some(snapshot) = self.take_snapshot(now)
        {
            self.snapshots.insert(iteration, snapshot);
        }
        // Keeps, for every batch in doubt, the newest snapshot from before it, and drops the other ones.
        let needed: Vec<u64> = self.state.group.doubtful().map(|batch| batch.0).collect();
        let newest_before = |batch: u64| self.snapshots.range(..=batch).next_back().map(|(iteration, _)| *iteration);
        let mut kept: Vec<u64> = needed.into_iter().filter_map(newest_before).collect();
        kept.push(iteration);
        self.snapshots.retain(|iteration, _| kept.contains(iteration));
        while self.snapshots.len() > MAX_SNAPSHOTS {
            self.snapshots.pop_first();
        }
    }

    /// Returns a snapshot after the last update, whether the run has files or not; `None` if its ledger does not balance.
    pub(super) fn take_snapshot(&self, now: Micros) -> Option<Snapshot> {
        let learner = || match &self.consumer {
            Some(Consumer::Learner { thread, .. }) => Some(thread.state()),
            Some(Consumer::Local { thread, .. }) => Some(thread.ask(LocalWorker::state)),
            Some(Consumer::Rows { thread, .. }) => Some(thread.ask(|rows| rows.state())),
            Some(Consumer::Caller(_)) | None => None,
        };
        let bytes = self.files.as_ref().map_or((0, 0), |files| files.dir.bytes());
        let mut progress = progress(bytes, self.state.elapsed(now), self.state.episodes());
        progress.tainted = self.state.is_tainted();
        progress.world_size = self.request.world_size();
        let place = |output: &RunOutput| output.place(self.state.iteration());
        progress.output = self.output().map_or_else(|| self.old_output.clone(), place);
        let is_between = !self.state.is_consuming() && self.check_ledger().is_ok();
        Some(Snapshot {
            learner: is_between.then(learner).flatten()?,
            policy: self.policy(),
            group: self.state.group.state(),
            progress,
            output: self.output().cloned(),
        })
    }

    /// Returns the output that the run writes, if there is one.
    pub(super) fn output(&self) -> Option<&RunOutput> {
        match &self.consumer {
            Some(Consumer::Learner { output, .. } | Consumer::Rows { output, .. } | Consumer::Local { output, .. }) => {
                output.as_ref()
            }
            Some(Consumer::Caller(_)) | None => None,
        }
    }

    /// Returns whether the snapshot from before this batch is complete.
    pub(super) fn may_be_undone(&mut self, batch: u64) -> bool {
        let newest = self.snapshots.range_mut(..=batch).next_back();
        newest.is_none_or(|(_, snapshot)| snapshot.is_complete())
    }

    /// Ends the run, and returns the task that continues it from before this batch. Waits for its threads.
    ///
    /// # Errors
    /// [`StartError`] names a file that cannot be removed or read.
    pub(crate) fn undo(&mut self, batch: u64) -> Result<RunTask, StartError> {
        // Before the run that follows writes to the same directory.
        self.recording.take().into_iter().for_each(Recording::cancel);
        self.snapshots.retain(|iteration, _| *iteration <= batch);
        let saved = self.snapshots.pop_last().and_then(|(_, snapshot)| snapshot.into_saved());
        let request = self.request.clone();
        // An iteration may be about to be written.
        let output = self.output().map(|output| {
            output.close();
            OutputPlace::start_of(output.series().into())
        });
        if let Some(files) = self.files.take() {
            // Its pending reports do not matter any more.
            drop(files.finish_saving(None));
        }
        let (mut on_disk, mut lock) = (None, None);
        if let Some(dir) = &request.run_dir {
            let checkpoints = dir.join(CHECKPOINTS_DIR);
            remove_newer(&checkpoints, batch).map_err(|source| ResumeError::Io { path: checkpoints, source })?;
            let found = SavedRun::load(dir)?;
            let in_memory = saved.as_ref().map(|saved| saved.policy.iteration);
            on_disk = found.checkpoint();
            if in_memory.is_none_or(|iteration| iteration < found.iteration()) {
                // The directory does not contain all settings.
                return Ok(RunTask::Resume(Box::new(found.with_request(request)?)));
            }
            (.., lock) = found.into_parts();
        }
        let env_steps = saved.as_ref().map_or(0, |saved| saved.policy.env_steps);
        // With a directory they are behind the metrics there.
        let regenerated = if lock.is_some() { 0 } else { self.state.env_steps().saturating_sub(env_steps) };
        let output = saved.as_ref().and_then(|saved| saved.progress.output.clone()).or(output);
        let resumed = Resumed { saved, lock, on_disk, output, regenerated };
        Ok(RunTask::RollBack(Box::new(request), Box::new(resumed)))
    }
}

/// Removes checkpoints that may contain divergent rows.
fn remove_newer(dir: &Path, iteration: u64) -> std::io::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let is_clean = || PolicyCheckpoint::load(&path).is_ok_and(|found| found.iteration <= iteration);
        if path.is_dir() && !is_clean() {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}
