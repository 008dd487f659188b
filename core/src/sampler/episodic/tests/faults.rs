//! Environments, policies and user code that fail.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;
use crate::callbacks::{CallbackError, Callbacks, EpisodeHook};

/// A counter to 4 whose steps fail when `fails` says so of their number, counted over all instances.
fn fragile(fails: fn(u32) -> bool) -> impl Fn() -> Script + Send + Sync + 'static {
    let steps = std::sync::Arc::new(AtomicU32::new(0));
    move || {
        let (steps, mut script) = (steps.clone(), counter(4)());
        Box::new(move |t, actions, turn| {
            if t > 0 && fails(steps.fetch_add(1, Relaxed) + 1) {
                return Err(EnvError::Failed("as told".into()));
            }
            script(t, actions, turn)
        })
    }
}

#[test]
fn a_failed_environment_leaves_no_rows() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 8), scripted(1, fragile(|step| step == 6)).restart_failed(true));
    let batch = bench.single(&mut sampler);
    assert_eq!(batch.get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(batch.get(EPS_ID).unwrap(), [0, 0, 0, 0, 2, 2, 2, 2]);
    let metrics = sampler.metrics();
    let faults: Vec<Option<&str>> = metrics.iter().map(|episode| episode.faulty.as_deref()).collect();
    assert_eq!(faults, [None, Some("the environment failed: as told"), None]);
    let summary = crate::episode::EpisodeSummary::of(&metrics);
    assert_eq!((summary.episodes, summary.faulty_episodes, summary.episode_return.mean), (2, 1, 400.0));
}

#[test]
fn only_the_open_rows_of_a_failed_environment_are_lost() {
    // Of two environments the one fails every fifth step of both.
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(2, 3), scripted(2, fragile(|step| step % 5 == 0)).restart_failed(true));
    let mut rows = 0;
    for _ in 0..20 {
        let batch = bench.single(&mut sampler);
        assert_eq!(batch.len(), 3);
        for row in 0..3 {
            assert_eq!(ints(&batch, "obs")[row] + 1, ints(&batch, "new_obs")[row]);
        }
        rows += batch.len();
    }
    assert_eq!(rows, 60);
    assert!(sampler.metrics().iter().filter(|episode| episode.faulty.is_some()).count() > 5);
}

#[test]
fn a_failure_that_is_not_survived_is_an_error_and_the_next_call_goes_on() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 8), scripted(1, fragile(|step| step == 6)));
    let error = bench.data(&mut sampler).unwrap_err();
    assert_eq!(error.to_string(), "the environment failed: as told");
    // The first episode was finished; the second is lost and nowhere.
    let batch = bench.single(&mut sampler);
    assert_eq!(batch.get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(batch.get(EPS_ID).unwrap(), [0, 0, 0, 0, 2, 2, 2, 2]);
    assert_eq!(lengths(&mut sampler), [(4, 400.0); 2]);
}

#[test]
fn an_environment_that_always_fails_is_an_error_each_time() {
    let mut bench = Bench::new(Player::new());
    for restart in [false, true] {
        let envs = scripted(2, || |_: u32, _: &AgentRows, _: &mut Turn| Err(EnvError::Failed("broken".into())));
        let mut sampler = sampler(options(2, 8), envs.restart_failed(restart));
        for _ in 0..3 {
            assert!(matches!(bench.data(&mut sampler), Err(SampleError::Env(_))));
        }
    }
}

/// Fails at the first step whose number is a multiple of 7, once.
struct Touchy(u32);

impl Callbacks for Touchy {
    fn on_episode_step(&mut self, _: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.0 += 1;
        if self.0.is_multiple_of(7) { Err(CallbackError::new("on_episode_step", "not again")) } else { Ok(()) }
    }
}

#[test]
fn failures_of_user_code_lose_what_was_begun_and_nothing_else() {
    let mut bench = Bench::new(Player::new());
    bench.callbacks.push(Box::new(Touchy(0)));
    let mut sampler = sampler(options(2, 6), scripted(2, counter(3)));
    let (mut errors, mut batches) = (0, Vec::new());
    while batches.len() < 6 {
        match bench.data(&mut sampler) {
            Ok(AnyBatch::Single(batch)) => batches.push(batch),
            Ok(AnyBatch::Multi(batch)) => panic!("{batch}"),
            Err(error) => {
                assert_eq!(error.to_string(), "on_episode_step failed: not again");
                errors += 1;
            }
        }
    }
    assert!(errors > 3);
    for batch in batches {
        assert_eq!(batch.get(T).unwrap(), [0, 1, 2, 0, 1, 2]);
        let ids = batch.get(EPS_ID).unwrap();
        assert!(ids[0] == ids[2] && ids[2] < ids[3] && ids[3] == ids[5]);
    }
}

/// A policy that fails every other time.
struct Moody(Player, u32);

impl Policy for Moody {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        self.1 += 1;
        if self.1.is_multiple_of(4) {
            return Err(PolicyError::Failed("no mood".into()));
        }
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
}

#[test]
fn a_policy_that_fails_is_named() {
    let mut bench = Bench::new(Moody(Player::new(), 0));
    let mut sampler = sampler(options(2, 4), scripted(2, counter(2)));
    let (mut errors, mut batches) = (0, 0);
    while batches < 4 {
        match bench.data(&mut sampler) {
            Ok(batch) => {
                assert_eq!(batch.env_steps(), 4);
                batches += 1;
            }
            Err(error) => {
                assert_eq!(error.to_string(), "policy 'default_policy': the policy failed: no mood");
                errors += 1;
            }
        }
    }
    assert!(errors > 0);
}

#[test]
fn agents_of_one_policy_must_be_alike() {
    let mut bench = Bench::new(Player::new());
    bench.observation_fn = Some(Arc::new(|obs, _| {
        if obs.len() == 2 {
            obs.set(&agent(1), RowsRef::F32(&[1.0]));
        }
        Ok(())
    }));
    let mut sampler = sampler(options(1, 4), scripted(1, crowd(2)));
    let error = bench.data(&mut sampler).unwrap_err().to_string();
    assert!(error.contains("observations of 1 int64 from all its agents"), "{error}");
}
