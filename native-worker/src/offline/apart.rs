//! Reading a data set in a process of its own, with a limit of memory.
//!
//! The decoders of HDF5 and Parquet are libraries that do not validate the sizes in a file: a hostile or damaged one
//! may make them allocate without limit. In a process of its own that ends the process, not the program. The process
//! reads ahead by one batch while the program works with the previous one. A program whose executable cannot be such a
//! process reads by itself.
//!
//! A message of the process is its kind (1 byte), the length of its content (8, little-endian) and the content: see [`ReplyKind`].

use std::{
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command},
    sync::mpsc::Receiver,
    time::Duration,
};

use rollmesh_core::batch::{AnyBatch, codec};
use rollmesh_data::dataset::{self, BatchStream, DatasetError};
use serde::{Deserialize, Serialize};

use super::OfflineError;
use crate::child::{
    self, Child, ChildStreams, Confinement, LastWords, end_with_parent, is_readable_within, limit_memory, read_json,
    take_stdio, write_json,
};

/// The hidden command that runs the process.
pub(crate) const COMMAND: &str = "read-data";

/// Length of a message before its content.
const HEAD: usize = 9;
/// Time for the process to start, before it opens the data set.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The time to wait for the last lines of the standard error of a process that has ended.
const GRACE: Duration = Duration::from_secs(1);

/// The hint for a program that cannot be such a process.
const NO_MAIN: &str = "does the program begin with rollmesh::main_with?";

/// The request that the process reads first.
#[derive(Clone, Serialize, Deserialize)]
struct ReadRequest {
    path: PathBuf,
    buffer: usize,
    /// The most bytes of memory that it takes.
    memory: u64,
}

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum ReplyKind {
    /// The process has started. No content.
    Started = 0,
    /// The data set is open. No content.
    Opened = 1,
    /// A batch, as [`codec::encode_any`] writes it.
    Batch = 2,
    /// There are no more batches: a [`BatchesEnd`] as JSON.
    Ending = 3,
}

impl ReplyKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Started, Self::Opened, Self::Batch, Self::Ending].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The reason that there are no more batches, and the losses that no batch contains.
#[derive(Default, Serialize, Deserialize)]
struct BatchesEnd {
    error: Option<String>,
    left_out: Vec<String>,
}

/// A data set that a process of its own reads.
pub(super) struct ReaderProcess {
    program: PathBuf,
    request: ReadRequest,
    /// `None` before the first batch after a rewind, and after the last one.
    running: Option<RunningReader>,
    ending: Option<BatchesEnd>,
}

struct RunningReader {
    child: Child,
    messages: BufReader<ChildStdout>,
    /// Open as long as the process is to run.
    _stdin: ChildStdin,
    words: Receiver<LastWords>,
    /// The content of the latest message.
    content: Vec<u8>,
}

impl ReaderProcess {
    /// Starts the program, and waits until it has opened the data set.
    pub(super) fn open(program: PathBuf, path: &Path, buffer: usize, memory: u64) -> Result<Self, DatasetError> {
        let request = ReadRequest { path: path.into(), buffer, memory };
        let mut reader = Self { program, request, running: None, ending: None };
        reader.start(STARTS_WITHIN)?;
        Ok(reader)
    }

    fn start(&mut self, limit: Duration) -> Result<(), DatasetError> {
        let failed = |source| OfflineError::Read { path: self.request.path.clone(), source };
        let confinement = Confinement { cpus: &[], gpus: None, memory: Some(self.request.memory) };
        let mut command = Command::new(&self.program);
        command.arg(COMMAND).envs(confinement.variables());
        let (child, ChildStreams { mut stdin, stdout, stderr }) = child::spawn(command).map_err(failed)?;
        let words = LastWords::listen(stderr).map_err(failed)?;
        // If the process has ended, reading its first message reports the reason.
        let _ = write_json(&mut stdin, &self.request);
        let is_ready = is_readable_within(&stdout, limit).map_err(failed)?;
        let messages = BufReader::with_capacity(1 << 16, stdout);
        self.running = Some(RunningReader { child, messages, _stdin: stdin, words, content: Vec::new() });
        self.ending = None;
        if !is_ready {
            return Err(self.fail(&format!("it did not start within {} s: {NO_MAIN}", limit.as_secs_f64())));
        }
        if self.receive()? != Some(ReplyKind::Started) {
            return Err(self.fail(&format!("it does not say that it has started: {NO_MAIN}")));
        }
        if self.receive()? != Some(ReplyKind::Opened) {
            return Err(self.fail("it does not say that it reads"));
        }
        Ok(())
    }

