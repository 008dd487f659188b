//! Laws of all dynamics, and rules that trajectories rarely show.

use core::f64::consts::PI;

use proptest::prelude::*;

use super::{
    AcrobotDynamics, CartPole, Classic, Dynamics, MountainCar, MountainCarContinuousDynamics, MountainCarDynamics,
    Pendulum, PendulumDynamics, StatelessCartPole, Transition,
};
use crate::{
    env::{EnvError, EnvRegistry, Moment, Moments, StepOut, VectorEnv, check_env},
    ids::SlotId,
    kernels::Kernels,
    prelude::*,
    rng::{Purpose, Streams},
};

/// Checks that a step from a possible state leads to a possible one, and that both have observations inside the space.
fn stays_possible<D: Dynamics<S, O>, const S: usize, const O: usize>(state: [f64; S], action: D::Act) {
    let inside = |state| D::is_possible(state) && D::observation_space().contains_row(&D::observe(state)) == Ok(true);
    assert!(inside(state), "{state:?}");
    assert!(D::accepts(action));
    let Transition { state: after, reward, .. } = D::step(state, action);
    assert!(inside(after) && reward.is_finite(), "{state:?}, {action}: {after:?}, {reward}");
}

proptest! {
    #[test]
    fn mountain_cars_stay_possible(position in -1.2..=0.6, velocity in -0.07..=0.07, action in 0..3i64, thrust: f32) {
        stays_possible::<MountainCarDynamics, 2, 2>([position, velocity], action);
        // Squares of the largest thrusts overflow 32-bit floats.
        let thrust = if thrust.is_finite() { thrust } else { f32::MAX };
        stays_possible::<MountainCarContinuousDynamics, 2, 2>([position, velocity], thrust);
        let single = [position, velocity].map(|value| f64::from(value as f32));
        stays_possible::<MountainCarContinuousDynamics, 2, 2>(single, thrust);
    }

    #[test]
    fn pendulums_stay_possible(theta in -1e6..1e6, theta_dot in -8.0..=8.0, torque in -3.0..3f32) {
        stays_possible::<PendulumDynamics, 2, 3>([theta, theta_dot], torque);
    }

    #[test]
    fn acrobots_stay_possible(angles in [-PI..=PI, -PI..=PI], share in [-1.0..=1.0, -1.0..=1.0], action in 0..3i64) {
        let state = [angles[0], angles[1], share[0] * 4.0 * PI, share[1] * 9.0 * PI];
        stays_possible::<AcrobotDynamics, 4, 6>(state, action);
    }
}

#[test]
fn episodes_begin_in_possible_states() {
    fn check<D: Dynamics<S, O>, const S: usize, const O: usize>(low: [f64; S], high: [f64; S]) {
        let streams = Streams::new(1, Purpose::Reset);
        let states: Vec<_> = (0..500).map(|episode| D::reset(&mut streams.at(SlotId(0), episode, 0, 0))).collect();
        assert!(states.iter().all(|state| D::is_possible(*state)));
        for i in 0..S {
            let values = states.iter().map(|state| state[i]);
            let (least, most) =
                (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
            // The whole range is reached, and not exceeded.
            let margin = 0.02 * (high[i] - low[i]);
            assert!(low[i] <= least && least <= low[i] + margin, "{least}");
            assert!(high[i] - margin <= most && most <= high[i], "{most}");
        }
    }
    check::<MountainCarDynamics, 2, 2>([-0.6, 0.0], [-0.4, 0.0]);
    check::<MountainCarContinuousDynamics, 2, 2>([-0.6, 0.0], [-0.4, 0.0]);
    check::<PendulumDynamics, 2, 3>([-PI, -1.0], [PI, 1.0]);
    let high = f64::from(0.1f32);
    check::<AcrobotDynamics, 4, 6>([-high; 4], [high; 4]);
}

fn step<D: Dynamics<S, O>, const S: usize, const O: usize>(
    env: &mut Classic<D, S, O>,
    actions: &[D::Act],
) -> Result<(), EnvError> {
    let lanes = env.num_envs();
    let moments =
        Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &vec![Moment::default(); lanes], mark: None };
    let (mut obs, mut rewards) = (vec![0.0; lanes * O], vec![0.0; lanes]);
    let (mut terminateds, mut truncateds) = (vec![false; lanes], vec![true; lanes]);
    let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
    env.step(actions, moments, &mut obs, out)
}

#[test]
fn refused_actions_move_no_lane() {
    let mut env = MountainCar::new(2);
    for action in [3, -1, i64::MIN, i64::MAX] {
        let expected = EnvError::InvalidAction { lane: 1, action: action.to_string() };
        assert_eq!(step(&mut env, &[0, action]), Err(expected));
    }
    assert_eq!(env.state(0), Some([0.0, 0.0]));
    let mut env = Pendulum::new(2);
    for action in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let expected = EnvError::InvalidAction { lane: 1, action: action.to_string() };
        assert_eq!(step(&mut env, &[1.0, action]), Err(expected));
    }
    assert_eq!(env.state(0), Some([0.0, 0.0]));
}

