//! The same rows in every process, and alongside any other environments.

use rollmesh_core::{
    env::{
        AnyVectorEnv, CheckOptions, EnvRegistry, EnvState, Moment, Moments, RowsMut, RowsRef, StepOut, check_env_all,
    },
    ids::SlotId,
    kernels::Kernels,
    rng::{Purpose, Streams},
};

use super::{PATIENT, context, make, spec};

/// Observations, rewards and ends of a step of all lanes.
pub(super) type Stepped = (Vec<f32>, Vec<f64>, Vec<bool>, Vec<bool>);

pub(super) fn step(env: &mut dyn AnyVectorEnv, actions: &[i64], t: u32, row: usize) -> Stepped {
    let lanes = actions.len();
    let moments: Vec<Moment> =
        (0..lanes as u32).map(|slot| Moment { slot: SlotId(slot), t, ..Moment::default() }).collect();
    let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &moments, mark: None };
    let (mut obs, mut rewards) = (vec![0.0; lanes * row], vec![0.0; lanes]);
    let (mut terminateds, mut truncateds) = (vec![false; lanes], vec![false; lanes]);
    let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
    env.step(RowsRef::I64(actions), moments, RowsMut::F32(&mut obs), out).unwrap();
    (obs, rewards, terminateds, truncateds)
}

pub(super) fn reset(env: &mut dyn AnyVectorEnv, lane: usize, row: usize) -> Vec<f32> {
    let mut obs = vec![0.0; row];
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(lane as u32), 0, 0, 0);
    env.reset_at(lane, &mut rng, RowsMut::F32(&mut obs)).unwrap();
    obs
}

#[test]
fn cart_pole_of_gymnasium_equals_the_built_in_one() {
    let builtin = EnvRegistry::builtin().spec("CartPole-v1").unwrap();
    for state in [[0.01f64, -0.02, 0.03, 0.04], [-1.9, -1.5, 0.1, 0.9], [0.0, 0.0, -0.2, -0.3]] {
        let mut ours = builtin.make(&[context("{}")], Kernels::PORTABLE).unwrap();
        let snapshot: Vec<u8> = state.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut first = [0.0; 4];
        ours.restore_at(0, &snapshot, RowsMut::F32(&mut first)).unwrap();
        let config = format!(r#"{{"state": {state:?}}}"#);
        let mut theirs = make("py:lab:cart_pole_from", &config, 1, PATIENT).unwrap();
        assert_eq!(reset(theirs.as_mut(), 0, 4), first);
        for t in 0.. {
            let action = [i64::from(t % 3 > 0)];
            let stepped = step(ours.as_mut(), &action, t, 4);
            assert_eq!(step(theirs.as_mut(), &action, t, 4), stepped, "step {t} from {state:?}");
            if stepped.2[0] {
                assert!(t > 0);
                break;
            }
        }
    }
}

#[test]
fn environments_of_gymnasium_keep_the_rules() {
    for name in ["gym:CartPole-v1", "gym:Acrobot-v1", "gym:Pendulum-v1"] {
        let errors = check_env_all(&spec(name), CheckOptions { lanes: 2, steps: 40, seed: 3 });
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
    let builtin = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    assert_eq!(spec("gym:CartPole-v1").spaces(), Ok(builtin));
}

#[test]
fn time_limits_truncate_and_do_not_terminate() {
    let mut env = make("gym:CartPole-v1", r#"{"max_episode_steps": 3}"#, 1, PATIENT).unwrap();
    reset(env.as_mut(), 0, 4);
    let ends: Vec<(bool, bool)> =
        (0..3).map(|t| step(env.as_mut(), &[t % 2], t as u32, 4)).map(|s| (s.2[0], s.3[0])).collect();
    assert_eq!(ends, [(false, false), (false, false), (false, true)]);
}

#[test]
fn lanes_share_a_process_that_has_no_token() {
    let mut env = make("gym:lab:Mine-v0", "{}", 5, PATIENT).unwrap();
    let mut other = make("gym:lab:Mine-v0", "{}", 1, PATIENT).unwrap();
    let mut seen = Vec::new();
    let lanes = (0..5).map(|lane| (true, lane)).chain([(false, 0)]);
    for (is_first, lane) in lanes {
        let mut obs = [0.0; 3];
        let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(lane as u32), 0, 0, 0);
        let env = if is_first { &mut env } else { &mut other };
        env.reset_at(lane, &mut rng, RowsMut::F64(&mut obs)).unwrap();
        seen.push(obs);
    }
    assert!(seen.iter().all(|obs| obs[..2] == [seen[0][0], 0.0]), "{seen:?}");
    assert_ne!(seen[0][0], f64::from(std::process::id()));
    // Each slot has seeds of its own, the same wherever it runs.
    assert!(seen[0][2] != seen[1][2] && seen[0][2] == seen[5][2], "{seen:?}");
}

#[test]
fn episodes_survive_the_process_of_other_environments() {
    let episode = |disturbed: bool| -> Vec<Stepped> {
        let mut env = make("gym:CartPole-v1", "{}", 3, PATIENT).unwrap();
        (0..3).for_each(|lane| _ = reset(env.as_mut(), lane, 4));
        let mut rows: Vec<_> = (0..5).map(|t| step(env.as_mut(), &[1, 0, i64::from(t % 2)], t, 4)).collect();
        if disturbed {
            let mut bad = make("py:lab:faulty", r#"{"fault": "crash"}"#, 1, PATIENT).unwrap();
            reset(bad.as_mut(), 0, 1);
            (0..3).for_each(|t| _ = step(bad.as_mut(), &[0], t, 1));
            let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0], [0.0], [false], [false]);
            let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
            let moments =
                Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &[Moment::default()], mark: None };
            let died = bad.step(RowsRef::I64(&[0]), moments, RowsMut::F32(&mut obs), out).unwrap_err();
            assert!(died.to_string().contains("its Python process was ended by signal 6"), "{died}");
        }
        rows.extend((5..8).map(|t| step(env.as_mut(), &[0, 1, 1], t, 4)));
        rows
    };
    assert_eq!(episode(true), episode(false));
}

#[test]
fn threads_that_share_a_process_get_the_rows_of_their_own_environments() {
    let episode = |env: &mut dyn AnyVectorEnv, action: i64| -> Vec<Stepped> {
        reset(env, 0, 4);
        (0..8).map(|t| step(env, &[action], t, 4)).collect()
    };
    let made = || make("gym:CartPole-v1", "{}", 1, PATIENT).unwrap();
    let wanted = [0, 1].map(|action| episode(made().as_mut(), action));
    // Made on one thread, they have one process.
    let envs = [made(), made()];
    std::thread::scope(|scope| {
        for ((mut env, wanted), action) in envs.into_iter().zip(&wanted).zip([0, 1]) {
            scope.spawn(move || (0..100).for_each(|_| assert_eq!(episode(env.as_mut(), action), *wanted)));
        }
    });
}

#[test]
fn nondeterministic_environments_do_not_move() {
    let state = |name| make(name, "{}", 1, PATIENT).unwrap().state();
    assert_eq!(state("py:lab:NotDeterministic"), EnvState::Opaque);
    assert_eq!(state("py:lab:Here"), EnvState::Replay);
}
