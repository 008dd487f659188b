//! The algorithms: one file each with its settings, its loss and its schedule. Here are their names: of each its module and its
//! settings' type, a variant with its arm, and the rows of its names.

mod common;
mod loss;
mod marwil;
mod objective;
mod policy_gradient;
mod ppo;
mod schema;
mod settings;
mod table;

use rollmesh_core::{
    config::{Config, ConfigError as SettingsError},
    postprocess::AdvantageConfig,
};

pub use common::CommonConfig;
pub(crate) use loss::{KL, PARTS};
pub use marwil::MarwilConfig;
pub use objective::ConfigError;
pub(crate) use objective::{Epochs, Needs, Objective, Schedule};
pub use policy_gradient::PolicyGradientConfig;
pub use ppo::PpoConfig;
pub use schema::run_schema;
use settings::{for_others, with_zeros};
pub(crate) use table::in_range;

/// An algorithm with all its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum AlgorithmConfig {
    /// One step along the gradient of a whole batch: REINFORCE or advantage actor-critic.
    PolicyGradient(PolicyGradientConfig),
    /// Several passes of clipped steps over a batch.
    Ppo(PpoConfig),
    /// Likelihood of logged actions, weighted by their advantages or not: MARWIL or behaviour cloning.
    Marwil(MarwilConfig),
}

/// An algorithm that comes with rollmesh.
#[derive(Debug)]
pub struct AlgorithmSpec {
    /// The name in settings.
    pub name: &'static str,
    /// A description in a few words.
    pub about: &'static str,
    /// True if it learns from logged experience instead of samples of its own.
    pub is_offline: bool,
    /// The function that reads its settings, over its defaults.
    pub parse: fn(&Config) -> Result<AlgorithmConfig, SettingsError>,
}

/// The algorithms by name.
pub const ALGORITHMS: &[AlgorithmSpec] = &[
    AlgorithmSpec { name: "pg", about: "REINFORCE", is_offline: false, parse: AlgorithmConfig::pg },
    AlgorithmSpec { name: "a2c", about: "Advantage actor-critic", is_offline: false, parse: AlgorithmConfig::a2c },
    AlgorithmSpec {
        name: "ppo",
        about: "Proximal policy optimisation",
        is_offline: false,
        parse: AlgorithmConfig::ppo,
    },
    AlgorithmSpec { name: "bc", about: "Behaviour cloning, from files", is_offline: true, parse: AlgorithmConfig::bc },
    AlgorithmSpec {
        name: "marwil",
        about: "Imitation weighted by what came of actions, from files",
        is_offline: true,
        parse: AlgorithmConfig::marwil,
    },
];

/// Returns the algorithm of this name, if it comes with rollmesh.
#[must_use]
pub fn algorithm(name: &str) -> Option<&'static AlgorithmSpec> {
    ALGORITHMS.iter().find(|spec| spec.name == name)
}

/// Returns false for the kinds of policies of the core, which do not learn and so are no algorithms.
#[must_use]
pub fn learns(name: &str) -> bool {
    !matches!(name, "net" | "random")
}

impl AlgorithmConfig {
    pub(crate) fn objective(&self) -> &dyn Objective {
        match self {
            Self::PolicyGradient(config) => config,
            Self::Ppo(config) => config,
            Self::Marwil(config) => config,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.objective().check()
    }

    /// Returns the advantages that this learns from.
    #[must_use]
    pub fn advantages(&self) -> AdvantageConfig {
        let advantages = self.objective().advantages();
        // The values of logged actions come from the network in training, not from the policy that acted.
        AdvantageConfig { use_critic: advantages.use_critic && !self.objective().needs().logged, ..advantages }
    }

    /// Returns whether it takes rows as they are, without advantages or returns.
    #[must_use]
    pub fn takes_plain_rows(&self) -> bool {
        matches!(self.objective().needs(), Needs { logged: true, critic: false, .. })
    }
}

/// Returns all settings of an algorithm that comes with rollmesh, with these over its defaults; these alone for any
/// other.
///
/// # Errors
/// [`SettingsError`] for an unknown setting or a value out of range.
pub fn all_settings(algorithm: &str, settings: &Config) -> Result<Config, SettingsError> {
    let Some(spec) = self::algorithm(algorithm) else { return Ok(settings.clone()) };
    let own = Config::of(&(spec.parse)(settings)?.objective().json())?;
    // Settings of other parts stay, such as the model.
    with_zeros(for_others(settings).merged(&own), spec.parse)
}
