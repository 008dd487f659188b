//! MountainCar with a throttle, and with NumPy's arithmetic as in Gymnasium.

use super::{
    Classic, Dynamics, Transition,
    mountain_car::{GRAVITY, MAX_POSITION, MAX_SPEED, MIN_POSITION, observation_space},
    valley,
};
use crate::{
    env::{Frame, Rng},
    math,
    space::Space,
};

const GOAL_POSITION: f64 = 0.45;
const POWER: f64 = 0.0015;

/// Cars in a valley, to be driven out of it on the right with as little thrust as possible.
///
/// Reward 100 at the goal, minus a tenth of the squared action in every step. Actions beyond ±1 push no harder, but cost
/// their full square.
#[doc(alias = "MountainCarContinuous-v0")]
pub type MountainCarContinuous = Classic<MountainCarContinuousDynamics, 2, 2>;

/// State and observation: position, velocity. Action: thrust in [-1, 1].
///
/// Gymnasium's first state consists of 64-bit floats, all later ones of 32-bit floats, and NumPy's arithmetic follows them.
/// So a state whose numbers are 32-bit floats is stepped in 32-bit arithmetic here. A first state is one by chance with a
/// probability of 2^-29.
#[derive(Clone, Copy, Debug)]
pub struct MountainCarContinuousDynamics;

impl Dynamics<2, 2> for MountainCarContinuousDynamics {
    type Act = f32;

    fn observation_space() -> Space {
        observation_space()
    }

    fn action_space() -> Space {
        Space::vector(&[-1.0], &[1.0])
    }

    fn accepts(action: f32) -> bool {
        action.is_finite()
    }

    fn reset(rng: &mut Rng) -> [f64; 2] {
        [rng.uniform_in(-0.6, -0.4), 0.0]
    }

    #[inline(always)]
    fn step([position, velocity]: [f64; 2], action: f32) -> Transition<2> {
        let single = position == to_single(position) && velocity == to_single(velocity);
        // Rounding a 64-bit sum or product of 32-bit floats equals 32-bit arithmetic.
        let round = |x: f64| if single { to_single(x) } else { x };
        let (_, cos) = math::sin_cos(round(3.0 * position));
        let slope = GRAVITY * cos;
        let push = if (-1.0..=1.0).contains(&action) {
            f64::from(action * POWER as f32 - slope as f32)
        } else {
            f64::from(action.clamp(-1.0, 1.0)) * POWER - slope
        };
        let velocity = round(velocity + round(push)).clamp(-round(MAX_SPEED), round(MAX_SPEED));
        let position = round(position + velocity).clamp(round(MIN_POSITION), round(MAX_POSITION));
        let velocity = if position == round(MIN_POSITION) && velocity < 0.0 { 0.0 } else { velocity };
        let terminated = position >= round(GOAL_POSITION) && velocity >= 0.0;
        let cost = f64::from(action) * f64::from(action) * 0.1;
        let reward = if terminated { 100.0 } else { 0.0 } - cost;
        Transition { state: [to_single(position), to_single(velocity)], reward, terminated }
    }

    #[inline(always)]
    fn observe(state: [f64; 2]) -> [f32; 2] {
        state.map(|value| value as f32)
    }

    fn render([position, _]: [f64; 2], frame: &mut Frame) -> bool {
        valley::draw(position, GOAL_POSITION, frame)
    }

    fn is_possible([position, velocity]: [f64; 2]) -> bool {
        (to_single(MIN_POSITION)..=to_single(MAX_POSITION)).contains(&position)
            && velocity.abs() <= to_single(MAX_SPEED)
    }
}

fn to_single(x: f64) -> f64 {
    f64::from(x as f32)
}
