//! `rollmesh ope`: estimates a policy's value from episodes logged by another policy (off-policy evaluation).

mod estimate;
mod model;
mod read;
mod report;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use rollmesh_core::{
    column::DType,
    config::Config,
    estimate::{EstimateError, Estimator, MIN_REFITS},
    policy::{Judge, MaskedObs},
    preprocess::Preprocessor,
    space::Space,
};

use super::{exit::Failure, worker_spec::memory};
use crate::{Registry, checkpoint::PolicyCheckpoint, kernels::AUTO};

#[derive(Args)]
#[command(
    after_help = "The data must have the probability of each action, as action_prob or action_logp; dm alone does not need it.\n\n\
                  Examples:\n  rollmesh ope --input samples --policy runs/first\n  \
                  rollmesh ope --input 'samples/*.json' --policy runs/first --estimator is,wis,dr --json",
    after_long_help = "Examples:\n  rollmesh ope --input samples --policy runs/first\n  \
                        rollmesh ope --input 'samples/*.json' --policy runs/first --estimator is,wis,dr --json\n  \
                        rollmesh ope --input samples --policy runs/first --estimator cwpdis --gamma 1 --confidence 0.9\n  \
                        rollmesh ope --input clicks.parquet --policy runs/ads --estimator is,dr --bandit\n\n\
                  The data must say how likely each action was, as action_prob or action_logp; for dm alone they need not. \
                  Estimates with ratios are of no use where the effective sample size is small: then log more episodes, or \
                  of a policy that is more like the one in question. Where every step pays the same, wis cannot tell policies apart; \
                  cwpdis can.\n\n\
                  Intervals are those of which episodes happened to be logged. With --refits those of dm and dr also hold what \
                  the model owes to them; without, that of dm is of first states alone, and far too narrow. None holds what \
                  a model gets wrong of any episodes."
)]
pub(super) struct OpeArgs {
    /// Logged episodes: files, folders, patterns or ids
    ///
    /// In any format that `rollmesh data` reads; ids are those of data sets of Minari and D4RL
    #[arg(long = "input", value_name = "DATA", required = true, num_args = 1..)]
    inputs: Vec<String>,
    /// The policy in question: a directory of a run or checkpoint
    #[arg(long = "policy", value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// Estimators
    #[arg(long = "estimator", value_enum, value_delimiter = ',', default_value = "is,wis,cwpdis")]
    estimators: Vec<EstimatorName>,
    /// Discount [default: what the policy learned with]
    #[arg(long)]
    gamma: Option<f64>,
    /// Take every row as an episode, as in a bandit's log
    ///
    /// Nothing is discounted
    #[arg(long)]
    bandit: bool,
    /// Probability with which the policy takes a random action
    ///
    /// Of Discrete action spaces
    #[arg(long, hide_short_help = true, value_name = "EPSILON", default_value_t = 0.0)]
    epsilon_greedy: f64,
    /// Confidence level of the intervals
    #[arg(long, default_value_t = 0.95)]
    confidence: f64,
    /// Bootstrap samples of the episodes, from which intervals are made
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    resamples: u32,
    /// Models that are fitted to bootstrap samples, for the intervals of dm and dr
    ///
    /// As many at a time as there are processors; each takes as long as the first one. 0, or from 3 to 1,000
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 10, value_parser = refits)]
    refits: u32,
    /// Settings of the model of values, which dm and dr need
    ///
    /// n_iters, lr, minibatch_size, polyak_coef, min_loss_threshold, clip_grad_norm, fcnet_hiddens
    #[arg(long, hide_short_help = true, value_name = "JSON", default_value = "{}")]
    q_model_config: Config,
    /// Seed of the model of values and of the samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Bytes that reading holds at most of files [default: 1 GiB for JSON; else 64 MiB]
    ///
    /// In addition, some 40 bytes per row are in memory, and for dm and dr its observations and action
    #[arg(long, hide_short_help = true, value_name = "BYTES")]
    buffer_size: Option<usize>,
    /// Memory limit of the process that reads HDF5 or Parquet, like 8GiB
    ///
    /// [default: 4GiB, or four times the buffer]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = memory)]
    memory_limit: Option<u64>,
    /// Print one JSON object, and no progress
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum EstimatorName {
    /// Importance sampling step by step, as RLlib's; `pdis` is the same
    #[value(alias = "pdis")]
    Is,
    /// Importance sampling of whole trajectories
    #[value(name = "trajectory_is", alias = "trajectory-is")]
    TrajectoryIs,
    /// Weighted importance sampling step by step, as RLlib's: blind to how long episodes last
    Wis,
    /// Consistent weighted importance sampling step by step, in which episodes that have ended count
    Cwpdis,
    /// The direct method: a model's values of first states, by fitted Q evaluation
    Dm,
    /// Doubly robust: the model, corrected by importance sampling
    Dr,
}

