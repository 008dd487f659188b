//! The state of the page, and the one pure function that changes it.
//!
//! [`reduce`] applies an event and returns effects; the shell handles sockets, timers and Web Workers. This module uses
//! no web types, so all of it is tested natively.

mod allowed;
mod chart_view;
mod clip;
mod comparison;
mod connection;
mod csv;
mod curves;
mod evaluate_form;
mod families;
mod form;
mod fragment;
mod monitoring;
mod obstacle;
mod opened_file;
mod played;
mod reduce;
mod requests;
mod saved_runs;
mod tab_run;
mod tab_worker;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rollmesh_core::{
    group::TooFewSlots,
    protocol::{
        Message, Phase, Role, Token, TokenId, WorkerState,
        message::{HubCertificate, LedgerReport, OtherPeers, RunList, RunStatus, SavedRuns, WorkerLocation, WorkerRow},
    },
    time::Micros,
};

pub use self::{
    chart_view::{ChartView, ViewChange, XAxis},
    clip::{AgentStep, Clip, ClipSource},
    comparison::{Comparison, Differences, RunKey},
    connection::Connection,
    curves::{Curves, FieldValue, Metric},
    evaluate_form::{FormError, evaluator},
    families::{Family, families},
    form::{Field, RunSchema, Texts},
    fragment::{Bar, Fragment, FragmentColumn},
    monitoring::{AUDIT, HUB, Log, Monitoring, WORKER_RATE},
    opened_file::{FileStatus, OpenedFile},
    played::Played,
    reduce::reduce,
    requests::{Action, Requests},
    saved_runs::can_resume,
    tab_run::TabRun,
    tab_worker::{TabEvaluator, TabJob, TabStatus, TabWork},
};

/// Everything that the views show.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// State of the connection to the hub.
    pub connection: Connection,
    /// True if the token is a viewer's: the page shows everything and changes nothing.
    pub is_viewer: bool,
    /// Source of the data on the page.
    pub source: Source,
    /// Data about the run in this tab that a hub's messages do not contain, if the page trains.
    pub tab_run: TabRun,
    /// The settings in the page's link, with which the form of a run begins.
    pub linked: Texts,
    /// The error of the last run that the form tried to start, until another one is requested.
    pub start_error: Option<String>,
    /// Number that changes whenever the form is reset.
    pub form_revision: u32,
    /// The settings that a run may have; `None` until the hub or the trainer has sent them.
    pub schema: Option<Arc<RunSchema>>,
    /// The hub's run; `None` until the hub has sent it.
    pub run: Option<RunStatus>,
    /// All runs of the hub by number, and whether another one may be queued.
    pub runs: RunList,
    /// The runs in the hub's directory; `None` until the hub has listed them.
    pub saved: Option<SavedRuns>,
    /// Reports of hosts, and logs and rates of workers.
    pub monitoring: Monitoring,
    /// The fragment that was requested last.
    pub fragment: Option<Fragment>,
    /// The hub's ledger by reason; `None` until the hub has sent it.
    pub ledger: Option<LedgerReport>,
    /// The view of the charts.
    pub charts: ChartView,
    /// Other runs that the charts show.
    pub comparison: Comparison,
    /// The iterations so far.
    pub curves: Curves,
    /// The run's evaluations so far: their points have returns and lengths alone.
    pub evaluations: Curves,
    /// The workers by id.
    pub workers: BTreeMap<u32, WorkerRow>,
    /// Ids of the workers whose data has changed since these were last taken.
    touched: BTreeSet<u32>,
    /// Locations of the workers, by id.
    pub places: BTreeMap<u32, WorkerLocation>,
    /// The hub's other peers, including this page.
    pub others: OtherPeers,
    /// The page's own number among the hub's peers.
    pub peer: u32,
    /// The clips by source.
    pub clips: BTreeMap<ClipSource, Arc<Clip>>,
    /// The work of this tab for the hub.
    pub tab: TabWork,
    /// The certificate by which workers verify the hub; `None` if the hub does not encrypt.
    pub certificate: Option<HubCertificate>,
    /// The token that was created last for another machine or browser, with its role.
    pub invitation: Option<(Role, Token)>,
    /// Id of the token that was created for this tab's evaluations alone, until it is revoked.
    pub tab_token: Option<TokenId>,
    /// The opened file of logged experience.
    pub file: Option<OpenedFile>,
    /// The policy that plays in this tab.
    pub played: Option<Played>,
    /// Requests that are not answered yet.
    pub requests: Requests,
    /// Messages for the user, oldest first.
    pub toasts: Vec<Toast>,
    next_toast: u32,
}

