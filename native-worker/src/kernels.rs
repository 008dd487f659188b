//! Core's hot loops, compiled for wider vectors than the target's baseline and chosen when the program runs.
//!
//! No instantiation fuses multiply and add or reorders a sum, so all give the same bits; `tests/kernels.rs` holds
//! them to it.

use multiversion::{multiversion, target::match_target};
use rollmesh_core::kernels::{CartPoleState, DrawRoom, Draws, Kernels, Networks, cartpole, draw, nets};

/// The widest instantiation that this machine can run.
pub const AUTO: Kernels = Kernels { name: "auto", forward, categorical, cartpole_step };

/// Sums are as many as there are registers for: 32 of 16 numbers, 16 of eight, 16 of four.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2", "x86_64+sse4.1"))]
fn forward(nets: &Networks, input: nets::Input<'_>, room: &mut nets::Room, out: nets::Output<'_>) {
    match_target! {
        "x86_64+avx512f+avx512bw+avx512dq+avx512vl" => nets::forward::<16, 16>(nets, input, room, out),
        "x86_64+avx2" => nets::forward::<4, 16>(nets, input, room, out),
        _ => nets::forward::<4, 8>(nets, input, room, out),
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2", "x86_64+sse4.1"))]
fn categorical(logits: &[f32], room: &mut DrawRoom, draws: Draws<'_>) {
    draw::categorical(logits, room, draws);
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
