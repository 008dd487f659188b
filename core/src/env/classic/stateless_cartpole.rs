//! CartPole without velocities in its observations, as in RLlib's examples: one observation does not determine the state.

use super::{Classic, Dynamics, Transition, cartpole::draw};
use crate::{
    env::{Frame, Rng},
    kernels::cartpole::{self, CartPoleState},
    space::Space,
};

/// Carts with a pole to be kept upright by a recurrent policy. Reward 1 for every step, the last included.
#[doc(alias = "StatelessCartPole-v1")]
pub type StatelessCartPole = Classic<StatelessCartPoleDynamics, 4, 2>;

/// State: x, x_dot, theta, theta_dot, those of a [`CartPole`](super::CartPole). Observation: x in metres, theta in radians.
#[derive(Clone, Copy, Debug)]
pub struct StatelessCartPoleDynamics;

impl Dynamics<4, 2> for StatelessCartPoleDynamics {
    type Act = i64;

    fn observation_space() -> Space {
        let high = [cartpole::X_THRESHOLD, cartpole::THETA_THRESHOLD].map(|limit| (limit * 2.0) as f32);
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space() -> Space {
        Space::Discrete { n: 2 }
    }

    fn accepts(action: i64) -> bool {
        (0..2).contains(&action)
    }

    fn reset(rng: &mut Rng) -> [f64; 4] {
        super::cartpole::first_state(rng)
    }

    #[inline(always)]
    fn step(state: [f64; 4], action: i64) -> Transition<4> {
        let (mut state, mut terminated) = (state.map(|value| [value]), [false]);
        let [x, x_dot, theta, theta_dot] = &mut state;
        cartpole::step(CartPoleState { x, x_dot, theta, theta_dot }, &[action], &mut [0.0; 4], &mut terminated);
        Transition { state: state.map(|[value]| value), reward: 1.0, terminated: terminated[0] }
    }

    #[inline(always)]
    fn observe([x, _, theta, _]: [f64; 4]) -> [f32; 2] {
        [x as f32, theta as f32]
    }

    fn render([x, _, theta, _]: [f64; 4], frame: &mut Frame) -> bool {
        draw(x, theta, frame)
    }

    fn is_possible(_: [f64; 4]) -> bool {
        // As for CartPole, velocities are unbounded, and a terminal state may be anywhere beyond the thresholds.
        true
    }
}
