//! Lists the settings of a run in a table, which validates them and describes them as JSON Schema.
//!
//! [`SECTIONS`] has one row per setting. [`RunConfig::check`] takes ranges and words from it, and [`json_schema`] builds the
//! schema for pages and editors; defaults come from [`RunConfig::default`].

mod fault;
mod setting;
mod table;
#[cfg(test)]
mod tests;

pub use setting::{Field, Kind, Setting, shown};
pub use table::{SECTIONS, Section};

use serde_json::{Map, Value, json};

use super::{
    HostConfig, InitSpec, InputSource, RunConfig, RunConfigError, SamplingMode, WorkerSpec,
    presets::{PRESETS, Preset},
    read::ALIASES,
};
use crate::{
    config::{Config, similar},
    policy::{ModelConfig, PolicyRegistry},
    prelude::*,
};

/// Iterates over all settings, in the order of the table.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}

/// Returns the JSON Schema (2020-12) of a [`RunConfig`], for these environments and algorithms.
///
/// An environment is given by its registered name and the mean return at which it counts as solved, if there is one; an
/// algorithm by its registered name and the JSON Schema of its settings, an object. In addition to the standard keywords,
/// `x-host` marks settings that belong to one machine, `x-fixed` explains why a run over leases leaves a setting at its
/// default, `x-section` names the part of the table, `x-presets` lists the settings of each preset with the environment and
/// the algorithm of its runs (null for any) and whether they read files, and `x-goals` gives the return at which an
/// environment counts as solved.
///
/// ```
/// use rollmesh_core::run::schema::json_schema;
///
/// let schema = json_schema(&[("CartPole-v1".into(), Some(475.0))].into(), &[]);
/// let num_workers = &schema["properties"]["num_workers"];
/// assert_eq!((num_workers["default"].as_u64(), num_workers["maximum"].as_u64()), (Some(2), Some(64)));
/// assert_eq!(schema["properties"]["host"]["properties"]["device"]["x-host"], true);
/// ```
#[must_use]
pub fn json_schema(envs: &BTreeMap<String, Option<f64>>, algorithms: &[(String, Value)]) -> Value {
    let defaults = Defaults::new();
    let mut root = Kind::Group.schema();
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("RunConfig");
    root["description"] = json!("The description of a rollmesh run. What is left out has its default.");
    for section in SECTIONS {
        for setting in section.settings {
            let mut schema = setting.schema(defaults.of(setting.path));
            schema["x-section"] = json!(section.title);
            place(&mut root, setting.path, schema);
        }
    }
    let known: Vec<&String> = envs.keys().collect();
    root["properties"]["env"]["anyOf"] = json!([{ "type": "null" }, { "enum": known }]);
    let names: Vec<&str> = algorithms.iter().map(|(name, _)| name.as_str()).collect();
    root["properties"]["algorithm"]["anyOf"] = json!([{ "type": "null" }, { "enum": names }]);
    for (alias, name) in ALIASES {
        root["properties"][alias] = json!({ "$ref": format!("#/properties/{name}"), "deprecated": true });
    }
    root["$defs"] = algorithms.iter().cloned().collect_ordered::<Map<_, _>>().into();
    let fixed = settings().filter(|setting| setting.fixed.is_some());
    let fixed: Map<String, Value> =
        fixed.map(|setting| (setting.path.into(), json!({ "const": defaults.of(setting.path) }))).collect_ordered();
    // Without workers, the run's own process can sample settings that leases do not support.
    let leased = json!({ "input": { "const": InputSource::SAMPLER }, "num_workers": { "minimum": 1 } });
    let over_leases = json!({ "if": { "properties": leased }, "then": { "properties": fixed } });
    root["allOf"] = names.iter().map(|name| when(name, &defaults)).chain([over_leases]).collect();
    let preset = |preset: &Preset| {
        let Preset { env, algorithm, reads_input, .. } = preset;
        json!({ "env": env, "algorithm": algorithm, "reads_input": reads_input, "settings": preset.settings() })
    };
    root["x-presets"] = PRESETS.iter().map(preset).collect();
    let goals = envs.iter().filter_map(|(env, goal)| Some((env.clone(), json!((*goal)?))));
    root["x-goals"] = goals.collect_ordered::<Map<_, _>>().into();
    root
}

