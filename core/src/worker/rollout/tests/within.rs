//! Samples made in many calls are the same as those made in one.

use core::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::super::test_support::*;
use crate::{
    batch::{AnyBatch, OBS, SampleBatch},
    callbacks::{CallbackError, Callbacks, EpisodeHook, TrajectoryHook},
    column::ColumnData,
    env::EnvError,
    episode::{GlobalVars, RolloutMetrics, SamplerPerf},
    filter::FilterKind,
    ids::{AgentId, PolicyId},
    prelude::*,
    sampler::{BatchMode, CountStepsBy, InputReader, SampleError, SamplerHost},
    time::Micros,
    worker::{PolicyConfig, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder, SamplerChoice},
};

/// Returns a clock that advances by one with every reading, so that a budget is a maximum number of rounds.
fn clock() -> impl Fn() -> Micros + Send + Sync + 'static {
    let now = AtomicU64::new(0);
    move || Micros(now.fetch_add(1, Ordering::Relaxed))
}

/// Adds the rows of each episode a second time.
#[derive(Default)]
struct Echo(SampleBatch);

impl Callbacks for Echo {
    fn on_postprocess_trajectory(&mut self, hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        self.0 = hook.trajectory.clone();
        Ok(())
    }

    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, _fault: Option<&EnvError>) -> Result<(), CallbackError> {
        hook.episode.add_extra_batch(self.0.clone());
        Ok(())
    }
}

/// Batches of three rows.
struct Log(f32);

impl InputReader for Log {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.0 += 1.0;
        Ok(SampleBatch::new().with(OBS, ColumnData::scalars(vec![self.0; 3]))?.into())
    }
}

fn lanes() -> RolloutWorkerBuilder {
    let config = RolloutConfig::new("CartPole-v1").num_envs(3).rollout_fragment_length(17).seed(3);
    RolloutWorker::builder().config(config.fcnet_hiddens(&[8]))
}

fn several_agents(config: RolloutConfig) -> RolloutWorkerBuilder {
    let config = RolloutConfig { env: Some("MultiAgentCartPole-v1".into()), num_envs: 2, ..config };
    let policies = ["even", "odd"].map(|id| (PolicyId::new(id), PolicyConfig::default())).into();
    let config = RolloutConfig { policies, ..config }.rollout_fragment_length(11).seed(4).fcnet_hiddens(&[8]);
    RolloutWorker::builder().config(config).policy_mapping_fn(|agent, _, _, _| {
        PolicyId::new(if matches!(agent, AgentId::Index(i) if i % 2 == 1) { "odd" } else { "even" })
    })
}

/// Creates workers of every kind: lockstep, whole episodes, filters, several agents counted in two ways, failures, rows
/// added by callbacks, and an input.
fn worker(kind: usize) -> RolloutWorker {
    let plain = RolloutConfig::default;
    let builder = match kind {
        0 => lanes(),
        1 => lanes().sampler(SamplerChoice::Episodic),
        2 => counting(7, plain().batch_mode(BatchMode::CompleteEpisodes).num_envs(2).rollout_fragment_length(9)),
        3 => {
            let config = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..plain() };
            RolloutWorker::builder().config(RolloutConfig { env: Some("Pendulum-v1".into()), ..config }.num_envs(2))
        }
        4 => several_agents(plain()),
        5 => several_agents(RolloutConfig { count_steps_by: CountStepsBy::AgentSteps, ..plain() }),
        6 => several_agents(plain().batch_mode(BatchMode::CompleteEpisodes)),
        7 => {
            let config = RolloutConfig { restart_failed_sub_environments: true, ..plain() }.single_policy("random");
            RolloutWorker::builder().config(config.num_envs(2).rollout_fragment_length(10)).env_spec(failing(4, 9))
        }
        8 => counting(5, plain().rollout_fragment_length(8)).callbacks(Box::new(Echo::default())),
        _ => counting(5, plain().rollout_fragment_length(8)).input_creator(|_| Ok(Box::new(Log(0.0)))),
    };
    builder.clock(clock()).build().unwrap()
}

const KINDS: usize = 10;

/// Returns the metrics of episodes without durations.
fn episodes(worker: &mut RolloutWorker) -> Vec<RolloutMetrics> {
    let episodes = worker.metrics().episodes.into_iter();
    episodes.map(|episode| RolloutMetrics { perf: SamplerPerf::default(), ..episode }).collect()
}

