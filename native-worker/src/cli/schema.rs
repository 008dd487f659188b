//! `rollmesh schema`: prints the schema of a run's settings, for editors and programs.

use std::process::ExitCode;

use super::exit::Failure;
use crate::{Registry, learner::run_schema};

pub(super) fn run(registry: &Registry) -> Result<ExitCode, Failure> {
    println!("{}", serde_json::to_string_pretty(&run_schema(registry)).map_err(Failure::other)?);
    Ok(ExitCode::SUCCESS)
}
