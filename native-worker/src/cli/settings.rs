//! Settings of a worker: a file, overridden by flags.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use clap::Args;
use rollmesh_core::{
    config::Config,
    filter::FilterKind,
    run::{RunConfig, RunConfigError},
    worker::{Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, config::LogLevel},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{choices::kernels, exit::Failure};
use crate::{NativeWorker as _, kernels::KernelChoice};

/// The flags that every command with a worker in this process has.
#[derive(Args, Clone, Debug)]
pub(super) struct WorkerFlags {
    /// Settings as TOML or JSON; flags override them
    ///
    /// By the ending of the file's name. The file may describe a whole run
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// One of `rollmesh envs` [default: CartPole-v1]
    #[arg(long)]
    pub(super) env: Option<String>,
    /// Settings of the environment, over the file's
    #[arg(long, value_name = "JSON")]
    pub(super) env_config: Option<Config>,
    /// Any setting by its path, see `rollmesh schema`
    ///
    /// The value is JSON or text: --set model_config.use_lstm=true; may be given several times
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting)]
    pub(super) set: Vec<(String, Value)>,
    /// Seed of everything random [default: 0]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Kind of every policy, see `rollmesh policies`
    ///
    /// `mlp` is another name of `net` [default: the file's, else net]
    #[arg(long, value_name = "KIND")]
    pub(super) policy: Option<String>,
    /// NoFilter or MeanStdFilter [default: NoFilter]
    ///
    /// Or ConcurrentMeanStdFilter
    #[arg(long, hide_short_help = true, value_name = "FILTER", value_parser = by_name::<FilterKind>)]
    pub(super) observation_filter: Option<FilterKind>,
    /// Record episodes here, as GIFs and numbers
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    pub(super) monitor_path: Option<String>,
    /// Write the sampled rows here, as RLlib's JSON
    #[arg(long, value_name = "DIR")]
    pub(super) output: Option<String>,
    /// Directory for logs, and for outputs that name none
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    pub(super) log_dir: Option<String>,
    /// ERROR, WARN, INFO or DEBUG [default: WARN]
    #[arg(long, hide_short_help = true, value_name = "LEVEL", value_parser = by_name::<LogLevel>)]
    pub(super) log_level: Option<LogLevel>,
    /// Instantiation of the hot loops
    ///
    /// Has no influence on the rows
    #[arg(long, hide_short_help = true, default_value_t, value_parser = kernels())]
    pub(super) kernels: KernelChoice,
}

/// Makes all policies of one kind, for the same agents; a single policy if there are none.
fn all_of_kind(mut config: RolloutConfig, kind: &str) -> RolloutConfig {
    if config.policies.is_empty() {
        return config.single_policy(kind);
    }
    config.policies.values_mut().for_each(|policy| policy.policy = kind.into());
    config
}

/// Parses a value by its name in configurations.
fn by_name<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

impl WorkerFlags {
    /// Returns the file's settings, or the defaults, overridden by the flags.
    pub(super) fn settings(&self) -> Result<RolloutConfig, Failure> {
        let mut config = match &self.config {
            Some(path) => {
                let settings = read(path)?;
                // The file may describe a whole run, whose worker is used.
                let config = match RolloutConfig::of_settings(&settings) {
                    Err(RunConfigError::NotOfWorkers(_)) => {
                        RunConfig::of_settings(&settings).map(|run| run.worker_config())
                    }
                    config => config,
                };
                config.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?
            }
            None => RolloutConfig::default(),
        };
        config.env = self.env.clone().or(config.env).or_else(|| Some("CartPole-v1".into()));
        if let Some(env_config) = &self.env_config {
            config.env_config = config.env_config.merged(env_config);
        }
        if let Some(kind) = &self.policy {
            config = all_of_kind(config, if kind == "mlp" { "net" } else { kind });
        }
        config.seed = self.seed.unwrap_or(config.seed);
        config.observation_filter = self.observation_filter.unwrap_or(config.observation_filter);
        config.monitor_path = self.monitor_path.clone().or(config.monitor_path);
        config.output = self.output.clone().or(config.output);
        config.log_dir = self.log_dir.clone().or(config.log_dir);
        config.log_level = self.log_level.unwrap_or(config.log_level);
        Ok(config)
    }

