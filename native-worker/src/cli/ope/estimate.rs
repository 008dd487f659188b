//! Computing the estimates.

use rollmesh_core::{
    batch::{ACTION_PROB, EPS_ID, REWARDS, SampleBatch, TERMINATEDS},
    column::{Column, ColumnData},
    estimate::{
        Estimate, EstimateError, Estimator, Interval, LoggedEpisodes, bootstrap_interval, effective_sample_size,
        importance_weights, refit_interval,
    },
    policy::Judge,
    rng::{Purpose, Streams},
};

use super::{EstimatorName, OpeArgs, model};
use crate::{cli::exit::Failure, learner::Fit};

/// The estimates of the policy from the log.
pub(super) struct EstimateFound {
    /// Number of episodes, or of rows of a bandit.
    pub(super) samples: usize,
    /// Return of the behaviour policy.
    pub(super) behavior: (Estimate, Interval),
    /// `None` if no estimator uses ratios.
    pub(super) effective_samples: Option<f64>,
    pub(super) estimates: Vec<EstimateLine>,
    pub(super) fit: Option<Fit>,
    /// True if every row has the same reward.
    pub(super) equal_rewards: bool,
}

/// The result of one estimator.
pub(super) struct EstimateLine {
    pub(super) name: EstimatorName,
    pub(super) estimate: Estimate,
    pub(super) interval: Interval,
    pub(super) holds: Holds,
    /// True if an end of the interval is far outside of the range of single episodes.
    pub(super) strays: bool,
}

/// The uncertainty that an interval covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// Of the logged episodes, for a fixed model.
    Episodes,
    /// Of the logged first states, for a fixed model.
    FirstStates,
    /// Of the logged episodes, and of the model learned from them.
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
) -> Result<EstimateFound, Failure> {
    let mut rows = if args.bandit { one_by_one(&logged.rows).map_err(Failure::usage)? } else { logged.rows.clone() };
    let gamma = if args.bandit { 1.0 } else { gamma };

    let has_ratios = args.wants_ratios();
    if !has_ratios {
        // The model does not use them.
        rows.insert(ACTION_PROB.name(), ColumnData::scalars(vec![1.0f32; rows.len()])).map_err(Failure::other)?;
    }
    let model = if args.wants_model() { Some(model::fit(args, gamma, judge, &mut rows)?) } else { None };

    let streams = Streams::new(args.seed, Purpose::Shuffle);
    let line = |name: EstimatorName| {
        let of = name.estimator();
        let estimate = of.estimate(&rows, gamma, true)?;
        let refits = model.as_ref().map_or(&[][..], |model| model.refits(of));
        if !refits.is_empty() {
            let interval = refit_interval(estimate.v_target, refits, args.confidence)?;
            return Ok(EstimateLine { name, estimate, interval, holds: Holds::Refits, strays: false });
        }
        let holds = if of == Estimator::DirectMethod { Holds::FirstStates } else { Holds::Episodes };
        let interval = of.interval(&rows, gamma, args.confidence, args.resamples, &streams)?;
        let strays = strays(interval, of.per_episode(&rows, gamma)?.iter().map(|sample| sample.v_target));
        Ok(EstimateLine { name, estimate, interval, holds, strays })
    };
    let estimates = args.estimators.iter().map(|name| line(*name)).collect::<Result<_, _>>();
    let estimates: Vec<EstimateLine> = estimates.map_err(|error: EstimateError| Failure::usage(error))?;
    // The behaviour policy's return is the same for all of them.
    let by = args.estimators.first().map_or(Estimator::ImportanceSampling, |name| name.estimator());
    let samples = by.per_episode(&rows, gamma).map_err(Failure::usage)?;
    let returns: Vec<f64> = samples.iter().map(|sample| sample.v_behavior).collect();
    let behavior = Estimate::of(&samples).map_err(Failure::usage)?;
    let interval = bootstrap_interval(&returns, args.confidence, args.resamples, &streams).map_err(Failure::usage)?;
    let weights = has_ratios.then(|| importance_weights(&rows)).transpose().map_err(Failure::usage)?;
    let rewards = rows.column(REWARDS.name()).and_then(Column::numbers).unwrap_or_default();
    Ok(EstimateFound {
        samples: samples.len(),
        behavior: (behavior, interval),
        effective_samples: weights.map(|weights| effective_sample_size(&weights)),
        estimates,
        fit: model.map(|model| model.fit),
        equal_rewards: rewards.windows(2).all(|pair| pair[0] == pair[1]),
    })
}

/// Returns whether an end of a mean's interval is farther outside of all values than their range: then few samples
/// dominate the estimate.
fn strays(interval: Interval, values: impl Iterator<Item = f64>) -> bool {
    let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| (least.min(x), most.max(x)));
    let range = most - least;
    // Equal episodes differ in rounding only.
    if range <= 1e-9 * least.abs().max(most.abs()) {
        return false;
    }
    interval.low < least - range || interval.high > most + range
}

/// Returns rows as episodes of one step.
fn one_by_one(rows: &SampleBatch) -> Result<SampleBatch, rollmesh_core::batch::BatchError> {
    let mut rows = rows.clone();
    let n = rows.len();
    rows.insert(EPS_ID.name(), ColumnData::scalars((0..n as i64).collect()))?;
    rows.insert(TERMINATEDS.name(), ColumnData::scalars(vec![true; n]))?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_stray_that_are_farther_away_than_the_values_are_apart() {
        let of = |low, high| strays(Interval { low, high }, [1.0, 3.0, 2.0].into_iter());
        assert_eq!([of(1.5, 2.5), of(-1.0, 5.0), of(-1.1, 2.0), of(2.0, 5.1)], [false, false, true, true]);
        assert!(!strays(Interval { low: 4.0, high: 4.0 }, [4.0; 3].into_iter()));
        assert!(!strays(Interval { low: 0.3, high: 0.5 }, [0.1 + 0.2, 0.3].into_iter()), "equal but for rounding");
    }
}
