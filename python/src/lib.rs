//! The extension module `rollmesh._native`: handles of the library's objects, which `python/rollmesh` wraps as Python
//! classes. It is an adapter without logic of its own.

mod algorithm;
mod batch;
mod column;
mod failure;
mod functions;
mod group;
mod lanes;
mod offline;
mod owned;
mod policy;
mod python_policy;
mod worker;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use pyo3::prelude::*;
use rollmesh::{
    Registry,
    envs::{PythonPermission, PythonSettings},
};

use crate::failure::{Failure, Kind};

/// The allocator of the program: the learner allocates a tensor for every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the command line with these arguments, the first of which is the program's name, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<String>) -> u8 {
    let code = py.detach(|| rollmesh::main_with_args(Registry::builtin(), args));
    // The number of an `ExitCode` cannot be read.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}

/// Sets the program that worker processes run.
#[pyfunction]
fn set_program(program: PathBuf) -> bool {
    rollmesh::set_program(program)
}

/// Lets the Python environments of these patterns run on this machine as well, all of them by this interpreter and in this many
/// processes per worker.
#[pyfunction]
fn allow_python(patterns: &str, python: PathBuf, processes: Option<NonZeroUsize>) -> PyResult<()> {
    let more = patterns.parse().map_err(|error: String| Failure::new(Kind::Config, error))?;
    let settings = PythonSettings::of_process();
    let allowed = settings.allowed.and(more);
    PythonSettings { allowed, interpreter: Some(python), processes: processes.or(settings.processes) }.install();
    Ok(())
}

/// Lets exactly this environment run, if it is given, and sets the interpreter if none is set.
#[pyfunction]
fn allow_env(name: Option<&str>, python: Option<PathBuf>) {
    let mut settings = PythonSettings::of_process();
    if let Some(name) = name.filter(|name| !settings.allowed.allows(name)) {
        settings.allowed = settings.allowed.and(PythonPermission::exactly(name));
    }
    PythonSettings { interpreter: settings.interpreter.clone().or(python), ..settings }.install();
}

#[pymodule]
fn _native(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    failure::register(py, module)?;
    module.add_class::<column::ColumnBuffer>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<worker::Worker>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<algorithm::Algorithm>()?;
    module.add_class::<algorithm::Evaluations>()?;
    module.add_class::<lanes::Lanes>()?;
    module.add_class::<offline::Reader>()?;
    module.add_class::<offline::Writer>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(set_program, module)?)?;
    module.add_function(wrap_pyfunction!(allow_python, module)?)?;
    module.add_function(wrap_pyfunction!(allow_env, module)?)?;
    module.add_function(wrap_pyfunction!(algorithm::whole_run_config, module)?)?;
    module.add_function(wrap_pyfunction!(batch::concat, module)?)?;
    module.add_function(wrap_pyfunction!(batch::batch_hash, module)?)?;
    module.add_function(wrap_pyfunction!(offline::estimate, module)?)
}
