use core::num::NonZeroU32;

use super::*;
use crate::{
    evaluation::RewardKey,
    run::{
        EvaluationConfig, Inference, InferenceBatch, InitSpec, ReplayMismatch, RolloutConfig, StopConfig, WeightsDtype,
    },
    time::Micros,
};

fn schema() -> Value {
    json_schema(&[("CartPole-v1".into(), Some(475.0))].into(), &[("ppo".into(), object_schema([]))])
}

/// Returns descriptions with every optional key set, in all modes.
fn full() -> Vec<Value> {
    let modes = [
        SamplingMode::Synchronous,
        SamplingMode::Asynchronous { batch_env_steps: 1, max_staleness: 1 },
        SamplingMode::Deadline { after: Micros(1), max_staleness: 1 },
    ];
    let worker = WorkerSpec {
        cpus: 1,
        gpus: Some(1),
        device: Some("cuda:0".into()),
        memory: Some(1),
        resources: [("r".into(), 1)].into(),
    };
    let model = Config::of(&ModelConfig::default()).unwrap().with_at("dim", json!(84)).with_at("framestack", json!(4));
    // Lists every field, so that a new key does not compile until it is added here.
    let full = |mode| RunConfig {
        rollout: RolloutConfig { model_config: model.clone(), ..RolloutConfig::default() },
        num_slots: Some(1),
        num_workers: 1,
        algorithm: Some("ppo".into()),
        preset: "auto".into(),
        stop: StopConfig { episode_return_mean: Some(1.0), env_steps: 1, wall_s: Some(1.0) },
        mode,
        replay_mismatch: ReplayMismatch::Abandon,
        device_rows: true,
        inference: Inference::Server,
        inference_batch: InferenceBatch::default(),
        weights_dtype: WeightsDtype::Float16,
        evaluation: EvaluationConfig {
            interval: 1,
            episodes: 1,
            horizon: Some(1),
            timeout_s: NonZeroU32::MIN,
            num_envs: 1,
            seed: Some(1),
            render: true,
            reward_key: RewardKey::Reward,
            init: Some(InitSpec { name: "f".into(), arguments: Config::new() }),
        },
        checkpoint_interval: 1,
        hung_worker_timeout_s: 1.0,
        host: HostConfig {
            device: "cuda:0".into(),
            worker: Some(worker.clone()),
            evaluator: worker.clone(),
            evaluator_is_nice: true,
            tensorboard: true,
            mlflow: Some("mlruns".into()),
        },
    };
    modes.into_iter().map(|mode| json!(full(mode))).collect()
}

/// Collects the paths of all keys, down to objects with user-defined names.
fn paths(group: &str, value: &Value, found: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().unwrap() {
        let path = if group.is_empty() { name.clone() } else { format!("{group}.{name}") };
        let row = settings().find(|setting| setting.path == path);
        let is_free = row.is_some_and(|row| matches!(row.kinds, [Kind::Object | Kind::Map(_)]));
        if value.is_object() && !is_free {
            paths(&path, value, found);
        }
        found.insert(path);
    }
}

/// Collects the paths of all properties of a schema.
fn properties(group: &str, schema: &Value, found: &mut BTreeSet<String>) {
    for schema in schema["anyOf"].as_array().into_iter().flatten() {
        properties(group, schema, found);
    }
    // The fields of an object within a setting are not settings.
    let schema = if schema["required"].is_array() { &Value::Null } else { schema };
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = if group.is_empty() { name.clone() } else { format!("{group}.{name}") };
        properties(&path, schema, found);
        if schema["deprecated"] != true {
            found.insert(path);
        }
    }
}

#[test]
fn schema_has_exactly_the_serialised_keys() {
    let (mut serialised, mut described) = (BTreeSet::new(), BTreeSet::new());
    full().iter().for_each(|value| paths("", value, &mut serialised));
    properties("", &schema(), &mut described);
    assert_eq!(serialised, described);
    assert_eq!(settings().count(), described.len(), "every path has one row");
}

#[test]
fn defaults_are_those_of_run_config() {
    let defaults = Defaults::new();
    for setting in settings() {
        let default = defaults.of(setting.path);
        let may_be_unset = default.is_null() && matches!(setting.kinds, [Kind::Null, ..]);
        assert!(may_be_unset || setting.allows(&default), "{}: {default}", setting.path);
    }
    let schema = schema();
    let default = |path: &str| schema.pointer(path).unwrap()["default"].clone();
    assert_eq!(default("/properties/num_envs"), 8);
    assert_eq!(default("/properties/stop/properties/env_steps"), 1_000_000);
    let modes = "/properties/mode/anyOf/1/properties";
    assert_eq!(default(&format!("{modes}/deadline/properties/after")), 1_000_000);
    assert_eq!(default(&format!("{modes}/asynchronous/properties/batch_env_steps")), 0);
}

