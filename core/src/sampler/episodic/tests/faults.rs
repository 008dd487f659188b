//! Environments, policies and user code that fail.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use proptest::prelude::*;

use super::*;
use crate::{
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    env::Health,
    episode::Quarantined,
};

/// Returns the script of a counter to 4 whose steps fail when `fails` returns true for their number, counted over all
/// instances.
fn fragile(fails: fn(u32) -> bool) -> impl Fn() -> Script + Send + Sync + 'static {
    let steps = std::sync::Arc::new(AtomicU32::new(0));
    move || {
        let (steps, mut script) = (steps.clone(), counter(4)());
        Box::new(move |t, actions, turn| {
            if t > 0 && fails(steps.fetch_add(1, Relaxed) + 1) {
                return Err(EnvError::Failed("injected".into()));
            }
            script(t, actions, turn)
        })
    }
}

#[test]
fn a_failed_environment_leaves_no_rows() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 8), scripted(1, fragile(|step| step == 6)).with_restarts(true));
    let batch = bench.single(&mut sampler);
    assert_eq!(batch.get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(batch.get(EPS_ID).unwrap(), [0, 0, 0, 0, 2, 2, 2, 2]);
    let metrics = sampler.metrics();
    let faults: Vec<Option<&str>> = metrics.iter().map(|episode| episode.faulty.as_deref()).collect();
    assert_eq!(faults, [None, Some("the environment failed: injected"), None]);
    let summary = crate::episode::EpisodeSummary::of(&metrics);
    assert_eq!((summary.episodes, summary.faulty_episodes, summary.episode_return.mean), (2, 1, 400.0));
}

#[test]
fn only_the_open_rows_of_a_failed_environment_are_lost() {
    // One of two environments fails in every fifth step of both.
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(2, 3), scripted(2, fragile(|step| step % 5 == 0)).with_restarts(true));
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
fn failure_without_a_restart_is_an_error_and_the_next_call_continues() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 8), scripted(1, fragile(|step| step == 6)));
    let error = bench.data(&mut sampler).unwrap_err();
    assert_eq!(error.to_string(), "slot 0, episode 1, step 1: the environment failed: injected");
    // The first episode was finished; the second is lost, in no batch.
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
        let mut sampler = sampler(options(2, 8), envs.with_restarts(restart));
        for _ in 0..3 {
            assert!(matches!(bench.data(&mut sampler), Err(SampleError::Env(_) | SampleError::EnvAt { .. })));
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
fn failures_of_user_code_discard_only_open_episodes() {
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

/// Creates environments of which one fails in its second step while it is broken.
fn one_of(num_envs: u32, bad: u32, broken: &Arc<AtomicBool>) -> InProcess {
    let broken = broken.clone();
    let spec = MultiAgentSpec::new("Scripted", move |context| {
        let (broken, bad) = (broken.clone(), context.home.vector_index == bad);
        let mut script = counter(4)();
        let script: Script = Box::new(move |t, actions, turn| {
            if bad && t == 2 && broken.load(Relaxed) {
                return Err(EnvError::Failed("no power".into()));
            }
            script(t, actions, turn)
        });
        Ok(Box::new(Scripted { t: 0, script }))
    });
    let starts = (0..num_envs).map(start).collect();
    InProcess::new(EnvMaker::multi_agent(&spec), starts, 1).unwrap().with_restarts(true)
}

const NO_POWER: &str = "the environment failed: no power";

#[test]
fn other_environments_continue_without_a_quarantined_one_and_a_state_restores_it() {
    let broken = Arc::new(AtomicBool::new(true));
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(3, 8), one_of(3, 1, &broken));
    let ids = |batch: &SampleBatch| batch.get(EPS_ID).unwrap().iter().map(|id| id >> 32).collect::<BTreeSet<_>>();
    let before = sampler.position().unwrap();
    for wanted in [0, 2, 0, 2, 0, 2] {
        let batch = bench.single(&mut sampler);
        assert_eq!((batch.len(), ids(&batch)), (8, [wanted].into()));
    }
    let metrics = sampler.metrics();
    let faults: Vec<_> = metrics.iter().filter(|episode| episode.faulty.is_some()).collect();
    assert_eq!(faults.len(), Health::MAX_FAILURES as usize);
    assert!(faults.iter().all(|fault| (fault.env, fault.length) == (1, 1)));
    assert!(faults[4].faulty.as_ref().unwrap().contains("5 times in a row"));
    let quarantined = vec![Quarantined { env: 1, reason: NO_POWER.into() }];
    let losses = Losses { env_steps: 5, agent_steps: 5, quarantined: quarantined.clone(), ..Losses::default() };
    assert_eq!((sampler.losses(), sampler.losses()), (losses, Losses { quarantined, ..Losses::default() }));
    broken.store(false, Relaxed);
    sampler.set_position(&before).unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        seen.append(&mut ids(&bench.single(&mut sampler)));
    }
    assert_eq!((seen, sampler.losses().quarantined), ([0, 1, 2].into(), vec![]));
}

/// Restarts an environment at the end of the episode with this number.
struct Repair(usize, u32, Arc<AtomicBool>);

