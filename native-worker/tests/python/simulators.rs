//! Open episodes that move by the state of a simulator, for which the lab has a small one.

use rollmesh_core::env::{AnyVectorEnv, EnvState, Moment, Moments, RowsMut, RowsRef, StepOut};
use rollmesh_core::rng::{Purpose, Streams};

use super::{
    PATIENT, make,
    same::{reset, step},
};

/// Returns an environment five steps into its episode.
fn begun() -> Box<dyn AnyVectorEnv> {
    let mut env = make("py:lab:simulated", "{}", 1, PATIENT).unwrap();
    reset(env.as_mut(), 0, 1);
    (0..5).for_each(|t| _ = step(env.as_mut(), &[1], t, 1));
    env
}

fn snapshot(env: &dyn AnyVectorEnv) -> Vec<u8> {
    let mut snapshot = Vec::new();
    assert_eq!(env.snapshot_at(0, &mut snapshot), Ok(EnvState::Snapshot));
    snapshot
}

/// Ends the host of this thread's environments.
fn crash() {
    let mut bad = make("py:lab:faulty", r#"{"fault": "crash"}"#, 1, PATIENT).unwrap();
    reset(bad.as_mut(), 0, 1);
    (0..3).for_each(|t| _ = step(bad.as_mut(), &[0], t, 1));
    let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0], [0.0], [false], [false]);
    let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
    let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &[Moment::default()], mark: None };
    bad.step(RowsRef::I64(&[0]), moments, RowsMut::F32(&mut obs), out).unwrap_err();
}

#[test]
fn simulators_that_do_not_continue_from_their_states_are_replayed() {
    for (fault, wanted) in [
        ("null", EnvState::Snapshot),
        // Its observations are the same, its state is not.
        (r#""drifts""#, EnvState::Replay),
        (r#""raises""#, EnvState::Replay),
        (r#""forgets""#, EnvState::Replay),
    ] {
        let env = make("py:lab:simulated", &format!(r#"{{"fault": {fault}}}"#), 1, PATIENT).unwrap();
        assert_eq!(env.state(), wanted, "{fault}");
    }
}

#[test]
fn state_is_the_same_after_the_end_of_the_process() {
    let mut env = begun();
    let wanted = snapshot(env.as_ref());
    crash();
    assert_eq!(snapshot(env.as_ref()), wanted);
    // It continues from there, and so does one that was restored and whose process ends then.
    let rest = step(env.as_mut(), &[1], 5, 1);
    let mut other = make("py:lab:simulated", "{}", 1, PATIENT).unwrap();
    other.restore_at(0, &wanted, RowsMut::F32(&mut [0.0])).unwrap();
    assert_eq!(step(other.as_mut(), &[1], 5, 1), rest);
    let later = snapshot(env.as_ref());
    crash();
    assert_eq!(snapshot(other.as_ref()), later);
}

#[test]
fn state_that_cannot_be_saved_is_an_error_and_the_episode_continues() {
    let make = || make("py:lab:simulated", r#"{"fault": "fails"}"#, 1, PATIENT).unwrap();
    let mut env = make();
    reset(env.as_mut(), 0, 1);
    (0..40).for_each(|t| _ = step(env.as_mut(), &[1], t, 1));
    let mut steps = Vec::new();
    let error = env.snapshot_at(0, &mut steps).unwrap_err().to_string();
    assert!(error.contains("RuntimeError: the simulator cannot tell its state"), "{error}");
    // Wrappers, which cannot fail, move it by its steps.
    let mut other = make();
    other.restore_at(0, &steps, RowsMut::F32(&mut [0.0])).unwrap();
    assert_eq!(step(other.as_mut(), &[1], 40, 1), step(env.as_mut(), &[1], 40, 1));
}

#[test]
fn state_of_another_simulator_is_refused() {
    let mut env = begun();
    let snapshot = snapshot(env.as_ref());
    let mut restored = |changed: &[u8]| {
        let restored = env.restore_at(0, changed, RowsMut::F32(&mut [0.0]));
        restored.map_err(|error| error.to_string())
    };
    assert_eq!(restored(&snapshot), Ok(()));
    let at = snapshot.windows(10).position(|bytes| bytes == b"mujoco lab").unwrap();
    let mut version = snapshot.clone();
    version[at + 7] = b'L';
    let error = restored(&version).unwrap_err();
    assert!(error.contains("the state is of b'mujoco Lab' with 0 time limits, here are mujoco lab and 0"), "{error}");
    let mut long = snapshot.clone();
    let len = u32::from_le_bytes(snapshot[..4].try_into().unwrap());
    long[..4].copy_from_slice(&(len + 8).to_le_bytes());
    long.splice(len as usize + 4..len as usize + 4, [0; 8]);
    let error = restored(&long).unwrap_err();
    assert!(error.contains("the state of the simulator has"), "{error}");
}
