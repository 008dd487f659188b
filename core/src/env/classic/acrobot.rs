//! Acrobot: two links, a motor between them, to be swung above a line (Sutton, 1996; equations of Sutton and Barto's
//! book).

use core::f64::consts::{FRAC_PI_2, PI, TAU};

use super::{Classic, Dynamics, Transition};
use crate::{
    env::{
        Frame, Rng,
        render::{
            Canvas,
            palette::{BLUISH_GREEN, INK, LINE, PAPER, SKY_BLUE},
        },
    },
    math,
    space::Space,
};

const GRAVITY: f64 = 9.8;
/// Both links weigh 1 and are 1 long, their centre is in the middle, and their moment of inertia is 1.
const HALF: f64 = 0.5;
const MAX_SPEED_1: f64 = 4.0 * PI;
const MAX_SPEED_2: f64 = 9.0 * PI;
/// Height of the line above the fixed joint.
const GOAL_HEIGHT: f64 = 1.0;
/// Seconds between steps.
const DT: f64 = 0.2;
/// Upper bound of a link's turns in one step.
const MAX_TURNS: usize = 64;

/// Acrobots that initially hang down. Reward -1 for every step but the last one of a terminated episode, whose reward is 0.
#[doc(alias = "Acrobot-v1")]
pub type Acrobot = Classic<AcrobotDynamics, 4, 6>;

/// State: angle of the first link from hanging down, of the second from the first (both in [-pi, pi]), and their
/// velocities. Observation: cosine and sine of both, the velocities. Actions: torque -1, 0, 1.
#[derive(Clone, Copy, Debug)]
pub struct AcrobotDynamics;

impl Dynamics<4, 6> for AcrobotDynamics {
    type Act = i64;

    fn observation_space() -> Space {
        let high = [1.0, 1.0, 1.0, 1.0, MAX_SPEED_1 as f32, MAX_SPEED_2 as f32];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space() -> Space {
        Space::Discrete { n: 3 }
    }

    fn accepts(action: i64) -> bool {
        (0..3).contains(&action)
    }

    /// Draws the first state, rounded to 32-bit floats, as Gymnasium's first states are.
    fn reset(rng: &mut Rng) -> [f64; 4] {
        core::array::from_fn(|_| f64::from(rng.uniform_in(-0.1, 0.1) as f32))
    }

    #[inline(always)]
    fn step(state: [f64; 4], action: i64) -> Transition<4> {
        let [theta1, theta2, dtheta1, dtheta2] = runge_kutta(state, (action - 1) as f64);
        let (theta1, theta2) = (wrap(theta1), wrap(theta2));
        let dtheta1 = dtheta1.clamp(-MAX_SPEED_1, MAX_SPEED_1);
        let dtheta2 = dtheta2.clamp(-MAX_SPEED_2, MAX_SPEED_2);
        let terminated = -cos(theta1) - cos(theta2 + theta1) > GOAL_HEIGHT;
        let reward = if terminated { 0.0 } else { -1.0 };
        Transition { state: [theta1, theta2, dtheta1, dtheta2], reward, terminated }
    }

    #[inline(always)]
    fn observe([theta1, theta2, dtheta1, dtheta2]: [f64; 4]) -> [f32; 6] {
        let ((sin1, cos1), (sin2, cos2)) = (math::sin_cos(theta1), math::sin_cos(theta2));
        [cos1, sin1, cos2, sin2, dtheta1, dtheta2].map(|value| value as f32)
    }

    fn render([theta1, theta2, ..]: [f64; 4], frame: &mut Frame) -> bool {
        let ((sin1, cos1), (sin2, cos2)) = (math::sin_cos(theta1), math::sin_cos(theta1 + theta2));
        let elbow = [sin1, -cos1];
        let tip = [elbow[0] + sin2, elbow[1] - cos2];
        let mut canvas = Canvas::new(frame, [200, 200], PAPER).with_world([100.0, 100.0], 200.0 / 4.6);
        let is_above = tip[1] > GOAL_HEIGHT;
        canvas.line([-9.0, GOAL_HEIGHT], [9.0, GOAL_HEIGHT], 0.05, if is_above { BLUISH_GREEN } else { LINE });
        canvas.line([0.0, 0.0], elbow, 0.22, INK);
        canvas.line(elbow, tip, 0.22, if is_above { BLUISH_GREEN } else { SKY_BLUE });
        canvas.circle([0.0, 0.0], 0.05, PAPER);
        canvas.circle(elbow, 0.05, PAPER);
        true
    }

    fn is_possible([theta1, theta2, dtheta1, dtheta2]: [f64; 4]) -> bool {
        theta1.abs() <= PI && theta2.abs() <= PI && dtheta1.abs() <= MAX_SPEED_1 && dtheta2.abs() <= MAX_SPEED_2
    }
}

/// Computes one step of the classical fourth-order Runge-Kutta method.
#[inline(always)]
fn runge_kutta(y: [f64; 4], torque: f64) -> [f64; 4] {
    let along = |k: [f64; 4], dt: f64| core::array::from_fn(|i| y[i] + dt * k[i]);
    let k1 = derivative(y, torque);
    let k2 = derivative(along(k1, DT / 2.0), torque);
    let k3 = derivative(along(k2, DT / 2.0), torque);
    let k4 = derivative(along(k3, DT), torque);
    core::array::from_fn(|i| y[i] + DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

#[inline(always)]
fn derivative([theta1, theta2, dtheta1, dtheta2]: [f64; 4], torque: f64) -> [f64; 4] {
    let (sin2, cos2) = math::sin_cos(theta2);
    let d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0;
    let d2 = (0.25 + HALF * cos2) + 1.0;
    let phi2 = HALF * GRAVITY * cos(theta1 + theta2 - FRAC_PI_2);
    let phi1 =
        -HALF * (dtheta2 * dtheta2) * sin2 - dtheta2 * dtheta1 * sin2 + 1.5 * GRAVITY * cos(theta1 - FRAC_PI_2) + phi2;
    let ddtheta2 = (torque + d2 / d1 * phi1 - HALF * (dtheta1 * dtheta1) * sin2 - phi2) / (0.25 + 1.0 - d2 * d2 / d1);
    let ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
    [dtheta1, dtheta2, ddtheta1, ddtheta2]
}

fn cos(x: f64) -> f64 {
    math::sin_cos(x).1
}

/// Wraps an angle into [-pi, pi] turn by turn, which rounds as often as Gymnasium does.
fn wrap(mut angle: f64) -> f64 {
    for _ in 0..MAX_TURNS {
        if angle > PI {
            angle -= TAU;
        } else if angle < -PI {
            angle += TAU;
        } else {
            break;
        }
    }
    angle
}
