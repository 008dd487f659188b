//! Valid environments pass, and every fault is detected and named.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{
    column::{DType, Element, RowShape},
    env::{
        Env, EnvRegistry, EnvState, Lane, Moments, Rng, SnapshotReader, Step, StepOut, VectorEnv, Vectorized, put_rows,
        wrappers::{NormalizeReward, TimeLimit},
    },
    ids::{FragmentNo, WeightsVersion},
    policy::{Policy, PolicyEntry, RandomPolicy},
    sampler::{Collector as _, LaneStart, Lockstep, Need, SamplerOptions},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    OutsideSpace,
    NanReward,
    GlobalReset,
    GlobalStep,
    HiddenState,
    Coupled,
    BelievesAll,
    RefusesLate,
    RefusesInTime,
    NanAtTheEnd,
    Fails,
    /// No fault, but without a snapshot.
    Replayed,
    /// Its episodes depend on earlier ones, and it has no snapshot.
    CarriesOver,
    /// Uses its own random numbers, and declares itself opaque.
    Opaque,
}

/// State that leaks from one instance to the next.
static LEAK: AtomicU32 = AtomicU32::new(0);

/// Counts up by its actions and restarts at 1,000; at most one fault.
#[derive(Clone)]
struct Counter {
    count: u32,
    hidden: u32,
    shared: Arc<AtomicU32>,
    fault: Fault,
}

impl Counter {
    fn observe(&self, obs: &mut [f32]) {
        obs[0] = self.count as f32;
    }
}

