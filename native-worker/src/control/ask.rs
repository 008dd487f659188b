//! What an operator asks for.

use rollmesh_core::protocol::{
    Message,
    message::{RemoveRun, RemoveWorker, Reply, Request, Scale, StartRun},
};
use tokio::time::Instant;

use super::{Control, ControlError, printable};

impl Control {
    /// Asks for something that is answered with yes or no. The question gets the request's number.
    ///
    /// # Errors
    /// [`ControlError::Declined`] with the hub's reason; the others when there is no answer.
    pub async fn ask(&mut self, question: impl FnOnce(u32) -> Message) -> Result<(), ControlError> {
        self.ask_for(question, |request, message| match message {
            Message::Reply(reply) if reply.request == request => Some(()),
            _ => None,
        })
        .await
    }

    /// Asks for something that is answered with a message of its own, which `answer` finds by the request's number.
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

    /// Lets the run rest: leases that are out go on, no more are granted.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), also for the others below.
    pub async fn pause(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Pause(Request { request })).await
    }

    /// Lets the run go on.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Resume(Request { request })).await
    }

    /// Ends the run at once; what its leases would have brought is not part of it.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn stop(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Stop(Request { request })).await
    }

    /// Lets the leases of the run end, ten seconds at most, and then the run. The answer comes at once; the run is over
    /// when its [phase](Self::phase) says so.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn drain(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Drain(Request { request })).await
    }

    /// Begins a run with these settings, a JSON object; it waits while another one is going on. Its number, under which
    /// [`runs`](Self::runs) has it.
    ///
    /// # Errors
    /// As [`pause`](Self::pause); [`ControlError::Declined`] names the setting that the hub does not take.
    pub async fn start_run(&mut self, settings: String) -> Result<u32, ControlError> {
        let question = |request| Message::StartRun(StartRun { request, settings });
        self.ask_for(question, |request, message| match message {
            Message::Reply(reply) if reply.request == request => Some(reply.run),
            _ => None,
        })
        .await
    }

    /// Removes a run that waits.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn remove_run(&mut self, run: u32) -> Result<(), ControlError> {
        self.ask(|request| Message::RemoveRun(RemoveRun { request, run })).await
    }

    /// Writes a checkpoint of the run. The answer comes when it is on the disk.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn checkpoint(&mut self) -> Result<(), ControlError> {
        self.ask(|request| Message::Checkpoint(Request { request })).await
    }

    /// Starts local workers, or lets some finish their leases and go. The answer comes at once, the workers later.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    #[doc(alias = "add_workers")]
    pub async fn scale(&mut self, num_workers: u32) -> Result<(), ControlError> {
        self.ask(|request| Message::Scale(Scale { request, num_workers })).await
    }

    /// Lets a worker finish its lease and go. A local one does not come back.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn remove_worker(&mut self, worker: u32) -> Result<(), ControlError> {
        self.ask(|request| Message::RemoveWorker(RemoveWorker { request, worker })).await
    }
}
