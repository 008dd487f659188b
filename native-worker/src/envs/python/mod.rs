//! Python environments: any Gymnasium environment by the name `gym:ID` or `gym:MODULE:ID`, any PettingZoo environment by
//! `pettingzoo:ID`, and the return value of a module's function by `py:MODULE:FACTORY`, or with several agents by
//! `pettingzoo:MODULE:FACTORY`. The run's `env_config` becomes keyword arguments of `gymnasium.make` or of the function.
//!
//! A host, an interpreter in a [process](super::remote) of its own, makes and steps them. All environments of a thread share
//! a host, and all lanes of a vector are stepped by one exchange of messages; with several
//! [processes](PythonSettings::processes) each steps its part of the lanes, all at the same time. If the host crashes or has to be killed, the
//! environment that it was stepping has failed; the others are recreated by the next host, and their open episodes replayed.
//! Games of PettingZoo are stepped one by one, and the open episodes of all games of the host have failed.
//!
//! Only environments that this machine's command line allows can run, see [`PythonSettings`]; a run, a message, a file or a
//! checkpoint cannot allow any.
//!
//! Requests to a host, after the head of the [messages](super::remote::wire); numbers have 4 bytes:
//!
//! | request | body | answer |
//! |---|---|---|
//! | `Make` | JSON: a group's number, name, settings, lanes, and MiB | JSON: spaces, the way in which open episodes
//! move, and shared memory |
//! | `Reset` | group, lane, seed | the row of the first observation |
//! | `Step` | group, first lane, number of lanes | nothing; rows are in shared memory |
//! | … without it | the same, then rows of actions | rows of observations, rewards (8 each), ends (1 each) |
//! | `Render` | group, lane | width, height and pixels, or nothing |
//! | `Close` | group, 0 | nothing |
//! | `Save` | group, lane | the state of the lane's simulator |
//! | `Restore` | group, lane, such a state | nothing |
//! | `Fingerprint` | as of `Make` | versions of packages, and the hash of random episodes |
//!
//! `ends` has bit 0 for terminated, bit 1 for truncated. For a game of PettingZoo, which is a single lane, the host
//! sends the spaces of all agents, takes the bytes of [`AgentRows`](rollmesh_core::env::multi_agent::AgentRows) as
//! actions, and answers with those of a [`Turn`](rollmesh_core::env::multi_agent::Turn). Any request may be answered
//! with `Failed`: JSON with a reason.

#[cfg(unix)]
mod game;
#[cfg(unix)]
mod host;
#[cfg(unix)]
mod lane_group;
#[cfg(unix)]
mod moving;
mod permission;
#[cfg(unix)]
mod rows;
#[cfg(unix)]
mod shared;
#[cfg(unix)]
mod vector;

pub(crate) use permission::{ALLOW_VARIABLE, INTERPRETER_VARIABLE, PROCESSES_VARIABLE, child_environs};
pub use permission::{PythonPermission, PythonSettings};
use rollmesh_core::{
    config::Config,
    env::{EnvContext, EnvError},
};
#[cfg(unix)]
pub use vector::Starts;
#[cfg(unix)]
use {
    game::PythonGame,
    rollmesh_core::env::{AnyVectorEnv, EnvResolver, EnvSpec, MultiAgentEnv, MultiAgentSpec, ResolvedEnv},
    std::sync::Arc,
    vector::PythonEnvs,
};

/// The setting of an environment that names the fingerprint of its host.
const FINGERPRINT: &str = "host_fingerprint";

/// The setting of an environment that will be drawn.
const PICTURES: &str = "host_pictures";

/// No fingerprint was found for a run's Python environment.
#[derive(Debug, thiserror::Error)]
#[error("the host fingerprint of the environment: {0}; to begin without one, set {name} = false in env_config", name = FINGERPRINT)]
pub struct PythonFingerprintError(EnvError);

/// Returns the settings of a Python environment with the fingerprint that it has on this machine, which others then need to
/// have. `None` for other environments, for those that may not run on this machine, and if the settings name a fingerprint or
/// say `false`.
///
/// # Errors
/// [`PythonFingerprintError`] if the environment's host fails.
pub(crate) fn with_fingerprint(name: &str, context: &EnvContext) -> Result<Option<Config>, PythonFingerprintError> {
    let settings = PythonSettings::of_process();
    let is_open = permission::is_python(name) && context.config.names().all(|name| name != FINGERPRINT);
    if !is_open || settings.check(name).is_err() {
        return Ok(None);
    }
    #[cfg(unix)]
    return lane_group::with_fingerprint(name, context, &settings).map(Some).map_err(PythonFingerprintError);
    #[cfg(not(unix))]
    Ok(None)
}

/// Returns false for settings whose fingerprint shows that the environment's episodes differ each time.
pub(crate) fn is_deterministic(config: &Config) -> bool {
    let fingerprint = config.get::<String>(FINGERPRINT).ok().flatten();
    #[cfg(unix)]
    return fingerprint.is_none_or(|fingerprint| lane_group::has_episodes(&fingerprint));
    #[cfg(not(unix))]
    fingerprint.is_none()
}

/// Returns the settings of an environment that is to be drawn: one of Python is then made with `render_mode` `rgb_array`, if it
/// can be and its settings name no other.
pub(crate) fn with_pictures(name: &str, config: &Config) -> Config {
    match permission::is_python(name) {
        true => config.with_at(PICTURES, true.into()),
        false => config.clone(),
    }
}

/// Returns the settings of an environment without the fingerprint of its host: for policies, which may act anywhere.
pub(crate) fn without_fingerprint(config: Config) -> Config {
    config.without(&[FINGERPRINT])
}

/// Returns the numbers from which the spaces of an environment count, if it is one of Python.
#[cfg(unix)]
#[must_use]
pub fn starts(env: &mut dyn AnyVectorEnv) -> Starts {
    env.as_any().downcast_ref::<PythonEnvs>().map(|env| env.starts.clone()).unwrap_or_default()
}

/// Returns a resolver for the Python environments of any registry.
#[cfg(unix)]
pub(crate) fn resolver() -> EnvResolver {
    Arc::new(|name| {
        let own = name.to_owned();
        if permission::is_game(name) {
            let spec = MultiAgentSpec::new(name, move |context| -> Result<Box<dyn MultiAgentEnv>, _> {
                let settings = PythonSettings::of_process();
                settings.check(&own)?;
                Ok(Box::new(PythonGame::make(&own, context, &settings)?))
            });
            return Some(ResolvedEnv::MultiAgent(spec));
        }
        let make = move |contexts: &[_], _| -> Result<Box<dyn AnyVectorEnv>, _> {
            let settings = PythonSettings::of_process();
            settings.check(&own)?;
            Ok(Box::new(PythonEnvs::make(&own, contexts, &settings)?))
        };
        permission::is_python(name).then(|| ResolvedEnv::SingleAgent(EnvSpec::fallible(name, make)))
    })
}
