//! What a program knows by name. Users' crates add their own.

use rollmesh_core::env::{EnvRegistry, EnvSpec};

/// Everything that can be named on the command line, in a configuration or over the wire.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(crate) envs: EnvRegistry,
}

impl Registry {
    /// What comes with rollmesh.
    #[must_use]
    pub fn builtin() -> Self {
        Self { envs: EnvRegistry::builtin() }
    }

    /// Adds an environment; one of the same name is replaced.
    #[must_use]
    pub fn with_env(mut self, spec: EnvSpec) -> Self {
        self.envs.register(spec);
        self
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}