impl EstimatorName {
    fn estimator(self) -> Estimator {
        match self {
            Self::Is => Estimator::ImportanceSampling,
            Self::TrajectoryIs => Estimator::TrajectoryImportanceSampling,
            Self::Wis => Estimator::WeightedImportanceSampling,
            Self::Cwpdis => Estimator::ConsistentWeightedImportanceSampling,
            Self::Dm => Estimator::DirectMethod,
            Self::Dr => Estimator::DoublyRobust,
        }
    }

    fn name(self) -> &'static str {
        self.estimator().name()
    }
}

/// Maximum number of refits; more do not improve the intervals.
const MAX_REFITS: usize = 1_000;

fn refits(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(refits) if refits == 0 || (MIN_REFITS..=MAX_REFITS).contains(&(refits as usize)) => Ok(refits),
        _ => Err(format!("it must be 0, or from {MIN_REFITS} to {MAX_REFITS}")),
    }
}

impl OpeArgs {
    /// Returns whether any estimator uses action probabilities.
    fn wants_ratios(&self) -> bool {
        self.estimators.iter().any(|name| name.estimator() != Estimator::DirectMethod)
    }

    /// Returns whether any estimator uses a value model.
    fn wants_model(&self) -> bool {
        self.estimators.iter().any(|name| name.estimator().needs_model())
    }
}

pub(super) fn run(args: &OpeArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let checkpoint = PolicyCheckpoint::load(&args.checkpoint).map_err(Failure::usage)?;
    let gamma = args.gamma.unwrap_or(checkpoint.gamma);
    if !(0.0..=1.0).contains(&gamma) {
        return Err(Failure::usage(format!("--gamma is {gamma}; it must be from 0 to 1")));
    }
    if !(args.confidence > 0.0 && args.confidence < 1.0) {
        return Err(Failure::usage(EstimateError::Confidence(args.confidence)));
    }
    let checkpoint = checkpoint.with_models(registry).map_err(Failure::usage)?;
    let mut spaces = checkpoint.spaces(&registry.envs).map_err(Failure::usage)?;
    let encoder = encoder(&spaces.observation);
    if let Some(encoder) = &encoder {
        (spaces.observation, spaces.observation_type) = (encoder.output_space(), DType::F32);
    }
    let mut policy = checkpoint.policy_in(spaces.clone(), AUTO).map_err(Failure::usage)?;
    let mut judge = Judge::new(&mut policy, &spaces).with_epsilon(args.epsilon_greedy).map_err(Failure::usage)?;
    let data = read::read(args, encoder.as_ref(), &mut judge)?;
    let found = estimate::estimate(args, &mut judge, gamma, &data.logged)?;
    let report = report::OpeReport { args, checkpoint: &checkpoint, gamma, data: &data, found: &found };
    if args.json {
        println!("{}", report.json())
    } else {
        report.print()
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the encoder of observations that are not vectors: logs have the environment's own, or encoded ones, as workers
/// encode them for policies. Of observations with an action mask the networks need the parts.
fn encoder(space: &Space) -> Option<Preprocessor> {
    let encoder = Preprocessor::for_space(space).ok().filter(|encoder| encoder.is_flat() && !encoder.is_identity());
    encoder.filter(|_| MaskedObs::of(space).is_none())
}
