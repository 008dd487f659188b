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

pub(crate) use permission::{ALLOW_VARIABLE, INTERPRETER_VARIABLE, PROCESSES_VARIABLE, child_environs};
pub use permission::{PythonPermission, PythonSettings};
#[cfg(unix)]
use {
    game::PythonGame,
    rollmesh_core::env::{AnyVectorEnv, EnvResolver, EnvSpec, MultiAgentEnv, MultiAgentSpec, ResolvedEnv},
    std::sync::Arc,
    vector::PythonEnvs,
};

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
