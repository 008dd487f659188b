//! The environments of the demo.

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
    /// Every action with equal probability.
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
    use rollmesh_core::env::EnvRegistry;

    use super::*;

    #[test]
    fn the_demo_plays_built_in_environments() {
        let envs = EnvRegistry::builtin();
        for env in DemoEnv::ALL {
            assert!(envs.spec(env.name).is_ok());
            assert_eq!(DemoEnv::named(env.name), Some(env));
        }
        assert_eq!(DemoEnv::default().name, "CartPole-v1");
        assert_eq!(DemoEnv::named("Taxi-v4"), None);
    }
}