    /// Returns these settings overridden by those of `--set`.
    pub(super) fn with_set(&self, config: RolloutConfig) -> Result<RolloutConfig, Failure> {
        if self.set.is_empty() {
            return Ok(config);
        }
        let settings = Config::of(&config).map_err(Failure::usage)?;
        RolloutConfig::of_settings(&with_set(settings, &self.set))
            .map_err(|error| Failure::usage(format!("--set: {error}")))
    }

    /// Builds the worker of these settings.
    pub(super) fn worker(&self, config: RolloutConfig, registry: &Registry) -> Result<RolloutWorker, Failure> {
        let builder = RolloutWorkerBuilder::new(registry.clone()).config(config);
        let kernels = self.kernels.table().map_err(Failure::usage)?;
        builder.native().kernels(kernels).build().map_err(Failure::usage)
    }
}

/// Parses `PATH=VALUE`: the value is JSON, or else a text.
pub(super) fn setting(text: &str) -> Result<(String, Value), String> {
    let (path, value) = text.split_once('=').filter(|(path, _)| !path.is_empty()).ok_or("expected PATH=VALUE")?;
    Ok((path.into(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

/// Converts an error of a file's settings and flags together, which names the file if that has it by itself.
pub(super) fn at_fault(
    error: &RunConfigError,
    file: Option<&Path>,
    read_alone: impl FnOnce() -> Result<RunConfig, RunConfigError>,
) -> Failure {
    match file {
        Some(path) if read_alone().is_err_and(|alone| alone == *error) => {
            Failure::usage(format!("{}: {error}", path.display()))
        }
        _ => Failure::usage(error),
    }
}

/// Returns settings overridden by those of flags that were given.
pub(super) fn with_given<const N: usize>(settings: Config, flags: [(&str, Option<Value>); N]) -> Config {
    let given = flags.into_iter().filter_map(|(path, value)| Some((path, value?)));
    given.fold(settings, |settings, (path, value)| settings.with_at(path, value))
}

/// Returns settings overridden by those of `--set`.
pub(super) fn with_set(settings: Config, set: &[(String, Value)]) -> Config {
    set.iter().fold(settings, |settings, (path, value)| settings.with_at(path, value.clone()))
}

/// Reads settings from a file of JSON or TOML.
pub(super) fn read(path: &Path) -> Result<Config, Failure> {
    let failed = |error: &dyn fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => serde_json::from_str(&text).map_err(|error| failed(&error)),
        Some("toml") => {
            let TomlValue(settings) = toml::from_str(&text).map_err(|error| failed(&error))?;
            serde_json::from_value(settings).map_err(|error| failed(&error))
        }
        _ => Err(failed(&"settings are JSON or TOML: the file's name must end in .json or .toml")),
    }
}

/// A value of a TOML file as JSON. NaN and infinite numbers are texts, since in JSON they would be absent: the validation of
/// the settings refuses them by path and range.
struct TomlValue(Value);

impl<'de> Deserialize<'de> for TomlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TomlVisitor).map(Self)
    }
}

struct TomlVisitor;

impl<'de> Visitor<'de> for TomlVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of TOML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(if value.is_finite() { value.into() } else { value.to_string().into() })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(TomlValue(value)) = values.next_element()? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((name, TomlValue(value))) = entries.next_entry()? {
            all.insert(name, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_seed_is_read_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.toml");
        fs::write(&path, format!("seed = {}\n[policy_config]\nlr = [1, -0.5]\n", u64::MAX)).unwrap();
        let expected = format!("{{\"policy_config\":{{\"lr\":[1,-0.5]}},\"seed\":{}}}", u64::MAX);
        assert_eq!(read(&path).unwrap().to_string(), expected);
    }

    #[test]
    fn nan_in_a_file_is_refused_by_path_and_range() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.toml");
        fs::write(&path, "hung_worker_timeout_s = nan\n[policy_config]\ngrad_clip = nan\n").unwrap();
        let settings = read(&path).unwrap();
        let error = RunConfig::of_settings(&settings).unwrap_err().to_string();
        assert_eq!(error, "hung_worker_timeout_s is \"NaN\"; it must be at least 0");
        let policy: Config = settings.get("policy_config").unwrap().unwrap();
        let error = crate::learner::all_settings("ppo", &policy).unwrap_err().to_string();
        assert_eq!(error, "the setting 'grad_clip' is wrong: \"NaN\" must be above 0");
    }
}
