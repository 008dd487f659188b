//! A crate with environments, policies, callbacks and functions of its own. Processes only exchange their names: the
//! same program is command line, hub and worker, and has all of them in its registry.

mod corridor;
mod hooks;
mod hunt;
mod steady;
mod tally;

pub use corridor::Corridor;
pub use hunt::Hunt;
pub use steady::Steady;
pub use tally::Tally;

use rollmesh_core::{
    env::{EnvSpec, MultiAgentSpec, Vectorized},
    policy::PolicySpec,
    worker::Registry,
};

/// Returns the registry of this program.
#[must_use]
pub fn registry() -> Registry {
    Registry::builtin()
        .with_env(
            EnvSpec::fallible("Corridor-v0", |contexts, _kernels| {
                let corridors = contexts.iter().map(Corridor::new).collect::<Result<_, _>>()?;
                Ok(Box::new(Vectorized::new(corridors)))
            })
            .with_settings(Corridor::SETTINGS)
            .with_max_episode_steps(60),
        )
        .with_multi_agent_env(
            MultiAgentSpec::new("Hunt-v0", |context| Ok(Box::new(Hunt::new(context)?))).with_max_episode_steps(100),
        )
        .with_policy(PolicySpec::new("steady", |context| Ok(Box::new(Steady::new(context)?))))
        .with_policy(PolicySpec::new("tally", |context| Ok(Box::new(Tally::new(context)?))))
        .with_policy_mapping_fn("by_side", hooks::by_side)
        .with_callbacks("count_catches", |_config| Ok(Box::new(hooks::CountCatches)))
        .with_callbacks("log_stages", |_config| Ok(Box::new(hooks::LogStages)))
        .with_worker_fn("hunters", hooks::hunters)
}
