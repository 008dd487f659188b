//! Environments of Python: any of Gymnasium's by the name `gym:ID` or `gym:MODULE:ID`, and what a function of a module
//! returns by `py:MODULE:FACTORY`. The run's `env_config` becomes keyword arguments of `gymnasium.make` or the factory.
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
//! `ends` has bit 0 for terminated, bit 1 for truncated. Any request may be answered with `Failed`: JSON with a reason.

#[cfg(unix)]
mod host;
mod permission;
#[cfg(unix)]
mod vector;

pub(crate) use permission::{ALLOW_VARIABLE, INTERPRETER_VARIABLE, child_environs};
pub use permission::{PythonPermission, PythonSettings};
#[cfg(unix)]
use {
    rollmesh_core::env::{AnyVectorEnv, EnvResolver, EnvSpec},
    std::sync::Arc,
    vector::PythonEnvs,
};

/// Describes the Python environments of any registry.
#[cfg(unix)]
pub(crate) fn resolver() -> EnvResolver {
    Arc::new(|name| {
        let own = name.to_owned();
        let make = move |contexts: &[_], _| -> Result<Box<dyn AnyVectorEnv>, _> {
            let settings = PythonSettings::of_process();
            settings.check(&own)?;
            Ok(Box::new(PythonEnvs::make(&own, contexts, &settings)?))
        };
        permission::is_python(name).then(|| EnvSpec::fallible(name, make))
    })
}
