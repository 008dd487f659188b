//! Objects that live on a thread of their own: Python waits for them without holding the interpreter, and handles Ctrl-C.

use std::{
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// Time between two checks of the interpreter's signals.
const LOOK: Duration = Duration::from_millis(50);

type Job<T> = Box<dyn FnOnce(&mut Option<T>) + Send>;

/// An object on its thread. The thread ends once this is dropped and its last call has ended.
pub(crate) struct Owned<T> {
    jobs: Mutex<mpsc::Sender<Job<T>>>,
    name: &'static str,
    process: u32,
}

impl<T: 'static> Owned<T> {
    /// Makes the object on its thread.
    pub(crate) fn new<E: Into<Failure>>(
        py: Python<'_>,
        name: &'static str,
        make: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> PyResult<Self> {
        let (jobs, inbox) = mpsc::channel::<Job<T>>();
        let run = move || {
            let mut object = None;
            inbox.into_iter().for_each(|job| job(&mut object));
        };
        let spawned = thread::Builder::new().name(name.into()).spawn(run);
        spawned.map_err(|error| Failure::new(Kind::Closed, format!("the system gives no thread: {error}")))?;
        let owned = Self { jobs: Mutex::new(jobs), name, process: std::process::id() };
        owned.run(py, move |object| {
            *object = Some(make().map_err(Into::into)?);
            Ok(())
        })?;
        Ok(owned)
    }

    /// Calls a function with the object. After Ctrl-C the function continues on its thread, its result is discarded, and
    /// the next call waits for its end.
    pub(crate) fn call<R: Send + 'static, E: Into<Failure>>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut T) -> Result<R, E> + Send + 'static,
    ) -> PyResult<R> {
        let closed = Failure::new(Kind::Closed, format!("the {} was stopped: make another one", self.name));
        self.run(py, move |object| f(object.as_mut().ok_or(closed)?).map_err(Into::into))
    }

    /// Ends the object with a function that consumes it; nothing if it has ended.
    pub(crate) fn end<R: Send + 'static, E: Into<Failure>>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(T) -> Result<R, E> + Send + 'static,
    ) -> PyResult<Option<R>> {
        self.run(py, move |object| object.take().map(f).transpose().map_err(Into::into))
    }

    fn run<R: Send + 'static>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Option<T>) -> Result<R, Failure> + Send + 'static,
    ) -> PyResult<R> {
        let name = self.name;
        if std::process::id() != self.process {
            let why = format!(
                "the {name} belongs to process {}, and its threads did not survive the fork: make it in this process, or start \
                 processes with the method 'spawn'",
                self.process
            );
            return Err(Failure::new(Kind::Closed, why).into());
        }
        let (answer, mut answers) = mpsc::sync_channel(1);
        let job: Job<T> = Box::new(move |object| {
            // After Ctrl-C the caller no longer waits.
            let _ = answer.send(f(object));
        });
        let panicked =
            || Failure::new(Kind::Closed, format!("the {name} panicked: see the standard error for the place"));
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job).map_err(|_| panicked())?;
        loop {
            let (waited, found) = py.detach(move || {
                let found = answers.recv_timeout(LOOK);
                (answers, found)
            });
            answers = waited;
            match found {
                Ok(result) => return result.map_err(PyErr::from),
                Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(panicked().into()),
            }
        }
    }
}
