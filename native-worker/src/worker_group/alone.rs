//! Samples of the local worker, if it is the only one.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Instant,
};

use rollmesh_core::{
    batch::AnyBatch,
    calls::CallConfig,
    worker::{RegisteredEnv, RolloutError, RolloutWorker},
};

use super::{GroupError, LOCAL_WORKER, ParallelSample, WorkerGroup};
use crate::runs::{SampleWatch, Watchdog};

/// The thread on which the local worker samples if it has a deadline. Dropping it ends the thread after its current sample.
pub(super) struct LocalThread(Sender<Box<dyn FnOnce() + Send>>);

impl LocalThread {
    fn start() -> io::Result<Self> {
        let (samples, queue) = channel::<Box<dyn FnOnce() + Send>>();
        let work = move || queue.iter().for_each(|sample| sample());
        thread::Builder::new().name("local-worker".into()).spawn(work)?;
        Ok(Self(samples))
    }

    /// Runs a sample that does not panic.
    fn run(&self, sample: impl FnOnce() + Send + 'static) {
        // If the thread has ended, the sample is dropped, and its caller sees that.
        let _ = self.0.send(Box::new(sample));
    }
}

impl WorkerGroup {
    /// Samples with the local worker, once or until there is enough.
    pub(super) fn sample_alone(&mut self, sample: &ParallelSample) -> Result<Vec<AnyBatch>, GroupError> {
        let mut batches = self.samples.take(u64::MAX);
        loop {
            batches.push(self.watch_local(RolloutWorker::sample)?);
            if sample.is_enough(batches.iter()) {
                return Ok(batches);
            }
        }
    }

    /// Lets the local worker sample. A step that hangs cannot be ended, so the worker samples on a thread of its own, which
    /// is abandoned after the [deadline](super::FailureSettings::progress_timeout).
    ///
    /// # Errors
    /// [`GroupError::LocalHangs`], and [`GroupError::NotSetUp`] if it hangs while the group is [stopped](super::GroupStopper):
    /// then the group has no local worker any more.
    pub(super) fn watch_local<T: Send + 'static>(
        &mut self,
        sample: impl FnOnce(&mut RolloutWorker) -> Result<T, RolloutError> + Send + 'static,
    ) -> Result<T, GroupError> {
        self.check_stopper()?;
        let watch = SampleWatch::of(self.need_local("sampling")?.step_mark());
        let unhurried = if self.is_local_warm { 1 } else { CallConfig::UNHURRIED as u32 };
        let timeout = self.plan.failures.progress_timeout.filter(|_| !self.waits_for_clients());
        let patience_s = timeout.map_or(0.0, |timeout| timeout.saturating_mul(unhurried).as_secs_f64());
        let mut dog = Watchdog::new(watch, &self.config, patience_s);
        let Some(interval) = dog.interval() else { return Ok(sample(self.need_local("sampling")?)?) };
        let thread = match self.local_thread.take() {
            Some(thread) => thread,
            None => LocalThread::start().map_err(GroupError::Thread)?,
        };
        let Some(mut worker) = self.local.take() else { return Err(GroupError::NoLocalWorker("sampling")) };
        let (back, made) = channel();
        thread.run(move || {
            let made = catch_unwind(AssertUnwindSafe(|| sample(&mut worker)));
            // The group may have given up.
            let _ = back.send((worker, made));
        });
        let mut abandoned_at = None;
        loop {
            match made.recv_timeout(interval) {
                Ok((worker, made)) => {
                    (self.local, self.local_thread, self.is_local_warm) = (Some(worker), Some(thread), true);
                    return Ok(made.unwrap_or_else(|panic| resume_unwind(panic))?);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(fatal) = dog.check() {
                        return Err(GroupError::LocalHangs { worker: LOCAL_WORKER, why: fatal.explain(&self.config) });
                    }
                    abandoned_at = abandoned_at.or_else(|| self.stopper.local_deadline());
                    if abandoned_at.is_some_and(|at| at <= Instant::now()) {
                        return Err(GroupError::NotSetUp);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(GroupError::NoLocalWorker("sampling")),
            }
        }
    }

    /// Returns whether clients drive the environments, whose steps take as long as they like.
    fn waits_for_clients(&self) -> bool {
        let env = self.config.env.as_deref().map(|name| self.plan.registry.env(name));
        matches!(env, Some(Ok(RegisteredEnv::Base(_))))
    }
}
