use serde_json::json;

use super::{presets::PRESETS, *};
use crate::{config::Config, prelude::*, time::Micros};

fn read(text: &str) -> Result<RunConfig, RunConfigError> {
    RunConfig::of_settings(&text.parse().unwrap())
}

fn fault(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn empty_settings_give_the_defaults() {
    assert_eq!(read("{}").unwrap(), RunConfig::default());
    assert_eq!((RunConfig::default().num_slots(), RunConfig::default().fragment_length()), (16, 64));
}

#[test]
fn settings_round_trip_through_json() {
    let run =
        read(r#"{"env": "Acrobot-v1", "stop": {"episode_return_mean": -100}, "host": {"device": "cuda:0"}}"#).unwrap();
    assert_eq!(run.stop.env_steps, 1_000_000);
    assert_eq!(RunConfig::of_settings(&run.settings().unwrap()).unwrap(), run);
}

#[test]
fn errors_name_path_and_value() {
    assert_eq!(fault(r#"{"num_env": 4}"#), "num_env: there is no such setting; did you mean num_envs?");
    assert_eq!(fault(r#"{"stop": {"colour": 4}}"#), "stop.colour: there is no such setting");
    assert_eq!(
        fault(r#"{"use_lstm": true}"#),
        "use_lstm: there is no such setting; did you mean model_config.use_lstm?"
    );
    assert_eq!(
        fault(r#"{"lr": 0.1}"#),
        "lr: there is no such setting; those of the algorithm are in policy_config, those of the networks in model_config"
    );
    assert_eq!(fault(r#"{"seed": -3}"#), "seed is -3; it must be a whole number of at least 0");
    assert_eq!(fault(r#"{"num_envs": 0}"#), "num_envs is 0; it must be from 1 to 65536");
    assert_eq!(fault(r#"{"num_workers": 65}"#), "num_workers is 65; it must be at most 64");
    assert_eq!(fault(r#"{"num_envs": 70000, "num_workers": 0}"#), "num_envs is 70000; it must be from 1 to 65536");
    assert_eq!(fault(r#"{"num_envs": 60000}"#), "num_slots is 120000; it must be from 1 to 65536");
    assert_eq!(fault(r#"{"num_envs": "many"}"#), "num_envs is \"many\"; it must be from 1 to 65536");
    assert_eq!(fault(r#"{"stop": 1}"#), "stop is 1; it must be an object");
    assert_eq!(
        fault(r#"{"stop": {"env_step": 1}}"#),
        "stop.env_step: there is no such setting; did you mean stop.env_steps?"
    );
    assert_eq!(fault(r#"{"stop": {"env_steps": 0}}"#), "stop.env_steps is 0; it must be at least 1");
    assert_eq!(fault(r#"{"stop": {"wall_s": 0}}"#), "stop.wall_s is 0; it must be above 0 and at most 3200000000");
    assert_eq!(
        fault(r#"{"model_config": {"fcnet_hiddens": [8, 20000]}}"#),
        "model_config.fcnet_hiddens[1] is 20000; it must be from 1 to 16384"
    );
    assert!(fault(r#"{"sample_async": true}"#).starts_with("sample_async: workers with leases sample ahead"));
    let long = Config::new().with("desc", "F".repeat(RunConfig::MAX_ENV_CONFIG_BYTES)).unwrap();
    let error = RunConfig::of_settings(&Config::new().with("env_config", long).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "env_config has 16395 bytes as JSON; it must have at most 16384");
}

#[test]
fn presets_stand_between_defaults_and_settings() {
    let gamma = |settings: &str| read(settings).unwrap().rollout.policy_config.get::<f64>("gamma").unwrap();
    assert_eq!(gamma(r#"{"env": "Pendulum-v1"}"#), Some(0.9));
    assert_eq!(gamma(r#"{"env": "Pendulum-v1", "policy_config": {"gamma": 0.5}}"#), Some(0.5));
    assert_eq!(gamma(r#"{"env": "Pendulum-v1", "preset": "none"}"#), None);
    assert_eq!(gamma(r#"{"env": "Pendulum-v1", "algorithm": "a2c"}"#), None);
}

#[test]
fn presets_parse_and_are_in_the_schema() {
    let schema = schema::json_schema(&BTreeMap::new(), &[]);
    let shown = schema["x-presets"].as_array().unwrap();
    assert_eq!(shown.len(), PRESETS.len());
    for (preset, shown) in PRESETS.iter().zip(shown) {
        let (settings, input) = (preset.settings(), if preset.reads_input { "samples" } else { "sampler" });
        assert!(!settings.is_empty(), "{preset:?} is no JSON object");
        assert_eq!((&shown["env"], &shown["settings"]), (&json!(preset.env), &json!(settings)));
        let asked = Config::new().with_at("input", json!(input));
        let asked = [("env", preset.env), ("algorithm", preset.algorithm)]
            .iter()
            .fold(asked, |asked, (name, value)| value.map_or(asked.clone(), |value| asked.with_at(name, json!(value))));
        let run = RunConfig::of_settings(&asked).unwrap();
        let with_preset = RunConfig::default().merged(&presets::of(&run).merged(&asked)).unwrap();
        assert_eq!((&run, settings.merged(&presets::of(&run))), (&with_preset, presets::of(&run)), "{preset:?}");
    }
}

#[test]
fn settings_of_a_worker_are_checked_like_those_of_a_run() {
    let read = |settings: &str| RolloutConfig::of_settings(&settings.parse().unwrap());
    assert_eq!(read(r#"{"num_envs_per_worker": 3}"#).unwrap(), RolloutConfig::default().num_envs(3));
    for (settings, error) in [
        (r#"{"num_envs": 0}"#, "num_envs is 0; it must be from 1 to 65536"),
        (r#"{"num_env": 1}"#, "num_env: there is no such setting; did you mean num_envs?"),
        (r#"{"model_config": {"use_lstm": 1}}"#, "model_config.use_lstm is 1; it must be true or false"),
        (
            r#"{"stop": {"env_steps": 9}}"#,
            "stop is a setting of a run, not of a worker: leave it out, or use `rollmesh train`",
        ),
    ] {
        assert_eq!(read(settings).unwrap_err().to_string(), error);
    }
}

#[test]
fn run_that_reads_files_has_defaults_and_checks_of_its_own() {
    let run = read(r#"{"input": "samples", "callbacks": ["x"]}"#).unwrap();
    assert_eq!((run.algorithm.as_deref(), run.num_slots(), run.fragment_length()), (Some("bc"), 1, 2000));
    assert_eq!(run.worker_config().policies[&PolicyId::DEFAULT].policy, "bc");
    assert!(run.rollout.io_config.is_empty());
    let weighed = read(r#"{"input": ["a", "b"], "algorithm": "marwil", "train_batch_size": 100000}"#).unwrap();
    assert_eq!(weighed.rollout.io_config.get("postprocess_inputs").unwrap(), Some(true));
    for (settings, path) in [
        (r#"{"input": "samples", "output": "copy"}"#, "output"),
        (r#"{"input": "samples", "observation_filter": "MeanStdFilter"}"#, "observation_filter"),
        (
            r#"{"input": "samples", "stop": {"episode_return_mean": 9}, "evaluation": {"episodes": 0}}"#,
            "evaluation.episodes",
        ),
        (r#"{"input": "samples", "train_batch_size": 0}"#, "train_batch_size"),
    ] {
        assert!(fault(settings).starts_with(path), "{}", fault(settings));
    }
    assert!(run.check_leased().unwrap_err().to_string().starts_with("input: no worker reads"));
    assert_eq!(RunConfig::from_wire(&run.to_wire()).unwrap_err(), RunConfigError::HostSetting("input"));
}

#[test]
fn rllib_names_are_understood() {
    assert_eq!(read(r#"{"num_envs_per_worker": 3, "num_workers": 0}"#).unwrap().num_slots(), 3);
    for (slots_per_worker, settings) in [
        (8, r#"{"num_envs": 8, "num_workers": 2}"#),
        (2, r#"{"num_envs": 4, "num_workers": 3, "num_slots": 8}"#),
        (1, r#"{"num_envs": 4, "num_workers": 3, "num_slots": 2}"#),
    ] {
        assert_eq!(read(settings).unwrap().slots_per_worker(), slots_per_worker, "{settings}");
    }
}

#[test]
fn home_indices_do_not_depend_on_workers() {
    let homes = |workers| {
        let run = RunConfig::default().num_workers(workers).slots(6).num_envs(4);
        (0..6).map(|slot| run.home(SlotId(slot))).collect::<Vec<_>>()
    };
    assert_eq!(homes(0), homes(3));
    assert_eq!(homes(1)[5], HomeIndex { worker_index: 2, vector_index: 1 });
}

#[test]
fn host_settings_do_not_travel() {
    let mut run = RunConfig::new("CartPole-v1");
    run.rollout.output = Some("samples".into());
    run.rollout.extra_environs.insert("A".into(), "b".into());
    run.host.device = "cuda:0".into();
    let arrived = RunConfig::from_wire(&run.to_wire()).unwrap();
    assert_eq!(RunConfig { num_slots: None, preset: "auto".into(), ..arrived }, RunConfig::new("CartPole-v1"));
    for (settings, name) in [
        (r#"{"log_dir": "logs"}"#, "log_dir"),
        (r#"{"host": {"device": "cuda:1"}}"#, "host.device"),
        (r#"{"host": {"worker": {}}}"#, "host.worker"),
        (r#"{"extra_environs": {"LD_PRELOAD": "x"}}"#, "extra_environs"),
    ] {
        assert_eq!(RunConfig::from_wire(settings).unwrap_err(), RunConfigError::HostSetting(name));
        assert_eq!(RunConfig::of_wire_settings(settings).unwrap_err(), RunConfigError::HostSetting(name));
    }
    for (name, is_name) in
        [("rows", true), ("a.b-c_9", true), ("/etc", false), ("..", false), (".ssh", false), ("a/b", false)]
    {
        let settings = format!(r#"{{"output": "{name}"}}"#);
        assert_eq!(RunConfig::from_wire(&settings).unwrap_err(), RunConfigError::HostSetting("output"));
        let read = RunConfig::of_wire_settings(&settings);
        assert_eq!(read.is_ok(), is_name, "{read:?}");
        let mut worker = RolloutConfig { output: Some(name.into()), ..RolloutConfig::default() };
        let placed = worker.place_outputs("/data");
        assert_eq!(placed, read.map(drop));
        let wanted = if is_name { format!("/data/{name}") } else { name.into() };
        assert_eq!(worker.output, Some(wanted));
    }
    assert!(RunConfig::from_wire("[]").is_err() && RunConfig::from_wire(&" ".repeat(50_000)).is_err());
}

/// Settings of runs that may hold texts: names of what workers have registered, and the settings of these.
const NAMES: [&str; 15] = [
    "env",
    "env_config",
    "algorithm",
    "policy_config",
    "model_config.custom_model",
    "policies",
    "policy_mapping_fn",
    "policies_to_train",
    "observation_fn",
    "callbacks",
    "evaluation.reward_key",
    "evaluation.init.name",
    "evaluation.init.arguments",
    "q_model_config",
    "io_config",
];

#[test]
fn every_setting_of_one_machine_is_refused_from_the_wire_and_does_not_travel() {
    let texts = [json!("/x"), json!("cpu")];
    let values = [&texts[..], &[json!({}), json!({"a": "b"}), json!({"a": 1}), json!(7), json!(true)]].concat();
    let mut refused = 0;
    for schema::Setting { path, kinds, is_host, .. } in schema::settings() {
        if !is_host {
            let is_text = |kind: &schema::Kind| {
                matches!(kind, schema::Kind::Text | schema::Kind::List(schema::Kind::Text) | schema::Kind::Object)
            };
            assert!(!kinds.iter().any(is_text) || NAMES.contains(path), "{path}: a name, or a setting of one machine?");
            continue;
        }
        let with = |value: &serde_json::Value| {
            let settings = Config::new().with_at(path, value.clone());
            let run = RunConfig::default().merged(&settings).ok().filter(|run| *run != RunConfig::default())?;
            Some((settings, run))
        };
        let (settings, run) = values.iter().find_map(with).unwrap_or_else(|| panic!("{path} has no other value"));
        // The group comes before its settings.
        let is_it =
            |found: &RunConfigError| matches!(found, RunConfigError::HostSetting(name) if path.starts_with(name));
        let error = RunConfig::from_wire(&settings.to_string()).unwrap_err();
        assert!(is_it(&error), "{path}: {error}");
        assert!(RunConfig::of_wire_settings(&settings.to_string()).is_err(), "{path}");
        let error = run.refuse_host_settings().unwrap_err();
        assert!(is_it(&error), "{path}: {error}");
        // Runs that read have no other workers.
        assert_eq!(run.for_wire().refuse_host_settings().is_ok(), *path != "input", "{path}");
        refused += 1;
    }
    assert!(refused > 15, "{refused} settings of one machine");
    let paths = r#"{"io_config": {"paths": "/x", "format": "json"}}"#;
    assert_eq!(RunConfig::from_wire(paths).unwrap_err(), RunConfigError::HostSetting("io_config.paths"));
    assert_eq!(RunConfig::of_wire_settings(paths).unwrap_err(), RunConfigError::HostSetting("io_config.paths"));
    let arrived = RunConfig::from_wire(&read(paths).unwrap().to_wire()).unwrap();
    assert_eq!(arrived.rollout.io_config.names().collect::<Vec<_>>(), ["format"]);
}

#[test]
fn preset_holds_for_settings_of_an_operator_and_not_for_those_of_a_hub() {
    let gamma = |run: RunConfig| run.rollout.policy_config.get::<f64>("gamma").unwrap();
    let settings = r#"{"env": "Pendulum-v1"}"#;
    assert_eq!(gamma(RunConfig::of_wire_settings(settings).unwrap()), Some(0.9));
    assert_eq!(gamma(RunConfig::from_wire(settings).unwrap()), None);
}

#[test]
fn modes_have_defaults_and_limits() {
    let run = read(r#"{"mode": {"asynchronous": {}}}"#).unwrap();
    assert_eq!(run.mode, SamplingMode::Asynchronous { batch_env_steps: 0, max_staleness: 1 });
    assert_eq!(run.sampling_mode(), SamplingMode::Asynchronous { batch_env_steps: 16 * 64, max_staleness: 1 });
    let run = read(r#"{"mode": {"deadline": {"max_staleness": 0}}}"#).unwrap();
    assert_eq!(run.mode, SamplingMode::Deadline { after: Micros::from_secs(1), max_staleness: 0 });
    assert_eq!(
        fault(r#"{"mode": {"deadline": {"after": 86400000001}}}"#),
        "mode.deadline.after is 86400000001; it must be at most 86400000000"
    );
    assert_eq!(
        fault(r#"{"mode": {"deadline": {}, "asynchronous": {}}}"#),
        "mode is {\"asynchronous\":{},\"deadline\":{}}; it must be synchronous or an object with one setting"
    );
    assert!(fault(r#"{"mode": "magic"}"#).starts_with("mode is \"magic\"; it must be synchronous or"));
}

#[test]
fn local_workers_on_a_device_need_device_rows() {
    let settings =
        |path: &str, rows| format!(r#"{{"host": {{"{path}": {{"device": "cuda:1"}}}}, "device_rows": {rows}}}"#);
    for path in ["worker", "evaluator"] {
        let error = read(&settings(path, false)).unwrap_err().to_string();
        assert_eq!(error, format!("host.{path}.device is cuda:1; it must be cpu, unless device_rows is true"));
        assert!(read(&settings(path, true)).is_ok());
    }
}
