//! Controls a hub from a program: the dashboard's commands, and its view of the hub.
//!
//! A [`Control`] is a dashboard without a page. It follows the run, the workers and the ledger, and sends commands; a
//! command that the hub refuses is [`ControlError::Declined`].
//!
//! ```no_run
//! use rollmesh::control::{Control, ControlConfig};
//!
//! # async fn example() -> Result<(), rollmesh::control::ControlError> {
//! let mut hub = Control::connect(&ControlConfig::from_env("ws://127.0.0.1:7878")?).await?;
//! hub.scale(4).await?;
//! hub.until("four local workers", |hub| hub.local_workers().count() == 4).await?;
//! assert!(hub.ledger().ledger.balances());
//! # Ok(())
//! # }
//! ```
//!
//! The printing of results is in the command line.

mod ask;
mod error;
mod hub_url;

use std::{collections::BTreeMap, time::Duration};

use rollmesh_core::protocol::{
    Connection, ConnectionEnd, Message, Phase, RefusalCode, Role, Token, WorkerState,
    handshake::Identity,
    message::{LauncherRow, LedgerReport, RunRow, RunStatus, WorkerLocation, WorkerRow},
};
use tokio::time::{Instant, timeout_at};

use crate::net::{HubSocket, Linked, Route, connect};

pub use crate::net::{
    ClientCertificate, Fingerprint, FingerprintError, TokenError, Trust, token_from_env, token_from_file,
};
pub use error::ControlError;
pub use hub_url::{HubUrl, HubUrlError};

/// Default timeout of a hub's answers.
pub const USUAL_PATIENCE: Duration = Duration::from_secs(10);

/// The configuration of a connection to a hub.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The hub's address.
    pub hub: HubUrl,
    /// The token of the role. Never part of an address or of a command line.
    pub token: Token,
    /// [`Role::Operator`] to send commands, [`Role::Viewer`] to watch.
    pub role: Role,
    /// The verification of the hub; by default with the system's certificate authorities, if it is not on this machine.
    pub trust: Trust,
    /// Timeout of each answer.
    pub patience: Duration,
}

impl ControlConfig {
    /// Returns the configuration of an operator with the token of the environment variable `ROLLMESH_TOKEN`.
    ///
    /// # Errors
    /// [`ControlError`] when the address or the token cannot be parsed.
    pub fn from_env(hub: &str) -> Result<Self, ControlError> {
        let (hub, token, trust) = (hub.parse()?, token_from_env()?, Trust::default());
        Ok(Self { hub, token, role: Role::Operator, trust, patience: USUAL_PATIENCE })
    }
}

/// A connection to a hub, and the state that the hub has sent so far.
pub struct Control {
    socket: HubSocket,
    connection: Connection,
    hub: HubUrl,
    role: Role,
    patience: Duration,
    status: RunStatus,
    ledger: LedgerReport,
    workers: BTreeMap<u32, WorkerRow>,
    places: BTreeMap<u32, WorkerLocation>,
    runs: Vec<RunRow>,
    launchers: Vec<LauncherRow>,
    last_request: u32,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("hub", &self.hub).field("status", &self.status).finish_non_exhaustive()
    }
}

impl Control {
    /// Connects, performs the handshake, and receives a snapshot of the state.
    ///
    /// # Errors
    /// [`ControlError`] when there is no hub, or it refuses this peer.
    pub async fn connect(config: &ControlConfig) -> Result<Self, ControlError> {
        let unreachable = |reason: String| ControlError::Unreachable { hub: config.hub.clone(), reason };
        let deadline = Instant::now() + config.patience;
        let socket = match timeout_at(deadline, connect(Route::direct(config.hub.as_str(), &config.trust))).await {
            Ok(socket) => socket.map_err(|error| unreachable(error.to_string()))?,
            Err(_) => return Err(unreachable(format!("no answer within {} s", config.patience.as_secs_f32()))),
        };
        let mut control = Self {
            socket,
            connection: Connection::new(Identity::new(config.role, config.token, "native", "control", "cpu")),
            hub: config.hub.clone(),
            role: config.role,
            patience: config.patience,
            status: RunStatus::default(),
            ledger: LedgerReport::default(),
            workers: BTreeMap::new(),
            places: BTreeMap::new(),
            runs: Vec::new(),
            launchers: Vec::new(),
            last_request: 0,
        };
        match timeout_at(deadline, control.link().admitted()).await {
            Err(_) => return Err(control.too_late("an answer to Hello")),
            Ok(admitted) => admitted.map_err(|reason| control.lost(reason))?,
        }
        // The ledger ends the hub's snapshot.
        while !matches!(control.next_by(deadline, "the state of the run").await?, Message::LedgerReport(_)) {}
        Ok(control)
    }

    /// Returns the name and version of the hub.
    #[must_use]
    pub fn server(&self) -> &str {
        self.connection.welcome().map_or("", |welcome| &welcome.server)
    }

    /// Returns when the hub's certificate expires, in seconds since 1970; `None` without encryption.
    #[must_use]
    pub fn certificate_expiry(&self) -> Option<u64> {
        self.socket.get_ref().certificate_expiry()
    }

    /// Returns the status of the run; all zeros before the first.
    #[must_use]
    pub fn status(&self) -> &RunStatus {
        &self.status
    }