impl Env for Counter {
    type Obs = f32;
    type Act = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[if self.fault == Fault::OutsideSpace { 100.0 } else { 5e9 }])
    }

    fn action_space(&self) -> Space {
        Space::vector(&[0.0], &[9.0])
    }

    fn accepts(&self, action: &[f32]) -> bool {
        self.fault != Fault::RefusesInTime || action[0] <= 9.0
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.count = rng.below(10);
        if self.fault == Fault::GlobalReset {
            self.count += LEAK.fetch_add(1, Ordering::Relaxed);
        }
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[f32], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        if self.fault == Fault::RefusesLate && action[0] > 9.0 {
            return Err(EnvError::InvalidAction { lane: 0, action: action[0].to_string() });
        }
        self.hidden += 1;
        self.shared.fetch_add(1, Ordering::Relaxed);
        self.count += action[0].clamp(0.0, 9.0) as u32 + rng.below(2);
        self.count += match self.fault {
            Fault::GlobalStep | Fault::Opaque => LEAK.fetch_add(1, Ordering::Relaxed),
            Fault::HiddenState | Fault::CarriesOver => self.hidden,
            Fault::Coupled => self.shared.load(Ordering::Relaxed),
            Fault::BelievesAll if self.count > 1_000_000 => {
                return Err(EnvError::Failed("lost count".into()));
            }
            _ => 0,
        };
        if self.fault == Fault::Fails && self.count > 90 {
            return Err(EnvError::Failed("lost count".into()));
        }
        self.observe(obs);
        if self.fault == Fault::NanAtTheEnd && self.count > 1_000 {
            obs[0] = f32::NAN;
        }
        let reward = if self.fault == Fault::NanReward && self.count > 90 { f64::NAN } else { 1.0 };
        Ok(Step { reward, terminated: self.count > 1_000 && self.fault != Fault::OutsideSpace, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        match self.fault {
            Fault::Replayed | Fault::CarriesOver => return EnvState::Replay,
            Fault::Opaque => return EnvState::Opaque,
            _ => out.extend_from_slice(&self.count.to_le_bytes()),
        }
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let count = reader.u32()?;
        reader.finish()?;
        if count > 2_000 && ![Fault::BelievesAll, Fault::HiddenState, Fault::Coupled].contains(&self.fault) {
            return Err(EnvError::BadSnapshot(snapshot.len()));
        }
        self.count = count;
        self.observe(obs);
        Ok(())
    }
}

fn spec(fault: Fault) -> EnvSpec {
    EnvSpec::new("Counter", move |contexts, _| {
        let counter = Counter { count: 0, hidden: 0, shared: Arc::default(), fault };
        Box::new(Vectorized::new(vec![counter; contexts.len()]))
    })
}

#[test]
fn a_good_environment_passes() {
    assert_eq!(check_env(&spec(Fault::None), CheckOptions::default()), Ok(()));
    assert_eq!(check_env_all(&spec(Fault::None), CheckOptions { lanes: 1, steps: 50, seed: 9 }), []);
    assert_eq!(check_env(&spec(Fault::None), CheckOptions { lanes: 0, steps: 0, seed: 0 }), Ok(()));
}

#[test]
fn every_builtin_environment_passes() {
    for spec in EnvRegistry::builtin().iter() {
        assert_eq!(check_env_all(spec, CheckOptions { lanes: 2, steps: 200, seed: 3 }), [], "{}", spec.name);
    }
}

#[test]
fn observations_outside_of_the_space_are_found() {
    let error = check_env(&spec(Fault::OutsideSpace), 2).unwrap_err();
    assert!(matches!(&error, CheckError::OutsideSpace { after: "a step", .. }), "{error}");
    assert!(error.to_string().contains("is not in Box(0.0, 100.0, (1,), float32)"), "{error}");
}

#[test]
fn rewards_that_are_no_numbers_are_found() {
    let error = check_env(&spec(Fault::NanReward), 2).unwrap_err();
    assert!(matches!(error, CheckError::Reward { reward, .. } if reward.is_nan()), "{error}");
}

#[test]
fn randomness_of_its_own_is_found() {
    let error = check_env(&spec(Fault::GlobalReset), 2).unwrap_err();
    assert!(matches!(error, CheckError::NotDeterministic { during: "a reset", step: 0, .. }), "{error}");
    let error = check_env(&spec(Fault::GlobalStep), 2).unwrap_err();
    assert!(matches!(error, CheckError::NotDeterministic { during: "a step", step: 1, .. }), "{error}");
}

#[test]
fn state_outside_of_the_snapshot_is_found() {
    let error = check_env(&spec(Fault::HiddenState), 2).unwrap_err();
    assert!(matches!(error, CheckError::BadRestore { lane: 0, .. }), "{error}");
}

#[test]
fn environment_without_snapshot_passes_if_it_is_deterministic() {
    let spec = |fault| spec(fault).with_max_episode_steps(20);
    assert_eq!(check_env_all(&spec(Fault::Replayed), 3), []);
    assert_eq!(check_env_all(&spec(Fault::Opaque), 3), []);
    let error = check_env(&spec(Fault::CarriesOver), 2).unwrap_err();
    let CheckError::Failed { during: "`restore`", source: EnvError::NotReplayed { .. }, .. } = error else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("replaying the open episode's"), "{error}");
}

/// In a single lane, with other random streams in each step.
#[test]
fn environment_without_snapshot_passes_inside_wrappers() {
    let counter = || Counter { count: 0, hidden: 0, shared: Arc::default(), fault: Fault::Replayed };
    let limited = EnvSpec::new("Limited", move |contexts, _| {
        Box::new(Vectorized::new(contexts.iter().map(|_| TimeLimit::new(counter(), 9)).collect()))
    });
    assert_eq!(check_env_all(&limited, 2), []);
    let inside = EnvSpec::new("Inside", move |contexts, _| {
        let lane = || NormalizeReward::new(Lane::new(Vectorized::new(vec![counter()])), 0.9, 1e-8);
        Box::new(Vectorized::new(contexts.iter().map(|_| lane()).collect()))
    });
    assert_eq!(check_env_all(&inside.with_max_episode_steps(20), 2), []);
    let outside = Vectorized::new(vec![NormalizeReward::new(counter(), 0.9, 1e-8)]);
    assert_eq!(VectorEnv::snapshot_at(&outside, 0, &mut Vec::new()), EnvState::Opaque);
}

