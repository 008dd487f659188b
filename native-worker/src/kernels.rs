//! Core's hot loops, compiled for wider vectors than the target's baseline and chosen when the program runs.
//!
//! No instantiation fuses multiply and add or reorders a sum, so all give the same bits; `tests/kernels.rs` holds
//! them to it.

use multiversion::multiversion;
use rollmesh_core::kernels::{ActOut, ActorCritic, CartPoleState, Kernels, cartpole, mlp};

/// The widest instantiation that this machine can run.
pub const AUTO: Kernels = Kernels { name: "auto", act, values, cartpole_step };

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2", "x86_64+sse4.1"))]
fn act(nets: &ActorCritic, obs: &[f32], uniforms: &[f32], out: ActOut<'_>) {
    mlp::act(nets, obs, uniforms, out);
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2", "x86_64+sse4.1"))]
fn values(nets: &ActorCritic, obs: &[f32], out: &mut [f32]) {
    mlp::values(nets, obs, out);
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2", "x86_64+sse4.1"))]
fn cartpole_step(state: CartPoleState<'_>, actions: &[i64], obs: &mut [f32], terminateds: &mut [bool]) {
    cartpole::step(state, actions, obs, terminateds);
}

/// Instantiations by the name that the command line gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KernelChoice {
    /// What every machine of this kind can run.
    Portable,
    /// The widest vectors that this machine has.
    #[default]
    Auto,
}

impl KernelChoice {
    /// The table of this choice.
    #[must_use]
    pub const fn table(self) -> Kernels {
        match self {
            Self::Portable => Kernels::PORTABLE,
            Self::Auto => AUTO,
        }
    }
}
