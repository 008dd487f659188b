//! Requests to the hub that are not answered yet.

use rollmesh_core::{
    config::Config,
    protocol::{
        Message, Role, TokenAction, TokenId,
        message::{self, ManageTokens, RecentFragmentRequest, Request, SavedRunRequest, StartRun, WorkerRequest},
    },
};

use super::{RunKey, TabEvaluator, TabJob};

/// Lifetime of a token that the page creates: that of a token with which a tab samples.
const TOKEN_SECONDS: u64 = 24 * 60 * 60;

/// An action that the user can request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Pause the run.
    Pause,
    /// Resume the run.
    Resume,
    /// End the run.
    Stop,
    /// Drain the run: end it once its leases have ended.
    Drain,
    /// Write a checkpoint of the run now.
    Checkpoint,
    /// Start a worker process on the hub's host.
    AddWorker,
    /// Stop a worker and remove it from the group.
    RemoveWorker {
        /// The worker's id.
        worker: u32,
    },
    /// End the process of a worker, and start another one in its place.
    RestartWorker {
        /// The worker's id.
        worker: u32,
    },
    /// Remove a run that waits.
    RemoveRun {
        /// The run's number.
        run: u32,
    },
    /// Show the curves and settings of another run next to the current one's, or hide them.
    Compare {
        /// The run.
        run: RunKey,
    },
    /// Show the environment of another slot.
    Watch {
        /// The slot.
        slot: u32,
    },
    /// Save a file of the policy of the run in this tab, as a run's directory has it.
    Save {
        /// Its name.
        file: &'static str,
    },
    /// List the runs in the hub's directory.
    ListSaved,
    /// Resume one of these runs by its id.
    ResumeSaved {
        /// The run's id.
        id: String,
    },
    /// Delete one of these runs with its files.
    DeleteSaved {
        /// The run's id.
        id: String,
    },
    /// Fill the form with the settings of a run of the hub.
    Clone {
        /// The run's number.
        run: u32,
    },
    /// Fill the form with the settings of a run in the hub's directory.
    CloneSaved {
        /// The run's id.
        id: String,
    },
    /// Show a recent fragment.
    ShowFragment {
        /// The slot.
        slot: u32,
        /// Number of fragments between this one and the latest one of the slot.
        back: u32,
    },
    /// Begin a run with these settings.
    Start(Config),
    /// Let this tab work for the run.
    Join {
        /// Number of additional Web Workers, each a worker of the hub.
        workers: u32,
    },
    /// Let this tab evaluate for peers of the hub.
    Evaluate(TabEvaluator),
    /// Let this tab stop working.
    Leave {
        /// The only Web Worker to stop; all if `None`.
        worker: Option<u32>,
    },
    /// Create a token with which another machine or another browser connects.
    Invite(Role),
}

impl Action {
    /// Returns the beginning of a sentence about the failure, which ends in the reason.
    #[must_use]
    pub fn failed(&self) -> String {
        match self {
            Self::Pause => "The run was not paused".into(),
            Self::Resume => "The run was not resumed".into(),
            Self::Stop => "The run was not stopped".into(),
            Self::Drain => "The run does not drain".into(),
            Self::Checkpoint => "No checkpoint was written".into(),
            Self::AddWorker => "No worker was added".into(),
            Self::RemoveWorker { worker } => format!("Worker {worker} was not removed"),
            Self::RestartWorker { worker } => format!("Worker {worker} was not restarted"),
            Self::RemoveRun { run } => format!("Run {run} was not removed"),
            Self::Compare { run } => format!("{run} cannot be compared"),
            Self::Watch { slot } => format!("Slot {slot} cannot be shown"),
            Self::Save { file } => format!("{file} was not saved"),
            Self::ListSaved => "The runs in the hub's directory are not known".into(),
            Self::ResumeSaved { id } => format!("{id} was not resumed"),
            Self::DeleteSaved { id } => format!("{id} was not deleted"),
            Self::Clone { run } => format!("Run {run} was not cloned"),
            Self::CloneSaved { id } => format!("{id} was not cloned"),
            Self::ShowFragment { .. } => "No fragment can be shown".into(),
            Self::Start(_) => "The run was not started".into(),
            Self::Join { .. } => "This tab did not join".into(),
            Self::Evaluate(_) => "This tab does not evaluate".into(),
            Self::Leave { .. } => "This tab did not leave".into(),
            Self::Invite(_) => "No token was created".into(),
        }
    }
}

