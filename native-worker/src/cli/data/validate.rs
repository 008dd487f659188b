//! `rollmesh data validate`.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use clap::Args;
use rollmesh_core::{
    batch::{ACTIONS, NEW_OBS, OBS, REWARDS, SampleBatch},
    column::Column,
    env::EnvSpaces,
    space::Space,
};
use serde::Serialize;
use serde_json::json;

use super::{
    InputArgs,
    numbers::{Steps, numbers},
    order::{Order, Step},
};
use crate::{
    Registry,
    cli::exit::Failure,
    offline::{dataset::BatchStream as _, inputs::Located, logged::Place},
};

#[derive(Args)]
#[command(
    after_help = "Looks for corrupt lines, missing columns, columns that change their type, numbers that are not finite, steps\n\
                        that go on after their episode has ended or are not in order, and, with --env, observations and\n\
                        actions outside the environment's spaces. Rows are counted from 0, lines from 1.\n\n\
                        Examples:\n  rollmesh data validate samples\n  \
                        rollmesh data validate samples --env CartPole-v1 --json"
)]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Environment whose spaces observations and actions must be of [default: not looked at]
    #[arg(long)]
    env: Option<String>,
    /// Places to name of each problem; all are counted
    #[arg(long, value_name = "N", default_value_t = 10)]
    max_places: usize,
}

/// Something that is wrong, and where.
#[derive(Debug, Default, Serialize)]
struct Problem {
    count: u64,
    places: Vec<String>,
}

/// By what is wrong.
#[derive(Debug, Default)]
struct Problems {
    found: BTreeMap<String, Problem>,
    most: usize,
}

impl Problems {
    fn add(&mut self, what: &str, place: impl FnOnce() -> String) {
        let most = self.most;
        let problem = self.found.entry(what.to_owned()).or_default();
        problem.count += 1;
        if problem.places.len() < most {
            problem.places.push(place());
        }
    }
}

pub(super) fn run(args: &ValidateArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let spaces = match &args.env {
        Some(env) => Some(registry.envs.spec(env).map_err(Failure::usage)?.spaces().map_err(Failure::usage)?),
        None => None,
    };
    let problems = Arc::new(Mutex::new(Problems { most: args.max_places, ..Problems::default() }));
    let found = || problems.lock().unwrap_or_else(PoisonError::into_inner);
    let hear = problems.clone();
    let mut logged = args.input.open()?.on_corrupt(move |path, error| {
        let mut problems = hear.lock().unwrap_or_else(PoisonError::into_inner);
        problems.add("lines that are no batches", || format!("{}: {error}", path.display()));
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
                    check.order = Order::default();
                }
                let policies = batch.as_multi_agent().policy_batches;
                check.order.begin_runs(policies.values());
                for (id, mut rows) in policies {
                    let at = At { file, place, policy: batch.single().is_err().then(|| id.to_string()) };
                    match rows.decompress_if_needed() {
                        Ok(()) => check.rows(&rows, &at, &mut found()),
                        Err(error) => found().add("columns that cannot be decompressed", || format!("{at}: {error}")),
                    }
                }
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
    let found = &found().found;
    if args.input.json {
        say!("{}", json!({"env_steps": env_steps, "problems": found}));
    } else {
        say!("env steps   {env_steps}");
        for (what, problem) in found {
            say!("\n{what}: {}", problem.count);
            problem.places.iter().for_each(|place| say!("  {place}"));
            let more = problem.count - problem.places.len() as u64;
            if more > 0 {
                say!("  … and {more} more");
            }
        }
        if found.is_empty() {
            say!("no problems");
        }
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where a batch is.
struct At<'a> {
    file: &'a Located,
    place: Place,
    policy: Option<String>,
}

impl At<'_> {
    fn row(&self, row: usize) -> String {
        format!("{self}, row {}", self.place.row + row as u64)
    }
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.path.display())?;
        self.place.line.map_or(Ok(()), |line| write!(f, ", line {line}"))?;
        self.policy.as_ref().map_or(Ok(()), |policy| write!(f, ", policy {policy}"))
    }
}

/// What is remembered from batch to batch.
struct Check {
    spaces: Option<EnvSpaces>,
    /// Type and shape of columns, by policy and name.
    kinds: BTreeMap<(Option<String>, String), String>,
    order: Order,
}

impl Check {
    fn new(spaces: Option<EnvSpaces>) -> Self {
        Self { spaces, kinds: BTreeMap::new(), order: Order::default() }
    }

