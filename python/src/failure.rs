//! Errors of the library as Python exceptions with the same message.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{create_exception, exceptions::PyException, prelude::*};
use rollmesh::{
    checkpoint::PolicyCheckpointError, offline::OfflineError, train::AlgorithmError, worker_group::GroupError,
};
use rollmesh_core::{
    batch::{BatchError, codec::CodecError},
    column::ColumnError,
    config::ConfigError,
    env::EnvError,
    estimate::EstimateError,
    evaluation::EvalWorkerError,
    policy::{PolicyError, PolicyMapError},
    run::RunConfigError,
    sampler::SampleError,
    weights::{WeightsError, WeightsFileError},
    worker::{CommandError, RolloutError, SetupError, WorkerStateError},
};

create_exception!(rollmesh, Error, PyException, "The base of all errors of rollmesh.");
create_exception!(rollmesh, ConfigError_, Error, "A setting that does not exist, or that is out of its range.");
create_exception!(rollmesh, BatchError_, Error, "Columns that do not make a batch.");
create_exception!(rollmesh, EnvError_, Error, "An environment that failed.");
create_exception!(rollmesh, WorkerError_, Error, "A command that a worker could not execute.");
create_exception!(rollmesh, GroupError_, Error, "A command that a worker group could not execute.");
create_exception!(rollmesh, LostWorkerError_, GroupError_, "A call to a group's worker that was lost or is unhealthy.");
create_exception!(rollmesh, AlgorithmError_, Error, "A training run or an evaluation that cannot begin or resume.");
create_exception!(rollmesh, PolicyError_, Error, "A policy, or weights that do not fit it.");
create_exception!(
    rollmesh,
    OfflineError_,
    Error,
    "Logged experience that cannot be read, written or used for an estimate."
);
create_exception!(rollmesh, ClosedError_, Error, "An object that was stopped, or that belongs to another process.");

/// The latest exceptions of users' functions that no error has taken yet, each with the text that the library's error
/// contains.
static CAUSES: Mutex<VecDeque<(String, PyErr)>> = Mutex::new(VecDeque::new());

/// Maximum number of exceptions that are kept: workers on several threads may fail at the same time.
const MAX_CAUSES: usize = 16;

fn causes() -> MutexGuard<'static, VecDeque<(String, PyErr)>> {
    CAUSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an exception for the error that it causes: the library forwards only its text.
pub(crate) fn keep_cause(text: String, exception: PyErr) {
    // Dropped after the lock is released: its destructor may call Python.
    let _oldest = {
        let mut causes = causes();
        causes.push_back((text, exception));
        if causes.len() > MAX_CAUSES { causes.pop_front() } else { None }
    };
}

/// Takes the latest exception that led to an error with this message.
fn take_cause(message: &str) -> Option<PyErr> {
    let mut causes = causes();
    let place = causes.iter().rposition(|(text, _)| message.contains(&**text))?;
    causes.remove(place).map(|(_, exception)| exception)
}

/// An error that becomes a Python exception. It is created on threads that do not hold the interpreter.
pub(crate) struct Failure {
    kind: Kind,
    message: String,
}

macro_rules! kinds {
    ($($kind:ident, $exception:ident, $name:literal: $($error:ty),*;)+) => {
        #[derive(Clone, Copy)]
        pub(crate) enum Kind {
            $($kind),+
        }

        $($(
            impl From<$error> for Failure {
                fn from(error: $error) -> Self {
                    Self::new(Kind::$kind, error)
                }
            }
        )*)+

        impl From<Failure> for PyErr {
            fn from(Failure { kind, message }: Failure) -> Self {
                let cause = take_cause(&message);
                let error = match kind {
                    $(Kind::$kind => $exception::new_err(message)),+
                };
                if let Some(cause) = cause {
                    Python::try_attach(|py| error.set_cause(py, Some(cause)));
                }
                error
            }
        }

        /// Adds the exceptions to the module.
        pub(crate) fn register(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
            module.add("Error", py.get_type::<Error>())?;
            $({
                let exception = py.get_type::<$exception>();
                exception.setattr("__name__", $name)?;
                exception.setattr("__qualname__", $name)?;
                module.add($name, exception)?;
            })+
            Ok(())
        }
    };
}

kinds! {
    Config, ConfigError_, "ConfigError": ConfigError, RunConfigError, SetupError, serde_json::Error;
    Batch, BatchError_, "BatchError": BatchError, CodecError, ColumnError;
    Env, EnvError_, "EnvError": EnvError;
    Worker, WorkerError_, "WorkerError": RolloutError, CommandError, WorkerStateError;
    Group, GroupError_, "GroupError": GroupError;
    LostWorker, LostWorkerError_, "LostWorkerError": ;
    Algorithm, AlgorithmError_, "AlgorithmError": AlgorithmError, EvalWorkerError;
    Policy, PolicyError_, "PolicyError": PolicyError, PolicyMapError, WeightsError, WeightsFileError, PolicyCheckpointError;
    Offline, OfflineError_, "OfflineError": SampleError, OfflineError, EstimateError;
    Closed, ClosedError_, "ClosedError": ;
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string() }
    }
}