impl Action {
    /// Returns the job that an action gives to this tab, if any.
    pub(super) fn into_job(self) -> Option<TabJob> {
        match self {
            Self::Join { .. } => Some(TabJob::Sample),
            Self::Evaluate(evaluator) => Some(TabJob::Evaluate(evaluator)),
            _ => None,
        }
    }

    /// Returns a text about the success, if nothing else on the page shows it.
    #[must_use]
    pub(super) const fn done(&self) -> Option<&'static str> {
        match self {
            Self::Checkpoint => Some("A checkpoint was written."),
            _ => None,
        }
    }
}

fn create_token(request: u32, role: Role) -> Message {
    let (action, role) = (TokenAction::Create.to_wire(), role.to_wire());
    Message::ManageTokens(ManageTokens { request, action, role, token: 0, seconds: TOKEN_SECONDS })
}

/// Pending requests, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    last: u32,
    waiting: Vec<(u32, Action)>,
}

impl Requests {
    /// Returns whether an equal request is pending.
    #[must_use]
    pub fn is_waiting(&self, action: &Action) -> bool {
        self.waiting.iter().any(|(_, waiting)| waiting == action)
    }

    /// Returns whether a request for a run's history is pending.
    pub(super) fn is_waiting_for_history(&self) -> bool {
        self.waiting.iter().any(|(_, waiting)| matches!(waiting, Action::Compare { .. }))
    }

    /// Returns the message that revokes a token. Its answer is ignored: the token may have been revoked before.
    pub(super) fn revoke(&mut self, token: TokenId) -> Message {
        self.last = self.last.wrapping_add(1);
        let action = TokenAction::Revoke.to_wire();
        Message::ManageTokens(ManageTokens { request: self.last, action, token: token.0, ..ManageTokens::default() })
    }

    /// Records a request and returns its message; `None` if the action needs neither hub nor trainer.
    pub(super) fn ask(&mut self, action: Action) -> Option<Message> {
        let request = self.last.wrapping_add(1);
        let message = match &action {
            Action::Pause => Message::Pause(Request { request }),
            Action::Resume => Message::Resume(Request { request }),
            Action::Stop => Message::Stop(Request { request }),
            Action::Drain => Message::Drain(Request { request }),
            Action::Checkpoint => Message::Checkpoint(Request { request }),
            Action::AddWorker => Message::AddWorker(Request { request }),
            Action::RemoveWorker { worker } => Message::RemoveWorker(WorkerRequest { request, worker: *worker }),
            Action::RestartWorker { worker } => Message::RestartWorker(WorkerRequest { request, worker: *worker }),
            Action::RemoveRun { run } => Message::RemoveRun(message::RemoveRun { request, run: *run }),
            Action::Compare { run: RunKey::Hub(run) } | Action::Clone { run } => {
                Message::RunHistoryRequest(message::RunHistoryRequest { request, run: *run })
            }
            Action::Compare { run: RunKey::Saved(id) } | Action::CloneSaved { id } => {
                Message::SavedRunRequest(SavedRunRequest { request, id: id.clone() })
            }
            Action::ListSaved => Message::SavedRunsRequest(Request { request }),
            Action::ResumeSaved { id } => Message::ResumeRun(SavedRunRequest { request, id: id.clone() }),
            Action::DeleteSaved { id } => Message::DeleteRun(SavedRunRequest { request, id: id.clone() }),
            Action::ShowFragment { slot, back } => {
                Message::RecentFragmentRequest(RecentFragmentRequest { request, slot: *slot, back: *back })
            }
            Action::Watch { slot } => Message::Watch(message::Watch { request, slot: *slot }),
            Action::Start(settings) => Message::StartRun(StartRun { request, settings: settings.to_string() }),
            Action::Join { .. } => Message::WorkerTokenRequest(Request { request }),
            Action::Evaluate(_) => create_token(request, Role::Worker),
            Action::Invite(role) => create_token(request, *role),
            Action::Save { .. } | Action::Leave { .. } => return None,
        };
        self.last = request;
        self.waiting.push((request, action));
        Some(message)
    }

    /// Removes and returns the action that a reply answers; `None` if no such request is pending.
    pub(super) fn answer(&mut self, request: u32) -> Option<Action> {
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == request)?;
        Some(self.waiting.remove(place).1)
    }

    /// Removes all pending requests.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Action> {
        self.waiting.drain(..).map(|(_, action)| action)
    }
}
