//! An operator's commands.

use rollmesh_core::protocol::{
    Message,
    message::{RemoveRun, Reply, Request, Scale, StartRun, WorkerRequest},
};
use tokio::time::Instant;

use super::{Control, ControlError};
use crate::terminal::printable;

impl Control {
    /// Sends a command that is answered by success or an error. `question` gets the request's number.
    ///
    /// # Errors
    /// [`ControlError::Declined`] with the hub's reason; the others when there is no answer.
    pub async fn ask(&mut self, question: impl FnOnce(u32) -> Message) -> Result<(), ControlError> {
        self.reply(question).await.map(drop)
    }

    async fn reply(&mut self, question: impl FnOnce(u32) -> Message) -> Result<Reply, ControlError> {
        self.ask_for(question, |request, message| match message {
            Message::Reply(reply) if reply.request == request => Some(reply),
            _ => None,
        })
        .await
    }

    /// Sends a request that is answered by a message of its own, which `answer` recognises by the request's number.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_for<T>(
        &mut self,
        question: impl FnOnce(u32) -> Message,
        mut answer: impl FnMut(u32, Message) -> Option<T>,
    ) -> Result<T, ControlError> {
        self.last_request = self.last_request.wrapping_add(1);
        let mine = self.last_request;
        let deadline = Instant::now() + self.patience;
        self.say(&question(mine)).await?;
        loop {
            match self.next_by(deadline, "the hub's answer").await? {
                Message::Reply(Reply { request, error, .. }) if request == mine && !error.is_empty() => {
                    return Err(ControlError::Declined(printable(&error)));
                }
                message => {
                    if let Some(found) = answer(mine, message) {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Pauses the run: outstanding leases continue, no more are granted.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), also for the others below.
    pub async fn pause(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Pause(Request { request })).await
    }

    /// Resumes the paused run.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Resume(Request { request })).await
    }

    /// Stops the run immediately; fragments of outstanding leases are discarded. If none is in progress, removes the first queued
    /// run, which is about to begin, and returns its number; else returns 0.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn stop(&mut self) -> Result<u32, ControlError> {
        Ok(self.reply(|request| Message::Stop(Request { request })).await?.run)
    }

    /// Drains the run: waits for its leases, at most ten seconds, then ends it. The answer arrives immediately; the run is over
    /// when its [phase](Self::phase) says so.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn drain(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Drain(Request { request })).await
    }

    /// Starts a run with these settings, a JSON object; it is queued while another one is in progress. Returns its number,
    /// under which [`runs`](Self::runs) lists it.
    ///
    /// # Errors
    /// As [`pause`](Self::pause); [`ControlError::Declined`] names the setting that the hub refuses.
    pub async fn start_run(&mut self, settings: String) -> Result<u32, ControlError> {
        Ok(self.reply(|request| Message::StartRun(StartRun { request, settings })).await?.run)
    }

    /// Removes a queued run.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn remove_run(&mut self, run: u32) -> Result<(), ControlError> {
        self.ask(|request| Message::RemoveRun(RemoveRun { request, run })).await
    }

    /// Writes a checkpoint of the run. The answer arrives when it is on disk.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn checkpoint(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Checkpoint(Request { request })).await
    }

    /// Starts local workers, or removes some after their leases. The answer arrives immediately, before the workers.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    #[doc(alias = "add_workers")]
    pub async fn scale(&mut self, num_workers: u32) -> Result<(), ControlError> {
        self.ask(|request| Message::Scale(Scale { request, num_workers })).await
    }

    /// Removes a worker after its lease. A local one is not replaced.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn remove_worker(&mut self, worker: u32) -> Result<(), ControlError> {
        self.ask(|request| Message::RemoveWorker(WorkerRequest { request, worker })).await
    }
}
