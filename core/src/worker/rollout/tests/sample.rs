use core::sync::atomic::{AtomicU32, Ordering};

use super::super::test_support::*;
use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, ADVANTAGES, AnyBatch, BatchError, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T,
        TERMINATEDS, TRUNCATEDS, UNROLL_ID,
    },
    callbacks::{CallbackError, Callbacks, TrajectoryHook, WorkerInfo},
    column::ColumnData,
    env::{EnvContext, Moment, RowsMut, RowsRef, SubEnv},
    episode::{Episode, OtherAgent},
    ids::PolicyId,
    policy::{ActionInput, ActionOutput, Policy, PolicyError, Postprocessing, RandomPolicy},
    prelude::*,
    sampler::{BatchMode, InputReader, OutputWriter, RewardClipping, SampleError, SamplerHost},
    weights::Weights,
    worker::{
        NewPolicy, RolloutConfig, RolloutError, RolloutWorker, SamplerChoice, WorkerPlace,
        config::{Compression, InputEvaluation},
    },
};

fn worker(length: u32, envs: u32, fragment: u32, mode: BatchMode) -> RolloutWorker {
    let config = RolloutConfig { num_envs: envs, ..RolloutConfig::default() };
    counting(length, config.rollout_fragment_length(fragment).batch_mode(mode)).build().unwrap()
}

fn single(worker: &mut RolloutWorker) -> SampleBatch {
    worker.sample().unwrap().single().unwrap().clone()
}

const TRUNCATE: BatchMode = BatchMode::TruncateEpisodes;
const COMPLETE: BatchMode = BatchMode::CompleteEpisodes;

/// RLlib 2.9.3 returns as many rows.
#[test]
fn samples_are_as_long_as_their_mode_says() {
    let mut truncating = worker(10, 1, 15, TRUNCATE);
    assert_eq!([(); 3].map(|()| single(&mut truncating).len()), [15; 3]);
    assert_eq!(single(&mut worker(10, 1, 5, COMPLETE)).len(), 10);
    let two = single(&mut worker(10, 1, 15, COMPLETE));
    assert_eq!(two.get(T).unwrap(), (0..10).chain(0..10).collect::<Vec<i64>>());
    let ts = |batch: SampleBatch| batch.get(T).unwrap().to_vec();
    assert_eq!(ts(single(&mut worker(100, 2, 3, TRUNCATE))), [0, 1, 2, 0, 1, 2]);
    let five = single(&mut worker(5, 3, 8, COMPLETE));
    assert_eq!((five.len(), five.get(EPS_ID).unwrap().iter().collect::<BTreeSet<_>>().len()), (25, 5));
    let (batch, count) = worker(10, 2, 4, TRUNCATE).sample_with_count().unwrap();
    assert_eq!((batch.env_steps(), count), (8, 8));
}

