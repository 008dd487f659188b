//! CartPole, exact to Gymnasium's: state in 64-bit floats, observations in 32.

use super::states::States;
use crate::{
    env::{
        EnvError, EnvState, Frame, Moments, Rng, StepOut, VectorEnv, check_actions_len, check_obs_len,
        render::{
            Canvas, Colour,
            palette::{INK, LINE, ORANGE, PAPER},
        },
    },
    kernels::{CartPoleState, Kernels, cartpole},
    math,
    prelude::*,
    space::Space,
};

/// Carts with a pole to be kept upright, as structure of arrays. Reward 1 for every step, the last included.
#[derive(Clone, Debug)]
#[doc(alias = "CartPole-v1")]
#[doc(alias = "CartPole-v0")]
pub struct CartPole {
    /// x, x_dot, theta, theta_dot of every lane.
    states: States<4>,
    kernels: Kernels,
}

impl CartPole {
    /// Creates carts for `num_envs` lanes, which must be reset before their first step.
    #[must_use]
    pub fn new(num_envs: usize, kernels: Kernels) -> Self {
        Self { states: States::new(num_envs), kernels }
    }

    /// Returns the state of a lane, x, x_dot, theta, theta_dot; `None` if there is no such lane.
    #[must_use]
    pub fn state(&self, lane: usize) -> Option<[f64; 4]> {
        self.states.at(lane)
    }

    /// Sets the state of a lane.
    ///
    /// # Errors
    /// [`EnvError::NoSuchLane`].
    pub fn set_state(&mut self, lane: usize, state: [f64; 4]) -> Result<(), EnvError> {
        self.states.set(lane, state)
    }
}

impl VectorEnv for CartPole {
    type Obs = f32;
    type Act = i64;

    fn num_envs(&self) -> usize {
        self.states.num_envs()
    }

    fn observation_space(&self) -> Space {
        let high = [
            (cartpole::X_THRESHOLD * 2.0) as f32,
            f32::INFINITY,
            (cartpole::THETA_THRESHOLD * 2.0) as f32,
            f32::INFINITY,
        ];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        check_obs_len(4, obs.len())?;
        let state = first_state(rng);
        self.states.set(lane, state)?;
        obs.copy_from_slice(&state.map(|value| value as f32));
        Ok(())
    }

    fn step(
        &mut self,
        actions: &[i64],
        _moments: Moments<'_>,
        obs: &mut [f32],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let n = self.num_envs();
        check_actions_len(n, actions.len())?;
        check_obs_len(n * 4, obs.len())?;
        out.check_len(n)?;
        // Check all actions in one pass without branches: only bits of 0 and 1 may be set.
        if actions.iter().fold(0, |bits, action| bits | action) & !1 != 0
            && let Some(lane) = actions.iter().position(|action| !(0..2).contains(action))
        {
            return Err(EnvError::InvalidAction { lane, action: actions[lane].to_string() });
        }
        let [x, x_dot, theta, theta_dot] = self.states.variables_mut();
        (self.kernels.cartpole_step)(CartPoleState { x, x_dot, theta, theta_dot }, actions, obs, out.terminateds);
        out.rewards.fill(1.0);
        out.truncateds.fill(false);
        Ok(())
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.state(lane).is_some_and(|[x, _, theta, _]| draw(x, theta, frame))
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        self.states.snapshot_at(lane, out)
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        check_obs_len(4, obs.len())?;
        // Velocities are unbounded, and a terminal state may be anywhere beyond the thresholds.
        let state = self.states.restore_at(lane, snapshot, |_| true)?;
        obs.copy_from_slice(&state.map(|value| value as f32));
        Ok(())
    }
}

/// Draws the first state of an episode.
pub(super) fn first_state(rng: &mut Rng) -> [f64; 4] {
    core::array::from_fn(|_| rng.uniform_in(-0.05, 0.05))
}

/// Draws the cart in its own picture.
pub(super) fn draw(x: f64, theta: f64, frame: &mut Frame) -> bool {
    const SCALE: f64 = 300.0 / 5.2;
    let mut canvas = Canvas::new(frame, [300, 200], PAPER).with_world([150.0, 152.0], SCALE);
    draw_cart(&mut canvas, 1.0 / SCALE, [x, theta], [INK, ORANGE, PAPER]);
    true
}

/// Draws the cart on its track, with marks where an episode ends, in metres from the middle of the track. `pixel` is the
/// size of one, and the colours are those of cart, pole and axle.
pub(in crate::env) fn draw_cart(
    canvas: &mut Canvas<'_>,
    pixel: f64,
    [x, theta]: [f64; 2],
    [cart, pole, axle]: [Colour; 3],
) {
    /// Above the track.
    const AXLE: f64 = 0.4;
    canvas.rectangle([-2.6, -2.0 * pixel], [2.6, 0.0], LINE);
    for end in [-cartpole::X_THRESHOLD, cartpole::X_THRESHOLD] {
        canvas.rectangle([end - pixel, -10.0 * pixel], [end + pixel, 8.0 * pixel], LINE);
    }
    for wheel in [x - 0.16, x + 0.16] {
        canvas.circle([wheel, 0.09], 0.09, cart);
    }
    let (sin, cos) = math::sin_cos(theta);
    canvas.rectangle([x - 0.28, 0.12], [x + 0.28, AXLE], cart);
    canvas.line([x, AXLE], [x + sin * 1.2, AXLE + cos * 1.2], 0.12, pole);
    canvas.circle([x, AXLE], 0.035, axle);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvRegistry, check_env};

    #[test]
    fn keeps_the_contract() {
        let registry = EnvRegistry::builtin();
        check_env(&registry.spec("CartPole-v1").unwrap(), 3).unwrap();
    }

    #[test]
    fn hostile_snapshots_are_refused() {
        let mut env = CartPole::new(1, Kernels::PORTABLE);
        let mut obs = [0.0; 4];
        assert_eq!(env.restore_at(0, &[0; 31], &mut obs), Err(EnvError::BadSnapshot(31)));
        assert_eq!(env.restore_at(0, &[0; 40], &mut obs), Err(EnvError::BadSnapshot(40)));
        assert_eq!(env.restore_at(0, &[0xFF; 32], &mut obs), Err(EnvError::BadSnapshot(32)));
        assert_eq!(env.restore_at(0, &[0; 32], &mut obs), Ok(()));
    }
}
