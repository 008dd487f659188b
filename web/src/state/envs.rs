//! The environments that the page offers: to a hub for training, and to the person as a demo.

use rollmesh_core::{
    env::{EnvRegistry, EnvSpec},
    policy::MlpPolicySpec,
};

/// The hidden layers of the acting network.
const HIDDEN: [u32; 2] = [64, 64];

/// An environment that a hub can train.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainableEnv {
    /// Registered name.
    pub name: String,
    /// Mean return at which it counts as solved; none if nobody has said.
    pub stop_return: Option<f32>,
}

/// The environments whose observations and actions the acting network takes, by name.
#[must_use]
pub fn trainable_envs(envs: &EnvRegistry) -> Vec<TrainableEnv> {
    let trainable = envs.iter().filter(|spec| fits_network(spec));
    trainable.map(|spec| TrainableEnv { name: spec.name.clone(), stop_return: goal(spec) }).collect()
}

fn fits_network(spec: &EnvSpec) -> bool {
    spec.spaces().is_ok_and(|spaces| MlpPolicySpec::for_spaces(&spaces, &HIDDEN).is_ok())
}

fn goal(spec: &EnvSpec) -> Option<f32> {
    spec.reward_threshold.map(|goal| goal as f32)
}

/// An environment of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoEnv {
    /// Registered name.
    pub name: &'static str,
    /// What plays it.
    pub player: Player,
}

/// What plays in the demo, which never learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Player {
    /// The acting network with its first weights.
    Untrained,
    /// Every action with equal probability, where the network does not take the observations.
    Random,
}

impl DemoEnv {
    /// All there are; the page begins with the first.
    pub const ALL: [Self; 8] = [
        Self { name: "CartPole-v1", player: Player::Untrained },
        Self { name: "MountainCar-v0", player: Player::Untrained },
        Self { name: "Acrobot-v1", player: Player::Untrained },
        Self { name: "PixelAsterix-v0", player: Player::Random },
        Self { name: "PixelBreakout-v0", player: Player::Random },
        Self { name: "PixelFreeway-v0", player: Player::Random },
        Self { name: "PixelInvaders-v0", player: Player::Random },
        Self { name: "PixelSeaquest-v0", player: Player::Random },
    ];

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|env| env.name == name)
    }
}

impl Default for DemoEnv {
    fn default() -> Self {
        Self::ALL[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_network_takes_can_be_trained_to_the_return_that_counts_as_solved() {
        let envs = trainable_envs(&EnvRegistry::builtin());
        let found: Vec<_> = envs.iter().map(|env| (env.name.as_str(), env.stop_return)).collect();
        let expected = [
            ("Acrobot-v1", Some(-100.0)),
            ("CartPole-v0", Some(195.0)),
            ("CartPole-v1", Some(475.0)),
            ("MountainCar-v0", Some(-110.0)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_network_plays_in_the_demo_wherever_it_fits() {
        let envs = EnvRegistry::builtin();
        for env in DemoEnv::ALL {
            let spec = envs.spec(env.name).expect("it is built in");
            assert_eq!(fits_network(spec), env.player == Player::Untrained, "{}", env.name);
            assert_eq!(DemoEnv::named(env.name), Some(env));
        }
        assert_eq!(DemoEnv::default().name, "CartPole-v1");
        assert_eq!(DemoEnv::named("Taxi-v4"), None);
    }
}
