//! The numbers.

use rollmesh_core::{
    batch::{ACTION_PROB, EPS_ID, SampleBatch, TERMINATEDS},
    column::ColumnData,
    estimate::{
        Estimate, Estimator, Interval, LoggedEpisodes, bootstrap_interval, effective_sample_size, importance_weights,
    },
    policy::Judge,
    rng::{Purpose, Streams},
};

use super::{EstimatorName, OpeArgs};
use crate::{
    cli::exit::Failure,
    learner::{Fit, FittedQ, FittedQConfig},
    progress::Progress,
};

/// What the log says of the policy.
pub(super) struct Found {
    /// Episodes, or rows of a bandit.
    pub(super) samples: usize,
    /// Of the policy that acted.
    pub(super) behavior: (Estimate, Interval),
    /// None where no estimator looks at ratios.
    pub(super) effective_samples: Option<f64>,
    pub(super) estimates: Vec<(EstimatorName, Estimate, Interval)>,
    pub(super) fit: Option<Fit>,
}

pub(super) fn estimate(
    args: &OpeArgs,
    judge: &mut Judge<'_>,
    gamma: f64,
    logged: &LoggedEpisodes,
) -> Result<Found, Failure> {
    let estimators: Vec<Estimator> = args.estimators.iter().map(|name| name.estimator()).collect();
    let mut rows = if args.bandit { one_by_one(&logged.rows).map_err(Failure::usage)? } else { logged.rows.clone() };
    let gamma = if args.bandit { 1.0 } else { gamma };

    let has_ratios = args.wants_ratios();
    if !has_ratios {
        // The model does not look at them.
        rows.insert(ACTION_PROB.name(), ColumnData::scalars(vec![1.0f32; rows.len()])).map_err(Failure::other)?;
    }
    let fit = if args.wants_model() { Some(add_values(args, gamma, judge, &mut rows)?) } else { None };

    let streams = Streams::new(args.seed, Purpose::Shuffle);
    let interval = |of: Estimator| of.interval(&rows, gamma, args.confidence, args.resamples, &streams);
    let mut estimates = Vec::new();
    for (&name, &of) in args.estimators.iter().zip(&estimators) {
        let estimate = of.estimate(&rows, gamma, true).map_err(Failure::usage)?;
        estimates.push((name, estimate, interval(of).map_err(Failure::usage)?));
    }
    // What who acted has earned is the same for all of them.
    let samples = estimators.first().copied().unwrap_or(Estimator::ImportanceSampling).per_episode(&rows, gamma);
    let samples = samples.map_err(Failure::usage)?;
    let returns: Vec<f64> = samples.iter().map(|sample| sample.v_behavior).collect();
    let behavior = Estimate::of(&samples).map_err(Failure::usage)?;
    let interval = bootstrap_interval(&returns, args.confidence, args.resamples, &streams).map_err(Failure::usage)?;
    let weights = has_ratios.then(|| importance_weights(&rows)).transpose().map_err(Failure::usage)?;
    Ok(Found {
        samples: samples.len(),
        behavior: (behavior, interval),
        effective_samples: weights.map(|weights| effective_sample_size(&weights)),
        estimates,
        fit,
    })
}

/// Rows as episodes of one step.
fn one_by_one(rows: &SampleBatch) -> Result<SampleBatch, rollmesh_core::batch::BatchError> {
    let mut rows = rows.clone();
    let n = rows.len();
    rows.insert(EPS_ID.name(), ColumnData::scalars((0..n as i64).collect()))?;
    rows.insert(TERMINATEDS.name(), ColumnData::scalars(vec![true; n]))?;
    Ok(rows)
}

/// Lets a model learn from all rows, and tell their values.
fn add_values(args: &OpeArgs, gamma: f64, judge: &mut Judge<'_>, rows: &mut SampleBatch) -> Result<Fit, Failure> {
    let transitions = judge.transitions(rows).map_err(Failure::usage)?;
    let config = FittedQConfig::at_once(if args.bandit { 0.0 } else { gamma });
    let config = config.with(&args.q_model_config).map_err(Failure::usage)?;
    let progress = Progress::new(config.n_iters.into(), "passes of fitted Q evaluation", !args.json);
    let (obs_len, num_actions) = (transitions.obs_len, transitions.num_actions);
    let model = FittedQ::new(obs_len, num_actions, gamma, config, args.seed);
    let mut model = model.map_err(Failure::usage)?;
    let fit = model.fit_with(&transitions, |fit| progress.say(fit.passes.into(), &format!("· loss {:.4}", fit.loss)));
    progress.finish();
    let fit = fit.map_err(Failure::usage)?;
    judge.add_values(rows, &mut model).map_err(Failure::usage)?;
    Ok(fit)
}