/// RLlib 2.9.3 returns the same rows.
#[test]
fn episodes_continue_in_the_next_sample() {
    for sampler in [SamplerChoice::Auto, SamplerChoice::Episodic] {
        let config = RolloutConfig::default().rollout_fragment_length(6);
        let mut worker = counting(4, config).sampler(sampler).build().unwrap();
        let (one, two) = (single(&mut worker), single(&mut worker));
        assert_eq!(one.get(OBS).unwrap(), [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]);
        assert_eq!(one.get(NEW_OBS).unwrap(), [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
        assert_eq!(one.get(TERMINATEDS).unwrap(), [false, false, false, true, false, false]);
        assert_eq!(two.get(T).unwrap(), [2, 3, 0, 1, 2, 3]);
        let ids = |batch: &SampleBatch, key| batch.get(key).unwrap().iter().copied().collect::<BTreeSet<i64>>();
        assert_eq!((ids(&one, EPS_ID).len(), ids(&one, UNROLL_ID).len()), (2, 2));
        assert_eq!(ids(&one, EPS_ID).intersection(&ids(&two, EPS_ID)).count(), 1);
        assert_eq!(ids(&one, UNROLL_ID).intersection(&ids(&two, UNROLL_ID)).count(), 0);
        let metrics = worker.metrics();
        let ends: Vec<(u32, f64)> = metrics.episodes.iter().map(|m| (m.length, m.episode_return)).collect();
        assert_eq!(ends, [(4, 400.0); 3]);
        assert_eq!((metrics.summary().episodes, metrics.summary().episode_return.mean), (3, 400.0));
        assert_eq!(worker.metrics().episodes, []);
    }
}

/// RLlib 2.9.3 returns the same numbers of episodes.
#[test]
fn episodes_are_counted_when_they_end() {
    let mut worker = worker(20, 8, 2, TRUNCATE);
    for (samples, episodes) in [(8, 0), (8, 8)] {
        for _ in 0..samples {
            assert_eq!(worker.sample().unwrap().env_steps(), 16);
        }
        assert_eq!(worker.metrics().episodes.len(), episodes);
    }
}

/// RLlib 2.9.3 returns the same numbers of rows and episodes.
#[test]
fn episodes_end_in_the_second_sample() {
    let mut worker = worker(8, 4, 4, TRUNCATE);
    for episodes in [0, 4] {
        assert_eq!((worker.sample().unwrap().env_steps(), worker.metrics().episodes.len()), (16, episodes));
    }
}

#[test]
fn horizon_precedes_the_limit_of_the_environment() {
    for (horizon, length) in [(None, 200), (Some(150), 150), (Some(200), 200), (Some(260), 260)] {
        let config = RolloutConfig { horizon, ..RolloutConfig::new("MountainCar-v0") }.single_policy("random");
        let config = config.rollout_fragment_length(1).batch_mode(COMPLETE);
        let batch = single(&mut RolloutWorker::builder().config(config).build().unwrap());
        assert_eq!(batch.len(), length);
        assert_eq!(batch.get(TRUNCATEDS).unwrap().iter().filter(|truncated| **truncated).count(), 1);
    }
}

/// Sums rewards backwards, as if 100 followed the last one.
struct Discounting(RandomPolicy);

impl Policy for Discounting {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        self.0.compute_actions(input, out)
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.0.compute_values(obs, state, values)
    }

    fn weights(&self) -> &Weights {
        self.0.weights()
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.set_weights(weights)
    }

    fn postprocessing(&self) -> Postprocessing {
        Postprocessing::Custom
    }

    fn postprocess_trajectory(
        &mut self,
        mut trajectory: SampleBatch,
        _others: &[OtherAgent<'_>],
        _episode: &Episode,
    ) -> Result<SampleBatch, PolicyError> {
        let mut sum = 100.0;
        let mut advantages: Vec<f32> = trajectory.get(REWARDS).unwrap().to_vec();
        for value in advantages.iter_mut().rev() {
            sum = *value + 0.9 * sum;
            *value = sum;
        }
        trajectory.insert(ADVANTAGES.name(), ColumnData::scalars(advantages)).unwrap();
        Ok(trajectory)
    }
}

/// RLlib 2.9.3 returns the same advantages.
#[test]
fn policies_postprocess_every_piece_by_itself() {
    let policy = NewPolicy::object(Box::new(Discounting(RandomPolicy::new(2, 0))));
    let config = RolloutConfig::default().rollout_fragment_length(6);
    let builder = RolloutWorker::builder().config(config).env_spec(counter(4)).policy(PolicyId::DEFAULT, policy);
    let batch = single(&mut builder.build().unwrap());
    let wanted = [409.51, 343.9, 271.0, 190.0, 271.0, 190.0];
    let found = batch.get(ADVANTAGES).unwrap();
    assert!(found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-3), "{found:?}");
}

#[test]
fn without_exploring_every_action_is_the_most_likely_one() {
    let sampled = |explore| {
        let config = RolloutConfig { explore, num_envs: 2, ..RolloutConfig::new("CartPole-v1").raw() };
        let config = config.rollout_fragment_length(40).fcnet_hiddens(&[8]);
        let mut worker = RolloutWorker::builder().config(config).build().unwrap();
        let batch = single(&mut worker);
        let (obs, actions) = (batch.get(OBS).unwrap().to_vec(), batch.get(ACTIONS).unwrap().to_vec());
        let (mut likely, mut logp, mut values) = (vec![0; 80], [0.0; 80], [0.0; 80]);
        let moments = [Moment::default(); 80];
        let input = ActionInput { explore: false, ..ActionInput::new(RowsRef::F32(&obs), &moments) };
        let out = ActionOutput::new(RowsMut::I64(&mut likely), &mut logp, &mut values);
        worker.policy_mut(&PolicyId::DEFAULT).unwrap().compute_actions(input, out).unwrap();
        (actions, likely)
    };
    let (drawn, likely) = sampled(true);
    assert_ne!(drawn, likely);
    let (chosen, likely) = sampled(false);
    assert_eq!(chosen, likely);
}

/// RLlib 2.9.3 seeds them alike.
#[test]
fn evaluation_has_episodes_of_its_own() {
    let sampled = |seed, in_evaluation| {
        let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(30).single_policy("random").seed(seed);
        let place = WorkerPlace { in_evaluation, ..WorkerPlace::LOCAL };
        single(&mut RolloutWorker::builder().config(config).place(place).build().unwrap())
    };
    assert_ne!(sampled(3, false).get(OBS).unwrap(), sampled(3, true).get(OBS).unwrap());
    assert_eq!(sampled(10_003, false), sampled(3, true));
}

#[test]
fn rewards_are_clipped_in_batches_alone() {
    for (clip, reward) in [(RewardClipping::Sign, 1.0), (RewardClipping::Limit(2.0), 2.0), (RewardClipping::Off, 100.0)]
    {
        let config = RolloutConfig { clip_rewards: clip, ..RolloutConfig::default() }.rollout_fragment_length(3);
        let mut worker = counting(3, config).build().unwrap();
        assert_eq!(single(&mut worker).get(REWARDS).unwrap(), [reward; 3]);
        assert_eq!(worker.metrics().episodes[0].episode_return, 300.0);
    }
    let reward = |clip| {
        let config = RolloutConfig { clip_rewards: clip, ..RolloutConfig::default() }.rollout_fragment_length(1);
        let builder = RolloutWorker::builder().config(config).env_spec(rewarding(3, 0.3));
        single(&mut builder.build().unwrap()).get(REWARDS).unwrap()[0]
    };
    assert_eq!((reward(RewardClipping::Sign), reward(RewardClipping::Limit(0.2))), (1.0, 0.2));
    assert_eq!(reward(RewardClipping::Auto), 0.3);
}

/// Logs events, one letter each.
#[derive(Clone, Default)]
struct Log(Arc<AtomicU32>);

impl Log {
    fn record(&self, letter: u8) {
        self.0.store(self.0.load(Ordering::Relaxed) << 8 | u32::from(letter), Ordering::Relaxed);
    }

    fn read(&self) -> String {
        String::from_utf8(self.0.load(Ordering::Relaxed).to_be_bytes().to_vec()).unwrap()
    }
}

impl InputReader for Log {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.record(b'r');
        let floats = |value: f32| ColumnData::scalars(vec![value; 2]);
        let batch = SampleBatch::new().with(OBS, floats(1.0))?.with(REWARDS, floats(1.0))?;
        let batch = batch.with(ACTION_LOGP, floats(0.0))?.with(EPS_ID, ColumnData::scalars(vec![3, 3]))?;
        Ok(batch.with(crate::column::ColumnKey::<f32>::new("new_action_prob"), floats(0.5))?.into())
    }
}