/// Lets the schema of [`json_schema`] accept other environments, whose names begin with one of these texts. Nothing else in
/// it has the keyword `pattern`.
///
/// ```
/// use rollmesh_core::run::schema::{accept_env_names, json_schema};
///
/// let mut schema = json_schema(&[("CartPole-v1".into(), None)].into(), &[]);
/// accept_env_names(&mut schema, ["py:my.envs:"]);
/// assert_eq!(schema["properties"]["env"]["anyOf"][2]["pattern"], r"^py:my\.envs:");
/// ```
pub fn accept_env_names<'a>(schema: &mut Value, beginnings: impl IntoIterator<Item = &'a str>) {
    let Some(kinds) = schema["properties"]["env"]["anyOf"].as_array_mut() else { return };
    let escape = |letter: char| match letter {
        '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => format!("\\{letter}"),
        letter => letter.to_string(),
    };
    let pattern = |beginning: &str| format!("^{}", beginning.chars().map(escape).collect::<String>());
    kinds.extend(beginnings.into_iter().map(|beginning| json!({ "type": "string", "pattern": pattern(beginning) })));
}

/// Returns a condition that applies the schema of an algorithm to `policy_config` if the settings name the algorithm,
/// or if it is the default and they name none.
fn when(algorithm: &str, defaults: &Defaults) -> Value {
    let mut is_it = json!({ "properties": { "algorithm": { "const": algorithm } } });
    if defaults.of("algorithm") != algorithm {
        is_it["required"] = json!(["algorithm"]);
    }
    let settings = json!({ "$ref": format!("#/$defs/{algorithm}") });
    json!({ "if": is_it, "then": { "properties": { "policy_config": settings } } })
}

/// Returns the JSON Schema of an object with these settings and defaults; other names are allowed.
#[must_use]
pub fn object_schema(settings: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    json!({ "type": "object", "properties": settings.into_iter().collect_ordered::<BTreeMap<_, _>>() })
}

/// Inserts a schema at its path, whose groups exist already.
fn place(node: &mut Value, path: &str, schema: Value) {
    // If a setting has other kinds in addition to a group, the group is the last.
    let node = match node.get("anyOf").and_then(Value::as_array).map(Vec::len) {
        Some(kinds) => &mut node["anyOf"][kinds - 1],
        None => node,
    };
    match path.split_once('.') {
        Some((group, rest)) => place(&mut node["properties"][group], rest, schema),
        None => node["properties"][path] = schema,
    }
}

/// Default values by path.
struct Defaults {
    usual: Value,
    /// Groups that a description omits if none of their settings is set.
    within: Value,
}

impl Defaults {
    fn new() -> Self {
        let mut modes = Map::new();
        for name in ["asynchronous", "deadline"] {
            let mode = serde_json::from_value::<SamplingMode>(json!({ name: {} })).map(|mode| json!(mode));
            modes.insert(name.into(), mode.map(|mode| mode[name].clone()).unwrap_or_default());
        }
        let mut within = json!({
            "host": HostConfig::default(),
            "mode": modes,
            "evaluation": { "init": InitSpec::default() },
            "model_config": ModelConfig::default(),
        });
        for worker in ["worker", "evaluator"] {
            within["host"][worker] = json!(WorkerSpec::default());
            within["host"][worker]["resources"] = json!({});
        }
        // The wrappers of games read them, without a type of their own.
        (within["model_config"]["dim"], within["model_config"]["framestack"]) = (json!(84), json!(true));
        Self { usual: json!(RunConfig::default()), within }
    }

    /// Returns the default at a path; null for an unset setting.
    fn of(&self, path: &str) -> Value {
        let pointer = pointer(path);
        // The contents of a group do not show whether the group is set.
        let is_unset = settings().any(|row| row.path == path && matches!(row.kinds, [Kind::Null, ..]));
        let within = || self.within.pointer(&pointer).filter(|_| !is_unset);
        self.usual.pointer(&pointer).or_else(within).cloned().unwrap_or_default()
    }
}

/// Checks names and values.
pub(super) fn check(settings: &Config) -> Result<(), RunConfigError> {
    check_without_models(settings)?;
    check_models(&json!(settings))
}

/// Checks names and values, except those of networks: for changes of a run, which need not name the kinds of its policies.
pub(super) fn check_without_models(settings: &Config) -> Result<(), RunConfigError> {
    let settings: Value = settings.parse().map_err(|error| RunConfigError::malformed("settings", error))?;
    check_within("", &settings)
}

