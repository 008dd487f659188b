//! The registry of all samplers in a browser: the Web Workers of a tab that works for a run or trains by itself, and
//! the module for JavaScript. The page gets the names from the schema of a run's settings.
//!
//! Your own environments and policies are added in [`registry`], as they do natively before
//! `rollmesh::main_with`: with a dependency on the crate that has them, for example
//!
//! ```
//! use rollmesh_core::{env::{CartPole, EnvSpec}, worker::Registry};
//!
//! fn registry() -> Registry {
//!     let mine = EnvSpec::new("Mine-v0", |contexts, kernels| Box::new(CartPole::new(contexts.len(), kernels)));
//!     Registry::builtin().with_env(mine)
//! }
//! # assert!(registry().env("Mine-v0").is_ok());
//! ```
//!
//! A hub and the tabs that work for it must know the same names.

use rollmesh_core::worker::Registry;

/// Returns the registry of everything that has a name in a browser.
#[must_use]
pub fn registry() -> Registry {
    Registry::builtin()
}
