//! Pendulum: to be swung up by a motor that is too weak to lift it, and held there.

use core::f64::consts::PI;

use super::{Classic, Dynamics, Transition};
use crate::{
    env::{
        Frame, Rng,
        render::{
            Canvas,
            palette::{BLUISH_GREEN, INK, PAPER, SHADE, VERMILLION},
        },
    },
    math,
    space::Space,
};

const MAX_SPEED: f64 = 8.0;
const MAX_TORQUE: f32 = 2.0;
/// Seconds between steps.
const DT: f64 = 0.05;
/// Acceleration from gravity (10) and length (1): 3 g / 2 l.
const FALL: f64 = 15.0;
/// Upper bound of the angle after 2^32 steps, the longest possible episode.
const MAX_ANGLE: f64 = MAX_SPEED * DT * 4_294_967_296.0;

/// Pendulums with random first states. The reward is the negative cost of angle, speed and torque; no state is terminal.
#[doc(alias = "Pendulum-v1")]
pub type Pendulum = Classic<PendulumDynamics, 2, 3>;

/// State: angle from upright (radians, not wrapped), angular velocity. Observation: cosine, sine, angular velocity. Action:
/// torque, clipped to [-2, 2].
#[derive(Clone, Copy, Debug)]
pub struct PendulumDynamics;

impl Dynamics<2, 3> for PendulumDynamics {
    type Act = f32;

    fn observation_space() -> Space {
        let high = [1.0, 1.0, MAX_SPEED as f32];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space() -> Space {
        Space::vector(&[-MAX_TORQUE], &[MAX_TORQUE])
    }

    fn accepts(action: f32) -> bool {
        action.is_finite()
    }

    fn reset(rng: &mut Rng) -> [f64; 2] {
        [rng.uniform_in(-PI, PI), rng.uniform_in(-1.0, 1.0)]
    }

    #[inline(always)]
    fn step([theta, theta_dot]: [f64; 2], action: f32) -> Transition<2> {
        // Products of the torque stay in 32 bits, as in NumPy.
        let torque = action.clamp(-MAX_TORQUE, MAX_TORQUE);
        let angle = math::modulo_tau(theta + PI) - PI;
        let cost = angle * angle + 0.1 * (theta_dot * theta_dot) + f64::from(0.001 * (torque * torque));
        let (sin, _) = math::sin_cos(theta);
        let theta_dot = theta_dot + (FALL * sin + f64::from(3.0 * torque)) * DT;
        let theta_dot = theta_dot.clamp(-MAX_SPEED, MAX_SPEED);
        Transition { state: [theta + theta_dot * DT, theta_dot], reward: -cost, terminated: false }
    }

    #[inline(always)]
    fn observe([theta, theta_dot]: [f64; 2]) -> [f32; 3] {
        let (sin, cos) = math::sin_cos(theta);
        [cos as f32, sin as f32, theta_dot as f32]
    }

    fn render([theta, _]: [f64; 2], frame: &mut Frame) -> bool {
        let (sin, cos) = math::sin_cos(theta);
        let mut canvas = Canvas::new(frame, [200, 200], PAPER).with_world([100.0, 100.0], 200.0 / 2.6);
        canvas.circle([0.0, 0.0], 1.12, SHADE);
        // The target position.
        canvas.polygon(&[[0.0, 1.1], [0.07, 1.23], [-0.07, 1.23]], BLUISH_GREEN);
        canvas.line([0.0, 0.0], [-sin, cos], 0.18, VERMILLION);
        canvas.circle([0.0, 0.0], 0.05, INK);
        true
    }

    fn is_possible([theta, theta_dot]: [f64; 2]) -> bool {
        theta.abs() <= MAX_ANGLE && theta_dot.abs() <= MAX_SPEED
    }
}
