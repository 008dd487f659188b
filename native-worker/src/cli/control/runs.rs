//! `rollmesh start` and `rollmesh runs`: the runs of a hub or of a directory.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use rollmesh_core::{
    protocol::{Phase, message::RunRow},
    run::RunConfig,
};

use super::{HubTarget, run_command};
use crate::{
    cli::{
        exit::Failure,
        settings::{self, at_fault, setting, with_set},
        signals,
    },
    control::{Control, ControlError},
    runs::{FoundRun, found_runs},
    terminal::printable,
};

#[derive(Args)]
#[command(
    after_help = "The hub executes one run at a time; others wait. Exit codes: 0 it begins or waits, 2 the hub refuses \
                        it, 1 no hub. With --wait those of `rollmesh train`, and 3 for a run that was removed, or if \
                        a signal ends the command; the run continues then.\n\n\
                        Examples:\n  \
                        ROLLMESH_TOKEN=… rollmesh start --set env=CartPole-v1 --set seed=2\n  \
                        ROLLMESH_TOKEN=… rollmesh start --config run.toml --hub ws://127.0.0.1:7878"
)]
pub(in crate::cli) struct StartArgs {
    /// Settings of the run, a file as for `train --config`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Any setting of the run by its path
    ///
    /// The value is JSON or text; may be given several times
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting)]
    set: Vec<(String, serde_json::Value)>,
    /// Return when the run is over
    #[arg(long)]
    wait: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: HubTarget,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ROLLMESH_TOKEN=… rollmesh runs --hub ws://127.0.0.1:7878\n  rollmesh runs runs --json"
)]
pub(in crate::cli) struct RunsArgs {
    /// List the runs in this directory instead of a hub's
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: HubTarget,
}

impl FoundRun {
    /// Returns a hub's run. Frequently changing values of the current run come from its status.
    fn of_row(row: &RunRow, hub: &Control) -> Self {
        let status = Some(hub.status()).filter(|status| status.run == row.run && row.place == 0);
        let phase = Phase::try_from(row.phase).unwrap_or(Phase::Idle);
        let mean = status.map_or(row.episode_return_mean, |status| status.episode_return_mean);
        let text = |text: &str| Some(printable(text)).filter(|text| !text.is_empty());
        Self {
            run: Some(row.run),
            state: if row.place > 0 { "queued" } else { phase.name() }.into(),
            place: Some(row.place).filter(|place| *place > 0),
            env: printable(&row.env),
            algo: printable(&row.algo),
            seed: row.seed,
            env_steps: status.map_or(row.env_steps, |status| status.env_steps),
            episode_return_mean: Some(f64::from(mean)).filter(|mean| mean.is_finite()),
            error: text(&row.error),
            dir: text(&row.run_dir),
        }
    }

    fn text(&self) -> String {
        let name = self.run.map_or_else(|| self.dir.clone().unwrap_or_default(), |run| run.to_string());
        let place = self.place.map_or_else(String::new, |place| format!(", place {place}"));
        let mean = self.episode_return_mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}"));
        let error = self.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        let Self { env, algo, seed, env_steps, state, .. } = self;
        format!("{name}  {env} with {algo}, seed {seed}  {state}{place}  {env_steps} env steps, return {mean}{error}\n")
    }
}

impl RunsArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let Some(dir) = &self.dir else {
            return run_command(self.target.viewer(), async |hub| {
                self.print(hub.runs().iter().map(|row| FoundRun::of_row(row, hub)).collect());
                Ok(())
            });
        };
        let failed = |error| Failure::usage(format!("{}: {error}", dir.display()));
        self.print(found_runs(dir).map_err(failed)?);
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, lines: Vec<FoundRun>) {
        match self.json {
            // Texts and finite numbers can always be serialised.
            true => println!("{}", serde_json::to_string(&lines).unwrap_or_default()),
            false => print!("{}", lines.iter().map(FoundRun::text).collect::<String>()),
        };
    }
}

impl StartArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let file = self.config.as_deref().map(settings::read).transpose()?.unwrap_or_default();
        let alone = file.to_string();
        let text = with_set(file, &self.set).to_string();
        // Reports errors that any hub would report, with the path of the setting.
        let config = RunConfig::of_wire_settings(&text)
            .map_err(|error| at_fault(&error, self.config.as_deref(), || RunConfig::of_wire_settings(&alone)))?;
        let mut end = StartOutcome::NotAwaited;
        let code = run_command(self.target.operator(), async |hub| {
            let run = match hub.start_run(text).await {
                Err(ControlError::Declined(reason)) => {
                    end = StartOutcome::Refused(reason);
                    return Ok(());
                }
                run => run?,
            };
            self.say(hub, run);
            if self.wait {
                end = tokio::select! {
                    row = hub.until_over(run) => match row? {
                        Some(row) => {
                            if row.run != run {
                                eprintln!("run {run} was rolled back, and continued as run {}", row.run);
                            }
                            StartOutcome::Over(Box::new(FoundRun::of_row(&row, hub)))
                        }
                        None => StartOutcome::Removed,
                    },
                    () = signals::interrupted() => StartOutcome::Interrupted,
                };
            }
            Ok(())
        })?;
        let line = match end {
            StartOutcome::NotAwaited => return Ok(code),
            StartOutcome::Refused(reason) => return Err(Failure::usage(reason)),
            StartOutcome::Removed => return Err(Failure::Interrupted("the run was removed before it began".into())),
            StartOutcome::Interrupted => return Err(Failure::Interrupted("the run continues at the hub".into())),
            StartOutcome::Over(line) => line,
        };
        match self.json {
            true => println!("{}", serde_json::to_string(&line).map_err(Failure::other)?),
            false => print!("{}", line.text()),
        };
        let has_goal = config.stop.episode_return_mean.is_some();
        match (&*line.state, line.error) {
            ("failed", error) => Err(Failure::other(error.unwrap_or_default())),
            ("solved", _) | ("drained", None) => Ok(ExitCode::SUCCESS),
            ("finished", _) if !has_goal => Ok(ExitCode::SUCCESS),
            // Its workers hang.
            (_, Some(error)) => Err(Failure::Interrupted(error)),
            _ => Ok(ExitCode::from(3)),
        }
    }

    /// Prints the state of the run; nothing with `--wait` and `--json`, which print only its end.
    fn say(&self, hub: &Control, run: u32) {
        let Some(row) = hub.runs().iter().find(|row| row.run == run) else { return };
        let place = row.place;
        match (self.json, self.wait) {
            (true, true) => {}
            (true, false) => println!("{{\"run\":{run},\"place\":{place}}}"),
            (false, _) if place > 0 => println!("run {run} waits, place {place}"),
            (false, _) => println!("run {run} begins"),
        }
    }
}

/// The outcome of starting a run.
enum StartOutcome {
    NotAwaited,
    Refused(String),
    Interrupted,
    Removed,
    Over(Box<FoundRun>),
}
