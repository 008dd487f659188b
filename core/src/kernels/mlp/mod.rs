//! Forward pass of the acting networks, and the choice of actions.
//!
//! Each sum starts with the bias and takes the inputs in their order. Rows are lanes: a block of [`LANES`] rows is
//! transposed, the last one filled up with zeros. Where only [`FEW`] rows are left they are done one by one, and the
//! outputs are the lanes. Either way a row's result depends on nothing but the row.

mod dense;

pub use dense::Dense;

use crate::{math, prelude::*};

/// Rows that are worked on together.
pub const LANES: usize = 16;

/// So many rows are sooner done one by one than as a block.
pub const FEW: usize = 8;

type Lane = [f32; LANES];

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
        self.policy.first().map_or(0, |layer| layer.inputs())
    }

    /// Number of actions.
    #[must_use]
    pub fn num_actions(&self) -> usize {
        self.policy.last().map_or(0, |layer| layer.outputs())
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
                for (input, output) in self.input.iter_mut().zip(&self.output[..layer.inputs()]) {
                    for (x, y) in input.iter_mut().zip(output) {
                        *x = math::tanh(*y);
                    }
                }
            }
            layer.forward(&self.input, &mut self.output);
        }
    }
}

/// What [`Block`] is for many rows, for one.
struct Row {
    input: [Lane; MAX_WIDTH / LANES],
    output: [Lane; MAX_WIDTH / LANES],
}

impl Row {
    #[inline(always)]
    fn new() -> Self {
        Self { input: [[0.0; LANES]; MAX_WIDTH / LANES], output: [[0.0; LANES]; MAX_WIDTH / LANES] }
    }

    /// Runs the layers; returns the outputs of the last, filled up to whole lanes.
    #[inline(always)]
    fn run(&mut self, layers: &[Dense], row: &[f32]) -> &mut [f32] {
        for (i, layer) in layers.iter().enumerate() {
            if i == 0 {
                layer.forward_row(row, &mut self.output);
                continue;
            }
            let lanes = layer.inputs().div_ceil(LANES);
            for (input, output) in self.input.iter_mut().zip(&self.output[..lanes]) {
                for (x, y) in input.iter_mut().zip(output) {
                    *x = math::tanh(*y);
                }
            }
            layer.forward_row(self.input.as_flattened(), &mut self.output);
        }
        self.output.as_flattened_mut()
    }
}

/// How many of so many rows are done in blocks; the rest one by one.
#[inline(always)]
const fn in_blocks(rows: usize) -> usize {
    let last = rows % LANES;
    if last <= FEW { rows - last } else { rows }
}

/// Samples an action for every row of `obs` (row-major), with its log-probability, and estimates the row's value.
///
/// `uniforms` holds one number in [0, 1) per row; the action is where it falls in the cumulated probabilities. The
/// caller has checked the lengths.
#[inline(always)]
pub fn act(nets: &ActorCritic, obs: &[f32], uniforms: &[f32], out: ActOut<'_>) {
    let split = in_blocks(out.actions.len());
    let (block_obs, row_obs) = obs.split_at(split * nets.obs_len());
    let (block_uniforms, row_uniforms) = uniforms.split_at(split);
    let (block_actions, row_actions) = out.actions.split_at_mut(split);
    let (block_logp, row_logp) = out.logp.split_at_mut(split);
    let (block_values, row_values) = out.values.split_at_mut(split);
    if split > 0 {
        let out = ActOut { actions: block_actions, logp: block_logp, values: block_values };
        act_in_blocks(nets, block_obs, block_uniforms, out);
    }
    if !row_obs.is_empty() {
        let out = ActOut { actions: row_actions, logp: row_logp, values: row_values };
        act_row_by_row(nets, row_obs, row_uniforms, out);
    }
}

