use core::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
};

use super::*;
use crate::{
    batch::REWARDS,
    callbacks::Callbacks,
    env::{
        Env, EnvContext, EnvMaker, EnvRegistry, EnvSpec, EnvStart, EnvState, InProcess, Lane, MultiAgentSpec, Rng,
        RowsMut, RowsRef, SnapshotReader, Step, Typed, Vectorized,
    },
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, ModelConfig, ModelSpec, NetPolicy, RandomPolicy},
    space::Space,
};

/// Episode `n` of sub-environment `e` has `2 + e + n` steps with reward 1 each; the fourth of a broken one fails.
#[derive(Clone, Default)]
struct Countdown {
    index: i64,
    left: i64,
    steps: u32,
    fails: bool,
}

impl Env for Countdown {
    type Obs = i64;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::Discrete { n: 100 }
    }
    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }
    fn reset(&mut self, rng: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        // Its length depends on its address only, not on earlier episodes.
        self.left = 2 + self.index + i64::from(rng.below(3));
        obs[0] = self.left;
        Ok(())
    }
    fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
        self.steps += 1;
        if self.fails && self.steps == 4 {
            return Err(EnvError::Failed("out of order".into()));
        }
        self.left -= 1;
        obs[0] = self.left;
        Ok(Step { reward: 1.0, terminated: self.left == 0, truncated: false })
    }
    fn info(&self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(format!(r#"{{"to_go": {}}}"#, self.left).as_bytes());
        true
    }
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.left as u8);
        EnvState::Snapshot
    }
    fn restore(&mut self, snapshot: &[u8], obs: &mut [i64]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.left = i64::from(reader.below(99)?);
        obs[0] = self.left;
        reader.finish()
    }
}

fn starts(n: u32) -> Vec<EnvStart> {
    let context = |index| EnvContext::new(HomeIndex { worker_index: 0, vector_index: index });
    (0..n).map(|index| EnvStart { slot: SlotId(index), episode: 0, context: context(index) }).collect()
}

fn countdown(n: u32, fails: bool) -> InProcess {
    let spec = EnvSpec::new("Countdown", move |contexts, _| {
        let env =
            |context: &EnvContext| Countdown { index: context.home.vector_index.into(), fails, ..Countdown::default() };
        Box::new(Vectorized::new(contexts.iter().map(env).collect()))
    });
    InProcess::new(EnvMaker::single_agent(&spec, Kernels::PORTABLE), starts(n), 1).unwrap()
}

fn evaluator(n: u32) -> Evaluator {
    let policy = Box::new(RandomPolicy::new(2, 0));
    Evaluator::new(Box::new(countdown(n, false)), policy, EvaluatorOptions::default()).unwrap()
}

fn evaluate(evaluator: &mut Evaluator, request: &EvaluationRequest) -> Evaluation {
    evaluator.begin(request.clone()).unwrap();
    evaluator.advance(u32::MAX).unwrap().unwrap()
}

fn on_and_on(max_steps: u32) -> EvaluationRequest {
    EvaluationRequest { break_when_any_done: false, ..EvaluationRequest::new(max_steps) }
}

#[test]
fn first_end_of_an_episode_ends_it_if_configured() {
    let found = evaluate(&mut evaluator(3), &EvaluationRequest::new(100));
    assert_eq!((found.episodes.len(), found.episodes[0].env), (1, 0));
    let len = found.episodes[0].len;
    assert_eq!((found.reward(), found.env_steps), (f64::from(len), 3 * u64::from(len)));
    assert_eq!((found.unfinished, found.partial_return_mean), (2, Some(f64::from(len))));
}

#[test]
fn finished_environments_continue_by_default_and_the_mean_is_of_episodes() {
    let found = evaluate(&mut evaluator(2), &on_and_on(20));
    assert_eq!(found.env_steps, 40);
    assert!(
        found.episodes.iter().all(|episode| episode.episode_return == f64::from(episode.len) && episode.terminated)
    );
    let returns: Vec<f64> = found.episodes.iter().map(|episode| episode.episode_return).collect();
    assert_eq!(found.episode_return_mean, Some(returns.iter().sum::<f64>() / returns.len() as f64));
    let partial: f64 = 40.0 - returns.iter().sum::<f64>();
    assert_eq!(found.partial_return_mean.unwrap_or(0.0) * f64::from(found.unfinished), partial);
    for env in 0..2 {
        let numbers = found.episodes.iter().filter(|episode| episode.env == env).map(|episode| episode.episode);
        assert!(numbers.eq(0..found.episodes.iter().filter(|episode| episode.env == env).count() as u32));
    }
}

