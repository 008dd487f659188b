//! `rollmesh train --input`: learning from files, with the worker that samples elsewhere, and the policy's own episodes
//! now and then.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use rollmesh_core::{
    config::Config,
    episode::EpisodeSummary,
    hash::weights_hash,
    ids::PolicyId,
    policy::{LearnInfo, ModelConfig},
    run::RunSpec,
    sampler::BatchMode,
    time::Micros,
    weights::Weights,
    worker::{InputSource, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder, SetupError},
};
use serde::Serialize;

use super::{
    exit::Failure,
    learn::{self, Training},
    log::Log,
    signals::Interruption,
    train::{TrainAlgo, TrainArgs},
};
use crate::{
    NativeWorker as _, Registry,
    checkpoint::PolicyCheckpoint,
    learner::Algorithm,
    offline::INPUT_SETTINGS,
    progress::Progress,
    train::{RunDir, TrainConfig},
};

/// Flags of learning from files.
#[derive(Args, Clone, Debug)]
pub(super) struct FileFlags {
    /// Learn from logged experience instead of sampling: files, folders, patterns, data sets by their ids, or a mixture as a
    /// JSON object, {"NAME": PROBABILITY}; may be given several times
    #[arg(long, value_name = "DATA", num_args = 1.., conflicts_with_all = OF_HUBS)]
    pub(super) input: Vec<String>,
    /// Settings of the input, as a JSON object: shuffle_buffer_size, buffer_size, read_all_files,
    /// actions_in_input_normalized, …
    #[arg(long, value_name = "JSON", default_value = "{}", requires = "input")]
    input_config: Config,
    /// Settings of the algorithm over the usual ones, as a JSON object: lr, gamma, clip_param, num_epochs, minibatch_size, … of
    /// ppo, lr, beta, minibatch_size, … of bc and marwil
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub(super) policy_config: Config,
    /// Rows of the input per update
    #[arg(long, value_name = "N", default_value_t = 2000, requires = "input")]
    train_batch_size: u32,
    /// Play the policy's own episodes after every N updates, with its most likely actions: beside the run, in a process of
    /// its own; with --input in between, and at the end [default: never; with --input and a stop return 10]
    #[arg(long, value_name = "N")]
    pub(super) evaluation_interval: Option<u64>,
    /// Episodes to play then; 0 for none [default: 20]
    #[arg(long, value_name = "M")]
    pub(super) evaluation_episodes: Option<u32>,
    /// Give an evaluation beside the run up if nothing moves in it for so many seconds [default: 600]
    #[arg(long, value_name = "S", conflicts_with = "input")]
    pub(super) evaluation_timeout: Option<NonZeroU32>,
    /// With --input: most steps of an evaluation episode, if the environment does not do so before
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "input",
        value_parser = clap::value_parser!(u32).range(1..))]
    evaluation_horizon: u32,
}

/// Flags of hubs and workers, which mean nothing here: better refused than passed over.
const OF_HUBS: [&str; 27] = [
    "workers",
    "num_envs_per_worker",
    "rollout_fragment_length",
    "listen",
    "assets",
    "device",
    "extra_environ",
    "mode",
    "max_staleness",
    "batch_env_steps",
    "deadline_ms",
    "tls_cert",
    "tls_key",
    "tls_self_signed",
    "i_know_this_is_not_encrypted",
    "public_host",
    "tokens",
    "audit_log",
    "audit_share",
    "distrust_workers",
    "on_liar",
    "state_dir",
    "worker_cpus",
    "worker_gpus",
    "worker_memory",
    "worker_resource",
    "resources",
];

/// How long the policy stays unwritten at most, an update and an evaluation aside.
const SAVED_EVERY: Duration = Duration::from_secs(10);
/// How long an evaluation goes on before it asks whether somebody has interrupted.
const LOOK_EVERY: Micros = Micros(50_000);

/// What the policy's own episodes were like.
#[derive(Clone, Copy, Debug, Serialize)]
struct Evaluation {
    episodes: usize,
    return_mean: f64,
    return_min: f64,
    return_max: f64,
    len_mean: f64,
}

