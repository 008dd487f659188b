//! The hot loops, as generic functions without intrinsics, and the table through which they are called.
//!
//! Every function here is `#[inline(always)]`, sums in one fixed order and uses no fused multiply-add, so an
//! instantiation for any vector width gives the same bits. (In wasm, which has one instantiation, two are functions of their
//! own.) [`Kernels::PORTABLE`] is for the target's baseline; with the feature `std` the module `wide` has tables for wider
//! vectors. This is a crate of its own so that it can be optimised where nothing else is, in debug builds and in small modules
//! for the browser.
//!
//! ```
//! use rollmesh_kernels::{CartPoleState, Kernels};
//!
//! let (mut x, mut x_dot, mut theta, mut theta_dot) = ([0.0], [0.0], [0.0], [0.0]);
//! let cart = CartPoleState { x: &mut x, x_dot: &mut x_dot, theta: &mut theta, theta_dot: &mut theta_dot };
//! let (mut obs, mut terminateds) = ([0.0; 4], [false]);
//! (Kernels::PORTABLE.cartpole_step)(cart, &[1], &mut obs, &mut terminateds);
//! assert!(x_dot[0] > 0.0 && theta_dot[0] < 0.0 && !terminateds[0]);
//! ```

#![cfg_attr(not(feature = "std"), no_std)]
#![deny(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cartpole;
pub mod draw;
pub mod math;
pub mod nets;
#[cfg(feature = "std")]
#[allow(unsafe_code, reason = "functions for wider vectors are safe to call where the processor has them")]
pub mod wide;

pub use cartpole::CartPoleState;
pub use draw::{DrawBuffers, Draws};
pub use nets::Networks;

/// The instantiations in use. All tables give the same bits; they differ in speed only.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// Name of the instantiation, for people.
    pub name: &'static str,
    /// See [`nets::forward`].
    pub forward: fn(&Networks, nets::Input<'_>, &mut nets::NetBuffers, nets::Output<'_>),
    /// See [`nets::linear`].
    pub linear: fn(&nets::Dense, &[f32], &mut [f32]),
    /// See [`Activation::apply`](nets::Activation::apply).
    pub activate: fn(nets::Activation, &mut [f32]),
    /// See [`Activation::apply_slope`](nets::Activation::apply_slope).
    pub activate_back: fn(nets::Activation, &[f32], &[f32], &mut [f32]),
    /// See [`draw::categorical`].
    pub categorical: fn(&[f32], &mut DrawBuffers, Draws<'_>),
    /// See [`cartpole::step`].
    pub cartpole_step: fn(CartPoleState<'_>, &[i64], &mut [f32], &mut [bool]),
}

impl Kernels {
    /// The instantiation for the target's baseline: 16 registers of four numbers.
    pub const PORTABLE: Self = Self {
        name: "portable",
        forward: portable::forward,
        linear: portable::linear,
        activate: portable::activate,
        activate_back: portable::activate_back,
        categorical: portable::categorical,
        cartpole_step: portable::cartpole_step,
    };
}

/// Compiled here and not in the crate that uses the table, whose code may not be optimised.
mod portable {
    use super::{CartPoleState, DrawBuffers, Draws, Networks, cartpole, draw, nets};

    #[inline(never)]
    pub(super) fn forward(
        nets: &Networks,
        input: nets::Input<'_>,
        buffers: &mut nets::NetBuffers,
        out: nets::Output<'_>,
    ) {
        nets::forward::<4, 8>(nets, input, buffers, out);
    }

    #[inline(never)]
    pub(super) fn linear(dense: &nets::Dense, input: &[f32], output: &mut [f32]) {
        nets::linear::<4, 8>(dense, input, output);
    }

    #[inline(never)]
    pub(super) fn activate(activation: nets::Activation, values: &mut [f32]) {
        activation.apply(values);
    }

    #[inline(never)]
    pub(super) fn activate_back(activation: nets::Activation, x: &[f32], y: &[f32], grads: &mut [f32]) {
        activation.apply_slope(x, y, grads);
    }

    #[inline(never)]
    pub(super) fn categorical(logits: &[f32], buffers: &mut DrawBuffers, draws: Draws<'_>) {
        draw::categorical(logits, buffers, draws);
    }

    #[inline(never)]
    pub(super) fn cartpole_step(state: CartPoleState<'_>, actions: &[i64], obs: &mut [f32], terminateds: &mut [bool]) {
        cartpole::step(state, actions, obs, terminateds);
    }
}

impl Default for Kernels {
    fn default() -> Self {
        Self::PORTABLE
    }
}