#[test]
fn an_episode_that_does_not_end_has_a_partial_return_and_nothing_is_nan() {
    let mut evaluator = evaluator(1);
    let found = evaluate(&mut evaluator, &EvaluationRequest::new(1));
    assert_eq!((found.episode_return_mean, found.partial_return_mean, found.unfinished), (None, Some(1.0), 1));
    let found = evaluate(&mut evaluator, &EvaluationRequest::new(0));
    assert_eq!((found.reward(), found.env_steps, found.unfinished), (0.0, 0, 0));
}

#[test]
fn episodes_are_shared_out_beforehand_by_number() {
    for (envs, episodes) in [(3, 7), (4, 2), (1, 5)] {
        let mut evaluator = evaluator(envs);
        // Some end by the limit, and the others continue nevertheless.
        for limit in [None, Some(3)] {
            evaluator.options.max_episode_steps = limit;
            let request = EvaluationRequest::of_episodes(NonZeroU32::new(episodes).unwrap(), 1000);
            let found = evaluate(&mut evaluator, &request);
            assert_eq!((found.episodes.len() as u32, found.unfinished), (episodes, 0));
            let share = |env| found.episodes.iter().filter(|episode| episode.env == env).count() as u32;
            assert!((0..envs).all(|env| share(env) == episodes / envs + u32::from(env < episodes % envs)));
            assert_eq!(found.env_steps, found.episodes.iter().map(|episode| u64::from(episode.len)).sum::<u64>());
        }
    }
}

#[test]
fn a_limit_truncates() {
    let mut evaluator = evaluator(2);
    evaluator.options.max_episode_steps = Some(2);
    let found = evaluate(&mut evaluator, &on_and_on(6));
    assert!(found.episodes.len() == 6 && found.episodes.iter().all(|episode| episode.len == 2));
    assert!(found.episodes.iter().any(|episode| !episode.terminated));
}

#[test]
fn an_evaluation_depends_on_nothing_that_was_before() {
    let mut evaluator = evaluator(2);
    let first = evaluate(&mut evaluator, &on_and_on(50));
    evaluator.begin(on_and_on(50)).unwrap();
    assert_eq!(evaluator.advance(7), Ok(None));
    assert!(evaluator.is_running() && evaluator.env_steps() == 14);
    evaluator.cancel();
    assert_eq!((evaluator.is_running(), evaluator.advance(1)), (false, Ok(None)));
    assert_eq!(evaluate(&mut evaluator, &on_and_on(50)), first);
}

#[test]
fn a_failure_is_reported_and_the_next_evaluation_has_new_environments() {
    let policy = || Box::new(RandomPolicy::new(2, 0));
    let mut evaluator = Evaluator::new(Box::new(countdown(2, true)), policy(), EvaluatorOptions::default()).unwrap();
    for _ in 0..2 {
        evaluator.begin(on_and_on(100)).unwrap();
        let error = evaluator.advance(u32::MAX).unwrap_err();
        assert!(error.to_string().starts_with("slot 0, episode "), "{error}");
        assert!(error.to_string().ends_with(": the environment failed: out of order"), "{error}");
        assert!(!evaluator.is_running());
    }
    let survived = countdown(2, true).with_restarts(true);
    let mut evaluator = Evaluator::new(Box::new(survived), policy(), EvaluatorOptions::default()).unwrap();
    let found = evaluate(&mut evaluator, &on_and_on(8));
    assert!(found.faulty >= 2 && found.env_steps == 16 && !found.episodes.is_empty());
    // The last episode is lost, and repeated.
    let survived = Box::new(countdown(1, true).with_restarts(true));
    let mut evaluator = Evaluator::new(survived, policy(), EvaluatorOptions::default()).unwrap();
    let found = evaluate(&mut evaluator, &EvaluationRequest::of_episodes(NonZeroU32::new(2).unwrap(), 1_000));
    assert!(found.faulty >= 1 && found.episodes.len() == 2, "{found:?}");
}

