//! The settings of runs in a tab.

use rollmesh_core::{run::RunConfig, worker::Registry};
use rollmesh_learner::{ALGORITHMS, run_schema};
use serde_json::{Value, json};

/// The sections of settings that a tab cannot use, since it has no files and no processes.
const OTHER_SECTIONS: [&str; 3] = ["Evaluation and checkpoints", "Environment processes", "Logged data"];
/// The single settings that a tab cannot use.
const OTHER_SETTINGS: [&str; 4] = ["num_workers", "num_envs", "mode", "hung_worker_timeout_s"];

/// Returns the schema of the settings that a run in a tab may have. Its algorithms are those that learn from their own
/// samples.
pub(crate) fn tab_schema(registry: &Registry) -> Value {
    let mut schema = run_schema(registry);
    if let Some(settings) = schema["properties"].as_object_mut() {
        let is_other = |schema: &Value| schema["x-section"].as_str().is_some_and(|it| OTHER_SECTIONS.contains(&it));
        settings.retain(|name, schema| !OTHER_SETTINGS.contains(&&**name) && !is_other(schema));
        if let Some(names) = settings["algorithm"]["anyOf"][1]["enum"].as_array_mut() {
            let is_offline = |name: &Value| ALGORITHMS.iter().any(|spec| spec.is_offline && *name == *spec.name);
            names.retain(|name| !is_offline(name));
        }
        settings["num_slots"]["default"] = json!(RunConfig::default().num_slots());
        settings["num_slots"]["description"] = json!("Environments of the run, which its workers share.");
    }
    schema
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{config::Config, kernels::Kernels, time::Micros};
    use rollmesh_learner::{InlineRun, InlineWork};
    use rollmesh_web_registry::registry;

    use super::*;

    #[test]
    fn every_environment_of_the_schema_learns() {
        let schema = tab_schema(&registry());
        assert_eq!(schema["properties"]["num_slots"]["default"], 16);
        assert_eq!(schema["properties"]["algorithm"]["anyOf"][1]["enum"], json!(["pg", "a2c", "ppo"]));
        assert!(schema["properties"].get("evaluation").is_none() && schema["properties"].get("mode").is_none());
        let envs = schema["properties"]["env"]["anyOf"][1]["enum"].as_array().expect("names").clone();
        for env in envs {
            let small: Config =
                r#"{"num_slots": 2, "rollout_fragment_length": 8, "preset": "none", "stop": {"env_steps": 16},
                "model_config": {"fcnet_hiddens": [4]}}"#
                    .parse()
                    .expect("settings");
            let config = RunConfig::of_wire_settings(&small.with_at("env", env.clone()).to_string()).expect("settings");
            let mut run = InlineRun::new(1, config, &registry(), Kernels::PORTABLE, Micros(0)).expect("a run");
            while run.work(16, Micros(0)).unwrap_or_else(|error| panic!("{env}: {error}")) != InlineWork::Over {}
            assert!(run.state().iteration() > 0, "{env}");
        }
    }
}
