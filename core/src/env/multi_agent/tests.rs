//! Properties of all built-in environments with several agents.

use crate::{
    env::{EnvContext, EnvRegistry},
    ids::HomeIndex,
    prelude::*,
};

fn context() -> EnvContext {
    EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 })
}

#[test]
fn unknown_env_settings_are_refused() {
    for spec in EnvRegistry::builtin().iter_multi_agent() {
        let error = spec.make(&context().with_config(r#"{"nmu_cars": 3}"#.parse().unwrap())).map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with("there is no setting 'nmu_cars'; known are: "), "{}: {error}", spec.name);
    }
}
