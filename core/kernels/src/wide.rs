//! The hot loops, compiled for wider vectors than the target's baseline and chosen when the program runs.
//!
//! No instantiation fuses multiply and add or reorders a sum, so all give the same bits.

use std::sync::OnceLock;

use crate::Kernels;
#[cfg(target_arch = "x86_64")]
use crate::{CartPoleState, DrawBuffers, Draws, Networks, cartpole, draw, nets};

/// The widest instantiation that this machine can run.
pub const AUTO: Kernels = Kernels {
    name: "auto",
    forward: |nets, input, buffers, out| (widest().forward)(nets, input, buffers, out),
    linear: |dense, input, output| (widest().linear)(dense, input, output),
    activate: |activation, values| (widest().activate)(activation, values),
    activate_back: |activation, x, y, grads| (widest().activate_back)(activation, x, y, grads),
    categorical: |logits, buffers, draws| (widest().categorical)(logits, buffers, draws),
    cartpole_step: |state, actions, obs, terminateds| (widest().cartpole_step)(state, actions, obs, terminateds),
};

fn widest() -> &'static Kernels {
    static WIDEST: OnceLock<Kernels> = OnceLock::new();
    WIDEST.get_or_init(|| avx512().or_else(avx2).unwrap_or_default())
}

/// Returns the instantiation for vectors of eight numbers, where the processor has them.
#[must_use]
pub fn avx2() -> Option<Kernels> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return Some(AVX2);
    }
    None
}

/// Returns the instantiation for vectors of sixteen numbers, where the processor has them.
#[must_use]
pub fn avx512() -> Option<Kernels> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
    {
        return Some(AVX512);
    }
    None
}

/// A function of a table that [`avx2`] and [`avx512`] return.
#[cfg(target_arch = "x86_64")]
macro_rules! on_such_processors {
    ($function:ident($($argument:ident),*)) => {
        |$($argument),*| {
            // SAFETY: the table is returned only where the processor has the features that the function needs.
            unsafe { $function($($argument),*) }
        }
    };
}

/// The hot loops compiled for vectors that a processor may lack. Sums are as many as there are registers for: 32 of 16
/// numbers, 16 of eight.
macro_rules! compiled_for {
    ($table:ident, $name:literal, $features:literal, $rows:literal, $lanes:literal) => {
        #[cfg(target_arch = "x86_64")]
        const $table: Kernels = {
            #[target_feature(enable = $features)]
            fn forward(nets: &Networks, input: nets::Input<'_>, buffers: &mut nets::NetBuffers, out: nets::Output<'_>) {
                nets::forward::<$rows, $lanes>(nets, input, buffers, out);
            }
            #[target_feature(enable = $features)]
            fn linear(dense: &nets::Dense, input: &[f32], output: &mut [f32]) {
                nets::linear::<$rows, $lanes>(dense, input, output);
            }
            #[target_feature(enable = $features)]
            fn activate(activation: nets::Activation, values: &mut [f32]) {
                activation.apply(values);
            }
            #[target_feature(enable = $features)]
            fn activate_back(activation: nets::Activation, x: &[f32], y: &[f32], grads: &mut [f32]) {
                activation.apply_slope(x, y, grads);
            }
            #[target_feature(enable = $features)]
            fn categorical(logits: &[f32], buffers: &mut DrawBuffers, draws: Draws<'_>) {
                draw::categorical(logits, buffers, draws);
            }
            #[target_feature(enable = $features)]
            fn cartpole_step(state: CartPoleState<'_>, actions: &[i64], obs: &mut [f32], terminateds: &mut [bool]) {
                cartpole::step(state, actions, obs, terminateds);
            }
            Kernels {
                name: $name,
                forward: on_such_processors!(forward(nets, input, buffers, out)),
                linear: on_such_processors!(linear(dense, input, output)),
                activate: on_such_processors!(activate(activation, values)),
                activate_back: on_such_processors!(activate_back(activation, x, y, grads)),
                categorical: on_such_processors!(categorical(logits, buffers, draws)),
                cartpole_step: on_such_processors!(cartpole_step(state, actions, obs, terminateds)),
            }
        };
    };
}

compiled_for!(AVX2, "avx2", "avx2", 4, 16);
compiled_for!(AVX512, "avx512", "avx512f,avx512bw,avx512dq,avx512vl", 16, 16);