impl Callbacks for Repair {
    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>) -> Result<(), CallbackError> {
        if fault.is_none() && hook.episode.number() == self.1 && hook.env.quarantine(self.0).is_some() {
            self.2.store(false, Relaxed);
            hook.env.try_restart(self.0).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_callback_can_bring_an_environment_back() {
    let broken = Arc::new(AtomicBool::new(true));
    let mut bench = Bench::new(Player::new());
    bench.callbacks.push(Box::new(Repair(0, 5, broken.clone())));
    let mut sampler = sampler(options(2, 4), one_of(2, 0, &broken));
    let slots: Vec<i64> = (0..12).map(|_| bench.single(&mut sampler).get(EPS_ID).unwrap()[0] >> 32).collect();
    assert_eq!(slots[..6], [1; 6]);
    assert_eq!(slots[6..].iter().filter(|slot| **slot == 0).count(), 3);
    assert_eq!(sampler.losses().quarantined, []);
}

#[test]
fn when_all_are_given_up_the_last_reason_is_reported_each_time() {
    let broken = Arc::new(AtomicBool::new(true));
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(options(1, 8), one_of(1, 0, &broken));
    let wanted = EnvError::AllGivenUp { num_envs: 1, env: 0, reason: NO_POWER.into() };
    for _ in 0..3 {
        assert_eq!(bench.data(&mut sampler), Err(wanted.clone().into()));
    }
    let faulty = sampler.metrics().iter().filter(|episode| episode.faulty.is_some()).count();
    assert_eq!((faulty, sampler.losses().env_steps), (5, 5));
}

/// Counts the environments that callbacks are passed.
struct Shown(Arc<AtomicU32>);

impl Callbacks for Shown {
    fn on_sub_environment_created(
        &mut self,
        _: &WorkerInfo,
        _: SubEnv<'_>,
        context: &EnvContext,
    ) -> Result<(), CallbackError> {
        self.0.fetch_add(1 << (8 * context.home.vector_index), Relaxed);
        Ok(())
    }
}

#[test]
fn restarted_environment_is_announced_to_callbacks() {
    let (broken, shown) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let mut bench = Bench::new(Player::new());
    bench.callbacks.push(Box::new(Shown(shown.clone())));
    let mut sampler = sampler(options(2, 8), one_of(2, 1, &broken));
    bench.single(&mut sampler);
    // The quarantined one was not restarted.
    assert_eq!(shown.load(Relaxed), (Health::MAX_FAILURES - 1) << 8);
}

/// Fails at every step whose number is a multiple of the first number, until it is calmed.
struct Shaky(u32, u32, Arc<AtomicBool>);

impl Callbacks for Shaky {
    fn on_episode_step(&mut self, _: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.0 += 1;
        if self.0.is_multiple_of(self.1) && !self.2.load(Relaxed) {
            return Err(CallbackError::new("on_episode_step", "not now"));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every step is returned, held or lost, whatever fails: environments with or without restarts, user code, and a state
    /// that is set in between.
    #[test]
    fn every_step_is_accounted_for(
        seed in any::<u32>(),
        odds in 2u32..60,
        num_envs in 1u32..4,
        restart in any::<bool>(),
        whole in any::<bool>(),
        shaky in prop_oneof![Just(u32::MAX), 2u32..40],
        rounds in prop::collection::vec(0u32..40, 1..6),
    ) {
        let (taken, calm) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (calls, steps, fine) = (Arc::new(AtomicU32::new(seed)), taken.clone(), calm.clone());
        let envs = scripted(num_envs, move || {
            let (calls, steps, fine, mut script) = (calls.clone(), steps.clone(), fine.clone(), counter(3)());
            move |t: u32, actions: &AgentRows, turn: &mut Turn| {
                let call = calls.fetch_add(0x9E37_79B9, Relaxed).wrapping_mul(0x85EB_CA6B);
                if (call >> 16).is_multiple_of(odds) && !fine.load(Relaxed) {
                    return Err(EnvError::Failed("injected".into()));
                }
                steps.fetch_add(u32::from(t > 0), Relaxed);
                script(t, actions, turn)
            }
        });
        let mut bench = Bench::new(Player::new());
        bench.callbacks.push(Box::new(Shaky(0, shaky, calm.clone())));
        let options = if whole { complete(num_envs) } else { options(num_envs, 5) };
        let mut sampler = sampler(options, envs.with_restarts(restart));
        let (state, mut delivered, mut failures) = (sampler.position().unwrap(), 0, 0);
        for (index, count) in rounds.iter().enumerate() {
            if index > 0 {
                sampler.set_position(&state).unwrap();
            }
            for _ in 0..*count {
                failures += u32::from(bench.with(|host| sampler.step(host)).is_err());
                if failures % 3 == 0 {
                    delivered += core::iter::from_fn(|| sampler.take()).map(|batch| batch.env_steps() as u64).sum::<u64>();
                }
            }
        }
        // Handles the updates of environments that are outdated since the failure.
        calm.store(true, Relaxed);
        let _ = bench.with(|host| sampler.step(host));
        let lost = sampler.losses();
        prop_assert_eq!(u64::from(taken.load(Relaxed)), delivered + lost.env_steps + sampler.held_env_steps() as u64);
        prop_assert!(lost.agent_steps <= lost.env_steps);
    }
}
