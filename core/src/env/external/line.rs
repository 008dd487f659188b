//! Drivers that wait for a lane.

use super::{ExternalEpisodes, ExternalError};

impl ExternalEpisodes {
    /// As [`start_episode`](Self::start_episode), for a driver among others that wait as well: it takes its place at the
    /// end of the line if there is no lane, or somebody in the line before it. One that is served goes to the end for its
    /// next episode, so nobody gets all lanes by asking more often.
    ///
    /// # Errors
    /// [`ExternalError::TooManyEpisodes`] as long as it is not the driver's turn; as there.
    pub fn start_in_turn(&mut self, driver: u32, id: u64, training_enabled: bool) -> Result<usize, ExternalError> {
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

    /// The driver waits for no lane any more. One that is first has to say so: nobody gets past it.
    pub fn leave_line(&mut self, driver: u32) {
        self.line.retain(|other| *other != driver);
    }
}
