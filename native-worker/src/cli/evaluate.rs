//! `rollmesh evaluate`: plays episodes with the policy of a checkpoint and reports its returns.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use rollmesh_core::evaluation::{Earlier, EvaluatedEpisode, Evaluation, EvaluationRequest, RewardKey};
use serde::Serialize;

use super::{exit::Failure, python::PythonFlags, signals::Interruption, table::count};
use crate::{
    Registry,
    checkpoint::{PolicyCheckpoint, replace},
    cli::progress::Progress,
    envs::{PythonSettings, with_pictures},
    eval::{EvalWorker, makers_of_episodes},
    monitor::EpisodeGif,
    runs::RunConfig,
};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                        rollmesh evaluate --checkpoint runs/first --episodes 20 --seed 7\n  \
                        rollmesh evaluate --checkpoint runs/first --episodes 1 --render first.gif\n  \
                        rollmesh evaluate --checkpoint runs/first --explore --json\n\n\
                        The same checkpoint, seed and flags give the same episodes, with the same bits, on every machine.")]
pub(super) struct EvaluateArgs {
    #[command(flatten)]
    play: PlayFlags,
    /// Seed of the episodes [default: the run's]
    ///
    /// They are others than those of training
    #[arg(long)]
    seed: Option<u64>,
    /// Give up after this many seconds without progress
    #[arg(long, value_name = "S", default_value = "60")]
    timeout: NonZeroU32,
    /// Write the first episode into this GIF
    #[arg(long, value_name = "FILE")]
    render: Option<PathBuf>,
    #[command(flatten)]
    python: PythonFlags,
    /// Print one JSON object, and no progress
    #[arg(long)]
    json: bool,
}

/// The policy that plays, and the settings of its episodes.
#[derive(Args)]
pub(super) struct PlayFlags {
    /// Directory of a run or of one of its checkpoints
    ///
    /// The run may be in progress
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: PathBuf,
    /// Episodes to play
    #[arg(long, value_name = "N", default_value = "20")]
    pub(super) episodes: NonZeroU32,
    /// Draw actions, as in training [default: the most likely]
    #[arg(long)]
    explore: bool,
    /// The signal that returns are sums of [default: the run's]
    ///
    /// reward, reward/AGENT or infos/NAME
    #[arg(long, value_name = "KEY")]
    reward_key: Option<RewardKey>,
    /// The most env steps of each of the environments
    ///
    /// [default: as many as the episodes may take]
    #[arg(long, hide_short_help = true, value_name = "T")]
    max_steps: Option<NonZeroU32>,
}

