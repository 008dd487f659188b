//! Settings of a policy by name, as they come from a configuration file or over the wire.

use rollmesh_core::{
    config::{Config, ConfigError},
    run::schema::{Setting, shown},
};
use serde::{
    Deserialize as _, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _},
};

use super::{
    AlgorithmConfig, Objective,
    table::{SHARED, error},
};

/// Settings in a policy's configuration that belong to other parts.
const FOR_OTHERS: [&str; 5] = ["model", "num_workers", "rollout_fragment_length", "seed", "worker_index"];

/// Returns the settings in a policy's configuration that belong to other parts.
pub(super) fn for_others(config: &Config) -> Config {
    let own: Vec<&str> = config.names().filter(|name| !FOR_OTHERS.contains(name)).collect();
    config.clone().without(&own)
}

/// Settings that may be off, which files without null write as 0.
pub(super) const OPTIONAL: [&str; 4] = ["anneal_over_env_steps", "grad_clip", "target_kl", "vf_clip_range"];

/// Returns these settings with a 0 for each setting of an algorithm that is off, so that a file contains it.
pub(super) fn with_zeros(
    settings: Config,
    parse: fn(&Config) -> Result<AlgorithmConfig, ConfigError>,
) -> Result<Config, ConfigError> {
    let missing = |name: &&&str| !settings.names().any(|known| known == **name);
    OPTIONAL.iter().filter(missing).try_fold(settings.clone(), |settings, name| {
        let off = settings.clone().with(name, 0)?;
        // Not every algorithm has all of them.
        Ok(if parse(&off).is_ok() { off } else { settings })
    })
}

/// Returns an algorithm with these settings over the usual ones.
pub(super) fn parsed<T: Serialize + DeserializeOwned + Into<AlgorithmConfig> + Objective>(
    usual: T,
    config: &Config,
) -> Result<AlgorithmConfig, ConfigError> {
    let mut settings = Config::of(&usual)?;
    for name in config.names().filter(|name| !FOR_OTHERS.contains(name)) {
        let value: Option<serde_json::Value> = config.get(name)?;
        let is_off = OPTIONAL.contains(&name) && value.as_ref().and_then(serde_json::Value::as_f64) == Some(0.0);
        let value = value.filter(|_| !is_off);
        let row = SHARED.iter().chain(usual.own_settings()).find(|row| row.path == name_here(name));
        if let (Some(row), Some(value)) = (row, &value)
            && !(value.is_null() && OPTIONAL.contains(&name))
            && !row.allows(value)
        {
            return Err(error(row, shown(value)).into());
        }
        settings = settings.with(name_here(name), value)?;
    }
    check_known(&settings, &usual)?;
    let algorithm = settings.parse::<T>()?.into();
    algorithm.validate()?;
    Ok(algorithm)
}

/// Reads all settings of an algorithm, and refuses unknown names: derived code with flattened groups ignores them.
pub(super) fn complete<'de, D: Deserializer<'de>, T: Serialize + Objective>(
    deserializer: D,
    read: impl FnOnce(serde_json::Value) -> Result<T, serde_json::Error>,
) -> Result<T, D::Error> {
    let settings = Config::deserialize(deserializer)?;
    let config = read(serde_json::json!(settings)).map_err(D::Error::custom)?;
    check_known(&settings, &config).map_err(D::Error::custom)?;
    Ok(config)
}

/// Implements the traits of a type that derives them with `#[serde(remote = "Self")]`, with [`complete`].
macro_rules! complete_settings {
    ($config:ty) => {
        impl serde::Serialize for $config {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$config>::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $config {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::algorithm::settings::complete(deserializer, |settings| <$config>::deserialize(settings))
            }
        }
    };
}
pub(super) use complete_settings;

/// Checks that an algorithm has all these settings.
fn check_known<T: Serialize + Objective>(settings: &Config, usual: &T) -> Result<(), ConfigError> {
    let set = Config::of(usual)?;
    // Settings that are off are not serialised.
    let is_known = |row: &&Setting| OPTIONAL.contains(&row.path) || set.names().any(|name| name == row.path);
    let known: Vec<&str> = SHARED.iter().filter(is_known).chain(usual.own_settings()).map(|row| row.path).collect();
    settings.check_known(&known)
}

/// Maps RLlib's older names to the newer ones. Two names for one setting would not be noticed after merging.
fn name_here(name: &str) -> &str {
    match name {
        "num_sgd_iter" => "num_epochs",
        "sgd_minibatch_size" => "minibatch_size",
        "lambda_" => "lambda",
        "vf_coeff" => "vf_loss_coeff",
        other => other,
    }
}

