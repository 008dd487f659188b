//! Forward pass of the acting networks, and the choice of actions.
//!
//! Rows are lanes: a block of [`LANES`] rows is transposed, then each sum starts with the bias and takes the inputs
//! in their order. The last block is filled up with zeros. So a row's result depends on nothing but the row.

use crate::{math, prelude::*};

/// Rows that are worked on together.
pub const LANES: usize = 16;

/// Outputs whose sums are kept in registers together.
const PANEL: usize = 4;

type Lane = [f32; LANES];

/// A dense layer, packed for the kernel.
#[derive(Clone, Debug)]
pub struct Dense {
    inputs: usize,
    outputs: usize,
    /// For each panel of outputs, for each input: the panel's weights; filled up with zeros.
    panels: Vec<[f32; PANEL]>,
    bias: Vec<f32>,
}

impl Dense {
    /// Packs weights given as `[inputs][outputs]`. The caller has checked the lengths.
    #[must_use]
    pub fn pack(inputs: usize, outputs: usize, weights: &[f32], bias: &[f32]) -> Self {
        let mut panels = Vec::with_capacity(outputs.div_ceil(PANEL) * inputs);
        for first in (0..outputs).step_by(PANEL) {
            for row in weights.chunks_exact(outputs) {
                panels.push(core::array::from_fn(|k| row.get(first + k).copied().unwrap_or(0.0)));
            }
        }
        let mut bias = bias.to_vec();
        bias.resize(outputs.next_multiple_of(PANEL), 0.0);
        Self { inputs, outputs, panels, bias }
    }

    #[inline(always)]
    fn forward(&self, input: &[Lane], output: &mut [Lane]) {
        let input = &input[..self.inputs];
        let panels = self.panels.chunks_exact(self.inputs).zip(self.bias.chunks_exact(PANEL));
        for ((weights, bias), out) in panels.zip(output.chunks_exact_mut(PANEL)) {
            // Four separate sums: as an array of arrays they are taken apart into single numbers and never
            // become vectors again.
            let (mut a, mut b) = ([bias[0]; LANES], [bias[1]; LANES]);
            let (mut c, mut d) = ([bias[2]; LANES], [bias[3]; LANES]);
            for (x, w) in input.iter().zip(weights) {
                add_product(&mut a, w[0], x);
                add_product(&mut b, w[1], x);
                add_product(&mut c, w[2], x);
                add_product(&mut d, w[3], x);
            }
            out[0] = a;
            out[1] = b;
            out[2] = c;
            out[3] = d;
        }
    }
}

#[inline(always)]
fn add_product(sum: &mut Lane, weight: f32, x: &Lane) {
    for l in 0..LANES {
        sum[l] += weight * x[l];
    }
}

/// A policy network and a value network over the same observations: tanh between layers, none after the last.
#[derive(Clone, Debug)]
pub struct ActorCritic {
    /// Layers of the policy network; the last has an output per action.
    pub policy: Vec<Dense>,
    /// Layers of the value network; the last has one output.
    pub value: Vec<Dense>,
}

impl ActorCritic {
    /// Elements of an observation.
    #[must_use]
    pub fn obs_len(&self) -> usize {
        self.policy.first().map_or(0, |layer| layer.inputs)
    }

    /// Number of actions.
    #[must_use]
    pub fn num_actions(&self) -> usize {
        self.policy.last().map_or(0, |layer| layer.outputs)
    }
}

/// Where [`act`] writes, one entry per row.
#[derive(Debug)]
pub struct ActOut<'a> {
    /// Chosen actions.
    pub actions: &'a mut [i64],
    /// Log-probabilities of the chosen actions.
    pub logp: &'a mut [f32],
    /// Value estimates.
    pub values: &'a mut [f32],
}

/// The widest layer that the kernels take.
pub const MAX_WIDTH: usize = 256;

struct Block {
    input: [Lane; MAX_WIDTH],
    output: [Lane; MAX_WIDTH],
}

impl Block {
    #[inline(always)]
    fn new() -> Self {
        Self { input: [[0.0; LANES]; MAX_WIDTH], output: [[0.0; LANES]; MAX_WIDTH] }
    }

