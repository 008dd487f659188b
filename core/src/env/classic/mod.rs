//! Gymnasium's classic control problems, exact to Gymnasium 1.4, and RLlib's CartPole without velocities.
//!
//! Each is one pure function, its [`Dynamics`], and [`Classic`] makes a vector environment of it; [`CartPole`]'s step is one
//! of the hot loops of [`kernels`](crate::kernels). States are 64-bit floats and observations 32-bit floats, as Gymnasium's
//! are. Random values, which are first states only, have Gymnasium's distribution but not its draws.
//!
//! ```
//! use rollmesh_core::{
//!     env::{Moment, Moments, StepOut, VectorEnv as _, classic::Pendulum},
//!     rng::{Purpose, Streams},
//! };
//!
//! let mut env = Pendulum::new(1);
//! env.set_state(0, [std::f64::consts::PI, 0.0])?; // hanging down
//! let (mut obs, mut rewards, mut terminateds, mut truncateds) = ([0.0; 3], [0.0], [false], [false]);
//! let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
//! let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &[Moment::default()], mark: None };
//! env.step(&[2.0], moments, &mut obs, out)?;
//! assert!((env.state(0).expect("lane 0")[1] - 0.3).abs() < 1e-12); // 6 rad/s² for 50 ms
//! # Ok::<(), rollmesh_core::env::EnvError>(())
//! ```

mod acrobot;
mod cartpole;
mod dynamics;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;
mod stateless_cartpole;
mod states;
#[cfg(test)]
mod tests;
mod valley;

pub use acrobot::{Acrobot, AcrobotDynamics};
pub use cartpole::CartPole;
pub(super) use cartpole::draw_cart;
pub use dynamics::{Classic, Dynamics, Transition};
pub use mountain_car::{MountainCar, MountainCarDynamics};
pub use mountain_car_continuous::{MountainCarContinuous, MountainCarContinuousDynamics};
pub use pendulum::{Pendulum, PendulumDynamics};
pub use stateless_cartpole::{StatelessCartPole, StatelessCartPoleDynamics};

use super::{AnyVectorEnv, EnvRegistry, EnvSpec};
use crate::{kernels::Kernels, prelude::*};

/// Registers the environments of this module.
pub(super) fn register(registry: &mut EnvRegistry) {
    fn spec<E: AnyVectorEnv + 'static>(name: &str, make: fn(usize, Kernels) -> E) -> EnvSpec {
        EnvSpec::new(name, move |contexts, kernels| Box::new(make(contexts.len(), kernels))).with_settings(&[])
    }
    registry.register(spec("CartPole-v0", CartPole::new).with_max_episode_steps(200).with_reward_threshold(195.0));
    registry.register(spec("CartPole-v1", CartPole::new).with_max_episode_steps(500).with_reward_threshold(475.0));
    registry.register(
        spec("StatelessCartPole-v1", |lanes, _| StatelessCartPole::new(lanes))
            .with_max_episode_steps(500)
            .with_reward_threshold(475.0),
    );
    registry.register(
        spec("MountainCar-v0", |lanes, _| MountainCar::new(lanes))
            .with_max_episode_steps(200)
            .with_reward_threshold(-110.0),
    );
    registry.register(
        spec("MountainCarContinuous-v0", |lanes, _| MountainCarContinuous::new(lanes))
            .with_max_episode_steps(999)
            .with_reward_threshold(90.0),
    );
    registry.register(spec("Pendulum-v1", |lanes, _| Pendulum::new(lanes)).with_max_episode_steps(200));
    registry.register(
        spec("Acrobot-v1", |lanes, _| Acrobot::new(lanes)).with_max_episode_steps(500).with_reward_threshold(-100.0),
    );
}
