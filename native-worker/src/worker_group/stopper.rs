//! Stopping a group from another thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use super::{GroupError, GroupNotification, WorkerGroup};

/// Time for the local worker to finish its sample once the group was asked to stop.
const LOCAL_GRACE: Duration = Duration::from_secs(1);

/// Stops a group from any thread, also while one of its methods waits for a worker that hangs. Clones share the group.
#[derive(Clone, Debug)]
pub struct GroupStopper {
    is_asked: Arc<AtomicBool>,
    notifications: mpsc::Sender<GroupNotification>,
}

impl GroupStopper {
    /// Asks the group to [stop](WorkerGroup::stop), and does not wait for that. A method of the group that waits for workers
    /// stops them and returns [`GroupError::NotSetUp`]; otherwise the next method that calls workers does.
    pub fn stop(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
        // The group may have been dropped.
        let _ = self.notifications.send(GroupNotification::Stop);
    }

    pub(super) fn withdraw(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Returns the time at which the local worker's sample is abandoned, once the group was asked to stop.
    pub(super) fn local_deadline(&self) -> Option<Instant> {
        self.is_asked().then(|| Instant::now() + LOCAL_GRACE)
    }
}

impl WorkerGroup {
    /// Returns a handle that stops this group from another thread.
    ///
    /// Some work of the local worker is done on the caller's thread and is not interrupted: tasks, for example of
    /// [`foreach_worker`](Self::foreach_worker), and samples without a deadline, which are those with a
    /// [`progress_timeout`](super::FailureSettings::progress_timeout) of `None`, of files, and of environments that clients
    /// drive. The group is stopped by the next method that calls workers.
    #[must_use]
    pub fn stopper(&self) -> GroupStopper {
        self.stopper.clone()
    }

    /// Stops the group if its stopper asks for that.
    ///
    /// # Errors
    /// [`GroupError::NotSetUp`] then, until the group is set up again.
    pub(super) fn check_stopper(&mut self) -> Result<(), GroupError> {
        if !self.stopper.is_asked() {
            return Ok(());
        }
        self.stop();
        Err(GroupError::NotSetUp)
    }

    pub(super) fn new_stopper(notifications: mpsc::Sender<GroupNotification>) -> GroupStopper {
        GroupStopper { is_asked: Arc::default(), notifications }
    }
}
