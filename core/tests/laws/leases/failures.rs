//! Leases in which user code fails: the failure is located, and the other slots' fragments are made as ever.

use rollmesh_core::{
    batch::{EPS_ID, SlotFragment, T},
    env::{Env, EnvError, EnvSpec, EnvState, Moment, Rng, RowsMut, RowsRef, Step, Vectorized},
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion},
    lease::{FailedStep, Lease, LeasedSlot, SlotSource},
    policy::{ActionInput, ActionOutput, Policy, PolicyError, PolicySpec},
    protocol::{FailureKind, FragmentFailure},
    run::{ReplayMismatch, RunConfig},
    space::Space,
    weights::Weights,
    worker::{Advance, Registry, RolloutConfig, RolloutWorkerBuilder, SetupError, SlotRunner},
};

const SLOTS: u32 = 4;
const LENGTH: u32 = 8;

/// Ends its episodes after six steps. In slot 2 it does something else in the fourth step of its second episode, or fails in the
/// first or the fourth step of each one.
#[derive(Clone, Debug)]
struct Fragile {
    fault: &'static str,
    slot: u32,
    episode: u8,
    t: u8,
}

impl Fragile {
    fn observe(&self, obs: &mut [f32]) {
        obs.fill(f32::from(self.t) / 6.0);
    }
}

impl Env for Fragile {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.episode, self.t) = (self.episode + 1, 0);
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let is_large = (self.slot, self.episode, self.fault) == (2, 2, "large");
        let fault = if (self.slot, self.episode, self.t) == (2, 2, 3) { self.fault } else { "" };
        if self.slot == 2 && [("first", 0), ("fourth", 3)].contains(&(self.fault, self.t)) {
            return Err(EnvError::Failed("no fuel".into()));
        }
        self.t += 1;
        self.observe(obs);
        let mut reward = if is_large { 3e38 } else { action[0] as f64 };
        match fault {
            "error" => return Err(EnvError::Failed("no fuel".into())),
            "nan" => obs.fill(f32::NAN),
            "infinite" => reward = f64::INFINITY,
            // Finite, and infinite as a 32-bit float.
            "double" => reward = 1e39,
            "outside" => obs.fill(2.0),
            _ => {}
        }
        Ok(Step { reward, terminated: self.t == 6, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend([self.episode, self.t]);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let &[episode, t] = snapshot else { return Err(EnvError::BadSnapshot(snapshot.len())) };
        if self.slot == 2 && self.fault == "restore" {
            return Err(EnvError::Failed("no way back".into()));
        }
        (self.episode, self.t) = (episode, t);
        self.observe(obs);
        Ok(())
    }
}

/// Takes action 1, except in the third step of the first episode of slot 1: there it fails, or its value is this one.
struct Moody(Weights, Option<f32>);

impl Policy for Moody {
    fn compute_actions(&mut self, input: ActionInput<'_>, mut out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let is_moody = |moment: &Moment| (moment.slot, moment.episode, moment.t) == (SlotId(1), 0, 2);
        let RowsMut::I64(actions) = &mut out.actions else { panic!("discrete actions") };
        actions.fill(1);
        out.logp.fill(0.0);
        out.vf_preds.fill(0.0);
        match (input.moments.iter().position(is_moody), self.1) {
            (Some(_), None) => return Err(PolicyError::Failed("no mood".into())),
            (Some(row), Some(value)) => out.vf_preds[row] = value,
            (None, _) => {}
        }
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.0
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0 = weights.clone();
        Ok(())
    }
}

/// Takes action 1. Its values of the observations after pieces of episodes are these, and its memory, if it has one,
/// overflows in the last step of the first fragment of slot 1.
struct Overflowing {
    weights: Weights,
    value: f32,
    state_lens: &'static [usize],
}

impl Policy for Overflowing {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let RowsMut::I64(actions) = out.actions else { panic!("discrete actions") };
        actions.fill(1);
        out.logp.fill(0.0);
        out.vf_preds.fill(0.0);
        for (state, moment) in out.state.iter_mut().zip(input.moments) {
            let is_last = (moment.slot, moment.episode, moment.t) == (SlotId(1), 1, 1);
            *state = if is_last { f32::INFINITY } else { 1.0 };
        }
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(self.value);
        Ok(())
    }

    fn state_lens(&self) -> &[usize] {
        self.state_lens
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.weights = weights.clone();
        Ok(())
    }
}

