//! MountainCar: an engine too weak for the slope, so the car must swing (Moore, 1990).

use super::{Classic, Dynamics, Transition, valley};
use crate::{
    env::{Frame, Rng},
    math,
    space::Space,
};

/// Position of the left wall.
pub(super) const MIN_POSITION: f64 = -1.2;
pub(super) const MAX_POSITION: f64 = 0.6;
pub(super) const MAX_SPEED: f64 = 0.07;
/// Effect of the slope on the velocity where it is steepest.
pub(super) const GRAVITY: f64 = 0.0025;
const GOAL_POSITION: f64 = 0.5;
const FORCE: f64 = 0.001;

/// Cars in a valley, to be driven out of it on the right. Reward -1 for every step.
#[doc(alias = "MountainCar-v0")]
pub type MountainCar = Classic<MountainCarDynamics, 2, 2>;

/// State and observation: position, velocity. Actions: push left, none, push right.
#[derive(Clone, Copy, Debug)]
pub struct MountainCarDynamics;

impl Dynamics<2, 2> for MountainCarDynamics {
    type Act = i64;

    fn observation_space() -> Space {
        observation_space()
    }

    fn action_space() -> Space {
        Space::Discrete { n: 3 }
    }

    fn accepts(action: i64) -> bool {
        (0..3).contains(&action)
    }

    fn reset(rng: &mut Rng) -> [f64; 2] {
        [rng.uniform_in(-0.6, -0.4), 0.0]
    }

    #[inline(always)]
    fn step([position, velocity]: [f64; 2], action: i64) -> Transition<2> {
        let (_, cos) = math::sin_cos(3.0 * position);
        let velocity = velocity + ((action - 1) as f64 * FORCE + cos * -GRAVITY);
        let velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED);
        let position = (position + velocity).clamp(MIN_POSITION, MAX_POSITION);
        let velocity = if position == MIN_POSITION && velocity < 0.0 { 0.0 } else { velocity };
        let terminated = position >= GOAL_POSITION && velocity >= 0.0;
        Transition { state: [position, velocity], reward: -1.0, terminated }
    }

    #[inline(always)]
    fn observe(state: [f64; 2]) -> [f32; 2] {
        state.map(|value| value as f32)
    }

    fn render([position, _]: [f64; 2], frame: &mut Frame) -> bool {
        valley::draw(position, GOAL_POSITION, frame)
    }

    fn is_possible([position, velocity]: [f64; 2]) -> bool {
        (MIN_POSITION..=MAX_POSITION).contains(&position) && velocity.abs() <= MAX_SPEED
    }
}

pub(super) fn observation_space() -> Space {
    let speed = MAX_SPEED as f32;
    Space::vector(&[MIN_POSITION as f32, -speed], &[MAX_POSITION as f32, speed])
}