/// Returns settings with one value at a path.
fn with(path: &str, value: Value) -> Config {
    Config::new().with_at(path, value)
}

#[test]
fn check_enforces_the_ranges_of_the_schema() {
    let (mut schema, mut bounds) = (schema(), 0);
    for setting in settings() {
        let path = setting.path;
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        let node = at(&mut schema, path);
        let kinds = node["anyOf"].as_array().cloned().unwrap_or_else(|| vec![node.clone()]);
        for kind in &kinds {
            match kind["minimum"].as_u64() {
                Some(0) | None => {}
                Some(min) => (inside.push(json!(min)), outside.push(json!(min - 1))).1,
            }
            if let Some(max) = kind["maximum"].as_u64() {
                inside.push(json!(max));
                outside.push(json!(max + 1));
            }
            if let Some(min) = kind["exclusiveMinimum"].as_f64() {
                outside.push(json!(min));
            }
            if let Some(max) = kind["maximum"].as_f64() {
                outside.push(json!(max * 2.0 + 1.0));
            }
        }
        bounds += outside.len();
        for value in outside {
            let error = RunConfig::of_settings(&with(path, value.clone())).unwrap_err();
            let is_named = matches!(&error, RunConfigError::Range { path: named, .. } if *named == path);
            assert!(is_named, "{path} = {value}: {error}");
        }
        for value in inside {
            let error = RunConfig::of_settings(&with(path, value.clone())).err();
            let is_refused = matches!(&error, Some(RunConfigError::Range { path: named, .. }) if *named == path);
            assert!(!is_refused, "{path} = {value}: {error:?}");
        }
    }
    assert!(bounds > 50, "{bounds} bounds");
}

/// Returns the schema of a setting.
fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Value {
    let schema = match schema.get("anyOf").and_then(Value::as_array).map(Vec::len) {
        Some(kinds) if schema.get("properties").is_none() => &mut schema["anyOf"][kinds - 1],
        _ => schema,
    };
    match path.split_once('.') {
        Some((group, rest)) => at(&mut schema["properties"][group], rest),
        None => &mut schema["properties"][path],
    }
}

#[test]
fn words_of_choices_are_those_that_are_read() {
    for setting in settings() {
        let choices = setting.kinds.iter().filter_map(|kind| match kind {
            Kind::Choice(words) => Some((*words, false)),
            Kind::List(Kind::Choice(words)) => Some((*words, true)),
            _ => None,
        });
        for (words, is_list) in choices {
            let value = |word: &str| if is_list { json!([word]) } else { json!(word) };
            let read = |word| {
                json!(RunConfig::default()).as_object().cloned().map(|mut settings| {
                    settings.insert(setting.path.into(), value(word));
                    serde_json::from_value::<RunConfig>(settings.into())
                })
            };
            for word in words {
                assert!(matches!(read(word), Some(Ok(_))), "{}: {word}", setting.path);
            }
            // The error names all variants in backticks after the wrong one; some are aliases.
            let Some(Err(error)) = read("?") else { continue };
            for name in error.to_string().split('`').skip(3).step_by(2).filter(|_| setting.path != "mode") {
                let read = json!(read(name).unwrap().unwrap())[setting.path].clone();
                assert!(words.iter().any(|word| read == value(word)), "{}: {name} is no choice", setting.path);
            }
        }
    }
}

#[test]
fn error_names_the_innermost_invalid_value() {
    for (path, value, expected) in [
        (
            "model_config.conv_filters",
            json!([[16, 3]]),
            "model_config.conv_filters[0] is [16,3]; it must be [filters, kernel, stride], such as [16, 3, 1]",
        ),
        (
            "model_config.conv_filters",
            json!([[16, 3, 1], [16, [3, 0], 1]]),
            "model_config.conv_filters[1][1][1] is 0; it must be from 1 to 1024",
        ),
        (
            "model_config.conv_filters",
            json!("big"),
            "model_config.conv_filters is \"big\"; it must be auto or a list, each [filters, kernel, stride], such as \
             [16, 3, 1]",
        ),
        (
            "model_config.custom_model",
            json!({ "trunk": [{ "dense": 16 }] }),
            "model_config.custom_model.trunk[0].layer: it is missing; it must be dense or conv or layer_norm or lstm or gru",
        ),
        (
            "model_config.custom_model",
            json!({ "trunk": [{ "layer": "dens" }] }),
            "model_config.custom_model.trunk[0].layer is \"dens\"; it must be dense or conv or layer_norm or lstm or gru",
        ),
        (
            "model_config.custom_model",
            json!({ "value": [{ "layer": "dense", "outputs": 8, "activations": "tanh" }] }),
            "model_config.custom_model.value[0].activations: there is no such setting; did you mean activation?",
        ),
        (
            "model_config.custom_model",
            json!({ "value": [{ "layer": "gru" }] }),
            "model_config.custom_model.value[0].cells: it is missing; it must be from 1 to 16384",
        ),
        ("policies", json!({ "a": { "policy": 3 } }), "policies.a.policy is 3; it must be a text"),
        ("policies", json!({ "a": null }), "policies.a is null; it must be an object"),
        (
            "policies",
            json!({ "a": { "config": { "model": { "lstm_cell_size": 0 } } } }),
            "policies.a.config.model.lstm_cell_size is 0; it must be from 1 to 4294967295",
        ),
        (
            "policy_config",
            json!({ "model": { "conv_filters": 3 } }),
            "policy_config.model.conv_filters is 3; it must be auto or a list, each [filters, kernel, stride], such as \
             [16, 3, 1]",
        ),
        ("policies_to_train", json!(["a", 1]), "policies_to_train[1] is 1; it must be a text"),
        ("input", json!({ "a": "half" }), "input.a is \"half\"; it must be at least 0"),
        ("input", json!(7), "input is 7; it must be a text or a list, each a text or an object"),
        ("host.worker.resources", json!({ "r": -1 }), "host.worker.resources.r is -1; it must be at most 4294967295"),
        ("extra_environs", json!({ "A": 1 }), "extra_environs.A is 1; it must be a text"),
    ] {
        let error = RunConfig::of_settings(&with(path, value.clone())).unwrap_err().to_string();
        assert_eq!(error, expected, "{path} = {value}");
    }
}