fn runner(fault: &'static str, policy: Option<&str>) -> SlotRunner {
    runner_with(fault, policy, "{}")
}

fn runner_with(fault: &'static str, policy: Option<&str>, settings: &str) -> SlotRunner {
    let env = EnvSpec::new("Fragile-v0", move |contexts, _| {
        let slot = |context: &rollmesh_core::env::EnvContext| context.home.vector_index;
        let envs = contexts.iter().map(|context| Fragile { fault, slot: slot(context), episode: 0, t: 0 });
        Box::new(Vectorized::new(envs.collect()))
    });
    let moody = |name, value| {
        PolicySpec::new(name, move |_| Ok(Box::new(Moody(Weights::new(WeightsVersion(0), Vec::new())?, value))))
    };
    let overflowing = |name, value, state_lens: &'static [usize]| {
        PolicySpec::new(name, move |_| {
            let weights = Weights::new(WeightsVersion(0), Vec::new())?;
            Ok(Box::new(Overflowing { weights, value, state_lens }))
        })
    };
    let registry = Registry::builtin().with_env(env);
    let registry = registry.with_policy(moody("moody", None)).with_policy(moody("lost", Some(f32::NAN)));
    let registry = registry.with_policy(overflowing("valueless", f32::NAN, &[]));
    let registry = registry.with_policy(overflowing("forgetful", 0.0, &[1]));
    let mut run = RunConfig::new("Fragile-v0").num_workers(1).num_envs(SLOTS).rollout_fragment_length(LENGTH);
    if let Some(policy) = policy {
        run.rollout = run.rollout.single_policy(policy);
    }
    let run = run.merged(&settings.parse().unwrap()).unwrap();
    SlotRunner::new(&run, RolloutWorkerBuilder::new(registry)).unwrap()
}

/// Runs the lease of a fragment of all slots, whose states are there but for those of `moved`.
fn run(runner: &mut SlotRunner, fragment: u64, moved: &[(u32, Vec<u8>)]) -> (Vec<SlotFragment>, Vec<FragmentFailure>) {
    let source = |slot| match moved.iter().find(|(moved, _)| *moved == slot) {
        Some((_, state)) => SlotSource::State(state.clone()),
        None if fragment == 0 => SlotSource::New,
        None => SlotSource::Held,
    };
    let slots = (0..SLOTS).map(|slot| LeasedSlot::new(SlotId(slot), source(slot))).collect();
    let (id, fragment) = (LeaseId(fragment), FragmentNo(fragment));
    runner.begin(Lease { id, fragment, weights_version: WeightsVersion(0), slots }).unwrap();
    let (mut made, mut failures) = (Vec::new(), Vec::new());
    loop {
        match runner.advance(3) {
            Advance::Working { .. } => {}
            Advance::Part { fragments, .. } => made.extend(fragments),
            Advance::Failed { failure, .. } => failures.push(failure),
            Advance::Done { fragments, .. } => {
                made.extend(fragments);
                return (made, failures);
            }
            Advance::Idle => panic!("the lease got lost"),
        }
    }
}

#[test]
fn failed_fragment_is_located_and_other_slots_have_the_rows_of_a_calm_run() {
    let cases = [
        ("error", FailureKind::Env, "the environment failed: no fuel"),
        ("nan", FailureKind::Invalid, "the observation is NaN as a column holds it"),
        ("infinite", FailureKind::Invalid, "the reward is inf as a column holds it"),
        ("double", FailureKind::Invalid, "the reward is inf as a column holds it"),
        ("outside", FailureKind::Invalid, "environment 0, agent 0: the observation [2.0] after step 2"),
    ];
    for (fault, kind, message) in cases {
        let (mut calm, mut faulty) = (runner("", None), runner(fault, None));
        let (first, none) = run(&mut calm, 0, &[]);
        assert_eq!((run(&mut faulty, 0, &[]), none.len()), ((first.clone(), Vec::new()), 0));
        // The second fragment begins with the third step of the second episode.
        let (mut wanted, _) = run(&mut calm, 1, &[]);
        let (made, failures) = run(&mut faulty, 1, &[]);
        let lost = wanted.remove(2);
        assert_eq!(made, wanted, "{fault}");
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        let found = (failure.kind, failure.slot, failure.episode, failure.t);
        assert_eq!(found, (kind, Some(SlotId(2)), 1, 3), "{failure}");
        assert!(failure.message().starts_with(message), "{failure}");
        // Its worker holds the other states.
        let (third, _) = run(&mut calm, 2, &[]);
        assert_eq!(run(&mut faulty, 2, &[(2, lost.state)]), (third, Vec::new()), "{fault}");
    }
}

