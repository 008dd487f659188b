//! The queue of drivers that wait for a lane.

use super::{ExternalEpisodes, ExternalError};

impl ExternalEpisodes {
    /// Begins an episode as [`start_episode`](Self::start_episode) does, for one of several waiting drivers: without a free
    /// lane, or behind others in the queue, the driver is queued. A served driver goes to the end of the queue for its next
    /// episode (round-robin), so that frequent requests get no more lanes.
    ///
    /// # Errors
    /// [`ExternalError::TooManyEpisodes`] until it is the driver's turn; those of `start_episode`.
    pub fn start_queued(&mut self, driver: u32, id: u64, training_enabled: bool) -> Result<usize, ExternalError> {
        let full = ExternalError::TooManyEpisodes(self.lanes.len());
        let is_first = self.line.front().is_none_or(|first| *first == driver);
        let started = if is_first || self.stopped { self.start_episode(id, training_enabled) } else { Err(full) };
        match &started {
            Err(ExternalError::TooManyEpisodes(_)) if self.line.contains(&driver) => {}
            Err(ExternalError::TooManyEpisodes(_)) => self.line.push_back(driver),
            _ => self.leave_line(driver),
        }
        started
    }

    /// Removes a driver from the queue. The first one in the queue must call this when it stops waiting, since it blocks the
    /// others.
    pub fn leave_line(&mut self, driver: u32) {
        self.line.retain(|other| *other != driver);
    }
}
