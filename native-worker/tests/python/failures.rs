//! Environments that fail: the messages to the user.

use std::time::{Duration, Instant};

use rollmesh::{NativeWorker as _, Registry};
use rollmesh_core::worker::{RolloutConfig, RolloutWorkerBuilder};

use super::{make, spec};

/// Returns the error at the end of sampling from faulty environments.
fn failure(fault: &str, remote_env_timeout_ms: u32) -> String {
    // So that it may run.
    spec("py:lab:faulty");
    let config = RolloutConfig {
        env_config: format!(r#"{{"fault": "{fault}"}}"#).parse().unwrap(),
        remote_env_timeout_ms,
        ..RolloutConfig::new("py:lab:faulty").num_envs(2).rollout_fragment_length(20)
    };
    let registry = rollmesh::native(Registry::builtin());
    let mut worker = RolloutWorkerBuilder::new(registry).config(config).native().build().unwrap();
    worker.sample().unwrap_err().to_string()
}

#[test]
fn failures_name_the_environment_and_the_python_error() {
    for (fault, texts) in [
        ("raise", ["py:lab:faulty: KeyError: 'the key is lost'", "in lose_the_key, called from lab.py:"]),
        ("exit", ["py:lab:faulty: its Python process", "code 7"]),
        ("crash", ["py:lab:faulty: its Python process", "Fatal Python error: Aborted"]),
        ("nan", ["the observation of step 4", "is NaN as a column holds it"]),
        ("shape", ["py:lab:faulty: ValueError: the observation has the shape (2, 1), its space (1,)", "lab"]),
        ("old", ["py:lab:faulty: TypeError: step returned 4 values, not 5", "lab"]),
    ] {
        let text = failure(fault, 60_000);
        assert!(texts.iter().all(|part| text.contains(part)), "{fault}: {text}");
    }
}

#[test]
fn failures_have_all_calls_of_the_environment_up_to_a_limit() {
    let text = failure("raise", 60_000);
    assert_eq!(text.matches("in look_up").count(), 4, "{text}");
    assert!(text.contains(" in step"), "{text}");
    // The first and the last calls of a recursion stay.
    let text = failure("recursion", 60_000);
    for part in ["py:lab:faulty: RecursionError", "(at lab.py:", " other calls, called from lab.py:", " in step)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.len() < 2_500, "{text}");
}

#[test]
fn hanging_step_ends_at_its_deadline() {
    // So that the deadline is that of the step, not of a busy machine's imports.
    make("py:lab:faulty", r#"{"fault": "none"}"#, 1, 5_000).unwrap();
    let begun = Instant::now();
    let text = failure("hang", 5_000);
    assert!(text.contains("py:lab:faulty: its Python process") && text.contains("5000 ms"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn missing_packages_and_environments_are_named() {
    let reason = |name: &str| make(name, "{}", 1, 60_000).err().unwrap().to_string();
    for (name, texts) in [
        ("gym:NoSuchEnv-v7", ["gym:NoSuchEnv-v7 cannot be made on this machine", "NameNotFound"]),
        ("gym:lab:NoSuchEnv-v7", ["gym:lab:NoSuchEnv-v7 cannot be made on this machine", "NameNotFound"]),
        ("py:no_such_module:make", ["No module named 'no_such_module'", "name the folder of the module in PYTHONPATH"]),
        ("py:lab:no_such_factory", ["py:lab:no_such_factory cannot be made on this machine", "no_such_factory"]),
        // The module has imported it: the meaning of a permission for the module would depend on its imports.
        ("py:lab:CartPoleEnv", ["py:lab:CartPoleEnv is no factory of lab", "it is defined in gymnasium"]),
    ] {
        let error = reason(name);
        assert!(texts.iter().all(|text| error.contains(text)), "{name}: {error}");
    }
    let error = make("gym:CartPole-v1", r#"{"colour": "red"}"#, 1, 60_000).err().unwrap().to_string();
    assert!(error.contains("gym:CartPole-v1: TypeError: ") && error.contains("colour"), "{error}");
}