fn assert_same(a: &AnyBatch, b: &AnyBatch, what: &str) {
    assert_eq!(a, b, "{what}");
    let (a, b) = (a.as_multi_agent(), b.as_multi_agent());
    assert!(a.policy_batches.iter().all(|(id, rows)| rows.same_bits(&b.policy_batches[id])), "{what}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn samples_and_episodes_are_bit_identical_for_any_budget(
        kind in 0..KINDS,
        budgets in prop::collection::vec(prop_oneof![Just(0), 0..200u64, Just(u64::MAX)], 1..20),
        set_at in 0..30usize,
        whole in 0..4usize,
    ) {
        let (mut one, mut other) = (worker(kind), worker(kind));
        let mut budgets = budgets.iter().cycle();
        let mut calls = 0;
        for sample in 0..4 {
            let mut weights = None;
            let within = loop {
                let result = if sample == whole && calls % 7 == 6 {
                    other.sample().map(Some)
                } else {
                    other.sample_within(Micros(*budgets.next().unwrap()))
                };
                calls += 1;
                if calls == set_at {
                    let new = other_weights(&mut other);
                    let vars = GlobalVars { timestep: 7, ..GlobalVars::default() };
                    other.set_weights(&new, Some(&vars), None).unwrap();
                    prop_assert_eq!(other.weights(None).unwrap(), new.clone());
                    prop_assert_eq!(other.global_vars(), vars.clone());
                    weights = Some((new, vars));
                }
                if let Some(batch) = result.unwrap() {
                    break batch;
                }
            };
            assert_same(&one.sample().unwrap(), &within, &format!("sample {sample} of worker {kind}"));
            prop_assert_eq!(episodes(&mut one), episodes(&mut other));
            // Weights that are set while a sample is in progress take effect as if set after it.
            if let Some((weights, vars)) = weights {
                one.set_weights(&weights, Some(&vars), None).unwrap();
            }
        }
    }
}

/// Rounds of a first sample of 17 steps: the episodic sampler has one more, for the first observations.
const ROUNDS: [(SamplerChoice, u64); 2] = [(SamplerChoice::Lockstep, 17), (SamplerChoice::Episodic, 18)];

#[test]
fn every_call_makes_a_round_and_not_one_more_than_there_is_time_for() {
    for (sampler, rounds) in ROUNDS {
        for budget in [0, 1, 7, 20] {
            let mut worker = lanes().sampler(sampler).clock(clock()).build().unwrap();
            let mut calls = 1;
            while worker.sample_within(Micros(budget)).unwrap().is_none() {
                calls += 1;
            }
            // Each round reads the clock at least once.
            let most = budget.max(1);
            assert!(calls >= rounds.div_ceil(most) && calls <= rounds, "{sampler:?}, {budget}: {calls} calls");
            assert!(budget > 0 || calls == rounds, "{sampler:?}: {calls} calls");
            assert!(budget < 20 || calls < rounds, "{sampler:?}: {calls} calls");
        }
    }
}

#[test]
fn on_a_clock_that_stands_still_a_call_makes_one_round_or_a_sample() {
    for (sampler, rounds) in ROUNDS {
        let mut worker = lanes().sampler(sampler).build().unwrap();
        for _ in 1..rounds {
            assert_eq!(worker.sample_within(Micros(0)), Ok(None));
        }
        assert!(worker.sample_within(Micros(0)).unwrap().is_some());
        assert!(worker.sample_within(Micros(1)).unwrap().is_some());
    }
}

#[test]
fn sample_in_progress_has_one_version_of_the_weights() {
    for kind in [0, 1, 4] {
        let (mut one, mut other) = (worker(kind), worker(kind));
        assert_eq!(other.sample_within(Micros(0)), Ok(None));
        // Set twice: the last ones take effect, after the sample.
        for _ in 0..2 {
            let weights = other_weights(&mut other);
            other.set_weights(&weights, None, Some(1)).unwrap();
            other.set_weights(&weights, None, None).unwrap();
            assert_eq!(other.weights(None).unwrap(), weights);
            assert_eq!(other.sample_within(Micros(0)), Ok(None));
            assert_eq!(other.weights(None).unwrap(), weights);
        }
        assert_same(&one.sample().unwrap(), &other.sample().unwrap(), "the one that has begun");
        one.set_weights(&other.weights(None).unwrap(), None, None).unwrap();
        assert_same(&one.sample().unwrap(), &other.sample().unwrap(), "the next one");
    }
}

#[test]
fn weights_learned_during_a_sample_act_from_the_next_one() {
    let build = || counting(4, RolloutConfig::default().rollout_fragment_length(6)).build().unwrap();
    let mut worker = build();
    let batch = worker.sample().unwrap();
    assert_eq!(worker.sample_within(Micros(0)), Ok(None));
    worker.learn_on_batch(&batch).unwrap();
    assert_eq!(value_of(&worker.weights(None).unwrap()[&PolicyId::DEFAULT]), 6.0);
    worker.sample_within(Micros(1)).unwrap().unwrap();
    assert_eq!(value_of(&worker.weights(None).unwrap()[&PolicyId::DEFAULT]), 6.0);
}