/// The source of the data on the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// No data has arrived yet.
    #[default]
    None,
    /// The trainer of this tab, because no hub is reachable.
    Tab,
    /// The hub, even if it is unreachable now.
    Hub,
}

/// An event to which the page reacts.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The page has started, with or without a token.
    Started {
        /// True if there is a token for the hub.
        token: bool,
    },
    /// A token was found or entered.
    TokenFound,
    /// The token was deleted.
    TokenForgotten,
    /// The hub sent a message.
    Received(Message),
    /// The socket is closed or could not be opened.
    Closed {
        /// Random number for jitter, uniform over all values.
        random: u32,
    },
    /// The network is back or the page has become visible, so an immediate retry is worthwhile.
    Woke,
    /// The retry delay has elapsed.
    RetryDue,
    /// The hub sent a message that cannot be read.
    Unreadable(String),
    /// The page was opened with a link to these settings, by path, and to this view of the charts.
    Linked(Texts),
    /// The user has changed the view of the charts.
    Charts(ViewChange),
    /// The hub of this tab sent a message.
    Trainer(Message),
    /// The run of this number in this tab has ended, with weights of this hash.
    Trained {
        /// The run.
        run: u32,
        /// The hash as text.
        weights_hash: String,
    },
    /// The trainer of this tab has failed, for this reason.
    TrainerFailed(String),
    /// The user has requested an action.
    Act(Action),
    /// A Web Worker of this tab has posted its status.
    Tab {
        /// Its number.
        worker: u32,
        /// Its status.
        status: TabStatus,
    },
    /// More of a file was read.
    FileRead(OpenedFile),
    /// The user has closed the file.
    FileClosed,
    /// The policy that plays in this tab has posted its status.
    Played(Played),
    /// The user has closed the player.
    PlayerClosed,
    /// A toast was closed or has expired.
    ToastGone(u32),
}

/// A side effect that the shell executes.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Open the socket and introduce the page.
    Connect {
        /// The role of the page.
        role: Role,
    },
    /// Close the socket.
    Disconnect,
    /// Dispatch [`Event::RetryDue`] after a delay.
    RetryIn {
        /// The delay.
        delay: Micros,
    },
    /// Send a message to the hub, which is that of this tab if the page trains.
    Send(Box<Message>),
    /// Start a Web Worker.
    StartTab {
        /// Its number.
        worker: u32,
        /// Its job.
        job: TabJob,
        /// The token that the hub created for the job.
        token: Token,
    },
    /// End a Web Worker.
    StopTab {
        /// Its number.
        worker: u32,
    },
    /// Start the trainer of this tab, or replace one that has failed.
    StartTrainer,
    /// End the trainer of this tab, with its run.
    StopTrainer,
    /// Offer a file of the policy of the run in this tab for download.
    Save {
        /// Its name.
        file: &'static str,
    },
    /// Write these settings, and the view of the charts, into the page's address.
    ShowLink(Texts),
    /// Scroll to the form of a run.
    ShowForm,
    /// Stop reading the file.
    CloseFile,
    /// Dispatch [`Event::ToastGone`] after a delay.
    ExpireToast {
        /// The toast.
        id: u32,
        /// The delay.
        delay: Micros,
    },
}

/// A message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toast {
    /// Its id, unique on this page.
    pub id: u32,
    /// Its severity.
    pub level: Level,
    /// The text.
    pub text: String,
}

