//! The numbers.

use rollmesh_core::{
    batch::{ACTION_PROB, EPS_ID, REWARDS, SampleBatch, TERMINATEDS},
    column::ColumnData,
    estimate::{
        Estimate, EstimateError, Estimator, Interval, LoggedEpisodes, bootstrap_interval, effective_sample_size,
        importance_weights, refit_interval,
    },
    policy::Judge,
    rng::{Purpose, Streams},
};

use super::{EstimatorName, OpeArgs, model};
use crate::{
    cli::{data::numbers::numbers, exit::Failure},
    learner::Fit,
};

/// What the log says of the policy.
pub(super) struct Found {
    /// Episodes, or rows of a bandit.
    pub(super) samples: usize,
    /// Of the policy that acted.
    pub(super) behavior: (Estimate, Interval),
    /// None where no estimator looks at ratios.
    pub(super) effective_samples: Option<f64>,
    pub(super) estimates: Vec<Line>,
    pub(super) fit: Option<Fit>,
    /// Whether every row pays the same.
    pub(super) equal_rewards: bool,
}

/// What one estimator says.
pub(super) struct Line {
    pub(super) name: EstimatorName,
    pub(super) estimate: Estimate,
    pub(super) interval: Interval,
    pub(super) holds: Holds,
}

/// Which uncertainty an interval holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// Which episodes happened to be logged, for the model as it is.
    Episodes,
    /// Which first states happened to be logged, for the model as it is.
    FirstStates,
    /// Which episodes happened to be logged, and what the model has learned from them.
    Refits,
}

impl Holds {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Episodes => "episodes",
            Self::FirstStates => "first_states",
            Self::Refits => "refits",
        }
    }
}

pub(super) fn estimate(
    args: &OpeArgs,
    judge: &mut Judge<'_>,
    gamma: f64,
    logged: &LoggedEpisodes,
) -> Result<Found, Failure> {
    let mut rows = if args.bandit { one_by_one(&logged.rows).map_err(Failure::usage)? } else { logged.rows.clone() };
    let gamma = if args.bandit { 1.0 } else { gamma };

    let has_ratios = args.wants_ratios();
    if !has_ratios {
        // The model does not look at them.
        rows.insert(ACTION_PROB.name(), ColumnData::scalars(vec![1.0f32; rows.len()])).map_err(Failure::other)?;
    }
    let model = if args.wants_model() { Some(model::fit(args, gamma, judge, &mut rows)?) } else { None };

    let streams = Streams::new(args.seed, Purpose::Shuffle);
    let line = |name: EstimatorName| {
        let of = name.estimator();
        let estimate = of.estimate(&rows, gamma, true)?;
        let refits = model.as_ref().map_or(&[][..], |model| model.refits(of));
        let (interval, holds) = if refits.is_empty() {
            let holds = if of == Estimator::DirectMethod { Holds::FirstStates } else { Holds::Episodes };
            (of.interval(&rows, gamma, args.confidence, args.resamples, &streams)?, holds)
        } else {
            (refit_interval(estimate.v_target, refits, args.confidence)?, Holds::Refits)
        };
        Ok(Line { name, estimate, interval, holds })
    };
    let estimates = args.estimators.iter().map(|name| line(*name)).collect::<Result<_, _>>();
    let estimates: Vec<Line> = estimates.map_err(|error: EstimateError| Failure::usage(error))?;
    // What who acted has earned is the same for all of them.
    let by = args.estimators.first().map_or(Estimator::ImportanceSampling, |name| name.estimator());
    let samples = by.per_episode(&rows, gamma).map_err(Failure::usage)?;
    let returns: Vec<f64> = samples.iter().map(|sample| sample.v_behavior).collect();
    let behavior = Estimate::of(&samples).map_err(Failure::usage)?;
    let interval = bootstrap_interval(&returns, args.confidence, args.resamples, &streams).map_err(Failure::usage)?;
    let weights = has_ratios.then(|| importance_weights(&rows)).transpose().map_err(Failure::usage)?;
    let rewards = rows.column(REWARDS.name()).and_then(numbers).unwrap_or_default();
    Ok(Found {
        samples: samples.len(),
        behavior: (behavior, interval),
        effective_samples: weights.map(|weights| effective_sample_size(&weights)),
        estimates,
        fit: model.map(|model| model.fit),
        equal_rewards: rewards.windows(2).all(|pair| pair[0] == pair[1]),
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