/// A line of `metrics.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    iteration: u64,
    /// Rows learned from.
    env_steps: u64,
    wall_s: f64,
    #[serde(flatten)]
    learner: Option<&'a LearnInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation: Option<Evaluation>,
}

#[derive(Serialize)]
struct Summary {
    env: String,
    algo: &'static str,
    seed: u64,
    /// Whether the stop return was reached.
    solved: bool,
    iterations: u64,
    /// Rows learned from.
    env_steps: u64,
    /// The last one.
    evaluation: Option<Evaluation>,
    wall_s: f64,
    weights_hash: String,
    /// Why it ended before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn run(args: &TrainArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let algo = args.algo();
    if algo == TrainAlgo::Ppo {
        return Err(Failure::usage(
            "ppo learns from what it samples itself: learn from files with --algo bc or marwil",
        ));
    }
    let plan = args.config()?;
    if args.files.evaluation_episodes == Some(0) && plan.stop_return.is_some() {
        return Err(Failure::usage(
            "--stop-return is a mean of the policy's own episodes: let --evaluation-episodes be more than 0",
        ));
    }
    let config = config(args, &plan, algo)?;
    check_settings(&config, registry)?;
    let log = Log::new(&config).map_err(Failure::usage)?;
    let builder = || RolloutWorkerBuilder::new(registry.clone()).native();
    let worker = builder().config(config.clone()).build().map_err(Failure::usage)?;
    let evaluator = Evaluator::new(builder(), &config, registry, &args.files).map_err(Failure::usage)?;
    let path = plan.run_dir.clone().unwrap_or_default();
    let dir = RunDir::create(&path, &config, false).map_err(Failure::usage)?;
    let progress = Progress::new(plan.max_env_steps, "rows", !args.json);
    let training = Training::new(worker, log.above(&progress), config.train_batch_size as usize, Interruption::watch());
    let start = Instant::now();
    let mut run = FromFiles {
        args,
        plan: &plan,
        config: &config,
        evaluator,
        training,
        dir,
        evaluation: None,
        start,
        saved: start,
    };
    let ran = run.learn(&progress);
    progress.finish();
    let (read, is_cut) = (run.training.read().clone(), run.training.interruption().is_noticed());
    let summary = match ran {
        Ok(()) => run.finish(None)?,
        // Nothing is lost of what was learned up to there.
        Err(failure) if run.training.done() > 0 => {
            let (done, env_steps) = (run.training.done(), run.training.env_steps());
            match run.finish(Some(failure.to_string())) {
                Ok(_) => eprintln!(
                    "what was learned in {done} updates from {env_steps} rows before the error is in {}",
                    path.display()
                ),
                Err(unsaved) => eprintln!("error: {unsaved}; what was learned is lost"),
            }
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    if args.json {
        let mut object = serde_json::to_value(&summary).map_err(Failure::other)?;
        read.add_to(&mut object);
        println!("{object}");
    } else {
        print(&summary, &path);
        read.print();
    }
    let is_short = summary.env_steps < plan.max_env_steps && !summary.solved;
    let missed = plan.stop_return.is_some() && !summary.solved;
    Ok(if missed || is_short || is_cut { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

/// What [`rollmesh learn --config`](super::learn) takes, too.
fn config(args: &TrainArgs, plan: &TrainConfig, algo: TrainAlgo) -> Result<RolloutConfig, Failure> {
    let input = match args.files.input.as_slice() {
        [mixture] if mixture.trim_start().starts_with('{') => {
            let mixture = serde_json::from_str(mixture);
            InputSource::Mixture(mixture.map_err(|error| Failure::usage(format!("--input is no mixture: {error}")))?)
        }
        [name] => InputSource::Name(name.clone()),
        several => InputSource::Files(several.to_vec()),
    };
    let usual = Config::new().with("postprocess_inputs", algo == TrainAlgo::Marwil).map_err(Failure::usage)?;
    let config = RolloutConfig {
        env_config: plan.env_config.clone(),
        seed: plan.seed,
        input,
        io_config: usual.merged(&args.files.input_config),
        policy_config: args.files.policy_config.clone(),
        train_batch_size: args.files.train_batch_size.max(1),
        ..RolloutConfig::new(plan.env.clone())
    };
    Ok(config
        .rollout_fragment_length(args.files.train_batch_size.max(1))
        .single_policy(algo.name())
        .fcnet_hiddens(&plan.hidden))
}

/// A setting that means nothing to files is a mistake; those of registered inputs are their own.
fn check_settings(config: &RolloutConfig, registry: &Registry) -> Result<(), Failure> {
    let is_file = |name: &String| registry.input(name).is_err();
    let only_files = match &config.input {
        InputSource::Name(name) => is_file(name),
        InputSource::Files(_) => true,
        InputSource::Mixture(mixture) => mixture.keys().all(is_file),
    };
    match config.io_config.check_known(&INPUT_SETTINGS) {
        Err(unknown) if only_files => Err(Failure::usage(format!("--input-config: {unknown}"))),
        _ => Ok(()),
    }
}

struct FromFiles<'a> {
    args: &'a TrainArgs,
    plan: &'a TrainConfig,
    config: &'a RolloutConfig,
    evaluator: Evaluator,
    training: Training,
    dir: RunDir,
    evaluation: Option<Evaluation>,
    start: Instant,
    /// When the policy was written last.
    saved: Instant,
}

impl FromFiles<'_> {
    /// Goes on until all rows are used up, the stop return is reached or somebody interrupts. Ends with an evaluation,
    /// unless somebody does not want to wait. The policy is written beside it, as checkpoints of other runs are.
    fn learn(&mut self, progress: &Progress) -> Result<(), Failure> {
        let flags = &self.args.files;
        let interval =
            flags.evaluation_interval.or_else(|| self.plan.stop_return.map(|_| 10)).unwrap_or(u64::MAX).max(1);
        for number in 1.. {
            let Some(iteration) = self.training.iterate(self.start).map_err(learn::failure)? else { break };
            let (env_steps, learner) = (iteration.env_steps, iteration.infos.values().next().cloned());
            self.training.add(number, iteration);
            let is_last = env_steps >= self.plan.max_env_steps;
            let is_due = is_last || number % interval == 0;
            let is_late = self.saved.elapsed() >= SAVED_EVERY;
            if is_due || is_late || number % self.plan.checkpoint_interval.max(1) == 0 {
                let policy = self.checkpoint()?;
                self.dir.write_policy(&policy).map_err(Failure::other)?;
                self.saved = Instant::now();
            }
            let evaluation = if is_due { self.evaluate()? } else { None };
            let wall_s = self.start.elapsed().as_secs_f64();
            let line = Line { iteration: number, env_steps, wall_s, learner: learner.as_ref(), evaluation };
            self.dir.add_metrics(&line).iter().for_each(|news| eprintln!("{news}"));
            progress.say(env_steps.min(self.plan.max_env_steps), &self.say(learner.as_ref()));
            if is_last || self.is_solved() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Option<Evaluation>, Failure> {
        let weights = self.training.worker().weights(None).map_err(Failure::other)?;
        let evaluation = self.evaluator.run(&weights, self.training.interruption()).map_err(Failure::other)?;
        self.evaluation = evaluation.or(self.evaluation);
        Ok(evaluation)
    }

    fn is_solved(&self) -> bool {
        let reached = |target: f64| self.evaluation.is_some_and(|evaluation| evaluation.return_mean >= target);
        self.plan.stop_return.is_some_and(reached)
    }

    fn say(&self, learner: Option<&LearnInfo>) -> String {
        let loss = learner.and_then(|info| info.get("policy_loss")).copied().unwrap_or(f64::NAN);
        let own = self.evaluation.map_or_else(String::new, |own| format!(" · return {:.1}", own.return_mean));
        format!("loss {loss:.4}{own}")
    }

    /// The policy so far.
    fn checkpoint(&mut self) -> Result<PolicyCheckpoint, Failure> {
        let (algo, config) = (self.args.algo(), self.config);
        let weights = self.training.worker().weights(None).map_err(Failure::other)?;
        let weights: Weights = weights.into_values().next().ok_or_else(|| Failure::other("there is no policy"))?;
        let settings = config.policies.get(&PolicyId::DEFAULT).map_or_else(Config::new, |policy| policy.config.clone());
        let settings = config.policy_config.merged(&settings);
        let parsed = match algo {
            TrainAlgo::Marwil => Algorithm::marwil(&settings),
            _ => Algorithm::bc(&settings),
        };
        let spec = RunSpec {
            env: self.plan.env.clone(),
            seed: self.plan.seed,
            num_slots: 1,
            num_envs_per_worker: 1,
            rollout_fragment_length: 1,
            hidden: self.plan.hidden.clone(),
            env_config: self.plan.env_config.clone(),
        };
        Ok(PolicyCheckpoint {
            model: ModelConfig::of(&settings).map_err(Failure::other)?,
            gamma: parsed.map_err(Failure::other)?.advantages().gamma,
            iteration: self.training.done(),
            env_steps: self.training.env_steps(),
            ..PolicyCheckpoint::new(algo.name(), spec, weights)
        })
    }

    /// Writes what the run has come to.
    fn finish(mut self, error: Option<String>) -> Result<Summary, Failure> {
        let checkpoint = self.checkpoint()?;
        let summary = Summary {
            env: self.plan.env.clone(),
            algo: self.args.algo().name(),
            seed: self.plan.seed,
            solved: self.is_solved(),
            iterations: self.training.done(),
            env_steps: self.training.env_steps(),
            evaluation: self.evaluation,
            wall_s: self.start.elapsed().as_secs_f64(),
            weights_hash: weights_hash(&checkpoint.weights).to_string(),
            error,
        };
        let (_, faults) = self.dir.finish();
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        self.dir.write_end(&checkpoint, &summary).map_err(Failure::other)?;
        self.training.stop().map_err(Failure::other)?;
        Ok(summary)
    }
}

/// Plays a policy's own episodes, with the most likely actions.
struct Evaluator {
    worker: RolloutWorker,
    episodes: usize,
}

impl Evaluator {
    fn new(
        builder: RolloutWorkerBuilder,
        config: &RolloutConfig,
        registry: &Registry,
        flags: &FileFlags,
    ) -> Result<Self, SetupError> {
        // A horizon takes the place of the environment's own limit.
        let env = config.env.as_ref().and_then(|env| registry.envs.spec(env).ok());
        let limit = env.and_then(|env| env.max_episode_steps);
        let horizon = Some(flags.evaluation_horizon).filter(|horizon| limit.is_none_or(|limit| *horizon < limit));
        // One environment, since of several the short episodes would come first.
        let config = RolloutConfig {
            input: InputSource::default(),
            io_config: Config::new(),
            explore: false,
            num_envs: 1,
            horizon,
            ..config.clone()
        };
        let config = config.batch_mode(BatchMode::CompleteEpisodes).rollout_fragment_length(1);
        Ok(Self {
            worker: builder.config(config).build()?,
            episodes: flags.evaluation_episodes.map_or(20, |n| n as usize),
        })
    }

    /// None also if somebody interrupts.
    fn run(
        &mut self,
        weights: &BTreeMap<PolicyId, Weights>,
        interruption: &Interruption,
    ) -> Result<Option<Evaluation>, RolloutError> {
        self.worker.set_weights(weights, None, None)?;
        let mut ended = Vec::new();
        while ended.len() < self.episodes {
            if interruption.is_noticed() {
                return Ok(None);
            }
            self.worker.sample_within(LOOK_EVERY)?;
            ended.extend(self.worker.metrics().episodes);
        }
        let EpisodeSummary { episode_return, length, episodes, .. } = EpisodeSummary::of(&ended);
        Ok((episodes > 0).then_some(Evaluation {
            episodes,
            return_mean: episode_return.mean,
            return_min: episode_return.min,
            return_max: episode_return.max,
            len_mean: length.mean,
        }))
    }
}

fn print(summary: &Summary, directory: &Path) {
    println!("{} with {}, seed {}", summary.env, summary.algo, summary.seed);
    println!("rows          {} in {} updates, {:.1} s", summary.env_steps, summary.iterations, summary.wall_s);
    if let Some(own) = &summary.evaluation {
        println!(
            "mean return   {:.2} (from {:.2} to {:.2}, {} episodes, most likely actions)",
            own.return_mean, own.return_min, own.return_max, own.episodes
        );
    }
    println!("weights hash  {}", summary.weights_hash);
    println!("files         {}", directory.display());
}
