//! What the page knows, and the one pure function that changes it.
//!
//! [`reduce`] takes an event and returns effects; sockets, timers and the Web Worker are the shell's.
//! No web types in here, so all of it is tested natively.

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
    /// How the page stands with the hub.
    pub connection: Connection,
    /// The token is a viewer's: the page shows everything and changes nothing.
    pub is_viewer: bool,
    /// Where the numbers come from.
    pub source: Source,
    /// What the page knows of the run in this tab in addition to a hub's messages, if the page trains.
    pub tab_run: TabRun,
    /// What the form of a run begins with: the settings of the link that the page was opened with.
    pub linked: Texts,
    /// Why the run of the form was not started, until another one is.
    pub start_error: Option<String>,
    /// Changes whenever the form begins anew.
    pub form_revision: u32,
    /// The settings that a run may have; `None` before the hub or the trainer sent them.
    pub schema: Option<Arc<RunSchema>>,
    /// The hub's run; none before the hub said anything.
    pub run: Option<RunStatus>,
    /// All runs of the hub by number, and whether another one may wait.
    pub runs: RunList,
    /// The runs in the hub's directory, once they were asked for.
    pub saved: Option<SavedRuns>,
    /// What hosts and workers have reported.
    pub monitoring: Monitoring,
    /// The fragment that was asked for last.
    pub fragment: Option<Fragment>,
    /// Its ledger by reason; none before the hub said anything.
    pub ledger: Option<LedgerReport>,
    /// How the charts are looked at.
    pub charts: ChartView,
    /// Other runs that are shown in them.
    pub comparison: Comparison,
    /// The iterations so far.
    pub curves: Curves,
    /// The evaluations alongside the run so far: their points have returns and lengths alone.
    pub evaluations: Curves,
    /// The workers by id.
    pub workers: BTreeMap<u32, WorkerRow>,
    /// The workers about which something has changed since this was taken.
    touched: BTreeSet<u32>,
    /// Where workers run, by id.
    pub places: BTreeMap<u32, WorkerLocation>,
    /// The hub's other peers, this page among them.
    pub others: OtherPeers,
    /// The page's own number among the hub's peers.
    pub peer: u32,
    /// What can be watched.
    pub clips: BTreeMap<ClipSource, Arc<Clip>>,
    /// This tab at work for the hub.
    pub tab: TabWork,
    /// The certificate by which workers verify the hub; none of a hub that does not encrypt.
    pub certificate: Option<HubCertificate>,
    /// The token that was created last for another machine or browser, with its role.
    pub invitation: Option<(Role, Token)>,
    /// The token that was made for this tab's evaluations alone, until it is revoked.
    pub tab_token: Option<TokenId>,
    /// The file of logged experience that is open.
    pub file: Option<OpenedFile>,
    /// The policy that plays in this tab.
    pub played: Option<Played>,
    /// What was asked and not yet answered.
    pub requests: Requests,
    /// Messages for the person, oldest first.
    pub toasts: Vec<Toast>,
    next_toast: u32,
}

