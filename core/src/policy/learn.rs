//! Inputs and results of learning.

use crate::{
    config::{Config, ConfigError},
    postprocess::AdvantageConfig,
    prelude::*,
    weights::Weights,
};

/// The processing of a trajectory between sampling and learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Postprocessing {
    /// The trajectory is not changed.
    None,
    /// The trajectory gets advantages and value targets. Where its last row does not terminate, the policy's own value
    /// of the observation after it stands for the missing rewards.
    #[doc(alias("compute_gae_for_sample_batch", "compute_advantages"))]
    Advantages(AdvantageConfig),
    /// The policy postprocesses the trajectory itself.
    Custom,
}

impl Postprocessing {
    /// Reads advantages from a policy's settings `gamma`, `lambda` (or `lambda_`), `use_gae` and `use_critic`, each
    /// with a default.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] for a discount or decay that is not between 0 and 1, and for generalised advantages
    /// without critic.
    pub fn advantages(config: &Config, defaults: AdvantageConfig) -> Result<Self, ConfigError> {
        let bad = |name: &str, reason: String| ConfigError::BadValue { name: name.into(), reason };
        let share = |name: &str, default: f64| match config.get::<f64>(name)?.unwrap_or(default) {
            value if (0.0..=1.0).contains(&value) => Ok(value),
            value => Err(bad(name, format!("{value} is not between 0 and 1"))),
        };
        // RLlib's older name stands for the newer one, and over it, as in the settings of algorithms.
        let (gamma, lambda) = (share("gamma", defaults.gamma)?, share("lambda_", share("lambda", defaults.lambda)?)?);
        let use_gae = config.get("use_gae")?.unwrap_or(defaults.use_gae);
        let use_critic = config.get("use_critic")?.unwrap_or(defaults.use_critic);
        if use_gae && !use_critic {
            return Err(bad("use_critic", "use_gae needs the critic's values; set use_gae to false too".into()));
        }
        Ok(Self::Advantages(AdvantageConfig { gamma, lambda, use_gae, use_critic }))
    }
}

/// Gradients by the names of the weights they belong to. The version is the weights'.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients(pub Weights);

/// Metrics of a learning step: named numbers, for example `policy_loss`.
pub type LearnInfo = BTreeMap<String, f64>;

/// Joins the metrics of several learning steps, of one policy or of several: each metric is the mean over all of them, except
/// `gradient_steps` and `skipped_steps`, which are sums, and `lag_max`, which is the largest.
#[must_use]
pub fn joined_info<'a>(infos: impl IntoIterator<Item = &'a LearnInfo>) -> LearnInfo {
    let (mut joined, mut count) = (LearnInfo::new(), 0.0);
    for info in infos {
        count += 1.0;
        for (name, value) in info {
            let so_far: &mut f64 = joined.entry(name.clone()).or_default();
            *so_far = if name == "lag_max" { so_far.max(*value) } else { *so_far + value };
        }
    }
    let is_mean = |name: &str| !matches!(name, "gradient_steps" | "skipped_steps" | "lag_max");
    joined.iter_mut().filter(|(name, _)| is_mean(name)).for_each(|(_, sum)| *sum /= count);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: AdvantageConfig = AdvantageConfig { gamma: 0.99, lambda: 1.0, use_gae: true, use_critic: true };

    fn read(config: &str) -> Result<Postprocessing, ConfigError> {
        Postprocessing::advantages(&config.parse().unwrap(), DEFAULTS)
    }

    #[test]
    fn advantages_have_the_settings_of_their_policy() {
        assert_eq!(read("{}"), Ok(Postprocessing::Advantages(DEFAULTS)));
        let own = AdvantageConfig { gamma: 0.95, lambda: 0.5, use_gae: false, use_critic: false };
        let config = r#"{"gamma": 0.95, "lambda": 0.5, "use_gae": false, "use_critic": false, "lr": 1}"#;
        assert_eq!(read(config), Ok(Postprocessing::Advantages(own)));
        let older = AdvantageConfig { lambda: 0.5, ..DEFAULTS };
        assert_eq!(read(r#"{"lambda": 0.9, "lambda_": 0.5}"#), Ok(Postprocessing::Advantages(older)));
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let error = |config| read(config).unwrap_err().to_string();
        assert_eq!(error(r#"{"gamma": 1.5}"#), "the setting 'gamma' is wrong: 1.5 is not between 0 and 1");
        assert!(error(r#"{"lambda": "x"}"#).starts_with("the setting 'lambda' is wrong: invalid type"));
        assert!(
            error(r#"{"use_critic": false}"#).ends_with("use_gae needs the critic's values; set use_gae to false too")
        );
    }
}