#[test]
fn settings_of_a_users_own_kind_of_policy_may_have_any_model() {
    let model = json!({ "conv_filters": "big" });
    let policies = |kind: &str| json!({ "policies": { "a": { "policy": kind, "config": { "model": model } } } });
    let shared = |kind: &str| json!({ "policies": { "a": { "policy": kind } }, "policy_config": { "model": model } });
    let read = |settings: &Value| RolloutConfig::of_settings(&Config::of(settings).unwrap());
    for settings in [policies("mine"), shared("mine")] {
        assert!(read(&settings).is_ok(), "{settings}");
    }
    for settings in [policies("net"), policies("ppo"), shared("net"), json!({ "policy_config": { "model": model } })] {
        let error = read(&settings).unwrap_err().to_string();
        assert!(error.contains("model.conv_filters is \"big\"; it must be auto or a list"), "{settings}: {error}");
    }
    let of_algorithm = |algorithm: &str| {
        let settings = json!({ "algorithm": algorithm, "policy_config": { "model": model } });
        RunConfig::of_settings(&Config::of(&settings).unwrap())
    };
    let own = of_algorithm("mine").unwrap();
    assert!(of_algorithm("ppo").is_err());
    let change = Config::of(&json!({ "policy_config": { "model": { "conv_filters": "bigger" } } })).unwrap();
    assert!(own.merged(&change).is_ok());
    assert!(RunConfig::default().merged(&change).is_err());
}

#[test]
fn every_invalid_value_is_named_by_path_without_names_of_types() {
    let odd = json!([
        null, true, -1, 0.5, "odd", [], [null], [[]], [["a"]], {}, { "a": null }, { "a": {} }, { "trunk": [[]] },
        { "a": { "observation_space": { "type": "box", "dtype": "float32", "shape": [2], "low": {} } } },
        { "a": { "action_space": { "type": "discrete", "n": -1 } } }
    ]);
    let mut errors = 0;
    for (setting, value) in settings().flat_map(|row| odd.as_array().unwrap().iter().map(move |value| (row, value))) {
        let Err(error) = RunConfig::of_settings(&with(setting.path, value.clone())) else { continue };
        let (text, root) = (error.to_string(), setting.path.split('.').next().unwrap());
        let is_of_another = matches!(error, RunConfigError::NotLeased { .. });
        assert!(text.starts_with(root) || is_of_another, "{} = {value}: {text}", setting.path);
        for word in ["untagged", "variant of", "struct ", "f64", "u32", "sequence"] {
            assert!(!text.contains(word), "{} = {value}: {text}", setting.path);
        }
        errors += 1;
    }
    assert!(errors > 500, "{errors}");
}

#[test]
fn settings_that_leases_do_not_support_are_constants() {
    let schema = schema();
    for (name, value) in [("sample_async", json!(true)), ("fake_sampler", json!(true))] {
        let (rules, property) = (schema["allOf"].as_array().unwrap(), &schema["properties"][name]);
        assert_eq!(rules.last().unwrap()["then"]["properties"][name]["const"], property["default"], "{name}");
        assert!(property["x-fixed"].is_string());
        let error = RunConfig::of_settings(&with(name, value.clone())).unwrap_err();
        assert!(matches!(error, RunConfigError::NotLeased { path, .. } if path == name), "{error}");
        assert!(RunConfig::of_settings(&with(name, value).with_at("input", json!("samples"))).is_ok());
    }
}