/// Where the numbers on the page come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Nothing came yet.
    #[default]
    None,
    /// The trainer of this tab, because no hub is in reach.
    Tab,
    /// The hub; possibly unreachable.
    Hub,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The page has started, with or without a token.
    Started {
        /// Is there a token for the hub?
        token: bool,
    },
    /// A token was found or entered.
    TokenFound,
    /// The token is kept no longer.
    TokenForgotten,
    /// The hub sent a message.
    Received(Message),
    /// The socket is closed or could not be opened.
    Closed {
        /// Uniform over all numbers, for jitter.
        random: u32,
    },
    /// The network came back or the page became visible: worth an immediate try.
    Woke,
    /// The time to try again has come.
    RetryDue,
    /// The hub sent something that cannot be read.
    Unreadable(String),
    /// The page was opened with a link to these settings, by path, and to this view of the charts.
    Linked(Texts),
    /// The person looks at the charts in another way.
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
    /// The person asked for something.
    Act(Action),
    /// A Web Worker of this tab told how it is.
    Tab {
        /// Its number.
        worker: u32,
        /// What it told.
        status: TabStatus,
    },
    /// A file was read a bit further.
    FileRead(OpenedFile),
    /// The user closes the file.
    FileClosed,
    /// A policy plays in this tab, or cannot.
    Played(Played),
    /// The person wants to see it play no more.
    PlayerClosed,
    /// A toast was closed or its time is over.
    ToastGone(u32),
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Open the socket and introduce the page.
    Connect {
        /// As what.
        role: Role,
    },
    /// Close the socket.
    Disconnect,
    /// Come back with [`Event::RetryDue`].
    RetryIn {
        /// The time to wait.
        delay: Micros,
    },
    /// Send to the hub, which is that of this tab if the page trains.
    Send(Box<Message>),
    /// Start a Web Worker.
    StartTab {
        /// Its number.
        worker: u32,
        /// What it is to do.
        job: TabJob,
        /// The token that the hub gave for that.
        token: Token,
    },
    /// End a Web Worker.
    StopTab {
        /// Its number.
        worker: u32,
    },
    /// Start the trainer of this tab, in place of one that has failed.
    StartTrainer,
    /// End the trainer of this tab, with its run.
    StopTrainer,
    /// Offer a file of the policy of the run in this tab.
    Save {
        /// Its name.
        file: &'static str,
    },
    /// Let the page's address restore these settings, and the view of the charts.
    ShowLink(Texts),
    /// Bring the form of a run into view.
    ShowForm,
    /// Read the file no further.
    CloseFile,
    /// Come back with [`Event::ToastGone`].
    ExpireToast {
        /// The toast.
        id: u32,
        /// The time to wait.
        delay: Micros,
    },
}

/// A message for the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toast {
    /// Unique on this page.
    pub id: u32,
    /// How bad it is.
    pub level: Level,
    /// The text.
    pub text: String,
}

/// How bad a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Good to know.
    Info,
    /// Something is off, and work continues.
    Warning,
    /// Something was not done.
    Error,
}

impl Level {
    /// Name of the level in class names.
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
    /// Phase of the run, `Idle` before the first.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.run.as_ref().and_then(|run| Phase::try_from(run.phase).ok()).unwrap_or(Phase::Idle)
    }

    /// The workers about which something has changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.touched)
    }

    /// Why a worker makes no rows; `None` while it does.
    #[must_use]
    pub fn reason(&self, worker: u32) -> Option<String> {
        Some(&self.workers.get(&worker)?.reason).filter(|reason| !reason.is_empty()).cloned()
    }

    /// What the workers as a whole lack, or what failed on them; `None` if nothing, or without a run.
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

    /// Workers next to the hub that are to stay, oldest first.
    pub fn local_workers(&self) -> impl DoubleEndedIterator<Item = u32> {
        let stays = |row: &&WorkerRow| row.local && row.state != WorkerState::Leaving.to_wire();
        self.workers.values().filter(stays).map(|row| row.worker)
    }

    /// What there is to watch of the run that is shown, or of the opened file.
    #[must_use]
    pub fn clip(&self, source: ClipSource) -> Option<&Arc<Clip>> {
        if source == ClipSource::File {
            return self.file.as_ref()?.clip.as_ref();
        }
        let run = self.run.as_ref()?.run;
        self.clips.get(&source).filter(|clip| clip.report.run == run)
    }

    /// Does the hub belong to a program's worker group? It executes no runs, and the program decides how many workers there are.
    #[must_use]
    pub fn is_of_group(&self) -> bool {
        self.schema.as_ref().is_some_and(|schema| !schema.allows_runs())
    }

    /// The texts of a link that restores the settings that the form begins with and the view of the charts.
    #[must_use]
    pub fn link(&self) -> Texts {
        self.linked.clone().into_iter().chain(self.charts.texts()).chain(self.comparison.texts()).collect()
    }

    /// What the page is to the hub, as far as it knows.
    #[must_use]
    pub fn role(&self) -> Role {
        if self.is_viewer { Role::Viewer } else { Role::Operator }
    }

    /// Is a hub there that would hear a request?
    #[must_use]
    pub fn is_online(&self) -> bool {
        matches!(self.connection, Connection::Online { .. })
    }

    /// Is a hub there that would hear a request, or that of this tab?
    #[must_use]
    pub fn has_hub(&self) -> bool {
        self.is_online() || self.is_tab()
    }

    /// Does the page train by itself, with a hub of its own?
    #[must_use]
    pub fn is_tab(&self) -> bool {
        self.source == Source::Tab
    }
}