    /// Transposes up to [`LANES`] rows into the block.
    #[inline(always)]
    fn load(&mut self, rows: &[f32], width: usize) {
        for lane in &mut self.input[..width] {
            *lane = [0.0; LANES];
        }
        for (l, row) in rows.chunks_exact(width).enumerate() {
            for (lane, x) in self.input.iter_mut().zip(row) {
                lane[l] = *x;
            }
        }
    }

    /// Runs the layers; the result is in `output`.
    #[inline(always)]
    fn run(&mut self, layers: &[Dense]) {
        for (i, layer) in layers.iter().enumerate() {
            if i > 0 {
                for (input, output) in self.input.iter_mut().zip(&self.output[..layer.inputs]) {
                    for (x, y) in input.iter_mut().zip(output) {
                        *x = math::tanh(*y);
                    }
                }
            }
            layer.forward(&self.input, &mut self.output);
        }
    }
}

/// Samples an action for every row of `obs` (row-major), with its log-probability, and estimates the row's value.
///
/// `uniforms` holds one number in [0, 1) per row; the action is where it falls in the cumulated probabilities.
#[inline(always)]
pub fn act(nets: &ActorCritic, obs: &[f32], uniforms: &[f32], out: ActOut<'_>) {
    let width = nets.obs_len();
    let num_actions = nets.num_actions();
    let mut block = Block::new();
    let rows = obs.chunks(LANES * width).zip(uniforms.chunks(LANES));
    let outs = out.actions.chunks_mut(LANES).zip(out.logp.chunks_mut(LANES)).zip(out.values.chunks_mut(LANES));
    for ((rows, uniforms), ((actions, logp), values)) in rows.zip(outs) {
        block.load(rows, width);
        block.run(&nets.value);
        values.copy_from_slice(&block.output[0][..values.len()]);
        block.load(rows, width);
        block.run(&nets.policy);
        let (chosen, chosen_logp) = sample(&mut block.output[..num_actions], &mut block.input, uniforms);
        actions.copy_from_slice(&chosen[..actions.len()]);
        logp.copy_from_slice(&chosen_logp[..logp.len()]);
    }
}

/// Chooses from logits, lane by lane. `exps` is scratch space of at least as many entries as there are logits.
#[inline(always)]
fn sample(logits: &mut [Lane], exps: &mut [Lane], uniforms: &[f32]) -> ([i64; LANES], Lane) {
    let mut max = [f32::NEG_INFINITY; LANES];
    for logit in logits.iter() {
        for (m, x) in max.iter_mut().zip(logit) {
            *m = if *x > *m { *x } else { *m };
        }
    }
    let mut total = [0.0; LANES];
    for (logit, e) in logits.iter_mut().zip(exps.iter_mut()) {
        for l in 0..LANES {
            logit[l] -= max[l];
            e[l] = math::exp(logit[l]);
            total[l] += e[l];
        }
    }
    let mut target = [0.0; LANES];
    for (l, u) in uniforms.iter().enumerate() {
        target[l] = u * total[l];
    }
    // The action is the number of cumulated sums at or below the target; the last action takes what rounding leaves.
    let last = logits.len() - 1;
    let mut cumulated = [0.0; LANES];
    let mut chosen = [0i64; LANES];
    let mut logp = logits[0];
    for (a, e) in exps[..last].iter().enumerate() {
        for l in 0..LANES {
            cumulated[l] += e[l];
            let beyond = cumulated[l] <= target[l];
            chosen[l] = if beyond { a as i64 + 1 } else { chosen[l] };
            logp[l] = if beyond { logits[a + 1][l] } else { logp[l] };
        }
    }
    for l in 0..LANES {
        logp[l] -= math::log(total[l]);
    }
    (chosen, logp)
}

/// Estimates the value of every row of `obs` (row-major).
#[inline(always)]
pub fn values(nets: &ActorCritic, obs: &[f32], values: &mut [f32]) {
    let width = nets.obs_len();
    let mut block = Block::new();
    for (rows, values) in obs.chunks(LANES * width).zip(values.chunks_mut(LANES)) {
        block.load(rows, width);
        block.run(&nets.value);
        values.copy_from_slice(&block.output[0][..values.len()]);
    }
}