#[test]
fn samples_say_how_many_updates_the_weights_had_with_which_they_began() {
    let mut worker = counting(4, RolloutConfig::default().rollout_fragment_length(6)).build().unwrap();
    let vars =
        |updates| GlobalVars { timestep: updates, num_grad_updates_per_policy: [(PolicyId::DEFAULT, updates)].into() };
    worker.set_global_vars(&vars(1), None).unwrap();
    assert_eq!(worker.sample_within(Micros(0)), Ok(None));
    worker.set_global_vars(&vars(2), None).unwrap();
    worker.set_global_vars(&vars(3), Some(&[])).unwrap();
    assert_eq!(worker.global_vars(), vars(3));
    let updates = |worker: &mut RolloutWorker| worker.sample().unwrap().single().unwrap().num_grad_updates();
    assert_eq!([updates(&mut worker), updates(&mut worker)], [Some(1.0), Some(3.0)]);
}

#[test]
fn a_state_that_is_saved_meanwhile_is_that_before_the_sample() {
    for kind in [0, 2, 4] {
        let (mut one, mut other) = (worker(kind), worker(kind));
        if kind == 0 {
            // In the middle of episodes, which only lockstep can continue.
            assert_same(&one.sample().unwrap(), &other.sample().unwrap(), "the first one");
        }
        let state = one.save().unwrap();
        for _ in 0..3 {
            assert_eq!(other.sample_within(Micros(0)), Ok(None));
        }
        if kind == 0 {
            assert_eq!(other.save().unwrap(), state);
        }
        // It continues, or restarts from the state.
        if kind == 2 {
            other.restore(&state).unwrap();
            assert!(other.metrics().discarded_env_steps > 0);
        }
        let sample = other.sample().unwrap();
        assert_same(&one.sample().unwrap(), &sample, "after saving");
        other.sample_within(Micros(0)).unwrap();
        let discarded = other.metrics().discarded_env_steps;
        assert!(other.restore(&[]).is_err() && other.metrics().discarded_env_steps == 0 && discarded == 0);
        let mut third = worker(kind);
        (0..2).for_each(|_| assert_eq!(third.sample_within(Micros(0)), Ok(None)));
        third.restore(&state).unwrap();
        assert!(third.metrics().discarded_env_steps > 0);
        assert_same(&third.sample().unwrap(), &sample, "from the state");
    }
}

#[test]
fn a_state_that_does_not_fit_leaves_a_sample_that_has_begun_as_it_would_be() {
    let random = |env: &str| {
        let config = RolloutConfig::new(env).num_envs(3).rollout_fragment_length(17).single_policy("random");
        RolloutWorker::builder().config(config).sampler(SamplerChoice::Lockstep).build().unwrap()
    };
    let mut car = random("MountainCar-v0");
    car.sample().unwrap();
    let state = car.save().unwrap();
    let (mut one, mut other) = (random("CartPole-v1"), random("CartPole-v1"));
    other.sample_within(Micros(0)).unwrap();
    other.restore(&state).unwrap_err();
    for _ in 0..2 {
        assert_same(&one.sample().unwrap(), &other.sample().unwrap(), "afterwards");
    }
}

#[test]
fn fragments_of_the_length_that_has_begun_complete_it() {
    let mut worker = lanes().build().unwrap();
    let wanted = lanes().build().unwrap().sample_fragments(17).unwrap();
    assert_eq!(worker.sample_within(Micros(0)), Ok(None));
    assert_eq!(worker.sample_fragments(16), Err(RolloutError::HasBegun { begun: 17, wanted: 16 }));
    assert_eq!(worker.sample_fragments(17).unwrap(), wanted);
    assert_eq!(worker.sample_fragments(16).unwrap()[0].rows.len(), 16);
}

#[test]
fn errors_come_with_the_call_that_meets_them_and_what_was_finished_is_kept() {
    // Episodes of 4 steps; the sixth step fails.
    let build = || {
        let config = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..RolloutConfig::default() };
        let config = config.rollout_fragment_length(8).single_policy("random");
        RolloutWorker::builder().config(config).env_spec(failing(4, 6)).build().unwrap()
    };
    let (mut one, mut other) = (build(), build());
    // The first round returns the first observations.
    for _ in 0..6 {
        assert_eq!(other.sample_within(Micros(0)), Ok(None));
    }
    let error = other.sample_within(Micros(0)).unwrap_err();
    assert_eq!(Err(error), one.sample());
    let metrics = other.metrics();
    assert_eq!((metrics.episodes.len(), metrics.discarded_env_steps, metrics.discarded_agent_steps), (1, 1, 1));
    while other.sample_within(Micros(0)).unwrap().is_none() {}
    let (one, other) = (one.metrics(), other.metrics());
    assert_eq!((one.episodes.len(), one.discarded_env_steps, other.discarded_env_steps), (1, 1, 0));
}