#[test]
fn lanes_that_depend_on_each_other_are_found() {
    let error = check_env(&spec(Fault::Coupled), 2).unwrap_err();
    assert!(matches!(error, CheckError::Coupled { .. }), "{error}");
    // The shared state is not in the snapshot either.
    let errors = check_env_all(&spec(Fault::Coupled), 2);
    assert!(matches!(errors[..], [CheckError::Coupled { .. }, CheckError::BadRestore { .. }]), "{errors:?}");
}

#[test]
fn snapshots_restored_without_validation_are_found() {
    let error = check_env(&spec(Fault::BelievesAll), 2).unwrap_err();
    assert!(
        matches!(error, CheckError::Failed { during: "a step after `restore` accepted damaged bytes", .. }),
        "{error}"
    );
}

#[test]
fn failures_are_found() {
    let error = check_env(&spec(Fault::Fails), 2).unwrap_err();
    assert!(
        matches!(error, CheckError::Failed { during: "a step", source: EnvError::InLane { lane: 1, .. }, .. }),
        "{error}"
    );
}

#[test]
fn an_action_refused_after_a_lane_has_moved_is_found() {
    let error = check_env(&spec(Fault::RefusesLate), 2).unwrap_err();
    assert!(matches!(&error, CheckError::MovedByRefused { lane: 0, action, .. } if action == "[10.0]"), "{error}");
    assert_eq!(check_env(&spec(Fault::RefusesLate), 1), Ok(()));
    assert_eq!(check_env(&spec(Fault::RefusesInTime), 2), Ok(()));
}

#[test]
fn a_last_observation_that_is_no_number_is_found() {
    let error = check_env(&spec(Fault::NanAtTheEnd), 2).unwrap_err();
    assert!(matches!(&error, CheckError::OutsideSpace { obs, .. } if obs == "[NaN]"), "{error}");
}

/// Writes a flag only to set it, at every tenth step.
struct Raises {
    steps: Vec<u8>,
}

impl VectorEnv for Raises {
    type Obs = i64;
    type Act = i64;

    fn num_envs(&self) -> usize {
        self.steps.len()
    }

    fn observation_space(&self) -> Space {
        Space::Discrete { n: 10 }
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset_at(&mut self, lane: usize, _: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        self.steps[lane] = 0;
        obs.fill(0);
        Ok(())
    }

    fn step(&mut self, _: &[i64], _: Moments<'_>, obs: &mut [i64], out: StepOut<'_>) -> Result<(), EnvError> {
        for (lane, steps) in self.steps.iter_mut().enumerate() {
            *steps = (*steps + 1) % 10;
            obs[lane] = i64::from(*steps);
            out.rewards[lane] = 1.0;
            if *steps == 0 {
                out.terminateds[lane] = true;
            }
        }
        Ok(())
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        out.push(self.steps[lane]);
        EnvState::Snapshot
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [i64]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.steps[lane] = reader.below(10)?;
        obs.fill(i64::from(self.steps[lane]));
        reader.finish()
    }
}

#[test]
fn flags_that_are_not_written_are_found() {
    let spec = EnvSpec::new("Raises", |contexts, _| Box::new(Raises { steps: vec![0; contexts.len()] }));
    let errors = check_env_all(&spec, 2);
    assert_eq!(errors, [CheckError::NotWritten { array: "terminateds", during: "a step", lane: 0, step: 1 }]);
}

/// A collector clears the flags between fragments all the same.
#[test]
fn flags_of_a_fragment_do_not_last_into_the_next() {
    let starts: Vec<_> = (0..2).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
    let mut env = Raises { steps: vec![0; 2] };
    let entry = PolicyEntry::<dyn Policy>::new("", Box::new(RandomPolicy::new(2, 1)));
    let mut collector = Lockstep::<i64>::new(&starts, &SamplerOptions::default(), &entry, &mut env).unwrap();
    let mut lengths = Vec::new();
    for fragment in 0..4 {
        collector.begin(FragmentNo(fragment), WeightsVersion(0), 15);
        while collector.need() == Need::Actions {
            collector.actions_done();
            collector.step_env(&mut env).unwrap();
        }
        collector.values_done();
        lengths.extend(collector.take(&env).unwrap().iter().flat_map(|slot| &slot.episodes).map(|episode| episode.len));
    }
    assert_eq!(lengths, [10; 12]);
}

#[test]
fn a_wrong_number_of_lanes_is_found() {
    let counter = || Counter { count: 0, hidden: 0, shared: Arc::default(), fault: Fault::None };
    let spec = EnvSpec::new("Lonely", move |_, _| Box::new(Vectorized::new(vec![counter()])));
    assert_eq!(check_env(&spec, 3), Err(CheckError::Lanes { wanted: 3, found: 1 }));
}

/// Observes its action, with the given spaces and types.
struct Echo<O, A> {
    spaces: [Space; 2],
    last: Vec<O>,
    action: core::marker::PhantomData<A>,
}

impl<O: Element, A: Element> Env for Echo<O, A> {
    type Obs = O;
    type Act = A;

