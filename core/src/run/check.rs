//! Finds invalid numbers and combinations before anything is created.

use super::{Inference, RunConfig, RunConfigError, WeightsDtype, schema};
use crate::{
    config::ConfigError,
    filter::FilterKind,
    ids::{PolicyId, SlotId},
    policy::{CustomModel, ModelConfig, PolicyRegistry},
    prelude::*,
};

/// Maximum number of local workers at the start of a run.
pub const MAX_LOCAL_WORKERS: u32 = 64;

impl RunConfig {
    /// Checks every setting against [its row](schema::SECTIONS), and that the run supports the combination of settings: with
    /// the workers at its start, or when it reads files. The settings may be untrusted.
    ///
    /// # Errors
    /// [`RunConfigError`] names the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), RunConfigError> {
        match (self.reads_input(), self.num_workers) {
            (true, _) => self.check_values().and_then(|()| self.check_reading()),
            // The run's own process can sample settings that leases do not support.
            (false, 0) => self.check_values().and_then(|()| self.check_counts()),
            (false, _) => self.check_leased(),
        }
    }

    /// Checks that workers can sample the run over leases.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check), and [`RunConfigError::NotLeased`] for a setting that only a run in one process
    /// supports, or for a run that reads its rows.
    pub fn check_leased(&self) -> Result<(), RunConfigError> {
        if self.reads_input() {
            return Err(not_leased("input", "no worker reads for another: leave the workers to runs that sample"));
        }
        self.check_values()?;
        self.check_counts()?;
        schema::check_fixed(&self.settings()?)
    }

    /// Checks the settings with the same rules for every run.
    fn check_values(&self) -> Result<(), RunConfigError> {
        if self.rollout.env.is_none() {
            return Err(not_leased("env", "a run needs an environment: name one"));
        }
        // JSON cannot represent these numbers, so as settings they would be unset.
        for (path, found) in
            [("stop.episode_return_mean", self.stop.episode_return_mean), ("stop.wall_s", self.stop.wall_s)]
        {
            if let Some(found) = found.filter(|found| !found.is_finite()) {
                return Err(RunConfigError::range(path, found, "a finite number"));
            }
        }
        schema::check(&self.settings()?)?;
        let specs =
            [("host.worker.device", self.host.worker.as_ref()), ("host.evaluator.device", Some(&self.host.evaluator))];
        for (path, spec) in specs {
            if let Some(device) =
                spec.filter(|spec| spec.acts_on_device() && !self.device_rows).and_then(|spec| spec.device.as_deref())
            {
                return Err(RunConfigError::range(path, device, "cpu, unless device_rows is true"));
            }
        }
        if let Some(id) = self.rollout.policies.keys().find(|id| id.as_str().contains('/')) {
            return Err(RunConfigError::range("policies", format!("\"{id}\""), "a name without a slash"));
        }
        self.check_model()?;
        let bytes = self.rollout.env_config.to_string().len();
        if bytes > Self::MAX_ENV_CONFIG_BYTES {
            return Err(RunConfigError::EnvConfigTooLong(bytes));
        }
        Ok(())
    }

    /// Checks the numbers of slots and of their steps.
    fn check_counts(&self) -> Result<(), RunConfigError> {
        let counts = [
            ("num_slots", self.num_slots(), SlotId::MAX_PER_RUN),
            ("rollout_fragment_length", self.fragment_length(), Self::MAX_FRAGMENT_LENGTH),
        ];
        for (path, found, max) in counts {
            if !(1..=max).contains(&found) {
                return Err(RunConfigError::range(path, found, format!("from 1 to {max}")));
            }
        }
        Ok(())
    }

    /// Checks settings that a run that reads its rows does not support.
    fn check_reading(&self) -> Result<(), RunConfigError> {
        let filters = self.rollout.observation_filter != FilterKind::NoFilter;
        let rules = [
            (
                "evaluation.episodes",
                self.stop.episode_return_mean.is_some() && self.evaluation.episodes == 0,
                "the stop return is a mean of the policy's own episodes: let --evaluation-episodes be more than 0",
            ),
            ("mode", !self.mode.is_synchronous(), "only sampling workers have modes: leave it out"),
            ("inference", self.inference != Inference::Local, "only workers that sample ask a server: leave it out"),
            ("weights_dtype", self.weights_dtype != WeightsDtype::Float32, "no worker is sent weights: leave it out"),
            ("observation_filter", filters, "what is read is not normalised: leave it out"),
            ("output", self.rollout.output.is_some(), "what is read is not written again: use `rollmesh data convert`"),
        ];
        match rules.iter().find(|(_, is_wrong, _)| *is_wrong) {
            Some((path, _, reason)) => Err(not_leased(path, reason)),
            None => Ok(()),
        }
    }

    /// Checks that every worker can build the networks, wherever their settings are.
    fn check_model(&self) -> Result<(), RunConfigError> {
        // A policy of the user's kind may have other settings of the same names.
        let has_network = |id: &PolicyId| PolicyRegistry::NETWORKS.contains(&self.policy(id).policy.as_str());
        let policies = &self.rollout.policies;
        let (policy, is_network) = if policies.is_empty() || policies.contains_key(&PolicyId::DEFAULT) {
            (self.default_policy_config(), has_network(&PolicyId::DEFAULT))
        } else {
            (self.rollout.network_config(), policies.keys().any(has_network))
        };
        if !is_network {
            return Ok(());
        }
        let malformed = |error: ConfigError| RunConfigError::malformed("model_config", error);
        let model = ModelConfig::of(&policy).map_err(malformed)?;
        for (path, widths) in [
            ("model_config.fcnet_hiddens", model.fcnet_hiddens),
            ("model_config.post_fcnet_hiddens", model.post_fcnet_hiddens),
        ] {
            if widths.len() > Self::MAX_LAYERS {
                return Err(RunConfigError::range(path, widths.len(), format!("at most {} layers", Self::MAX_LAYERS)));
            }
            let weights: u64 = widths.windows(2).map(|pair| u64::from(pair[0]) * u64::from(pair[1])).sum();
            if weights > Self::MAX_HIDDEN_WEIGHTS {
                let (found, most) = (format!("of {weights} weights"), Self::MAX_HIDDEN_WEIGHTS);
                return Err(RunConfigError::range(
                    path,
                    found,
                    format!("of at most {most}, since more do not fit into a message to workers"),
                ));
            }
        }
        if let Some(CustomModel::Described(custom)) = model.custom_model {
            let (path, layers) = ("model_config.custom_model", [custom.trunk, custom.policy, custom.value].concat());
            if layers.len() > Self::MAX_LAYERS {
                return Err(RunConfigError::range(path, layers.len(), format!("at most {} layers", Self::MAX_LAYERS)));
            }
        }
        Ok(())
    }
}

fn not_leased(path: &'static str, reason: &str) -> RunConfigError {
    RunConfigError::NotLeased { path, reason: reason.into() }
}
