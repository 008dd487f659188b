//! `rollmesh policies`: lists the registered kinds of policies.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::exit::Failure;
use crate::Registry;

#[derive(Args)]
pub(super) struct PoliciesArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PoliciesArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let names = || registry.policies.iter().map(|spec| spec.name.as_str());
    if args.json {
        println!("{}", names().map(|name| json!({ "name": name })).collect::<Value>());
    } else {
        names().for_each(|name| println!("{name}"));
    }
    Ok(ExitCode::SUCCESS)
}
