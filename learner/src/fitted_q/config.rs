//! Settings of fitted Q evaluation.

use rollmesh_core::{
    config::{Config, ConfigError},
    run::schema::{Kind, Setting},
};
use serde::{Deserialize, Serialize};

use super::super::algorithm::in_range;

/// Settings of a [`FittedQ`](super::FittedQ), under RLlib's names, of which it has had two for some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[doc(alias = "q_model_config")]
pub struct FittedQConfig {
    /// Passes over the steps, in each of which targets are fixed.
    pub n_iters: u32,
    /// Adam's learning rate.
    pub lr: f64,
    /// The fit ends early once the mean squared error of a pass is below this.
    #[serde(alias = "delta")]
    pub min_loss_threshold: f64,
    /// Largest global norm of a gradient; longer ones are scaled down.
    pub clip_grad_norm: f64,
    /// Steps per gradient, at most; all, if absent.
    #[serde(alias = "batch_size")]
    pub minibatch_size: Option<u32>,
    /// The fraction of the target network that each pass replaces.
    #[serde(alias = "tau")]
    pub polyak_coef: f64,
    /// Widths of the hidden layers, with tanh.
    pub fcnet_hiddens: Vec<u32>,
}

const SETTINGS: &[Setting; 7] = &[
    Setting::new("n_iters", &[Kind::AT_LEAST_1], "Passes over the steps."),
    Setting::new("lr", &[Kind::POSITIVE], "Learning rate of Adam."),
    Setting::new("min_loss_threshold", &[Kind::NOT_NEGATIVE], "Mean squared error below which the fit ends."),
    Setting::new("clip_grad_norm", &[Kind::POSITIVE], "Largest global norm of a gradient."),
    Setting::new("minibatch_size", &[Kind::Null, Kind::AT_LEAST_1], "Steps per gradient, at most."),
    Setting::new("polyak_coef", &[Kind::FRACTION], "Fraction of the target network that each pass replaces."),
    Setting::new("fcnet_hiddens", &[Kind::List(&Kind::AT_LEAST_1)], "Widths of the hidden layers."),
];

impl Default for FittedQConfig {
    /// Returns RLlib's defaults, for a model that is fitted a little to every batch.
    fn default() -> Self {
        Self {
            n_iters: 1,
            lr: 1e-3,
            min_loss_threshold: 1e-4,
            clip_grad_norm: 100.0,
            minibatch_size: None,
            polyak_coef: 1.0,
            fcnet_hiddens: vec![32, 32, 32],
        }
    }
}

impl FittedQConfig {
    /// Returns the settings for a complete log that is fitted [once](super::FittedQ::of_log). Each pass propagates
    /// values one step back, and the target network follows only in part, so the number of passes is eight times the
    /// horizon of the discount, and the fit does not end early.
    #[must_use]
    pub fn for_log(gamma: f64) -> Self {
        let horizon = 1.0 / (1.0 - gamma.clamp(0.0, 0.999));
        let n_iters = (8.0 * horizon).round().clamp(60.0, 1_000.0) as u32;
        Self { n_iters, min_loss_threshold: 0.0, minibatch_size: Some(256), ..Self::default() }
    }

    /// Returns these settings with others over them.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown name, with all that are known, and for a value out of range.
    pub fn merged(self, config: &Config) -> Result<Self, ConfigError> {
        let mut settings = Config::of(&self)?;
        for name in config.names() {
            let here = match name {
                "delta" => "min_loss_threshold",
                "batch_size" => "minibatch_size",
                "tau" => "polyak_coef",
                other => other,
            };
            settings = settings.with(here, config.get::<serde_json::Value>(name)?)?;
        }
        settings.check_known(&SETTINGS.each_ref().map(|row| row.path))?;
        in_range(&settings, SETTINGS)?;
        settings.parse()
    }

    pub(super) fn check(&self) -> Result<(), super::super::ConfigError> {
        in_range(self, SETTINGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_of_rllibs_names_are_known() {
        let config: Config = r#"{"tau": 0.05, "delta": 0.5, "batch_size": 32, "n_iters": 160}"#.parse().unwrap();
        let found = FittedQConfig::default().merged(&config).unwrap();
        let wanted = FittedQConfig {
            polyak_coef: 0.05,
            min_loss_threshold: 0.5,
            minibatch_size: Some(32),
            n_iters: 160,
            ..FittedQConfig::default()
        };
        assert_eq!(found, wanted);
        assert_eq!(FittedQConfig::for_log(0.95).n_iters, 160);
        assert_eq!((FittedQConfig::for_log(1.0).n_iters, FittedQConfig::for_log(0.0).n_iters), (1_000, 60));
    }

    #[test]
    fn wrong_settings_are_named() {
        for (text, what) in [
            (r#"{"tau": 2}"#, "'polyak_coef' is wrong: 2 must be from 0 to 1"),
            (r#"{"n_iters": 0}"#, "'n_iters' is wrong: 0 must be from 1 to 4294967295"),
            (r#"{"minibatch_size": 0}"#, "'minibatch_size' is wrong"),
            (r#"{"momentum": 1}"#, "there is no setting 'momentum'; known are: n_iters, "),
        ] {
            let error = FittedQConfig::default().merged(&text.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