    /// Returns the phase of the run; [`Phase::Idle`] before the first.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::try_from(self.status.phase).unwrap_or(Phase::Idle)
    }

    /// Returns the ledger of granted env steps.
    #[must_use]
    pub fn ledger(&self) -> &LedgerReport {
        &self.ledger
    }

    /// Returns the workers by id.
    #[must_use]
    pub fn workers(&self) -> &BTreeMap<u32, WorkerRow> {
        &self.workers
    }

    /// Returns the place where a worker runs; empty texts if that is not known.
    #[must_use]
    pub fn place(&self, worker: u32) -> WorkerLocation {
        self.places.get(&worker).cloned().unwrap_or_default()
    }

    /// Returns the hub's runs by number: past ones, the current one, and those in the queue.
    #[must_use]
    pub fn runs(&self) -> &[RunRow] {
        &self.runs
    }

    /// Returns the hub's launchers: those that are connected, and those that are expected back.
    #[must_use]
    pub fn launchers(&self) -> &[LauncherRow] {
        &self.launchers
    }

    /// Returns the workers that get no leases because they hang or are in quarantine.
    pub fn unhealthy_workers(&self) -> impl Iterator<Item = &WorkerRow> {
        let is_unhealthy = |state| matches!(state, WorkerState::Hung | WorkerState::Quarantined);
        self.workers.values().filter(move |row| WorkerState::try_from(row.state).is_ok_and(is_unhealthy))
    }

    /// Returns the workers that the hub has started and that are not leaving.
    pub fn local_workers(&self) -> impl Iterator<Item = &WorkerRow> {
        self.workers.values().filter(|row| row.local && row.state != WorkerState::Leaving.to_wire())
    }

    /// Waits for the next message of the hub, without a timeout, and updates the state.
    ///
    /// # Errors
    /// [`ControlError`] when the hub disconnects or the connection breaks.
    pub async fn next(&mut self) -> Result<Message, ControlError> {
        let message = loop {
            if let Some(message) = self.link().receive().await.map_err(|reason| self.lost(reason))? {
                break message;
            }
        };
        match &message {
            Message::RunStatus(status) => self.status = status.clone(),
            Message::LedgerReport(ledger) => self.ledger = ledger.clone(),
            Message::RunList(list) => self.runs.clone_from(&list.runs),
            Message::LauncherList(list) => self.launchers.clone_from(&list.launchers),
            Message::WorkerRow(row) => _ = self.workers.insert(row.worker, row.clone()),
            Message::WorkerLocation(place) => _ = self.places.insert(place.worker, place.clone()),
            Message::WorkerGone(gone) => {
                self.workers.remove(&gone.worker);
                self.places.remove(&gone.worker);
            }
            _ => {}
        }
        Ok(message)
    }

    /// Waits until a condition holds; `what` names it in the error.
    ///
    /// # Errors
    /// [`ControlError::TooLate`] after the timeout, or as [`next`](Self::next).
    pub async fn until(&mut self, what: &str, is_so: impl FnMut(&Self) -> bool) -> Result<(), ControlError> {
        self.until_or(what, is_so, |_| None).await
    }

    /// Works like [`until`](Self::until), and ends with the error that `failed` returns for a message.
    pub(crate) async fn until_or(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> bool,
        failed: impl Fn(&Message) -> Option<ControlError>,
    ) -> Result<(), ControlError> {
        let deadline = Instant::now() + self.patience;
        while !is_so(self) {
            let message = self.next_by(deadline, what).await?;
            failed(&message).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Waits until a run is over, without a timeout, and returns its row; `None` if it was removed before it began. A run that
    /// is rolled back continues under another number: the row is that of the run that continues it.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn until_over(&mut self, mut run: u32) -> Result<Option<RunRow>, ControlError> {
        // A run that is rolled back is not listed again until its environment is made.
        let mut is_continued = false;
        loop {
            let row = self.runs.iter().find(|row| row.run == run);
            if let Some(next) = row.and_then(RunRow::continued_by) {
                (run, is_continued) = (next, true);
                continue;
            }
            let is_over =
                |row: &RunRow| row.place == 0 && Phase::try_from(row.phase).is_ok_and(|phase| !phase.is_active());
            if row.map_or(!is_continued, is_over) {
                return Ok(row.cloned());
            }
            self.next().await?;
        }
    }

    /// Says goodbye, so that the hub does not record a failure.
    pub async fn leave(mut self) {
        self.link().leave("done").await;
    }

    async fn next_by(&mut self, deadline: Instant, what: &str) -> Result<Message, ControlError> {
        timeout_at(deadline, self.next()).await.unwrap_or_else(|_| Err(self.too_late(what)))
    }

    fn too_late(&self, what: &str) -> ControlError {
        ControlError::TooLate { what: what.into(), patience: self.patience }
    }

    async fn say(&mut self, message: &Message) -> Result<(), ControlError> {
        self.link().send(message).await.map_err(ControlError::Left)
    }

    fn link(&mut self) -> Linked<'_> {
        Linked::new(&mut self.socket, &mut self.connection)
    }

    /// Returns the error for the end of the connection. `reason` is that of its socket.
    fn lost(&self, reason: String) -> ControlError {
        match self.connection.end() {
            Some(ConnectionEnd::Refused { code: Some(RefusalCode::Token), .. }) => ControlError::Token(self.role),
            Some(ConnectionEnd::Refused { reason, .. }) => ControlError::Refused(reason.clone()),
            Some(ConnectionEnd::Violated { .. }) => ControlError::Unreadable(reason),
            Some(ConnectionEnd::Closed { .. }) | None => ControlError::Left(reason),
        }
    }
}