/// The severity of a toast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Information.
    Info,
    /// A problem that does not stop work.
    Warning,
    /// A failure.
    Error,
}

impl Level {
    /// Returns the name of the level in CSS classes.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl State {
    /// Returns the phase of the run; `Idle` before the first one.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.run.as_ref().and_then(|run| Phase::try_from(run.phase).ok()).unwrap_or(Phase::Idle)
    }

    /// Returns the ids of the workers whose data has changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.touched)
    }

    /// Returns the reason why a worker produces no rows; `None` while it produces some.
    #[must_use]
    pub fn reason(&self, worker: u32) -> Option<String> {
        Some(&self.workers.get(&worker)?.reason).filter(|reason| !reason.is_empty()).cloned()
    }

    /// Returns a hint on missing capacity or on failures of the workers as a whole; `None` without either or a run.
    #[must_use]
    pub fn workers_hint(&self) -> Option<String> {
        let run = self.run.as_ref().filter(|_| self.phase().is_active())?;
        let number_in = |states: &[WorkerState]| {
            self.workers.values().filter(|row| states.iter().any(|state| row.state == state.to_wire())).count()
        };
        let workers = number_in(&[WorkerState::Idle, WorkerState::Sampling]) as u32;
        let unable = number_in(&[WorkerState::Unable]);
        let all_unable = unable > 0 && unable == self.workers.len();
        if all_unable {
            return Some("No worker can run this. The run ends unless one that can comes soon.".into());
        }
        if !run.waiting.is_empty() {
            return Some(format!("The run is {}.", run.waiting));
        }
        if run.failures > 0 {
            return Some(format!("Fragments have failed: {}. The last: {}.", run.failures, run.last_failure));
        }
        let few = TooFewSlots::check(run.num_slots, workers, run.slots_per_worker)?;
        Some(format!("Slots, not workers, are the limit: {few}."))
    }

    /// Returns the workers that the hub has started and that are not leaving, oldest first.
    pub fn local_workers(&self) -> impl DoubleEndedIterator<Item = u32> {
        let stays = |row: &&WorkerRow| row.local && row.state != WorkerState::Leaving.to_wire();
        self.workers.values().filter(stays).map(|row| row.worker)
    }

    /// Returns the clip of a source, if it belongs to the shown run or to the opened file.
    #[must_use]
    pub fn clip(&self, source: ClipSource) -> Option<&Arc<Clip>> {
        if source == ClipSource::File {
            return self.file.as_ref()?.clip.as_ref();
        }
        let run = self.run.as_ref()?.run;
        self.clips.get(&source).filter(|clip| clip.report.run == run)
    }

    /// Returns whether the hub belongs to a program's worker group: it executes no runs, and the program decides on the
    /// number of workers.
    #[must_use]
    pub fn is_of_group(&self) -> bool {
        self.schema.as_ref().is_some_and(|schema| !schema.allows_runs())
    }

    /// Returns the texts of a link that restores the form's initial settings, the view of the charts and the
    /// comparison.
    #[must_use]
    pub fn link(&self) -> Texts {
        self.linked.clone().into_iter().chain(self.charts.texts()).chain(self.comparison.texts()).collect()
    }

    /// Returns the page's role at the hub, as far as the page knows it.
    #[must_use]
    pub fn role(&self) -> Role {
        if self.is_viewer { Role::Viewer } else { Role::Operator }
    }

    /// Returns whether the hub is connected.
    #[must_use]
    pub fn is_online(&self) -> bool {
        matches!(self.connection, Connection::Online { .. })
    }

    /// Returns whether the hub is connected, or the page has a hub of its own.
    #[must_use]
    pub fn has_hub(&self) -> bool {
        self.is_online() || self.is_tab()
    }

    /// Returns whether the page trains by itself, with a hub of its own.
    #[must_use]
    pub fn is_tab(&self) -> bool {
        self.source == Source::Tab
    }
}