impl Callbacks for Log {
    fn on_sample_end(&mut self, _worker: &WorkerInfo, samples: &mut AnyBatch) -> Result<(), CallbackError> {
        self.record(b'e');
        // Both batches are joined by now.
        assert_eq!(samples.env_steps(), 4);
        let AnyBatch::Single(batch) = samples else { panic!("a single batch") };
        batch.get_mut(REWARDS).unwrap().fill(2.0);
        Ok(())
    }
}

impl OutputWriter for Log {
    fn write(&mut self, batch: &AnyBatch) -> Result<(), SampleError> {
        self.record(b'w');
        let batch = batch.single().unwrap();
        assert!(batch.get(REWARDS).unwrap().iter().all(|reward| *reward == 2.0), "changed before");
        assert!(!batch.column("obs").unwrap().is_compressed(), "compressed only afterwards");
        Ok(())
    }
}

#[test]
fn a_sample_is_read_joined_changed_estimated_written_and_compressed_in_this_order() {
    let log = Log::default();
    let (input, output) = (log.clone(), log.clone());
    let config = RolloutConfig {
        compress_observations: Compression::Bulk,
        input_evaluation: [InputEvaluation::Is].into(),
        ..RolloutConfig::default()
    };
    let mut worker = counting(4, config.rollout_fragment_length(4))
        .input_creator(|_| Ok(Box::new(input)))
        .output_creator(|_| Ok(Box::new(output)))
        .callbacks(Box::new(log.clone()))
        .build()
        .unwrap();
    let batch = single(&mut worker);
    assert_eq!(log.read(), "rrew");
    assert!(batch.column("obs").unwrap().is_compressed() && !batch.column("rewards").unwrap().is_compressed());
    // The estimate uses the changed rewards: 2 of half the weight, and so on.
    let estimates = worker.metrics().estimates;
    assert_eq!((estimates.len(), estimates[0].by, &estimates[0].policy), (1, InputEvaluation::Is, &PolicyId::DEFAULT));
    let sample = &estimates[0].sample;
    assert!(sample.v_behavior > 7.8 && sample.v_target > 1.8 && sample.v_target < 1.9, "{sample:?}");
    assert!(worker.metrics().estimates.is_empty());
}