#[inline(always)]
fn act_in_blocks(nets: &ActorCritic, obs: &[f32], uniforms: &[f32], out: ActOut<'_>) {
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

#[inline(always)]
fn act_row_by_row(nets: &ActorCritic, obs: &[f32], uniforms: &[f32], out: ActOut<'_>) {
    let num_actions = nets.num_actions();
    let (mut row, mut exps) = (Row::new(), [[0.0]; MAX_WIDTH]);
    let rows = obs.chunks_exact(nets.obs_len()).zip(uniforms);
    let outs = out.actions.iter_mut().zip(out.logp).zip(out.values);
    for ((obs, uniform), ((action, logp), value)) in rows.zip(outs) {
        *value = row.run(&nets.value, obs)[0];
        let logits = &mut row.run(&nets.policy, obs)[..num_actions];
        ([*action], [*logp]) = sample(logits.as_chunks_mut().0, &mut exps, &[*uniform]);
    }
}

/// Chooses from logits, lane by lane. `exps` is scratch space of at least as many entries as there are logits.
#[inline(always)]
fn sample<const N: usize>(logits: &mut [[f32; N]], exps: &mut [[f32; N]], uniforms: &[f32]) -> ([i64; N], [f32; N]) {
    let mut max = [f32::NEG_INFINITY; N];
    for logit in logits.iter() {
        for (m, x) in max.iter_mut().zip(logit) {
            *m = if *x > *m { *x } else { *m };
        }
    }
    let mut total = [0.0; N];
    for (logit, e) in logits.iter_mut().zip(exps.iter_mut()) {
        for l in 0..N {
            logit[l] -= max[l];
            e[l] = math::exp(logit[l]);
            total[l] += e[l];
        }
    }
    let mut target = [0.0; N];
    for (l, u) in uniforms.iter().enumerate() {
        target[l] = u * total[l];
    }
    // The action is the number of cumulated sums at or below the target; the last action takes what rounding leaves.
    let last = logits.len() - 1;
    let mut cumulated = [0.0; N];
    let mut chosen = [0i64; N];
    let mut logp = logits[0];
    for (a, e) in exps[..last].iter().enumerate() {
        for l in 0..N {
            cumulated[l] += e[l];
            let beyond = cumulated[l] <= target[l];
            chosen[l] = if beyond { a as i64 + 1 } else { chosen[l] };
            logp[l] = if beyond { logits[a + 1][l] } else { logp[l] };
        }
    }
    for l in 0..N {
        logp[l] -= math::log(total[l]);
    }
    (chosen, logp)
}

/// Estimates the value of every row of `obs` (row-major). The caller has checked the lengths.
#[inline(always)]
pub fn values(nets: &ActorCritic, obs: &[f32], values: &mut [f32]) {
    let width = nets.obs_len();
    let (in_blocks, one_by_one) = values.split_at_mut(in_blocks(values.len()));
    let (block_obs, row_obs) = obs.split_at(in_blocks.len() * width);
    if !in_blocks.is_empty() {
        let mut block = Block::new();
        for (rows, values) in block_obs.chunks(LANES * width).zip(in_blocks.chunks_mut(LANES)) {
            block.load(rows, width);
            block.run(&nets.value);
            values.copy_from_slice(&block.output[0][..values.len()]);
        }
    }
    if !row_obs.is_empty() {
        let mut row = Row::new();
        for (obs, value) in row_obs.chunks_exact(width).zip(one_by_one) {
            *value = row.run(&nets.value, obs)[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that differ, between -1 and 1.
    fn numbers(n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 % 2003) as f32 / 1001.0 - 1.0) * scale).collect()
    }

    /// Networks with layers of these widths.
    fn nets(widths: &[usize]) -> ActorCritic {
        let layers = |last: usize| {
            let widths: Vec<usize> = widths.iter().copied().chain([last]).collect();
            let layer = |pair: &[usize]| {
                Dense::pack(pair[0], pair[1], &numbers(pair[0] * pair[1], 0.4), &numbers(pair[1], 0.2))
            };
            widths.windows(2).map(layer).collect()
        };
        ActorCritic { policy: layers(5), value: layers(1) }
    }

    #[test]
    fn a_row_has_the_same_bits_in_a_block_and_alone() {
        // Widths of whole groups of panels, of more, and of less than a panel.
        for widths in [&[4, 64, 64][..], &[3, 100, 80], &[7, 5], &[MAX_WIDTH, MAX_WIDTH]] {
            let (nets, rows) = (nets(widths), 2 * LANES + FEW);
            let (obs, uniforms) =
                (numbers(rows * widths[0], 2.0), numbers(rows, 0.5).iter().map(|x| x + 0.5).collect());
            let run = |obs: &[f32], uniforms: &Vec<f32>| {
                let rows = uniforms.len();
                let (mut actions, mut logp, mut vf_preds) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
                let out = ActOut { actions: &mut actions, logp: &mut logp, values: &mut vf_preds };
                act(&nets, obs, uniforms, out);
                let mut again = vec![0.0; rows];
                values(&nets, obs, &mut again);
                assert_eq!(again, vf_preds);
                (actions, logp, vf_preds)
            };
            let whole = run(&obs, &uniforms);
            assert!(whole.0.iter().any(|action| *action != whole.0[0]));
            for (row, obs) in obs.chunks_exact(widths[0]).enumerate() {
                let (actions, logp, values) = run(obs, &vec![uniforms[row]]);
                assert_eq!(actions, whole.0[row..=row]);
                assert_eq!((logp[0].to_bits(), values[0].to_bits()), (whole.1[row].to_bits(), whole.2[row].to_bits()));
            }
        }
    }
}
