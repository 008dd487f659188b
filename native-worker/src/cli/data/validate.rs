//! `rollmesh data validate`.

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use clap::Args;
use rollmesh_data::{
    dataset::BatchStream as _,
    survey::{At, Check, NO_BATCHES, Problems},
};
use serde_json::json;

use super::{InputArgs, env_spaces::row_spaces};
use crate::{Registry, cli::exit::Failure, terminal::printable};

#[derive(Args)]
#[command(
    after_help = "Looks for corrupt lines, missing columns, columns that change their type, numbers that are not finite, steps \
                        that continue after their episode has ended or are not in order, and, with --env, observations and \
                        actions outside the spaces of the environment and of its policies. Actions of policies may be out of a \
                        box's bounds, those of D4RL and Minari may not. Rows are counted from 0, lines from 1.\n\n\
                        Examples:\n  rollmesh data validate samples\n  \
                        rollmesh data validate samples --env CartPole-v1 --json"
)]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Environment whose spaces the rows must fit [default: none]
    #[arg(long)]
    env: Option<String>,
    /// Places to name of each problem; all are counted
    #[arg(long, value_name = "N", default_value_t = 10)]
    max_places: usize,
}

pub(super) fn run(args: &ValidateArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let spaces = args.env.as_ref().map(|env| row_spaces(env, registry)).transpose()?;
    let problems = Arc::new(Mutex::new(Problems::new(args.max_places)));
    let found = || problems.lock().unwrap_or_else(PoisonError::into_inner);
    let hear = problems.clone();
    let mut logged = args.input.open()?.on_corrupt(move |path, error| {
        let mut problems = hear.lock().unwrap_or_else(PoisonError::into_inner);
        problems.add(NO_BATCHES, || format!("{}: {error}", path.display()));
    });
    let reading = args.input.progress(&logged);
    let mut fruitful = vec![false; logged.files().len()];
    let mut check = Check::new(spaces);
    loop {
        match logged.next_batch() {
            Ok(None) => break,
            Ok(Some(batch)) => {
                reading.count(&logged, &batch);
                let Some(place) = logged.place() else { continue };
                let files = logged.files();
                let Some(file) = files.get(place.file) else { continue };
                fruitful[place.file] = true;
                if place.is_first {
                    check.begin_file();
                }
                let path = file.path.display().to_string();
                let has_env_actions = file.format.has_env_actions();
                let at = At { file: Some(&path), line: place.line, row: place.row, has_env_actions };
                check.batch(&batch, at, &mut found());
            }
            Err(error) => {
                found().add("files that cannot be read to their end", || error.to_string());
                logged.skip_file();
            }
        }
    }
    reading.progress.finish();
    for (file, _) in logged.files().iter().zip(&fruitful).filter(|(_, fruitful)| !**fruitful) {
        found().add("files without any batch", || file.path.display().to_string());
    }
    let env_steps = reading.env_steps.get();
    let found = found();
    let found = found.found();
    if args.input.json {
        println!("{}", json!({"env_steps": env_steps, "problems": found}));
    } else {
        println!("env steps   {env_steps}");
        for (what, problem) in found {
            println!("\n{}: {}", printable(what), problem.count);
            problem.places.iter().for_each(|place| println!("  {}", printable(place)));
            let more = problem.count - problem.places.len() as u64;
            if more > 0 {
                println!("  … and {more} more");
            }
        }
        if found.is_empty() {
            println!("no problems");
        }
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