#[test]
fn a_signal_that_never_comes_is_an_error_and_not_nothing() {
    let options = EvaluatorOptions { reward_key: "infos/progress".parse().unwrap(), ..EvaluatorOptions::default() };
    let mut evaluator =
        Evaluator::new(Box::new(countdown(1, false)), Box::new(RandomPolicy::new(2, 0)), options).unwrap();
    evaluator.begin(EvaluationRequest::new(3)).unwrap();
    let error = evaluator.advance(u32::MAX).unwrap_err();
    assert!(matches!(error, EvaluationError::NoSignal(_)), "{error}");
}

/// As a lane of a lane, with its types erased on the way.
#[test]
fn a_request_may_name_a_signal_in_the_infos_of_a_single_agent() {
    let spec = EnvSpec::fallible("Countdown", |contexts, _| {
        let lane = |_: &EnvContext| -> Result<_, EnvError> {
            Ok(Lane::new(Typed::<i64, i64>::new(Box::new(Vectorized::new(vec![Countdown::default()])))?))
        };
        let lanes = contexts.iter().map(lane).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Vectorized::new(lanes)))
    });
    let env = InProcess::new(EnvMaker::single_agent(&spec, Kernels::PORTABLE), starts(1), 1).unwrap();
    let policy = Box::new(RandomPolicy::new(2, 0));
    let mut evaluator = Evaluator::new(Box::new(env), policy, EvaluatorOptions::default()).unwrap();
    let plain = evaluate(&mut evaluator, &EvaluationRequest::new(100));
    let reward_key = Some("infos/to_go".parse().unwrap());
    let summed = evaluate(&mut evaluator, &EvaluationRequest { reward_key, ..EvaluationRequest::new(100) });
    let len = plain.reward();
    assert!(len >= 2.0);
    assert_eq!((summed.reward(), summed.env_steps), (len * (len - 1.0) / 2.0, plain.env_steps));
    assert_eq!(evaluate(&mut evaluator, &EvaluationRequest::new(100)), plain);
    let reward_key = Some("infos/height".parse().unwrap());
    evaluator.begin(EvaluationRequest { reward_key, ..EvaluationRequest::new(100) }).unwrap();
    let error = evaluator.advance(u32::MAX).unwrap_err();
    assert_eq!(error, EvaluationError::NoSignal("infos/height".parse().unwrap()));
}

#[test]
fn weights_act_and_drawn_actions_are_others_than_the_most_likely() {
    let envs = EnvRegistry::builtin();
    let spec = envs.spec("CartPole-v1").unwrap();
    let spaces = spec.spaces().unwrap();
    let model = ModelConfig::of_widths(&[8]);
    let shape = ModelSpec::for_spaces(&spaces, &model).unwrap();
    let weights = shape.init_weights(3).unwrap().with_version(WeightsVersion(9));
    let policy = NetPolicy::new(&spaces, &model, shape.init_weights(1).unwrap(), 5, Kernels::PORTABLE).unwrap();
    let env = InProcess::new(EnvMaker::single_agent(&spec, Kernels::PORTABLE), starts(2), 1).unwrap();
    let mut evaluator = Evaluator::new(Box::new(env), Box::new(policy), EvaluatorOptions::default()).unwrap();
    let before = evaluate(&mut evaluator, &on_and_on(100));
    evaluator.set_weights(&weights).unwrap();
    let after = evaluate(&mut evaluator, &on_and_on(100));
    assert_eq!((before.weights_version, after.weights_version), (WeightsVersion(0), WeightsVersion(9)));
    assert_ne!(before.episodes, after.episodes);
    let drawn = evaluate(&mut evaluator, &EvaluationRequest { deterministic: false, ..on_and_on(100) });
    assert_ne!(drawn.episodes, after.episodes);
    assert_eq!(after.frames.map(|frames| frames.shape()), Some([100, 200, 300, 3]));
    evaluator.options.max_frames = 10;
    let frames = evaluate(&mut evaluator, &on_and_on(100)).frames.unwrap();
    assert_eq!((frames.shape()[0], frames.is_cut), (10, true));
    let other = ModelSpec::for_spaces(&spaces, &ModelConfig::of_widths(&[9])).unwrap().init_weights(3).unwrap();
    assert!(matches!(evaluator.set_weights(&other), Err(EvaluationError::Policy(_))));
    assert_eq!(evaluator.weights_version(), WeightsVersion(9));
}

