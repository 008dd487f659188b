//! The coverage of intervals of off-policy estimates: on CartPole, with two known policies, they contain the value of
//! the target policy as often as their level says.
//!
//! RLlib's weighted importance sampling has no such coverage, since it cannot distinguish policies if every step has
//! the same reward. And weights of whole trajectories have less coverage the farther the policies are apart: then a few
//! episodes have nearly all the weight, and the log lacks those with more. Between the policies that are far apart
//! their interval contained the value in 90 of 100 repetitions (83 by the percentile bootstrap), that of `is` in 97, of
//! `cwpdis` in 94.
//!
//! `ROLLMESH_LONG=1` takes a hundred repetitions, and prints the coverage by estimator.

use rollmesh::{
    kernels,
    learner::{FittedQ, FittedQConfig},
};
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, EPS_ID, OBS, REWARDS, SampleBatch, TERMINATEDS},
    env::{EnvRegistry, EnvSpaces},
    estimate::{EpisodeLog, Estimator, Interval, draw_episodes, refit_interval},
    ids::{PolicyId, WeightsVersion},
    policy::{Judge, ModelConfig, NetPolicy},
    rng::{Purpose, Streams},
    weights::{Tensor, Weights},
    worker::{NewPolicy, RolloutConfig, RolloutWorker, config::BatchMode},
};

const GAMMA: f64 = 0.95;
/// The strength with which the target policy reacts to the pole's fall, and that of the behaviour policy: a bit less,
/// or half as much.
const TARGET: f32 = 1.0;
const NEAR: f32 = 0.7;
const FAR: f32 = 0.5;
/// Episodes of a log.
const EPISODES: i64 = 200;
/// The number of refits of `rollmesh ope`.
const REFITS: u32 = 10;
/// The value of the target policy: the mean return of 50,000 of its episodes.
const TRUTH: f64 = 17.461;

/// Returns whether to run the repetitions that take minutes.
fn is_long() -> bool {
    std::env::var_os("ROLLMESH_LONG").is_some_and(|value| value == "1")
}

fn spaces() -> EnvSpaces {
    EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap()
}

/// Returns a policy that pushes to the side to which the pole falls, with more certainty for a larger `care`.
fn policy(care: f32, seed: u64) -> NetPolicy {
    // Of the cart's place and speed nothing, of the pole's angle and its speed.
    let tensor = |name: &str, shape: &[u32], values: &[f32]| Tensor {
        name: name.into(),
        shape: shape.to_vec(),
        values: values.to_vec(),
    };
    let mut tensors = vec![
        tensor("policy.0.weight", &[4, 2], &[0.0, 0.0, 0.0, 0.0, 0.0, 3.0 * care, 0.0, care]),
        tensor("policy.0.bias", &[2], &[0.0; 2]),
        tensor("value.0.weight", &[4, 1], &[0.0; 4]),
        tensor("value.0.bias", &[1], &[0.0]),
    ];
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let weights = Weights::new(WeightsVersion(0), tensors).unwrap();
    let model = ModelConfig { fcnet_hiddens: Vec::new(), ..ModelConfig::default() };
    NetPolicy::new(&spaces(), &model, weights, seed, kernels::AUTO).unwrap()
}

/// Returns the first `count` episodes of one environment, whatever their lengths.
fn episodes(care: f32, seed: u64, count: i64) -> SampleBatch {
    let config = RolloutConfig { seed, ..RolloutConfig::new("CartPole-v1") };
    let config = config.batch_mode(BatchMode::CompleteEpisodes).rollout_fragment_length(2_000);
    let mut worker = RolloutWorker::builder()
        .config(config)
        .kernels(kernels::AUTO)
        .policy(PolicyId::DEFAULT, NewPolicy::object(Box::new(policy(care, seed))))
        .build()
        .unwrap();
    let names = [OBS.name(), ACTIONS.name(), REWARDS.name(), TERMINATEDS.name(), ACTION_LOGP.name()];
    let (mut log, mut ended) = (EpisodeLog::new(&names), 0);
    while ended < count {
        log.add(worker.sample().unwrap().single().unwrap()).unwrap();
        ended += worker.metrics().episodes.len() as i64;
    }
    let rows = log.finish().unwrap().rows;
    let end = rows.get(EPS_ID).unwrap().partition_point(|episode| *episode < count);
    rows.index_slice(0..end)
}

/// Returns the mean return of the target policy.
fn truth(count: i64) -> f64 {
    let mut rows = episodes(TARGET, 1_000_003, count);
    Judge::new(&mut policy(TARGET, 0), &spaces()).add_probs(&mut rows).unwrap();
    Estimator::ImportanceSampling.estimate(&rows, GAMMA, true).unwrap().v_behavior
}