    fn rows(&mut self, rows: &SampleBatch, at: &At<'_>, problems: &mut Problems) {
        for name in [OBS.name(), ACTIONS.name(), REWARDS.name()] {
            let has = rows.iter().any(|(column, _)| column == name || column.starts_with(&format!("{name}.")));
            if !has {
                problems.add(&format!("batches without column '{name}'"), || at.to_string());
            }
        }
        for (name, column) in rows.iter() {
            self.column(name, column, at, problems);
        }
        self.steps(rows, at, problems);
        self.next_observations(rows, at, problems);
    }

    fn column(&mut self, name: &str, column: &Column, at: &At<'_>, problems: &mut Problems) {
        let kind = format!("{} {}", column.column_type(), column.shape());
        let known = self.kinds.entry((at.policy.clone(), name.to_owned())).or_insert_with(|| kind.clone());
        if *known != kind {
            problems
                .add("columns that change their type or shape", || format!("{at}: '{name}' is {kind}, was {known}"));
        }
        let width = column.shape().elements().max(1);
        let Some(values) = numbers(column) else { return };
        let mut last = None;
        for row in values.iter().enumerate().filter(|(_, x)| !x.is_finite()).map(|(i, _)| i / width) {
            if last != Some(row) {
                problems.add(&format!("rows of '{name}' with numbers that are not finite"), || at.row(row));
            }
            last = Some(row);
        }
        let Some(spaces) = &self.spaces else { return };
        let space = match name {
            _ if name == OBS.name() || name == NEW_OBS.name() => &spaces.observation,
            _ if name == ACTIONS.name() => &spaces.action,
            _ => return,
        };
        match first_outside(space, column) {
            Ok(None) => {}
            Ok(Some(row)) => problems.add(&format!("batches with '{name}' outside of the space"), || at.row(row)),
            Err(error) => {
                problems.add(&format!("batches with '{name}' outside of the space"), || format!("{at}: {error}"))
            }
        }
    }

    /// That steps of a trajectory come in order, and none after its end.
    fn steps(&mut self, rows: &SampleBatch, at: &At<'_>, problems: &mut Problems) {
        let steps = Steps::of(rows);
        if !steps.has_ends {
            problems.add("batches without 'terminateds' and 'truncateds'", || at.to_string());
        }
        if !is_apart(&steps, at) {
            return;
        }
        let gaps = at.policy.is_some();
        for (row, (&(id, agent), &end)) in steps.keys.iter().zip(&steps.ends).enumerate() {
            let t = steps.t(row);
            match self.order.step((id, agent, at.policy.clone()), t, end, gaps) {
                Step::Follows => {}
                Step::AfterEnd => problems.add("steps after the end of their episode", || at.row(row)),
                Step::OutOfOrder { t, before } => {
                    problems.add("steps out of order", || format!("{}: t is {t} after {before}", at.row(row)));
                }
            }
        }
    }

    /// That what a step led to is what the next one saw.
    fn next_observations(&self, rows: &SampleBatch, at: &At<'_>, problems: &mut Problems) {
        let (Some(obs), Some(next)) = (rows.column(OBS.name()), rows.column(NEW_OBS.name())) else { return };
        let steps = Steps::of(rows);
        if !is_apart(&steps, at) || obs.rows() != next.rows() || obs.rows() != steps.keys.len() {
            return;
        }
        for (row, pair) in steps.keys.windows(2).enumerate() {
            let is_another = steps.t(row + 1).zip(steps.t(row)).is_some_and(|(t, before)| t <= before);
            let goes_on = pair[0] == pair[1] && steps.ends.get(row) == Some(&false) && !is_another;
            if goes_on && !obs.slice(row + 1..row + 2).same_bits(&next.slice(row..row + 1)) {
                problems.add("steps whose 'new_obs' is not the next step's 'obs'", || at.row(row));
            }
        }
    }
}

/// Whether rows say whose they are: of which episode, and among several agents of which one.
fn is_apart(steps: &Steps, at: &At<'_>) -> bool {
    steps.has_ids && (steps.has_agents || at.policy.is_none())
}

fn first_outside(space: &Space, column: &Column) -> Result<Option<usize>, String> {
    let outside = match column {
        Column::F32(data) => space.first_outside(data.values()),
        Column::F64(data) => space.first_outside(data.values()),
        Column::I32(data) => space.first_outside(data.values()),
        Column::I64(data) => space.first_outside(data.values()),
        Column::U8(data) => space.first_outside(data.values()),
        Column::Bool(_) | Column::Bytes(_) | Column::Compressed(_) => return Ok(None),
    };
    outside.map_err(|error| error.to_string())
}