impl From<super::ConfigError> for ConfigError {
    fn from(error: super::ConfigError) -> Self {
        Self::BadValue { name: error.name.into(), reason: format!("{} must be {}", error.value, error.wanted) }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{policy::PolicyRegistry, postprocess::AdvantageConfig};

    use super::{
        super::{CommonConfig, MarwilConfig, PolicyGradientConfig, PpoConfig, all_settings},
        *,
    };

    fn config(text: &str) -> Config {
        text.parse().unwrap()
    }

    #[test]
    fn settings_stand_over_the_usual_ones() {
        let own = config(r#"{"lr": 0.01, "grad_clip": null, "model": {"use_lstm": true}, "worker_index": 3}"#);
        let AlgorithmConfig::PolicyGradient(a2c) = AlgorithmConfig::a2c(&own).unwrap() else { panic!() };
        let common = CommonConfig { lr: 0.01, grad_clip: None, ..PolicyGradientConfig::a2c().common };
        assert_eq!(a2c, PolicyGradientConfig { common, ..PolicyGradientConfig::a2c() });
        assert_eq!(AlgorithmConfig::pg(&Config::new()).unwrap(), PolicyGradientConfig::pg().into());
    }

    #[test]
    fn rllibs_older_names_are_known() {
        let own = config(r#"{"num_sgd_iter": 3, "sgd_minibatch_size": 7, "lambda_": 0.5}"#);
        let advantages = AdvantageConfig { lambda: 0.5, ..PolicyRegistry::PPO_ADVANTAGES };
        let want = PpoConfig { num_epochs: 3, minibatch_size: 7, advantages, ..PpoConfig::default() };
        assert_eq!(AlgorithmConfig::ppo(&own).unwrap(), want.into());
    }

    #[test]
    fn settings_that_are_off_survive_a_file_without_null() {
        let off = config(r#"{"grad_clip": null, "anneal_over_env_steps": null}"#);
        let written = with_zeros(config(r#"{"lr": 0.5}"#), AlgorithmConfig::ppo).unwrap();
        assert_eq!(
            written.to_string(),
            r#"{"anneal_over_env_steps":0,"grad_clip":0,"lr":0.5,"target_kl":0,"vf_clip_range":0}"#
        );
        let all = all_settings("ppo", &off).unwrap();
        let again: Config = toml::from_str(&toml::to_string(&all).unwrap()).unwrap();
        assert_eq!(AlgorithmConfig::ppo(&again).unwrap(), AlgorithmConfig::ppo(&off).unwrap());
        assert!(with_zeros(Config::new(), AlgorithmConfig::pg).unwrap().names().all(|name| name != "target_kl"));
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let error = AlgorithmConfig::pg(&config(r#"{"learning_rate": 1}"#)).unwrap_err().to_string();
        assert!(error.starts_with("there is no setting 'learning_rate'; known are: gamma, lambda, "), "{error}");
        assert!(AlgorithmConfig::pg(&config(r#"{"clip_param": 0.1}"#)).is_err());
        // MARWIL has its own advantages.
        let error = AlgorithmConfig::marwil(&config(r#"{"use_gae": true}"#)).unwrap_err().to_string();
        let known = "gamma, lr, adam_epsilon, weight_decay, num_epochs, minibatch_size, vf_loss_coeff, grad_clip, \
                     anneal_over_env_steps, anneal_to, beta, bc_logstd_coeff, moving_average_sqd_adv_norm_start, \
                     moving_average_sqd_adv_norm_update_rate";
        assert_eq!(error, format!("there is no setting 'use_gae'; known are: {known}"));
    }

    #[test]
    fn complete_settings_are_read_and_unknown_names_among_them_refused() {
        fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(config: T) {
            let written = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<T>(&written).unwrap(), config);
            let more = written.replacen('{', r#"{"lrx":1,"#, 1);
            let error = serde_json::from_str::<T>(&more).unwrap_err().to_string();
            assert!(error.starts_with("there is no setting 'lrx'; known are: gamma, "), "{error}");
        }
        check(PpoConfig::default());
        check(PolicyGradientConfig::pg());
        check(MarwilConfig::bc());
    }

    #[test]
    fn values_out_of_range_are_named() {
        let error = AlgorithmConfig::ppo(&config(r#"{"gamma": 1.5}"#)).unwrap_err();
        assert_eq!(error.to_string(), "the setting 'gamma' is wrong: 1.5 must be from 0 to 1");
        let error = AlgorithmConfig::ppo(&config(r#"{"clip_param": null}"#)).unwrap_err().to_string();
        assert_eq!(error, "the setting 'clip_param' is wrong: null must be above 0");
        // A file's NaN arrives as text, since JSON has no such number.
        for (name, value) in [("grad_clip", "nan"), ("grad_clip", "inf"), ("lr", "nan"), ("lr", "fast")] {
            let error = AlgorithmConfig::ppo(&config(&format!(r#"{{"{name}": "{value}"}}"#))).unwrap_err().to_string();
            let wanted = format!("the setting '{name}' is wrong: \"{value}\" must be above 0");
            assert_eq!(error, wanted);
        }
    }
}