impl PlayFlags {
    /// Returns the request. `max_steps` limits the steps of each sub-environment if `--max-steps` is absent.
    pub(super) fn request(&self, max_steps: u32) -> EvaluationRequest {
        EvaluationRequest {
            deterministic: !self.explore,
            reward_key: self.reward_key.clone(),
            ..EvaluationRequest::of_episodes(self.episodes, self.max_steps.map_or(max_steps, NonZeroU32::get))
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct EvaluateReport {
    env: String,
    algo: String,
    /// Iteration of the weights.
    iteration: u64,
    weights_hash: String,
    seed: u64,
    deterministic: bool,
    reward_key: RewardKey,
    episode_return_mean: Option<f64>,
    episode_return_std: Option<f64>,
    episode_return_min: Option<f64>,
    episode_return_max: Option<f64>,
    /// With the most likely actions; one of the two is `episode_return_mean`.
    deterministic_return_mean: Option<f64>,
    /// With sampled actions, as in training.
    explored_return_mean: Option<f64>,
    episode_len_mean: Option<f64>,
    /// Number of episodes cut by `--max-steps`, and their mean partial return.
    unfinished: u32,
    partial_return_mean: Option<f64>,
    env_steps: u64,
    episodes: Vec<EvaluatedEpisode>,
}

/// Checks the path of the GIF, before episodes are played in vain.
fn check_film(path: &Path) -> Result<(), Failure> {
    if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("gif")) {
        return Err(Failure::usage(format!("--render {}: the name of a film ends in .gif", path.display())));
    }
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(Failure::usage(format!("--render {}: there is no {}", path.display(), folder.display()))),
        None => Ok(()),
    }
}

pub(super) fn run(args: &EvaluateArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    args.render.as_deref().map_or(Ok(()), check_film)?;
    args.python.install(None);
    let checkpoint = PolicyCheckpoint::load(&args.play.checkpoint).map_err(Failure::usage)?;
    checkpoint.notice_of_unused(&args.play.checkpoint).iter().for_each(|notice| eprintln!("{notice}"));
    let mut run = checkpoint.run.clone();
    let evaluation = &mut run.evaluation;
    evaluation.seed = args.seed.or(evaluation.seed);
    if let Some(reward_key) = &args.play.reward_key {
        evaluation.reward_key = reward_key.clone();
    }
    if args.render.is_some() {
        run.rollout.env_config = with_pictures(run.env(), &run.rollout.env_config);
    }
    PythonSettings::of_process().check(run.env()).map_err(Failure::usage)?;
    let made = makers_of_episodes(&run, registry, args.play.episodes);
    let (makers, steps) = made.map_err(|error| match registry.env(run.env()) {
        Ok(_) => Failure::usage(error),
        Err(_) => Failure::usage(format!("{error}; run this with the program that trained it")),
    })?;
    let request = EvaluationRequest { render: args.render.is_some(), ..args.play.request(steps) };
    let timeout = Duration::from_secs(args.timeout.get().into());
    let interruption = Interruption::watch_and_end();
    let mut worker = EvalWorker::in_thread_with(makers, timeout).map_err(Failure::other)?;
    worker.submit_request(Some(&checkpoint.weights), request.clone(), Earlier::Cancel).map_err(Failure::other)?;
    let found = wait(&mut worker, &interruption, !args.json)?;
    // Sampled actions are those of training: if the two returns differ by much, one alone is misleading.
    let request = EvaluationRequest { deterministic: args.play.explore, render: false, ..request };
    worker.submit_request(Some(&checkpoint.weights), request, Earlier::Cancel).map_err(Failure::other)?;
    // The first result is reported even if the second evaluation fails.
    let other = wait(&mut worker, &interruption, !args.json);
    let film = args.render.as_ref().map(|path| (path, EpisodeGif::of(&found)));
    let report = EvaluateReport::of(&checkpoint, &run, !args.play.explore, found, other.as_ref().ok());
    match args.json {
        true => println!("{}", serde_json::to_string(&report).map_err(Failure::other)?),
        false => report.print(),
    }
    // The result is printed before a missing picture is reported.
    if let Some((path, film)) = film {
        let no_picture = || Failure::usage("the environment has no picture: leave --render out");
        let EpisodeGif { gif, pictures, steps } = film.ok_or_else(no_picture)?.map_err(Failure::other)?;
        replace(path, &gif).map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
        if pictures < steps {
            eprintln!("the film is cut: it has the first {pictures} of {steps} pictures");
        }
        if !args.json {
            println!("film          {}", path.display());
        }
    }
    other.map(|_| ExitCode::SUCCESS)
}

/// Interval at which progress is shown and interruptions are noticed.
const LOOK: Duration = Duration::from_millis(200);

/// Waits for the result of an evaluation; shows progress if `visible`.
pub(super) fn wait(worker: &mut EvalWorker, interruption: &Interruption, visible: bool) -> Result<Evaluation, Failure> {
    let progress = Progress::new(0, "playing", visible);
    loop {
        match worker.poll(LOOK).map_err(Failure::other)? {
            Some(found) => return Ok(found),
            None if interruption.is_noticed() => {
                return Err(Failure::Interrupted("not all episodes were played to their end".into()));
            }
            None => progress.at(0),
        }
    }
}

impl EvaluateReport {
    fn of(
        checkpoint: &PolicyCheckpoint,
        run: &RunConfig,
        deterministic: bool,
        found: Evaluation,
        other: Option<&Evaluation>,
    ) -> Self {
        let by_actions = [found.episode_return_mean, other.and_then(|other| other.episode_return_mean)];
        let returns = || found.episodes.iter().map(|episode| episode.episode_return);
        Self {
            env: checkpoint.run.env().into(),
            algo: checkpoint.algo.clone(),
            iteration: checkpoint.iteration,
            weights_hash: checkpoint.weights_hash().to_string(),
            seed: run.evaluation.seed.unwrap_or(run.rollout.seed),
            deterministic,
            reward_key: run.evaluation.reward_key.clone(),
            episode_return_mean: found.episode_return_mean,
            episode_return_std: found.episode_return_std(),
            episode_return_min: returns().reduce(f64::min),
            episode_return_max: returns().reduce(f64::max),
            deterministic_return_mean: by_actions[usize::from(!deterministic)],
            explored_return_mean: by_actions[usize::from(deterministic)],
            episode_len_mean: found.episode_len_mean,
            unfinished: found.unfinished,
            partial_return_mean: found.partial_return_mean,
            env_steps: found.env_steps,
            episodes: found.episodes,
        }
    }

    fn print(&self) {
        let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
        let actions = if self.deterministic { "most likely actions" } else { "drawn actions, as in training" };
        println!("{} with {} after iteration {}, seed {}", self.env, self.algo, self.iteration, self.seed);
        println!(
            "mean return   {} ± {} (from {} to {}, {}, {actions})",
            number(self.episode_return_mean),
            number(self.episode_return_std),
            number(self.episode_return_min),
            number(self.episode_return_max),
            count(self.episodes.len() as u64, "episode"),
        );
        let (other, actions) = match self.deterministic {
            true => (self.explored_return_mean, "drawn actions, as in training"),
            false => (self.deterministic_return_mean, "most likely actions"),
        };
        println!("              {} with {actions}", number(other));
        if self.unfinished > 0 {
            println!(
                "unfinished    {}, {} so far",
                count(self.unfinished.into(), "episode"),
                number(self.partial_return_mean)
            );
        }
        println!("mean length   {}, {} env steps in all", number(self.episode_len_mean), self.env_steps);
        println!("weights hash  {}", self.weights_hash);
    }
}
