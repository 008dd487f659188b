//! The way through a hub: evaluation workers that are found from other machines.
//!
//! An evaluator's connection is a thread that carries frames; what they say, its [`End`](carry::End) knows: one who asks,
//! or the core's session of one who serves. What two evaluators say to each other is a stream of bytes in each direction,
//! as on a socket; how much may be on its way is limited, so nobody has to keep more than that.

mod asking;
mod carry;
mod serve;
mod stream;

use std::{path::PathBuf, sync::Arc, sync::mpsc, thread};

use rollmesh_core::{
    eval_worker::EvaluatorLink,
    evaluation::{EvalWorkerError, check_name},
    protocol::{
        Role, Token,
        handshake::{self, Identity},
        message::EvaluatorName,
    },
};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use self::{
    asking::Asking,
    carry::carry,
    stream::{HubStream, Pipe},
};
use super::{
    EvalWorker,
    connection::{ANSWER, Connection},
};
use crate::control::{ControlError, HubUrl, Trust, token_from_env};

/// A hub through which evaluation workers are found, from any machine.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rollmesh::{
///     eval::{EvalHub, EvalNames},
///     train::RunConfig,
/// };
///
/// // ROLLMESH_TOKEN holds a token of an evaluator, as `rollmesh tokens create --role evaluator` makes one.
/// let hub = EvalHub::from_env("wss://hub.example:7878")?;
/// // Here …
/// EvalNames::of_user().with_hub(hub.clone()).create("judge", &RunConfig::new("CartPole-v1"))?;
/// // … and anywhere else:
/// let mut worker = hub.find("judge")?;
/// worker.submit(None, 500, true, true)?;
/// println!("{:?}", worker.poll(Duration::from_secs(30))?.map(|found| found.reward()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EvalHub {
    /// Where the hub is.
    pub url: HubUrl,
    /// The token of an evaluator. Never part of an address or of a command line.
    pub token: Token,
    /// Which hub to believe.
    pub trust: Trust,
}

impl EvalHub {
    /// With the token of the environment variable `ROLLMESH_TOKEN`.
    ///
    /// # Errors
    /// [`ControlError`] when the address or the token cannot be read.
    pub fn from_env(url: &str) -> Result<Self, ControlError> {
        Ok(Self { url: url.parse()?, token: token_from_env()?, trust: Trust::default() })
    }

    /// The worker that serves under a name at this hub, with nothing asked for by this handle.
    ///
    /// # Errors
    /// [`EvalWorkerError::UnknownName`], [`EvalWorkerError::BadName`], [`EvalWorkerError::Io`].
    pub fn find(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        let runtime = runtime()?;
        let pipe = Arc::new(Pipe::default());
        let (answer, found) = mpsc::channel();
        let wish = EvaluatorName { name: name.into(), serves: false };
        let mut asking = Asking::new(EvaluatorLink::new(self.identity(name), wish), pipe.clone(), answer);
        let hub = self.clone();
        let ask = move || runtime.block_on(carry(&hub, &mut asking));
        thread::Builder::new().name("eval-link".into()).spawn(ask).map_err(EvalWorkerError::io)?;
        let stream = HubStream::over(pipe);
        match found.recv_timeout(ANSWER) {
            Ok(Ok(0)) => Err(EvalWorkerError::UnknownName { name: name.into(), place: self.url.to_string() }),
            Ok(Ok(_)) => Ok(EvalWorker::connected(Connection::over(stream))),
            Ok(Err(reason)) => Err(EvalWorkerError::io(reason)),
            Err(_) => Err(EvalWorkerError::io("the hub does not say who has that name")),
        }
    }

    fn identity(&self, name: &str) -> Identity {
        let name = if name.len() <= handshake::MAX_TEXT_BYTES { name } else { "evaluator" };
        Identity {
            role: Role::Evaluator,
            token: self.token,
            resume: None,
            // Only workers are asked for it.
            core_fingerprint: [0; 16],
            kind: "native".into(),
            name: name.into(),
            device: "cpu".into(),
        }
    }
}

/// For one connection, on the thread that drives it.
fn runtime() -> Result<Runtime, EvalWorkerError> {
    Builder::new_current_thread().enable_all().build().map_err(EvalWorkerError::io)
}

/// An [`EvalHub`], as it is told to another process on its standard input.
#[derive(Serialize, Deserialize)]
pub(super) struct HubWay {
    url: String,
    token: String,
    ca: Option<PathBuf>,
    fingerprint: Option<String>,
    allow_unencrypted: bool,
}

impl From<&EvalHub> for HubWay {
    fn from(hub: &EvalHub) -> Self {
        let EvalHub { url, token, trust: Trust { ca, fingerprint, allow_unencrypted } } = hub;
        let (url, token, fingerprint) = (url.to_string(), token.to_hex(), fingerprint.map(|print| print.to_string()));
        Self { url, token, ca: ca.clone(), fingerprint, allow_unencrypted: *allow_unencrypted }
    }
}

impl HubWay {
    /// None if it is of something else.
    pub(super) fn hub(self) -> Option<EvalHub> {
        let fingerprint = self.fingerprint.map(|print| print.parse()).transpose().ok()?;
        let trust = Trust { ca: self.ca, fingerprint, allow_unencrypted: self.allow_unencrypted };
        Some(EvalHub { url: self.url.parse().ok()?, token: Token::from_hex(&self.token).ok()?, trust })
    }
}