#[test]
fn all_agents_act_and_are_paid_together_or_one_by_one() {
    let envs = EnvRegistry::builtin();
    let play = |name: &str, key: &str| {
        let spec: MultiAgentSpec = envs.multi_agent(name).unwrap();
        let env = InProcess::new(EnvMaker::multi_agent(&spec), starts(2), 1)?;
        let options = EvaluatorOptions { reward_key: key.parse().unwrap(), ..EvaluatorOptions::default() };
        let action = Evaluator::policy_spaces(&env, &options)?.action;
        let policy = Box::new(RandomPolicy::for_space(&action, 4)?);
        let mut evaluator = Evaluator::new(Box::new(env), policy, options)?;
        evaluator.begin(EvaluationRequest { episodes: NonZeroU32::new(4), ..on_and_on(500) })?;
        Ok(evaluator.advance(u32::MAX)?.unwrap())
    };
    let agents: Vec<String> = {
        let env =
            InProcess::new(EnvMaker::multi_agent(&envs.multi_agent("RockPaperScissors-v0").unwrap()), starts(1), 1);
        env.unwrap().agents().iter().map(|agent| agent.to_string()).collect()
    };
    let together: Evaluation = play("RockPaperScissors-v0", "reward").unwrap();
    assert!(together.reward() == 0.0 && together.episodes.len() == 4);
    let one = play("RockPaperScissors-v0", &format!("reward/{}", agents[0])).unwrap();
    let two = play("RockPaperScissors-v0", &format!("reward/{}", agents[1])).unwrap();
    assert!(one.reward() == -two.reward() && one.episodes.iter().any(|episode| episode.episode_return != 0.0));
    let error: EvaluationError = play("MultiAgentTrafficGrid-v0", "reward").unwrap_err();
    assert!(matches!(error, EvaluationError::OtherSpaces { .. }), "{error}");
}

/// Counts its calls in its state, and goes right until the third one.
struct Forgetful {
    weights: Weights,
}

impl Policy for Forgetful {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        if let RowsMut::I64(actions) = out.actions {
            actions.iter_mut().zip(input.state).for_each(|(action, asked)| *action = i64::from(*asked < 13.0));
        }
        out.state.iter_mut().zip(input.state).for_each(|(next, asked)| *next = asked + 1.0);
        Ok(())
    }
    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], _: &mut [f32]) -> Result<(), PolicyError> {
        Ok(())
    }
    fn state_lens(&self) -> &[usize] {
        &[1]
    }
    fn initial_state(&self, state: &mut [f32]) {
        state.fill(10.0);
    }
    fn weights(&self) -> &Weights {
        &self.weights
    }
    fn set_weights(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// The reward is the action.
#[derive(Clone, Default)]
struct Payer(i64);

impl Env for Payer {
    type Obs = i64;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::Discrete { n: 10 }
    }
    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }
    fn reset(&mut self, _: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        (self.0, obs[0]) = (0, 0);
        Ok(())
    }
    fn step(&mut self, action: &[i64], _: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
        self.0 += 1;
        obs[0] = self.0;
        Ok(Step { reward: action[0] as f64, terminated: self.0 == 5, truncated: false })
    }
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.0 as u8);
        EnvState::Snapshot
    }
    fn restore(&mut self, snapshot: &[u8], _: &mut [i64]) -> Result<(), EnvError> {
        SnapshotReader::new(snapshot).finish()
    }
}

#[test]
fn the_latest_episode_that_ended_has_a_trace() {
    let mut evaluator = evaluator(2);
    assert_eq!(evaluate(&mut evaluator, &on_and_on(30)).trace, None);
    let found = evaluate(&mut evaluator, &EvaluationRequest { trace: true, ..on_and_on(30) });
    let trace = found.trace.unwrap();
    let latest = found.episodes.iter().rfind(|episode| episode.env == 0).unwrap();
    assert_eq!((trace.episode, trace.obs.len() as u32), (latest.episode, latest.len));
    assert!(trace.obs.iter().rev().map(|left| *left as u32).eq(1..=latest.len));
    let mut long = EpisodeTrace::default();
    (0..=EpisodeTrace::MAX_NUMBERS).for_each(|_| long.add(RowsRef::U8(&[1])));
    assert_eq!((long.obs.len(), long.obs_len, long.is_cut), (EpisodeTrace::MAX_NUMBERS, 1, true));
}

