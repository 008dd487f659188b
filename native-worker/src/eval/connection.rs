//! A handle's side of what handles and workers say to each other.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use rollmesh_core::{
    eval_worker::{EvalAnswer, EvalAsk, LONGEST_POLL, Polled, weights_to_bytes},
    evaluation::EvalWorkerError,
    evaluation::{Earlier, EvaluationRequest, Ticket},
    weights::Weights,
};

use super::wire::{receive, send};

/// How long an answer may take that is none to a poll.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Bytes in both directions.
pub(super) trait Line: Read + Write + Send + fmt::Debug {
    /// How long a read waits; none for as long as it takes.
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()>;
}

impl Line for TcpStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

/// A connection to a worker of another process.
#[derive(Debug)]
pub(super) struct Connection {
    line: Box<dyn Line>,
}

impl Connection {
    /// To a worker of this machine, with the token of its file.
    pub(super) fn open(port: u16, token: &str) -> io::Result<Self> {
        let to = (Ipv4Addr::LOCALHOST, port).into();
        let stream = TcpStream::connect_timeout(&to, ANSWER)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut connection = Self::over(stream);
        match connection.ask(&EvalAsk::Hello { token: token.into() }, &[], ANSWER)? {
            (EvalAnswer::Done, _) => Ok(connection),
            (EvalAnswer::Trouble(error), _) => Err(io::Error::other(error.to_string())),
            _ => Err(io::Error::other("it does not answer as an evaluation worker does")),
        }
    }

    /// By a line on which nobody is asked for a token.
    pub(super) fn over(line: impl Line + 'static) -> Self {
        Self { line: Box::new(line) }
    }

    fn ask(&mut self, ask: &EvalAsk, bytes: &[u8], patience: Duration) -> io::Result<(EvalAnswer, Vec<u8>)> {
        self.line.set_patience(Some(patience))?;
        send(&mut self.line, ask, bytes)?;
        receive(&mut self.line)
    }

    pub(super) fn submit(
        &mut self,
        weights: Option<&Weights>,
        request: EvaluationRequest,
        earlier: Earlier,
    ) -> Result<Ticket, EvalWorkerError> {
        let bytes = weights_to_bytes(weights)?;
        match self.ask(&EvalAsk::Submit { request, earlier }, &bytes, ANSWER).map_err(EvalWorkerError::io)? {
            (EvalAnswer::Ticket(ticket), _) => Ok(ticket),
            (EvalAnswer::Trouble(error), _) => Err(error),
            _ => Err(EvalWorkerError::io("it answers something else")),
        }
    }

    /// Waits at most so long, and no longer than [`LONGEST_POLL`].
    pub(super) fn poll(&mut self, timeout: Duration) -> Polled {
        let timeout = timeout.min(Duration::from_micros(LONGEST_POLL.0));
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let failed = |error| Polled::Found(None, Err(error));
        match self.ask(&EvalAsk::Poll { timeout_ms }, &[], timeout + ANSWER) {
            Ok((EvalAnswer::NotYet, _)) => Polled::NotYet,
            Ok((EvalAnswer::Nothing, _)) => Polled::Nothing,
            Ok((EvalAnswer::Trouble(error), _)) => failed(error),
            Ok((EvalAnswer::Found(found), bytes)) => {
                let (ticket, result) = found.read(bytes);
                let nothing = || EvalWorkerError::io("it answers something else");
                Polled::Found(Some(ticket), result.and_then(|found| found.ok_or_else(nothing)))
            }
            Ok(_) => failed(EvalWorkerError::io("it answers something else")),
            Err(error) => failed(EvalWorkerError::io(error)),
        }
    }

    pub(super) fn shutdown(&mut self) {
        // One that does not hear is gone already.
        let _ = self.ask(&EvalAsk::Shutdown, &[], ANSWER);
    }
}
