//! One step of many cart-poles.

use crate::math;

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = 1.0 + POLE_MASS;
/// Half the pole's length, in metres.
const HALF_LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = POLE_MASS * HALF_LENGTH;
/// Push on the cart, in newtons.
const FORCE: f64 = 10.0;
/// Seconds between steps.
const TAU: f64 = 0.02;
/// The episode ends when the cart is further from the centre, in metres.
pub const X_THRESHOLD: f64 = 2.4;
/// The episode ends when the pole leans further, in radians: 12 degrees.
pub const THETA_THRESHOLD: f64 = 12.0 * 2.0 * core::f64::consts::PI / 360.0;

/// State of the cart-poles, one entry per lane in each slice.
#[derive(Debug)]
pub struct CartPoleState<'a> {
    /// Position, metres.
    pub x: &'a mut [f64],
    /// Velocity, metres per second.
    pub x_dot: &'a mut [f64],
    /// Angle from upright, radians.
    pub theta: &'a mut [f64],
    /// Angular velocity, radians per second.
    pub theta_dot: &'a mut [f64],
}

/// Advances every lane by one explicit Euler step, as Gymnasium does: positions move with the old velocities.
///
/// `actions` are 0 (left) or 1 (right); `obs` receives rows of (x, x_dot, theta, theta_dot) as 32-bit floats.
/// The dynamics are those of Barto, Sutton and Anderson (1983), corrected by Florian (2007).
#[inline(always)]
pub fn step(state: CartPoleState<'_>, actions: &[i64], obs: &mut [f32], terminateds: &mut [bool]) {
    let CartPoleState { x, x_dot, theta, theta_dot } = state;
    let n = actions.len();
    // Equal lengths, known to the compiler: no bounds checks in the loop.
    let (x, x_dot, theta, theta_dot) = (&mut x[..n], &mut x_dot[..n], &mut theta[..n], &mut theta_dot[..n]);
    let (obs, terminateds) = (&mut obs[..4 * n], &mut terminateds[..n]);
    for i in 0..n {
        let force = if actions[i] == 1 { FORCE } else { -FORCE };
        let (sin, cos) = math::sin_cos(theta[i]);
        let temp = (force + POLE_MASS_LENGTH * (theta_dot[i] * theta_dot[i]) * sin) / TOTAL_MASS;
        let theta_acc =
            (GRAVITY * sin - cos * temp) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        x[i] += TAU * x_dot[i];
        x_dot[i] += TAU * x_acc;
        theta[i] += TAU * theta_dot[i];
        theta_dot[i] += TAU * theta_acc;
        terminateds[i] =
            (x[i] < -X_THRESHOLD) | (x[i] > X_THRESHOLD) | (theta[i] < -THETA_THRESHOLD) | (theta[i] > THETA_THRESHOLD);
    }
    for (i, row) in obs.chunks_exact_mut(4).enumerate() {
        row[0] = x[i] as f32;
        row[1] = x_dot[i] as f32;
        row[2] = theta[i] as f32;
        row[3] = theta_dot[i] as f32;
    }
}