const RESTART: &str = r#"{"restart_failed_sub_environments": true}"#;

/// Returns the lease of a fragment of slot 2, whose environment is restarted at these steps.
fn lease_of_two(fragment: u64, source: SlotSource, restarts: &[(u32, u32)]) -> Lease {
    let restarts = restarts.iter().map(|&(episode, t)| FailedStep { episode, t }).collect();
    let slots = vec![LeasedSlot { slot: SlotId(2), source, restarts }];
    Lease { id: LeaseId(fragment), fragment: FragmentNo(fragment), weights_version: WeightsVersion(0), slots }
}

/// Makes that fragment. A failure is said to be of this kind, at this step.
fn made_of_two(runner: &mut SlotRunner, lease: Lease) -> Result<SlotFragment, (FailureKind, (u32, u32))> {
    runner.begin(lease).unwrap();
    let mut failed = Ok(());
    loop {
        match runner.advance(3) {
            Advance::Working { .. } => {}
            Advance::Failed { failure, .. } => failed = Err((failure.kind, (failure.episode, failure.t))),
            Advance::Done { mut fragments, .. } => return failed.map(|()| fragments.remove(0)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn environment_is_restarted_at_the_steps_of_the_lease_and_fails_its_fragment_elsewhere() {
    for (fault, kind) in [("error", FailureKind::Env), ("nan", FailureKind::Invalid)] {
        let runner = || runner_with(fault, Some("moody"), RESTART);
        let mut stays = runner();
        let first = made_of_two(&mut stays, lease_of_two(0, SlotSource::New, &[])).unwrap();
        // The second fragment begins with the third step of the second episode.
        let second = |restarts| lease_of_two(1, SlotSource::State(first.state.clone()), restarts);
        for restarts in [&[][..], &[(1, 2), (2, 3)]] {
            assert_eq!(made_of_two(&mut runner(), second(restarts)), Err((kind, (1, 3))), "{fault}");
        }
        let made = made_of_two(&mut stays, lease_of_two(1, SlotSource::Held, &[(1, 3)])).unwrap();
        let rows = &made.agents.as_ref().unwrap().policy_batches[&PolicyId::DEFAULT];
        let episodes: Vec<i64> = rows.get(EPS_ID).unwrap().iter().map(|id| id & 0xffff_ffff).collect();
        assert_eq!(episodes, [2, 2, 2, 2, 2, 2, 3, 3], "the episode is dropped");
        assert_eq!(made_of_two(&mut runner(), second(&[(1, 3), (9, 9)])).as_ref(), Ok(&made));
        // Of a fragment that is drawn it is not known where its environment was restarted.
        let weights = Weights::new(WeightsVersion(0), Vec::new()).unwrap();
        assert_eq!(runner().replay_shown(second(&[]), &weights, &mut |_, _| {}), Ok(vec![made.clone()]));
        assert_eq!(runner().replay(second(&[(1, 3)]), &weights), Ok(vec![made]));
        assert!(runner().replay(second(&[]), &weights).is_err());
    }
}

#[test]
fn environment_is_given_up_after_five_failures_in_a_row_in_one_fragment() {
    for (known, kind, failed) in [(0, FailureKind::Env, 0), (3, FailureKind::Env, 3), (4, FailureKind::Fragment, 4)] {
        for known in if known == 4 { known..7 } else { known..known + 1 } {
            let restarts: Vec<(u32, u32)> = (0..known).map(|episode| (episode, 0)).collect();
            let made =
                made_of_two(&mut runner_with("first", None, RESTART), lease_of_two(0, SlotSource::New, &restarts));
            assert_eq!(made, Err((kind, (failed, 0))), "{known}");
        }
    }
    // Failures before do not count: another worker may have made those fragments.
    let settings = r#"{"restart_failed_sub_environments": true, "rollout_fragment_length": 2}"#;
    let mut stays = runner_with("fourth", Some("moody"), settings);
    let mut last = made_of_two(&mut stays, lease_of_two(0, SlotSource::New, &[])).unwrap();
    for fragment in 1..8 {
        let restarts = [(fragment as u32 - 1, 3)];
        let held = made_of_two(&mut stays, lease_of_two(fragment, SlotSource::Held, &restarts));
        let moved = lease_of_two(fragment, SlotSource::State(last.state), &restarts);
        assert_eq!(made_of_two(&mut runner_with("fourth", Some("moody"), settings), moved), held);
        last = held.unwrap();
    }
}

/// The hub takes an upload with such a number for a forged one, so it is never sent.
#[test]
fn numbers_that_are_not_finite_fail_their_fragment_instead_of_the_upload() {
    const WHOLE: &str = r#"{"batch_mode": "complete_episodes"}"#;
    let cases = [
        ("double", None, WHOLE, (FailureKind::Invalid, 2, 1, 3), "environment 0, agent 0: the reward is 1"),
        // Each reward is finite, and their sum is not.
        (
            "large",
            None,
            WHOLE,
            (FailureKind::Invalid, 2, 1, 0),
            "column 'advantages' of policy 'default_policy' holds a value that is not finite: the rewards",
        ),
        (
            "",
            Some("lost"),
            "{}",
            (FailureKind::Policy, 1, 0, 2),
            "column 'vf_preds' of policy 'default_policy' holds a value that is not finite: the policy",
        ),
    ];
    for (fault, policy, settings, (kind, slot, episode, t), message) in cases {
        let (made, failures) = run(&mut runner_with(fault, policy, settings), 0, &[]);
        let others: Vec<u32> = (0..SLOTS).filter(|other| *other != slot).collect();
        assert_eq!(made.iter().map(|fragment| fragment.slot.0).collect::<Vec<_>>(), others, "{message}");
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        let found = (failure.kind, failure.slot, failure.episode, failure.t);
        assert_eq!(found, (kind, Some(SlotId(slot)), episode, t), "{failure}");
        assert!(failure.message().starts_with(message), "{failure}");
    }
}

/// The values after a fragment and the memory that it leaves are in no row, and the hub refuses them as well.
#[test]
fn values_and_memory_after_fragment_that_are_not_finite_are_located_at_its_last_step() {
    for (policy, slots, column) in
        [("valueless", &[0, 1, 2, 3][..], "bootstrap_value"), ("forgetful", &[1][..], "state_out")]
    {
        let (made, failures) = run(&mut runner("", Some(policy)), 0, &[]);
        let others: Vec<u32> = (0..SLOTS).filter(|slot| !slots.contains(slot)).collect();
        assert_eq!(made.iter().map(|fragment| fragment.slot.0).collect::<Vec<_>>(), others, "{policy}");
        let places: Vec<_> = failures.iter().map(|found| (found.kind, found.slot, found.episode, found.t)).collect();
        let expected: Vec<_> = slots.iter().map(|slot| (FailureKind::Policy, Some(SlotId(*slot)), 1, 1)).collect();
        assert_eq!(places, expected, "{failures:?}");
        let message = format!("column '{column}' of policy 'default_policy' holds a value that is not finite");
        assert!(failures.iter().all(|failure| failure.message().starts_with(&message)), "{failures:?}");
    }
}

#[test]
fn refused_state_and_failed_policy_are_reported_for_what_they_are() {
    let mut faulty = runner("restore", None);
    let (first, none) = run(&mut faulty, 0, &[]);
    assert!(none.is_empty());
    let (made, failures) = run(&mut faulty, 1, &[(2, first[2].state.clone())]);
    assert_eq!(made.iter().map(|fragment| fragment.slot.0).collect::<Vec<_>>(), [0, 1, 3]);
    let text = "slot 2, episode 1, step 2: the state was not restored: the environment failed: no way back";
    assert_eq!(failures.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    assert_eq!(failures[0].kind, FailureKind::Restore);

    let (made, failures) = run(&mut runner("", Some("moody")), 0, &[]);
    assert_eq!(made.iter().map(|fragment| fragment.slot.0).collect::<Vec<_>>(), [0, 2, 3]);
    let message = "policy 'default_policy': the policy failed: no mood";
    let failed = FragmentFailure::new(FailureKind::Policy, Some(SlotId(1)), (0, 2), message);
    assert_eq!(failures, [failed]);
}

/// Adds up its actions, and has no snapshot.
struct Sum {
    state: EnvState,
    sum: f32,
}

impl Env for Sum {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[f32::MAX])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.sum = rng.uniform_f32();
        obs[0] = self.sum;
        Ok(())
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.sum += action[0] as f32 + rng.uniform_f32();
        obs[0] = self.sum;
        Ok(Step { reward: 1.0, ..Step::default() })
    }

    fn snapshot(&self, _out: &mut Vec<u8>) -> EnvState {
        self.state
    }
}

fn sum(state: EnvState) -> Registry {
    Registry::builtin().with_env(EnvSpec::new("Sum-v0", move |contexts, _| {
        Box::new(Vectorized::new(contexts.iter().map(|_| Sum { state, sum: 0.0 }).collect()))
    }))
}

/// Creates a runner with fragments of eight steps of two slots.
fn sums(state: EnvState) -> SlotRunner {
    let run = RunConfig::new("Sum-v0").num_workers(1).num_envs(2).rollout_fragment_length(8);
    SlotRunner::new(&run, RolloutWorkerBuilder::new(sum(state))).unwrap()
}

/// Returns the fragments of a lease, and its progress reports, of at most three steps at a time.
fn made(runner: &mut SlotRunner, fragment: u64, sources: [SlotSource; 2]) -> (Vec<SlotFragment>, Vec<u64>) {
    let slots = (0..).map(SlotId).zip(sources).map(|(slot, source)| LeasedSlot::new(slot, source)).collect();
    let (id, fragment) = (LeaseId(fragment), FragmentNo(fragment));
    runner.begin(Lease { id, fragment, weights_version: WeightsVersion(0), slots }).unwrap();
    let (mut made, mut progress) = (Vec::new(), Vec::new());
    loop {
        match runner.advance(3) {
            Advance::Working { env_steps, .. } => progress.push(env_steps),
            Advance::Part { fragments, .. } => made.extend(fragments),
            Advance::Done { fragments, .. } => {
                made.extend(fragments);
                return (made, progress);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The episodes of both slots are replayed step by step: each replayed step is progress.
#[test]
fn slots_of_replayed_environment_continue_elsewhere_with_the_same_rows() {
    let mut here = sums(EnvState::Replay);
    let (first, _) = made(&mut here, 0, [SlotSource::New, SlotSource::New]);
    let (second, calm) = made(&mut here, 1, [SlotSource::Held, SlotSource::Held]);
    assert_eq!(calm, [6, 12]);
    let moved = [0, 1].map(|slot| SlotSource::State(first[slot].state.clone()));
    let (elsewhere, progress) = made(&mut sums(EnvState::Replay), 1, moved);
    assert_eq!(elsewhere, second);
    assert_eq!(progress, [3, 6, 9, 12, 15, 16 + 4, 16 + 10]);
}

#[test]
fn slots_of_opaque_environment_begin_next_episode_elsewhere() {
    let mut here = sums(EnvState::Opaque);
    let (first, _) = made(&mut here, 0, [SlotSource::New, SlotSource::New]);
    let (second, _) = made(&mut here, 1, [SlotSource::Held, SlotSource::Held]);
    assert!(second.iter().all(|fragment| (fragment.first_episode, fragment.first_t) == (0, 8)));
    let moved = [0, 1].map(|slot| SlotSource::State(first[slot].state.clone()));
    let (elsewhere, _) = made(&mut sums(EnvState::Opaque), 1, moved);
    assert!(elsewhere.iter().all(|fragment| (fragment.first_episode, fragment.first_t) == (1, 0)), "{elsewhere:?}");
}

/// No slot is replayed because another one has moved: what may be abandoned stays where it is.
#[test]
fn slot_that_stays_is_not_replayed_if_its_episode_may_be_abandoned() {
    let run = RunConfig::new("Sum-v0").num_workers(1).num_envs(2).rollout_fragment_length(8);
    for (replay_mismatch, replayed) in [(ReplayMismatch::Fail, 16), (ReplayMismatch::Abandon, 8)] {
        let run = RunConfig { replay_mismatch, ..run.clone() };
        let mut here = SlotRunner::new(&run, RolloutWorkerBuilder::new(sum(EnvState::Replay))).unwrap();
        let (first, _) = made(&mut here, 0, [SlotSource::New, SlotSource::New]);
        let moved = [SlotSource::Held, SlotSource::State(first[1].state.clone())];
        let (_, progress) = made(&mut here, 1, moved);
        // Progress is reported up to the last steps, at most three at a time.
        assert!(
            (replayed + 16 - 6..replayed + 16).contains(progress.last().unwrap()),
            "{replay_mismatch:?}: {progress:?}"
        );
    }
}

#[test]
fn restored_worker_continues_replayed_episode_and_begins_next_one_after_opaque_one() {
    for (state, episode, t) in [(EnvState::Replay, 0, 8), (EnvState::Opaque, 1, 0)] {
        let config = RolloutConfig::new("Sum-v0").rollout_fragment_length(8);
        let build = || RolloutWorkerBuilder::new(sum(state)).config(config.clone()).build().unwrap();
        let mut saved = build();
        saved.sample().unwrap();
        let mut restored = build();
        restored.restore(&saved.save().unwrap()).unwrap();
        let (next, expected) = (restored.sample().unwrap(), saved.sample().unwrap());
        let (next, expected) = (next.single().unwrap(), expected.single().unwrap());
        assert_eq!((next.get(EPS_ID).unwrap()[0], next.get(T).unwrap()[0]), (episode, t), "{state:?}");
        assert_eq!(next.same_bits(expected), state == EnvState::Replay);
    }
}

/// The run ends, or does not begin where the time limit shows it.
#[test]
fn open_episode_whose_actions_are_too_many_needs_snapshot_or_horizon() {
    let mut runner = runner_of(&endless(None)).unwrap();
    let (mut fragment, mut source) = (0, SlotSource::New);
    let failure = loop {
        let slots = vec![LeasedSlot::new(SlotId(0), source)];
        let (id, number) = (LeaseId(fragment), FragmentNo(fragment));
        runner.begin(Lease { id, fragment: number, weights_version: WeightsVersion(0), slots }).unwrap();
        match runner.advance(u32::MAX) {
            Advance::Done { .. } => (fragment, source) = (fragment + 1, SlotSource::Held),
            Advance::Failed { failure, .. } => break failure,
            other => panic!("{other:?}"),
        }
    };
    assert!(failure.message().contains("give the environment a snapshot"), "{failure}");
    let error = runner_of(&endless(Some(600_000))).err().unwrap().to_string();
    assert!(error.contains("horizon") && error.contains("600000 steps take more than 1048576 bytes"), "{error}");
    assert!(runner_of(&endless(Some(1_000))).is_ok());
}

fn endless(limit: Option<u32>) -> (EnvSpec, RunConfig) {
    let mut env = EnvSpec::new("Sum-v0", move |contexts, _| {
        Box::new(Vectorized::new(contexts.iter().map(|_| Sum { state: EnvState::Replay, sum: 0.0 }).collect()))
    });
    env.max_episode_steps = limit;
    let run = RunConfig::new("Sum-v0").num_workers(1).num_envs(1).rollout_fragment_length(65_536);
    (env, RunConfig { rollout: run.rollout.single_policy("random"), ..run })
}

fn runner_of((env, run): &(EnvSpec, RunConfig)) -> Result<SlotRunner, SetupError> {
    SlotRunner::new(run, RolloutWorkerBuilder::new(Registry::builtin().with_env(env.clone())))
}