#[test]
fn estimate_for_the_policy_that_played_equals_its_return() {
    let evaluation = [InputEvaluation::Is, InputEvaluation::Wis].into();
    let config = RolloutConfig { input_evaluation: evaluation, ..RolloutConfig::new("CartPole-v1") };
    let config = config.rollout_fragment_length(60).fcnet_hiddens(&[8]);
    let mut worker = RolloutWorker::builder().config(config).build().unwrap();
    worker.sample().unwrap();
    let estimates = worker.metrics().estimates;
    assert!(estimates.len() >= 4);
    for estimate in estimates {
        let sample = estimate.sample;
        assert!((sample.v_behavior - sample.v_target).abs() < 1e-3 * sample.v_behavior, "{sample:?}");
    }
}

#[test]
fn rows_can_be_compressed_one_by_one() {
    let config = RolloutConfig { compress_observations: Compression::Rows, ..RolloutConfig::default() };
    let mut worker = counting(4, config.rollout_fragment_length(6)).build().unwrap();
    let mut batch = single(&mut worker);
    assert!(batch.column("obs").unwrap().is_compressed() && batch.column("new_obs").unwrap().is_compressed());
    batch.decompress_if_needed().unwrap();
    assert_eq!(batch.get(OBS).unwrap()[3], 3.0);
}

#[test]
fn a_fake_sampler_repeats_the_first_sample() {
    let samples = Arc::new(AtomicU32::new(0));
    let config = RolloutConfig { fake_sampler: true, ..RolloutConfig::default() }.rollout_fragment_length(6);
    let mut worker = counting(4, config).callbacks(Box::new(CountSamples(samples.clone()))).build().unwrap();
    assert_eq!(worker.sample().unwrap(), worker.sample().unwrap());
    assert_eq!(samples.load(Ordering::Relaxed), 1);
}

#[test]
fn an_input_may_hand_out_the_workers_own_sampler() {
    let config = RolloutConfig { num_envs: 2, ..RolloutConfig::default() }.rollout_fragment_length(6);
    let mut own = counting(4, config.clone()).build().unwrap();
    let mut through = counting(4, config)
        .input_creator(|context| {
            assert_eq!((context.shard, context.worker.worker_index), (Some((0, 1)), 0));
            let sampler = context.default_sampler_input().ok_or_else(|| SampleError::Input("no sampler".into()))?;
            assert!(context.default_sampler_input().is_none());
            Ok(sampler)
        })
        .build()
        .unwrap();
    assert_eq!(through.sample().unwrap(), own.sample().unwrap());
    assert_eq!(through.metrics(), own.metrics());
    assert_eq!(through.foreach_env(|_| ()).len(), 2);
}

/// An input without rows.
struct Empty;

impl InputReader for Empty {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        Ok(SampleBatch::new().into())
    }
}

#[test]
fn input_without_batches_ends_with_an_error() {
    let builder = counting(4, RolloutConfig::default()).input_creator(|_| Ok(Box::new(Empty)));
    assert!(matches!(builder.build().unwrap().sample(), Err(RolloutError::EmptyInput(_))));
}

#[test]
fn without_environments_there_is_nothing_to_sample() {
    let builder = RolloutWorker::builder().policy(
        PolicyId::DEFAULT,
        NewPolicy::object(Box::new(RandomPolicy::new(2, 0)))
            .with_spaces(crate::space::Space::Discrete { n: 3 }, crate::space::Space::Discrete { n: 2 }),
    );
    let mut worker = builder.build().unwrap();
    assert_eq!(worker.sample(), Err(RolloutError::NoInput));
    assert_eq!(worker.sample_fragments(5), Err(RolloutError::NoFragments));
    assert_eq!((worker.num_envs(), worker.foreach_env(|_| ()).len()), (0, 0));
}

