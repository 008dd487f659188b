//! Environments of Python: any of Gymnasium's by the name `gym:ID` or `gym:MODULE:ID`, of PettingZoo's by `pettingzoo:ID`, and
//! what a function of a module returns by `py:MODULE:FACTORY`, or with several agents by `pettingzoo:MODULE:FACTORY`. The run's
//! `env_config` becomes keyword arguments of `gymnasium.make` or the function.
//!
//! A host, an interpreter in a [process](super::remote) of its own, makes and steps them. All environments of a thread share a
//! host, and all lanes of a vector are stepped by one exchange. If the host has to be ended, or ends, the environment that it
//! was asked for has failed; the others are made by the next host, and their open episodes replayed.
//!
//! Nothing runs here that this machine's command line does not name, see [`PythonSettings`]; a run, a message, a file or a
//! checkpoint cannot.
//!
//! What a host is asked for, after the head of the [messages](super::remote::wire); numbers have 4 bytes:
//!
//! | request | body | answer |
//! |---|---|---|
//! | `Make` | JSON: an order's number, name, settings, lanes, and MiB | JSON: spaces, and whether episodes can be replayed |
//! | `Reset` | order, lane, seed | the row of the first observation |
//! | `Step` | order, first lane, number of lanes, rows of actions | rows of observations, rewards (8 each), ends (1 each) |
//! | `Render` | order, lane | width, height and pixels, or nothing |
//! | `Close` | order, 0 | nothing |
//!
//! `ends` has bit 0 for terminated, bit 1 for truncated. Of a game of PettingZoo, which is a single lane, the host tells the
//! spaces of all agents, takes the bytes of [`AgentRows`](rollmesh_core::env::multi_agent::AgentRows) as actions, and answers
//! with those of a [`Turn`](rollmesh_core::env::multi_agent::Turn). Any request may be answered with `Failed`: JSON with a reason.

#[cfg(unix)]
mod game;
#[cfg(unix)]
mod host;
#[cfg(unix)]
mod order;
mod permission;
#[cfg(unix)]
mod vector;

pub(crate) use permission::{ALLOW_VARIABLE, INTERPRETER_VARIABLE, child_environs};
pub use permission::{PythonPermission, PythonSettings};
#[cfg(unix)]
use {
    game::PythonGame,
    rollmesh_core::env::{AnyVectorEnv, EnvResolver, EnvSpec, MultiAgentEnv, MultiAgentSpec, ResolvedEnv},
    std::sync::Arc,
    vector::PythonEnvs,
};

/// Describes the Python environments of any registry.
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
