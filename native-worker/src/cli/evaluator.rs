//! `rollmesh evaluator`: hosts, asks and lists named evaluation workers.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use rollmesh_core::{
    evaluation::{Earlier, EvalWorkerError, Evaluation},
    run::EvaluationConfig,
};
use serde::Serialize;

use super::{
    evaluate::{PlayFlags, wait},
    exit::Failure,
    python::PythonFlags,
    security::TrustFlags,
    signals::Interruption,
};
use crate::{
    Registry,
    checkpoint::PolicyCheckpoint,
    control::token_from_env,
    eval::{EvalHub, EvalNames, MAX_STEPS},
    evaluator::serve_name,
    learner::DeviceSpec,
    runs::RunConfig,
};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                        rollmesh evaluator serve judge --checkpoint runs/first\n  \
                        rollmesh evaluator ask judge --checkpoint runs/second --episodes 20 --json\n  \
                        rollmesh evaluator list --json")]
pub(super) struct EvaluatorArgs {
    #[command(subcommand)]
    action: EvaluatorAction,
}

#[derive(Subcommand)]
enum EvaluatorAction {
    /// Host an evaluation worker under a name, until it is shut down or interrupted
    Serve(ServeArgs),
    /// Have an evaluation worker evaluate a policy
    Ask(AskArgs),
    /// List the user's evaluation workers, and whether they answer
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Another hub at which the worker is found.
#[derive(Args)]
struct AtHub {
    /// Also a hub of this address
    ///
    /// With a worker's token from the environment variable ROLLMESH_TOKEN
    #[arg(long, value_name = "URL")]
    hub: Option<String>,
    #[command(flatten)]
    trust: TrustFlags,
}

#[derive(Args)]
struct ServeArgs {
    /// Name by which programs of this user find it
    name: String,
    /// Directory of a run or of one of its checkpoints
    ///
    /// Its environment, policies and settings are those of the evaluations
    #[arg(long, value_name = "DIR", required_unless_present = "env", conflicts_with = "env")]
    checkpoint: Option<PathBuf>,
    /// An environment instead, with the usual settings
    #[arg(long, value_name = "ENV")]
    env: Option<String>,
    /// Environments that are played at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(EvaluationConfig::MAX_ENVS)))]
    num_envs: Option<u32>,
    /// Seed of the episodes [default: the run's]
    ///
    /// They are others than those of training
    #[arg(long)]
    seed: Option<u64>,
    /// Where its policies act: cpu, cuda:N or metal
    ///
    /// On a GPU returns may differ from those on a CPU [default: the run's evaluator's, else cpu]
    #[arg(long)]
    device: Option<DeviceSpec>,
    #[command(flatten)]
    python: PythonFlags,
    #[command(flatten)]
    at: AtHub,
    /// Print one JSON object when it can be found
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct AskArgs {
    /// Name of the worker
    name: String,
    #[command(flatten)]
    play: PlayFlags,
    /// Also if the worker's environment is not the policy's
    #[arg(long)]
    any_env: bool,
    #[command(flatten)]
    at: AtHub,
    /// Print one JSON object, and no progress
    #[arg(long)]
    json: bool,
}

/// The output of `ask --json`: the result and its request.
#[derive(Serialize)]
struct AskReport {
    name: String,
    /// The worker's environment; `None` for a worker that was found at another hub.
    env: Option<String>,
    /// Iteration of the weights.
    iteration: u64,
    weights_hash: String,
    deterministic: bool,
    episode_return_std: Option<f64>,
    #[serde(flatten)]
    found: Evaluation,
}

/// The output of `list --json`.
#[derive(Serialize)]
struct List {
    evaluators: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    answers: bool,
}

pub(super) fn run(args: &EvaluatorArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    match &args.action {
        EvaluatorAction::Serve(args) => serve(args, registry),
        EvaluatorAction::Ask(args) => ask(args),
        EvaluatorAction::List { json } => list(*json),
    }
}

impl AtHub {
    /// Returns the user's names, and those of the hub.
    fn names(&self) -> Result<EvalNames, Failure> {
        let names = EvalNames::of_user();
        let Some(hub) = &self.hub else { return Ok(names) };
        let url = hub.parse().map_err(|error: crate::control::HubUrlError| Failure::usage(error))?;
        let token = token_from_env().map_err(Failure::usage)?;
        Ok(names.with_hub(EvalHub { url, token, trust: self.trust.trust() }))
    }
}

/// Converts an error; errors about the name are usage errors.
fn failure(error: EvalWorkerError) -> Failure {
    match error {
        EvalWorkerError::BadName(_) | EvalWorkerError::NameTaken(_) | EvalWorkerError::UnknownName { .. } => {
            Failure::usage(error)
        }
        error => Failure::other(error),
    }
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    println!("{}", serde_json::to_string(value).map_err(Failure::other)?);
    Ok(())
}

fn serve(args: &ServeArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    args.python.install(args.env.as_deref());
    let mut run = match (&args.checkpoint, &args.env) {
        (Some(path), _) => PolicyCheckpoint::load(path).map_err(Failure::usage)?.run,
        (None, env) => RunConfig::new(env.as_deref().unwrap_or_default()),
    };
    registry.env(run.env()).map_err(Failure::usage)?;
    run.evaluation.num_envs = args.num_envs.unwrap_or(run.evaluation.num_envs);
    run.evaluation.seed = args.seed.or(run.evaluation.seed);
    if let Some(device) = args.device {
        device.open().map_err(Failure::usage)?;
        run.host.evaluator.device = Some(device.to_string());
    }
    let ready = || match args.json {
        true => print_json(&Listed { name: args.name.clone(), answers: true }),
        false => {
            println!("{} evaluates in {}", args.name, run.env());
            Ok(())
        }
    };
    serve_name(&args.at.names()?, &args.name, &run).map_err(failure).and_then(|process| {
        ready()?;
        Ok(process.run())
    })
}

fn ask(args: &AskArgs) -> Result<ExitCode, Failure> {
    let checkpoint = PolicyCheckpoint::load(&args.play.checkpoint).map_err(Failure::usage)?;
    let names = args.at.names()?;
    let mut worker = names.find(&args.name).map_err(failure)?;
    let (env, own) = (names.env(&args.name), checkpoint.run.env());
    if let Some(env) = env.as_ref().filter(|env| *env != own && !args.any_env) {
        return Err(Failure::usage(format!(
            "{} evaluates in {env}, and the policy is of {own}: ask another worker, or add --any-env",
            args.name
        )));
    }
    let request = args.play.request(MAX_STEPS);
    let deterministic = request.deterministic;
    let interruption = Interruption::watch_and_end();
    worker.submit_request(Some(&checkpoint.weights), request, Earlier::Cancel).map_err(failure)?;
    let found = wait(&mut worker, &interruption, !args.json)?;
    let answer = AskReport {
        name: args.name.clone(),
        env,
        iteration: checkpoint.iteration,
        weights_hash: checkpoint.weights_hash().to_string(),
        deterministic,
        episode_return_std: found.episode_return_std(),
        found,
    };
    if args.json {
        return print_json(&answer).map(|()| ExitCode::SUCCESS);
    }
    let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
    let AskReport { found, env, episode_return_std, weights_hash, .. } = answer;
    let (mean, std) = (number(found.episode_return_mean), number(episode_return_std));
    if let Some(env) = env {
        println!("env           {env}");
    }
    println!("mean return   {mean} ± {std} ({} episodes, {} env steps)", found.episodes.len(), found.env_steps);
    if found.unfinished > 0 {
        println!("unfinished    {} episodes, {} so far", found.unfinished, number(found.partial_return_mean));
    }
    println!("weights hash  {weights_hash}");
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let names = EvalNames::of_user();
    let listed = |name: String| Listed { answers: names.find(&name).is_ok(), name };
    let list = List { evaluators: names.list().into_iter().map(listed).collect() };
    if json {
        return print_json(&list).map(|()| ExitCode::SUCCESS);
    }
    for Listed { name, answers } in list.evaluators {
        println!("{name}{}", if answers { "" } else { "  does not answer" });
    }
    Ok(ExitCode::SUCCESS)
}
