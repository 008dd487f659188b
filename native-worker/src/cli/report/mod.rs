//! `rollmesh report`: one HTML file about runs, which loads nothing else.

mod groups;
mod html;
mod svg;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use self::groups::Group;
use super::exit::Failure;
use crate::runs::{SavedCurves, found_runs};

#[derive(Args)]
#[command(
    after_help = "Runs whose settings differ only in the seed are one curve: the median, with the range of the middle half, \
                  where all of them have values. Runs that cannot be read are left out, and listed.\n\n\
                  Example:\n  rollmesh report runs/first runs/second --output report.html"
)]
pub(super) struct ReportArgs {
    /// Run directories, or directories of run directories
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// A run by the name of its directory.
struct NamedRun {
    name: String,
    curves: SavedCurves,
}

/// A run whose files cannot be read.
struct UnreadableRun {
    name: String,
    reason: String,
}

impl ReportArgs {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
        for dir in &self.runs {
            let failed = |error| Failure::usage(format!("{}: {error}", dir.display()));
            let found = found_runs(dir).map_err(failed)?;
            if found.is_empty() {
                return Err(Failure::usage(format!("{} holds no run: name a run directory", dir.display())));
            }
            for found in found {
                let dir = PathBuf::from(found.dir.unwrap_or_default());
                let name = name_of(&dir);
                match SavedCurves::read(&dir) {
                    Ok(curves) => runs.push(NamedRun { name, curves }),
                    Err(error) => {
                        eprintln!("left out: {error}");
                        unreadable.push(UnreadableRun { name, reason: error.to_string() });
                    }
                }
            }
        }
        if runs.is_empty() {
            return Err(Failure::usage("none of these runs can be read"));
        }
        let text = html::page(&Group::all(&runs), &runs, &unreadable);
        fs::write(&self.output, text)
            .map_err(|error| Failure::other(format!("cannot write {}: {error}", self.output.display())))?;
        println!("{}", self.output.display());
        Ok(ExitCode::SUCCESS)
    }
}

fn name_of(dir: &Path) -> String {
    dir.canonicalize().unwrap_or_else(|_| dir.into()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}