/// RLlib 2.9.3: 8 rows of two whole episodes, and one that is lost.
#[test]
fn failed_environment_is_restarted_if_enabled() {
    let config = RolloutConfig { restart_failed_sub_environments: true, ..RolloutConfig::default() };
    let config = config.rollout_fragment_length(8).single_policy("random");
    let mut worker = RolloutWorker::builder().config(config).env_spec(failing(4, 6)).build().unwrap();
    assert_eq!(single(&mut worker).get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    let summary = worker.metrics().summary();
    assert_eq!((summary.episodes, summary.faulty_episodes), (2, 1));
}

/// Counts the environments that it is passed.
struct Shown(Arc<AtomicU32>);

impl Callbacks for Shown {
    fn on_sub_environment_created(
        &mut self,
        _worker: &WorkerInfo,
        _env: SubEnv<'_>,
        context: &EnvContext,
    ) -> Result<(), CallbackError> {
        assert_eq!(context.home.vector_index, 0);
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn restarted_environment_is_validated_and_passed_to_callbacks_like_the_first_one() {
    let (shown, validated) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let config = RolloutConfig { restart_failed_sub_environments: true, ..RolloutConfig::default() };
    let config = config.rollout_fragment_length(8).single_policy("random");
    let count = validated.clone();
    let builder = RolloutWorker::builder().config(config).env_spec(failing(4, 6)).validate_env(move |_env, context| {
        assert_eq!(context.home.vector_index, 0);
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let mut worker = builder.callbacks(Box::new(Shown(shown.clone()))).build().unwrap();
    assert_eq!([&shown, &validated].map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    worker.sample().unwrap();
    assert_eq!([&shown, &validated].map(|count| count.load(Ordering::Relaxed)), [2, 2]);
}

#[test]
fn a_failure_ends_the_sample_and_the_next_one_begins_anew() {
    // Episode 1 is lost; the episodic sampler keeps the one that was complete.
    for (sampler, ids) in [(SamplerChoice::Lockstep, [2, 3]), (SamplerChoice::Episodic, [0, 2])] {
        let config = RolloutConfig::default().rollout_fragment_length(8).single_policy("random");
        let mut worker =
            RolloutWorker::builder().config(config).env_spec(failing(4, 6)).sampler(sampler).build().unwrap();
        let error = worker.sample().unwrap_err().to_string();
        assert!(error.contains("a wheel came off"), "{error}");
        let batch = single(&mut worker);
        assert_eq!(batch.get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
        let eps = batch.get(EPS_ID).unwrap();
        assert_eq!([eps[0], eps[7]], ids);
    }
}

#[test]
fn episodes_read_before_a_failure_begin_the_next_sample() {
    // Episodes of 4 steps, one batch each; the sixth step fails, in the second episode of the sample.
    let config = RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..RolloutConfig::default() };
    let config = config.rollout_fragment_length(8).single_policy("random");
    let mut worker = RolloutWorker::builder().config(config).env_spec(failing(4, 6)).build().unwrap();
    worker.sample().unwrap_err();
    assert_eq!(worker.metrics().episodes.len(), 1);
    let batch = single(&mut worker);
    assert_eq!(batch.get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    let eps = batch.get(EPS_ID).unwrap();
    assert_eq!([eps[0], eps[7]], [0, 2]);
    assert_eq!(worker.metrics().episodes.len(), 1);
}

/// Adds a column to the first trajectory alone.
struct Uneven {
    has_added: bool,
}

impl Callbacks for Uneven {
    fn on_postprocess_trajectory(&mut self, hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        if !core::mem::replace(&mut self.has_added, true) {
            let marked = ColumnData::scalars(vec![true; hook.trajectory.len()]);
            hook.trajectory.insert("marked", marked).unwrap();
        }
        Ok(())
    }
}

#[test]
fn column_that_a_callback_adds_to_some_trajectories_is_an_error() {
    let config = RolloutConfig::default().num_envs(2).rollout_fragment_length(3);
    let builder = counting(10, config).callbacks(Box::new(Uneven { has_added: false }));
    let error = builder.build().unwrap().sample().unwrap_err();
    assert!(matches!(&error, RolloutError::Batch(BatchError::MissingColumn(name)) if name == "marked"), "{error}");
}