/// Returns an interval and the estimate in it, by estimator.
fn intervals(care: f32, seed: u64, estimators: &[Estimator]) -> Vec<(Interval, f64)> {
    let mut rows = episodes(care, seed, EPISODES);
    let mut target = policy(TARGET, 0);
    let mut judge = Judge::new(&mut target, &spaces());
    judge.add_probs(&mut rows).unwrap();
    let streams = Streams::new(seed, Purpose::Shuffle);
    let with_model = estimators.iter().any(|estimator| estimator.needs_model());
    // Doubly robust estimates are right with any model, but for their spread.
    let (refits, usual) = (if is_long() { REFITS } else { 0 }, FittedQConfig::for_log(GAMMA));
    let config = if is_long() { usual } else { FittedQConfig { n_iters: 4, ..usual } };
    let mut fitted = |mut rows: SampleBatch, seed: u64| {
        let transitions = judge.transitions(&rows).unwrap();
        let (mut model, _) = FittedQ::of_log(&transitions, GAMMA, config.clone(), seed, kernels::AUTO, |_| ()).unwrap();
        judge.add_values(&mut rows, &mut model).unwrap();
        rows
    };
    let draws = (1..=if with_model { refits } else { 0 }).map(|draw| draw_episodes(&rows, &streams, draw).unwrap());
    let draws: Vec<SampleBatch> = draws.zip(1..).map(|(drawn, draw)| fitted(drawn, seed + 1_000 * draw)).collect();
    if with_model {
        rows = fitted(rows, seed);
    }
    let value = |estimator: Estimator, rows| estimator.estimate(rows, GAMMA, true).unwrap().v_target;
    let interval = |estimator: &Estimator| {
        let estimate = value(*estimator, &rows);
        let interval = if estimator.needs_model() && !draws.is_empty() {
            let refits: Vec<f64> = draws.iter().map(|drawn| value(*estimator, drawn)).collect();
            refit_interval(estimate, &refits, 0.95).unwrap()
        } else {
            estimator.interval(&rows, GAMMA, 0.95, if is_long() { 1_000 } else { 300 }, &streams).unwrap()
        };
        (interval, estimate)
    };
    estimators.iter().map(interval).collect()
}

/// Returns, for each estimator, the number of its intervals that contain the true value.
fn hold(care: f32, repetitions: u64, estimators: &[Estimator]) -> Vec<u64> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let share = |first: u64| {
        let seeds = (first..repetitions).step_by(threads as usize);
        seeds.map(|seed| intervals(care, seed, estimators)).collect::<Vec<_>>()
    };
    let found: Vec<Vec<(Interval, f64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(move || share(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let judged = estimators.iter().enumerate().map(|(i, estimator)| {
        let mean = |of: &dyn Fn(&(Interval, f64)) -> f64| {
            found.iter().map(|found| of(&found[i])).sum::<f64>() / found.len() as f64
        };
        let hits = found.iter().filter(|found| (found[i].0.low..=found[i].0.high).contains(&TRUTH)).count() as u64;
        let (value, width) = (mean(&|found| found.1), mean(&|found| found.0.high - found.0.low));
        let spread = mean(&|found| (found.1 - value).powi(2)).sqrt();
        println!(
            "{care} {:<13} {hits} of {repetitions}, mean {value:.3}, standard deviation {spread:.3}, width {width:.3}",
            estimator.name()
        );
        // A wide enough interval would contain any value.
        assert!(width < 30.0 * (spread + 0.1), "{}: {width}", estimator.name());
        hits
    });
    judged.collect()
}

use Estimator::{
    ConsistentWeightedImportanceSampling, DoublyRobust, ImportanceSampling, TrajectoryImportanceSampling,
    WeightedImportanceSampling,
};

#[test]
fn value_of_a_policy_is_within_the_intervals_estimated_from_another_ones_log() {
    let fast = [ImportanceSampling, TrajectoryImportanceSampling, ConsistentWeightedImportanceSampling, DoublyRobust];
    // Nine of ten at least; of a few repetitions one more may fail.
    let (repetitions, enough, estimators) = if is_long() { (100, 90, &Estimator::ALL[..]) } else { (10, 8, &fast[..]) };
    if is_long() {
        let truth = truth(50_000);
        assert!((truth - TRUTH).abs() < 0.05, "{truth}");
    }
    for (estimator, hits) in estimators.iter().zip(hold(NEAR, repetitions, estimators)) {
        let blind = *estimator == WeightedImportanceSampling;
        assert!(blind || hits >= enough, "{}: {hits} of {repetitions}", estimator.name());
    }
}

/// Checks policies that are far apart, for which weights of whole trajectories are unreliable, and reported as such;
/// the other estimators have their coverage.
#[test]
fn policies_that_are_far_apart_are_judged_step_by_step() {
    let estimators = [ImportanceSampling, TrajectoryImportanceSampling, ConsistentWeightedImportanceSampling];
    let (repetitions, enough) = if is_long() { (100, [90, 85, 90]) } else { (5, [4, 3, 4]) };
    let hits = hold(FAR, repetitions, &estimators);
    assert!(hits.iter().zip(enough).all(|(hits, enough)| *hits >= enough), "{hits:?}");
}