/// Checks the networks in the settings of policies. A policy of the user's kind may have other settings of the same names.
fn check_models(settings: &Value) -> Result<(), RunConfigError> {
    // The kind `net` stands for the network that the algorithm trains.
    let algorithm = settings.get("algorithm").and_then(Value::as_str).unwrap_or("net");
    let has_network = |policy: &Value| {
        let kind = policy.get("policy").and_then(Value::as_str).filter(|kind| *kind != "net").unwrap_or(algorithm);
        PolicyRegistry::NETWORKS.contains(&kind)
    };
    let policies = settings.get("policies").and_then(Value::as_object).filter(|policies| !policies.is_empty());
    let networks = policies.into_iter().flatten().filter(|(_, policy)| has_network(policy));
    let networks = networks.map(|(id, policy)| (format!("policies.{id}.config.model"), policy.get("config")));
    // Without policies there is one of the kind `net`.
    let is_shared = match policies {
        Some(policies) => policies.values().any(has_network),
        None => has_network(&Value::Null),
    };
    let shared = is_shared.then(|| ("policy_config.model".to_owned(), settings.get("policy_config")));
    for (path, config) in networks.chain(shared) {
        let model = config.and_then(|config| config.get("model")).and_then(Value::as_object);
        for (name, value) in model.into_iter().flatten() {
            let known = self::settings().find(|known| known.path.strip_prefix("model_config.") == Some(name));
            known.map_or(Ok(()), |setting| setting.check(&format!("{path}.{name}"), value))?;
        }
    }
    Ok(())
}

/// Checks that a run over leases does not change fixed settings.
pub(super) fn check_fixed(settings: &Config) -> Result<(), RunConfigError> {
    match changed(settings, |setting| setting.fixed.is_some()) {
        Some(Setting { path, fixed: Some(reason), .. }) => {
            Err(RunConfigError::NotLeased { path, reason: (*reason).into() })
        }
        _ => Ok(()),
    }
}

fn check_within(group: &str, settings: &Value) -> Result<(), RunConfigError> {
    for (name, value) in settings.as_object().into_iter().flatten() {
        let path = if group.is_empty() { name.clone() } else { format!("{group}.{name}") };
        let Some(setting) = self::settings().find(|setting| setting.path == path) else {
            return Err(unknown(&path));
        };
        setting.check(&path, value)?;
        if setting.kinds.iter().any(|kind| matches!(kind, Kind::Group | Kind::Variant)) {
            check_within(&path, value)?;
        }
    }
    Ok(())
}

/// Checks that no setting belongs to one machine.
pub(super) fn refuse_host_settings(settings: &Config) -> Result<(), RunConfigError> {
    let found = changed(settings, |setting| setting.is_host).map(|setting| setting.path);
    let (path, name) = DATASET_PATHS;
    let reads =
        || settings.get::<Config>("io_config").is_ok_and(|io| io.is_some_and(|io| io.names().any(|key| key == name)));
    found.or_else(|| reads().then_some(path)).map_or(Ok(()), |path| Err(RunConfigError::HostSetting(path)))
}

/// The files of RLlib's input `dataset`, a name of `io_config`: path and name.
pub(super) const DATASET_PATHS: (&str, &str) = ("io_config.paths", "paths");

/// The settings that are names of directories when they come from another machine.
const OUTPUTS: [&str; 2] = ["output", "monitor_path"];

/// Checks that no setting belongs to one machine, except outputs, which must be names.
pub(super) fn refuse_paths(settings: &Config) -> Result<(), RunConfigError> {
    for path in OUTPUTS {
        let Ok(Some(name)) = settings.get::<String>(path) else { continue };
        if !is_output_name(&name) {
            let allowed = "at most 64 letters, digits, '.', '_' and '-', the first no '.': the name of a directory below \
                           that of the run or the worker";
            return Err(RunConfigError::range(path, shown(&json!(name)), allowed));
        }
    }
    refuse_host_settings(&settings.clone().without(&OUTPUTS))
}

/// Returns whether a text names a directory below a data root: it contains no path.
#[must_use]
pub fn is_output_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_plain)
}

/// Returns the first selected row whose setting differs from its default.
fn changed(settings: &Config, is_meant: impl Fn(&Setting) -> bool) -> Option<&'static Setting> {
    let (defaults, settings) = (Defaults::new(), json!(settings));
    self::settings().filter(|setting| is_meant(setting)).find(|setting| {
        let value = settings.pointer(&pointer(setting.path));
        value.is_some_and(|value| *value != defaults.of(setting.path))
    })
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

fn unknown(path: &str) -> RunConfigError {
    let path: String = path.chars().take(64).collect();
    let within = format!(".{path}");
    let in_group = settings().map(|known| known.path).find(|known| known.ends_with(&within));
    let hint = match in_group.or_else(|| similar(&path, settings().map(|known| known.path))) {
        Some(known) => format!("; did you mean {known}?"),
        None if path.contains('.') => String::new(),
        None => "; those of the algorithm are in policy_config, those of the networks in model_config".into(),
    };
    RunConfigError::Unknown { path, hint }
}