    /// Receives the next message, whose content is kept; `None` for the end.
    fn receive(&mut self) -> Result<Option<ReplyKind>, DatasetError> {
        let Some(running) = &mut self.running else { return Ok(None) };
        match running.receive() {
            Ok(ReplyKind::Ending) => {
                let ending = serde_json::from_slice::<BatchesEnd>(&running.content);
                self.running = None;
                let BatchesEnd { error, left_out } = ending.map_err(|error| DatasetError::Host(error.into()))?;
                self.ending = Some(BatchesEnd { error: None, left_out });
                match error {
                    None => Ok(None),
                    // The library that opens the files may lack memory and return an error.
                    Some(error) if error.ends_with("out of memory") => {
                        Err(OfflineError::Memory { path: self.request.path.clone(), limit: self.request.memory }.into())
                    }
                    Some(error) => Err(DatasetError::Host(error.into())),
                }
            }
            Ok(kind) => Ok(Some(kind)),
            Err(error) => Err(self.fail(&error.to_string())),
        }
    }

    /// Ends the process, which has failed, and returns the error with the reason.
    fn fail(&mut self, error: &str) -> DatasetError {
        let path = self.request.path.clone();
        let Some(RunningReader { mut child, words, .. }) = self.running.take() else { return DatasetError::Closed };
        self.ending = Some(BatchesEnd::default());
        let has_ended = child.exits_within(GRACE);
        let status = child.kill().filter(|_| has_ended);
        let words = words.recv_timeout(GRACE).unwrap_or_default().to_string();
        if words.contains("memory allocation of") {
            return OfflineError::Memory { path, limit: self.request.memory }.into();
        }
        let status = status.map_or_else(|| error.to_owned(), |status| status.to_string());
        let words = if words.is_empty() { words } else { format!(": {words}") };
        let end = format!("{status}{words}; its memory is limited to {} bytes", self.request.memory);
        OfflineError::Reader { path, end }.into()
    }
}

impl RunningReader {
    fn receive(&mut self) -> io::Result<ReplyKind> {
        let mut head = [0; HEAD];
        self.messages.read_exact(&mut head)?;
        let [kind, len @ ..] = head;
        let kind = ReplyKind::of(kind).ok_or_else(|| io::Error::other("what it says makes no sense"))?;
        self.content.clear();
        // Memory grows with the bytes received, not with the announced length.
        let len = u64::from_le_bytes(len);
        let read = (&mut self.messages).take(len).read_to_end(&mut self.content)?;
        if read as u64 == len { Ok(kind) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl BatchStream for ReaderProcess {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        if self.running.is_none() && self.ending.is_none() {
            self.start(STARTS_WITHIN)?;
        }
        if self.receive()?.is_none() {
            return Ok(None);
        }
        let content = self.running.as_ref().map_or(&[][..], |running| &running.content);
        codec::decode_any(content).map(Some).map_err(|error| self.fail(&error.to_string()))
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        (self.running, self.ending) = (None, None);
        Ok(())
    }

    fn left_out(&self) -> Vec<String> {
        self.ending.as_ref().map_or_else(Vec::new, |ending| ending.left_out.clone())
    }
}

/// Runs the process: sends the batches of a data set until its end, or an error.
pub(crate) fn serve() -> io::Result<()> {
    end_with_parent()?;
    let (mut heard, mut said) = take_stdio()?;
    let ReadRequest { path, buffer, memory } = read_json(&mut heard)?;
    limit_memory(memory)?;
    say(&mut said, ReplyKind::Started, &[])?;
    let mut stream = match dataset::open(&path, buffer) {
        Ok(stream) => stream,
        Err(error) => return end(&mut said, Some(error.of(&path)), Vec::new()),
    };
    say(&mut said, ReplyKind::Opened, &[])?;
    loop {
        match stream.next_batch() {
            Ok(Some(batch)) => say(&mut said, ReplyKind::Batch, &codec::encode_any(&batch))?,
            Ok(None) => return end(&mut said, None, stream.left_out()),
            Err(error) => return end(&mut said, Some(error.of(&path)), stream.left_out()),
        }
    }
}

fn end(said: &mut impl Write, error: Option<DatasetError>, left_out: Vec<String>) -> io::Result<()> {
    let ending = BatchesEnd { error: error.map(|error| error.to_string()), left_out };
    say(said, ReplyKind::Ending, &serde_json::to_vec(&ending)?)
}

fn say(said: &mut impl Write, kind: ReplyKind, content: &[u8]) -> io::Result<()> {
    let mut head = [kind as u8; HEAD];
    head[1..].copy_from_slice(&(content.len() as u64).to_le_bytes());
    said.write_all(&head)?;
    said.write_all(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn program_that_does_not_become_the_process_is_ended_after_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let request = ReadRequest { path: "rows.parquet".into(), buffer: 1 << 20, memory: 1 << 30 };
        let mut reader = ReaderProcess { program, request, running: None, ending: None };
        let error = reader.start(Duration::from_millis(100)).unwrap_err().to_string();
        assert!(error.contains("did not start within 0.1 s: does the program begin with"), "{error}");
    }
}
