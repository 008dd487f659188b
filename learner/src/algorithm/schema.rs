//! The schema of a run with the algorithms of this program.

use rollmesh_core::{
    config::Config,
    policy::PolicySpec,
    run::schema::{json_schema, object_schema},
    worker::Registry,
};
use serde_json::{Value, json};

use super::{ALGORITHMS, AlgorithmSpec, all_settings, learns, settings::OPTIONAL, table::SHARED};

/// Returns the JSON Schema of a run's settings, for the environments and algorithms of this registry: see
/// [`json_schema`]. Custom policies may be algorithms as well; their settings are not described.
///
/// ```
/// use rollmesh_core::worker::Registry;
/// use rollmesh_learner::run_schema;
///
/// let schema = run_schema(&Registry::builtin());
/// assert_eq!(schema["$defs"]["ppo"]["properties"]["gamma"]["default"], 0.98);
/// ```
#[must_use]
pub fn run_schema(registry: &Registry) -> Value {
    let is_own = |policy: &&PolicySpec| !policy.is_builtin() && learns(&policy.name);
    let own = registry.policies.iter().filter(is_own).map(|policy| (policy.name.clone(), object_schema([])));
    let is_replaced = |name: &str| registry.policies.spec(name).is_ok_and(|policy| is_own(&policy));
    let built_in = ALGORITHMS.iter().filter(|spec| !is_replaced(spec.name));
    let algorithms: Vec<_> = built_in.map(|spec| (spec.name.into(), algorithm(spec))).chain(own).collect();
    let single = registry.envs.iter().map(|env| (env.name.clone(), env.reward_threshold));
    let multi = registry.envs.iter_multi_agent().map(|env| (env.name.clone(), None));
    let base = registry.base_envs().map(|name| (name.to_owned(), None));
    json_schema(&multi.chain(base).chain(single).collect(), &algorithms)
}

/// Returns the schema of an algorithm's settings.
fn algorithm(spec: &AlgorithmSpec) -> Value {
    let defaults = all_settings(spec.name, &Config::new()).map(|defaults| json!(defaults)).unwrap_or_default();
    let own = (spec.parse)(&Config::new()).map_or(&[][..], |algorithm| algorithm.objective().own_settings());
    object_schema(SHARED.iter().chain(own).filter_map(|row| {
        let mut schema = row.schema(defaults.get(row.path)?.clone());
        if OPTIONAL.contains(&row.path) {
            let kinds = [row.schema(Value::Null), json!({ "enum": [0, null] })];
            schema = json!({ "anyOf": kinds, "description": row.help, "default": defaults[row.path] });
        }
        Some((row.path, schema))
    }))
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        policy::{Policy, PolicyContext, PolicyError},
        run::presets::PRESETS,
    };

    use super::*;

    #[test]
    fn every_setting_of_every_algorithm_has_a_row_and_every_row_an_algorithm() {
        let mut used: Vec<&str> = Vec::new();
        for spec in ALGORITHMS {
            let name = spec.name;
            let defaults = all_settings(name, &Config::new()).unwrap();
            let described = algorithm(spec);
            assert!(defaults.names().eq(described["properties"].as_object().unwrap().keys()), "{name}: {described}");
            let own = (spec.parse)(&Config::new()).unwrap();
            let mut own = own.objective().own_settings().iter();
            assert!(own.all(|row| defaults.names().any(|name| name == row.path)), "{name}");
            used.extend(SHARED.iter().map(|row| row.path).filter(|path| defaults.names().any(|name| name == *path)));
        }
        assert!(SHARED.iter().all(|row| used.contains(&row.path)));
    }

    #[test]
    fn policies_of_the_user_are_algorithms() {
        let make = |_: &PolicyContext| -> Result<Box<dyn Policy>, PolicyError> { unreachable!() };
        let mut registry = Registry::builtin();
        registry.policies.register(PolicySpec::new("mine", make));
        registry.policies.register(PolicySpec::new("ppo", make));
        let schema = run_schema(&registry);
        let wanted = json!(["pg", "a2c", "bc", "marwil", "mine", "ppo"]);
        assert_eq!(schema["properties"]["algorithm"]["anyOf"][1]["enum"], wanted);
        assert_eq!(schema["$defs"]["ppo"], object_schema([]));
    }

    #[test]
    fn presets_are_of_registered_environments_and_valid_settings_of_their_algorithms() {
        let registry = Registry::builtin();
        for preset in PRESETS {
            // The native program registers the external environment, and constructs environments in Python.
            let is_native = |env: &str| env == "External-v0" || env.starts_with("gym:");
            let is_known = |env| is_native(env) || registry.envs.spec(env).is_ok();
            assert!(preset.env.is_none_or(is_known), "{preset:?}");
            let Some(algorithm) = preset.algorithm else { continue };
            let spec = ALGORITHMS.iter().find(|spec| spec.name == algorithm).expect("a known algorithm");
            let own: Config = preset.settings().get("policy_config").unwrap().unwrap_or_default();
            assert!((spec.parse)(&own).is_ok(), "{preset:?}: {own:?}");
        }
    }

    #[test]
    fn algorithms_refuse_what_their_schema_does() {
        for spec in ALGORITHMS {
            let (name, parse, described) = (spec.name, spec.parse, algorithm(spec));
            for (path, schema) in described["properties"].as_object().unwrap() {
                let settings = |value: &Value| Config::new().with_at(path, value.clone());
                assert!(parse(&settings(&schema["default"])).is_ok(), "{name}: {path}");
                let schema = schema["anyOf"].get(0).unwrap_or(schema);
                let Some(low) = schema.get("minimum").or_else(|| schema.get("exclusiveMinimum")) else { continue };
                let low = low.as_f64().unwrap();
                // 0 turns off the optional settings.
                let outside =
                    if OPTIONAL.contains(&&**path) || schema.get("minimum").is_some() { low - 1.5 } else { low };
                assert!(parse(&settings(&json!(outside))).is_err(), "{name}: {path} = {outside}");
            }
        }
    }
}