    fn observation_space(&self) -> Space {
        self.spaces[0].clone()
    }

    fn action_space(&self) -> Space {
        self.spaces[1].clone()
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        self.last.fill(O::default());
        obs.copy_from_slice(&self.last);
        Ok(())
    }

    fn step(&mut self, action: &[A], _: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        for (x, a) in self.last.iter_mut().zip(action) {
            *x = O::from_f64(a.to_f64());
        }
        obs.copy_from_slice(&self.last);
        Ok(Step { reward: 0.0, terminated: false, truncated: action.first() == action.last() })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        put_rows(out, O::erase_rows(&self.last));
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [O]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        reader.rows(O::erase_rows_mut(&mut self.last))?;
        if self.spaces[0].contains_row(&self.last) != Ok(true) {
            return Err(reader.bad());
        }
        obs.copy_from_slice(&self.last);
        reader.finish()
    }
}

fn echo<O: Element, A: Element>(obs: Space, action: Space) -> Result<(), CheckError> {
    let spec = EnvSpec::new("Echo", move |contexts, _| {
        let echo = |_| Echo::<O, A> {
            spaces: [obs.clone(), action.clone()],
            last: vec![O::default(); obs.shape().elements()],
            action: core::marker::PhantomData,
        };
        Box::new(Vectorized::new(contexts.iter().map(echo).collect()))
    });
    check_env(&spec, 2)
}

#[test]
fn every_kind_of_row_is_checked() {
    let nvec = || Space::multi_discrete([3, 4]).unwrap();
    let binary = || Space::multi_binary(2).unwrap();
    assert_eq!(echo::<i64, i32>(nvec(), nvec()), Ok(()));
    assert_eq!(echo::<u8, bool>(binary(), binary()), Ok(()));
    assert_eq!(echo::<bool, u8>(binary(), binary()), Ok(()));
    let cube = |dtype| Space::uniform(dtype, RowShape::new(&[2, 1, 2]).unwrap(), -1.0, 1.0);
    assert_eq!(echo::<f64, f64>(cube(DType::F64), cube(DType::F64)), Ok(()));
    assert_eq!(echo::<i32, i64>(cube(DType::I32), cube(DType::I64)), Ok(()));
    assert_eq!(echo::<i64, i64>(Space::Discrete { n: 5 }, Space::Discrete { n: 5 }), Ok(()));
}

#[test]
fn spaces_that_do_not_fit_are_found() {
    let five = || Space::Discrete { n: 5 };
    let error = echo::<f32, i64>(five(), five()).unwrap_err();
    assert_eq!(error.to_string(), "observations are rows of float32, which the space Discrete(5) does not have");
    let error = echo::<i64, i64>(five(), Space::Discrete { n: 0 }).unwrap_err();
    assert!(matches!(error, CheckError::BadSpace { what: "action", .. }), "{error}");
    let error = echo::<i64, i64>(five(), Space::tuple([five()]).unwrap()).unwrap_err();
    assert!(matches!(error, CheckError::WrongType { what: "action", .. }), "{error}");
    // The observations follow the actions out of their space.
    let error = echo::<i64, i64>(Space::Discrete { n: 2 }, five()).unwrap_err();
    assert!(matches!(error, CheckError::OutsideSpace { .. }), "{error}");
}