#[test]
fn torques_out_of_bounds_are_clamped() {
    let mut env = Pendulum::new(4);
    step(&mut env, &[2.0, f32::MAX, -2.0, -2.5]).unwrap();
    assert_eq!(env.state(0), env.state(1));
    assert_eq!(env.state(2), env.state(3));
    assert_eq!(env.state(0).unwrap()[1], 6.0 * 0.05);
    assert_eq!((env.state(4), env.set_state(4, [0.0; 2])), (None, Err(EnvError::NoSuchLane { lane: 4, num_envs: 4 })));
}

#[test]
fn impossible_snapshots_are_refused() {
    let mut env = MountainCar::new(1);
    let mut restore = |state: &[f64]| {
        let bytes: Vec<u8> = state.iter().flat_map(|value| value.to_le_bytes()).collect();
        env.restore_at(0, &bytes, &mut [0.0; 2]).map(|()| env.state(0).unwrap())
    };
    assert_eq!(restore(&[-1.2, 0.07]), Ok([-1.2, 0.07]));
    for state in [[-1.3, 0.0], [0.7, 0.0], [0.0, 0.08], [f64::NAN, 0.0], [0.0, f64::INFINITY]] {
        assert_eq!(restore(&state), Err(EnvError::BadSnapshot(16)), "{state:?}");
    }
    assert_eq!(restore(&[0.0]), Err(EnvError::BadSnapshot(8)));
    assert_eq!(restore(&[0.0; 3]), Err(EnvError::BadSnapshot(24)));
    assert!(!PendulumDynamics::is_possible([1e300, 0.0]) && !PendulumDynamics::is_possible([0.0, 9.0]));
    assert!(
        !AcrobotDynamics::is_possible([4.0, 0.0, 0.0, 0.0]) && !AcrobotDynamics::is_possible([0.0, 0.0, 13.0, 0.0])
    );
}

/// A thrust beyond 1 costs more, but does not push harder; the goal's reward covers the cost.
#[test]
fn the_cost_of_a_thrust_is_that_of_the_action() {
    let Transition { state, reward, terminated } = MountainCarContinuousDynamics::step([0.44, 0.02], 3.0);
    assert_eq!((reward, terminated), (100.0 - 9.0 * 0.1, true));
    assert_eq!(MountainCarContinuousDynamics::step([0.44, 0.02], 2.0).state, state);
}

/// Compares episodes of both under the same actions, each from a state restored from the other's snapshot.
#[test]
fn a_cart_pole_without_velocities_moves_as_one_with_them() {
    check_env(&EnvRegistry::builtin().spec("StatelessCartPole-v1").unwrap(), 3).unwrap();
    let (mut cart, mut stateless) = (CartPole::new(1, Kernels::PORTABLE), StatelessCartPole::new(1));
    let streams = Streams::new(7, Purpose::Reset);
    for episode in 0..20 {
        let rng = || streams.at(SlotId(0), episode, 0, 0);
        let (mut whole, mut part) = ([0.0; 4], [0.0; 2]);
        cart.reset_at(0, &mut rng(), &mut whole).unwrap();
        stateless.reset_at(0, &mut rng(), &mut part).unwrap();
        let mut terminateds = [[false]; 2];
        for t in 0.. {
            assert_eq!((cart.state(0), [whole[0], whole[2]]), (stateless.state(0), part), "{episode} {t}");
            assert_eq!(terminateds[0], terminateds[1]);
            if terminateds[0][0] {
                assert!(t > 7, "{t}");
                break;
            }
            let mut bytes = Vec::new();
            stateless.snapshot_at(0, &mut bytes);
            cart.restore_at(0, &bytes, &mut whole).unwrap();
            stateless.restore_at(0, &bytes, &mut part).unwrap();
            let moments = Moments { streams, lanes: &[Moment::default()], mark: None };
            let actions = [i64::from((t + episode) % 3 == 0)];
            let [first, second] = &mut terminateds;
            let (mut rewards, mut truncateds) = ([0.0], [true]);
            let out = StepOut { rewards: &mut rewards, terminateds: first, truncateds: &mut truncateds };
            cart.step(&actions, moments, &mut whole, out).unwrap();
            let out = StepOut { rewards: &mut rewards, terminateds: second, truncateds: &mut truncateds };
            stateless.step(&actions, moments, &mut part, out).unwrap();
            assert_eq!((rewards, truncateds), ([1.0], [false]));
        }
    }
}
