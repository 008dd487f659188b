//! Objects on a separate thread: Python waits for them without holding the interpreter, and handles Ctrl-C.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// Time between two checks of the interpreter's signals.
const LOOK: Duration = Duration::from_millis(50);

/// Time for which a thread polls for the next job, and a caller for its answer, before it sleeps: waking up takes
/// longer than a step of thousands of small environments.
const SPIN: Duration = Duration::from_micros(100);

/// The time that the end of an object waits for a call that Ctrl-C has interrupted.
const GRACE: Duration = Duration::from_secs(1);

type Job<T> = Box<dyn FnOnce(&mut Option<T>) + Send>;
type Answers<R> = mpsc::Receiver<Result<R, Failure>>;

/// An object on its thread. The thread ends with the object, or once this is dropped and its last call has ended.
pub(crate) struct Owned<T> {
    /// `None` once the object has been ended.
    thread: Mutex<Option<OwnThread<T>>>,
    /// Closes at the end of the last call that was interrupted.
    interrupted: Mutex<Option<mpsc::Receiver<()>>>,
    name: &'static str,
    process: u32,
}

struct OwnThread<T> {
    jobs: mpsc::Sender<Job<T>>,
    handle: JoinHandle<()>,
}

impl<T: 'static> Owned<T> {
    /// Creates the object on its thread.
    pub(crate) fn new<E: Into<Failure>>(
        py: Python<'_>,
        name: &'static str,
        make: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> PyResult<Self> {
        let (jobs, inbox) = mpsc::channel::<Job<T>>();
        let run = move || {
            let mut object = None;
            while let Some(job) = soon(&inbox).or_else(|| inbox.recv().ok()) {
                job(&mut object);
            }
        };
        let spawned = thread::Builder::new().name(name.into()).spawn(run);
        let no_thread = |error| Failure::new(Kind::Closed, format!("the system gives no thread: {error}"));
        let thread = OwnThread { jobs, handle: spawned.map_err(no_thread)? };
        let (thread, interrupted) = (Mutex::new(Some(thread)), Mutex::default());
        let owned = Self { thread, interrupted, name, process: std::process::id() };
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
        let closed = self.closed();
        self.run(py, move |object| f(object.as_mut().ok_or(closed)?).map_err(Into::into))
    }

    /// Ends the object with a function that consumes it, and then its thread with all that belongs to the thread, such as host
    /// processes. `None` if the object has ended, or was lost to a panic, which an earlier call has reported. After Ctrl-C the
    /// function continues on its thread, and the next `end` waits for it and for the thread.
    pub(crate) fn end<R: Send + 'static, E: Into<Failure>>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(T) -> Result<R, E> + Send + 'static,
    ) -> PyResult<Option<R>> {
        let Some(OwnThread { jobs, handle }) = self.of_caller()?.take() else { return Ok(None) };
        // The function's own error is an answer; an error of the wait means that there is none.
        let end =
            move |object: &mut Option<T>| Ok(object.take().map(|object| f(object).map_err(Into::<Failure>::into)));
        let answer = match send(&jobs, end).map_or(Ok(None), |answers| self.wait(py, answers)) {
            Err(interrupt) if !handle.is_finished() => {
                *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(OwnThread { jobs, handle });
                return Err(interrupt);
            }
            answer => answer,
        };
        drop(jobs);
        // A panic of the thread has been reported.
        let _ = py.detach(|| handle.join());
        answer?.transpose().map_err(PyErr::from)
    }

    /// Works like [`end`](Self::end). `interrupt` ends a call that Ctrl-C has interrupted and that continues for longer
    /// than [`GRACE`], such as the step of an environment that hangs.
    pub(crate) fn interrupt_and_end<R: Send + 'static, E: Into<Failure>>(
        &self,
        py: Python<'_>,
        interrupt: impl FnOnce(),
        f: impl FnOnce(T) -> Result<R, E> + Send + 'static,
    ) -> PyResult<Option<R>> {
        if self.is_stuck(py) {
            interrupt();
        }
        self.end(py, f)
    }

    /// Works like [`interrupt_and_end`](Self::interrupt_and_end), but does not wait for the end of the interrupted
    /// call: the thread ends the object after that call, and the processes of the object end with its thread, or with
    /// this process if that ends before.
    pub(crate) fn end_or_leave<R: Send + 'static, E: Into<Failure>>(
        &self,
        py: Python<'_>,
        interrupt: impl FnOnce(),
        f: impl FnOnce(T) -> Result<R, E> + Send + 'static,
    ) -> PyResult<()> {
        if !self.is_stuck(py) {
            return self.end(py, f).map(|_| ());
        }
        interrupt();
        if let Some(OwnThread { jobs, .. }) = self.of_caller()?.take() {
            send(&jobs, move |object| object.take().map(f).transpose().map_err(Into::into));
        }
        Ok(())
    }

    /// Waits for the end of an interrupted call, at most for [`GRACE`]; true if it continues.
    fn is_stuck(&self, py: Python<'_>) -> bool {
        let interrupted = self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let continues = |ends: mpsc::Receiver<()>| ends.recv_timeout(GRACE) == Err(mpsc::RecvTimeoutError::Timeout);
        interrupted.is_some_and(|ends| py.detach(|| continues(ends)))
    }

    fn run<R: Send + 'static>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Option<T>) -> Result<R, Failure> + Send + 'static,
    ) -> PyResult<R> {
        let (end, ends) = mpsc::channel();
        let f = move |object: &mut Option<T>| {
            // Closed at the end of the call, also if it panics.
            let _end: mpsc::Sender<()> = end;
            f(object)
        };
        let answers = {
            let thread = self.of_caller()?;
            send(&thread.as_ref().ok_or_else(|| self.closed())?.jobs, f)
        };
        self.wait(py, answers.ok_or_else(|| self.panicked())?).inspect_err(|_| {
            // After an error of the call itself it is closed already.
            *self.interrupted.lock().unwrap_or_else(PoisonError::into_inner) = Some(ends);
        })
    }

    /// Returns the thread if the caller may wait for it.
    fn of_caller(&self) -> Result<MutexGuard<'_, Option<OwnThread<T>>>, Failure> {
        let name = self.name;
        if std::process::id() != self.process {
            let why = format!(
                "the {name} belongs to process {}, and its threads did not survive the fork: make it in this process, or start \
                 processes with the method 'spawn'",
                self.process
            );
            return Err(Failure::new(Kind::Closed, why));
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|thread| thread.handle.thread().id() == thread::current().id()) {
            let why = format!(
                "callbacks cannot call their own {name}, which waits for them: use what they are called with, or call the {name} \
                 after they have returned"
            );
            return Err(Failure::new(Kind::Worker, why));
        }
        Ok(thread)
    }

    /// Waits for an answer, and checks the interpreter's signals in between.
    fn wait<R: Send>(&self, py: Python<'_>, mut answers: Answers<R>) -> PyResult<R> {
        loop {
            let (waited, found) = py.detach(move || {
                let found = soon(&answers).map_or_else(|| answers.recv_timeout(LOOK), Ok);
                (answers, found)
            });
            answers = waited;
            match found {
                Ok(result) => return result.map_err(PyErr::from),
                Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.panicked().into()),
            }
        }
    }

    fn closed(&self) -> Failure {
        Failure::new(Kind::Closed, format!("the {} was stopped: make another one", self.name))
    }

    fn panicked(&self) -> Failure {
        let why = format!("the {} panicked: see the standard error for the place", self.name);
        Failure::new(Kind::Closed, why)
    }
}

/// Returns the value that arrives within [`SPIN`].
fn soon<T>(channel: &mpsc::Receiver<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        match channel.try_recv() {
            Ok(found) => return Some(found),
            Err(mpsc::TryRecvError::Empty) if begun.elapsed() < SPIN => thread::yield_now(),
            Err(_) => return None,
        }
    }
}

/// Sends a job to a thread; `None` if the thread was lost to a panic.
fn send<T: 'static, R: Send + 'static>(
    jobs: &mpsc::Sender<Job<T>>,
    f: impl FnOnce(&mut Option<T>) -> Result<R, Failure> + Send + 'static,
) -> Option<Answers<R>> {
    let (answer, answers) = mpsc::sync_channel(1);
    let job: Job<T> = Box::new(move |object| {
        // After Ctrl-C the caller no longer waits.
        let _ = answer.send(f(object));
    });
    jobs.send(job).ok().map(|()| answers)
}