#[test]
fn memory_lasts_an_episode() {
    let spec = EnvSpec::new("Payer", |contexts, _| Box::new(Vectorized::new(vec![Payer::default(); contexts.len()])));
    let env = InProcess::new(EnvMaker::single_agent(&spec, Kernels::PORTABLE), starts(2), 1).unwrap();
    let weights = Weights::new(WeightsVersion(0), vec![]).unwrap();
    let mut evaluator =
        Evaluator::new(Box::new(env), Box::new(Forgetful { weights }), EvaluatorOptions::default()).unwrap();
    let found = evaluate(&mut evaluator, &on_and_on(15));
    assert!(found.episodes.len() == 6 && found.episodes.iter().all(|episode| episode.episode_return == 3.0));
    assert_eq!(found.frames, None);
}

#[test]
fn policy_with_views_of_earlier_rows_is_evaluated() {
    struct Curious(RandomPolicy);
    impl Policy for Curious {
        fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
            self.0.compute_actions(input, out)
        }
        fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
            self.0.compute_values(obs, state, values)
        }
        fn view_requirements(&self) -> crate::view::ViewRequirements {
            let view = crate::view::ViewRequirement::shifted(REWARDS.name(), "-1".parse().unwrap());
            [("prev_rewards".to_owned(), view)].into()
        }
        fn weights(&self) -> &Weights {
            self.0.weights()
        }
        fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
            self.0.set_weights(weights)
        }
    }
    let policy = Box::new(Curious(RandomPolicy::new(2, 0)));
    let mut evaluator = Evaluator::new(Box::new(countdown(1, false)), policy, EvaluatorOptions::default()).unwrap();
    assert!(!evaluate(&mut evaluator, &on_and_on(20)).episodes.is_empty());
}

/// Appends a 1 for a begin and a 2 for an end, followed by the number of episodes. Fails at the given number.
struct Notes(Arc<AtomicU32>, u32);

impl Notes {
    fn add(&self, digit: u32) -> Result<(), CallbackError> {
        let seen = self.0.load(Ordering::Relaxed) * 10 + digit;
        self.0.store(seen, Ordering::Relaxed);
        if seen == self.1 { Err(CallbackError::new("a hook", "seen enough")) } else { Ok(()) }
    }
}

impl Callbacks for Notes {
    fn on_evaluate_start(&mut self, worker: &WorkerInfo) -> Result<(), CallbackError> {
        assert_eq!(worker.num_workers, 3);
        self.add(1)
    }

    fn on_evaluate_end(&mut self, _: &WorkerInfo, episodes: &[RolloutMetrics]) -> Result<(), CallbackError> {
        assert!(episodes.iter().all(|episode| episode.episode_return == f64::from(episode.length)));
        let ids: Vec<_> = episodes.iter().map(|episode| (episode.env, episode.episode_id)).collect();
        assert_eq!(&ids[..2], [(0, 0), (1, 1 << 32)]);
        self.add(2)?;
        self.add(episodes.len() as u32)
    }
}

#[test]
fn callbacks_are_called_once_at_the_begin_and_at_the_end_of_each_evaluation() {
    let seen = Arc::new(AtomicU32::new(0));
    let calls = |fails_at| {
        let mut list = CallbackList::new();
        list.push(Box::new(Notes(seen.clone(), fails_at)));
        seen.store(0, Ordering::Relaxed);
        evaluator(2).with_callbacks(list, WorkerInfo { num_workers: 3, ..WorkerInfo::default() })
    };
    let request = EvaluationRequest::of_episodes(NonZeroU32::new(4).unwrap(), 100);
    let mut complete = calls(0);
    assert_eq!(evaluate(&mut complete, &request), evaluate(&mut evaluator(2), &request));
    assert_eq!(seen.load(Ordering::Relaxed), 124);
    complete.begin(request.clone()).unwrap();
    complete.cancel();
    assert_eq!(seen.load(Ordering::Relaxed), 1241, "what is given up has no end");

    let mut at_begin = calls(1);
    let error = at_begin.begin(request.clone()).unwrap_err();
    assert_eq!((error.to_string().as_str(), at_begin.is_running()), ("a hook failed: seen enough", false));
    let mut at_end = calls(12);
    at_end.begin(request.clone()).unwrap();
    assert!(matches!(at_end.advance(u32::MAX), Err(EvaluationError::Callback(_))));
    assert!(!at_end.is_running());
}
