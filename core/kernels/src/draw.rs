//! The choice among finitely many actions, for many rows.

use alloc::vec::Vec;

use crate::math;

/// Rows that are worked on together.
const LANES: usize = 16;

/// Up to this number of rows, drawing row by row is faster than drawing a block.
const FEW: usize = 8;

/// Memory that [`categorical`] needs meanwhile. It grows to the number of actions and stays so.
#[derive(Clone, Debug, Default)]
pub struct DrawBuffers {
    logits: Vec<[f32; LANES]>,
    exps: Vec<[f32; LANES]>,
}

/// The random numbers that [`categorical`] draws with, and its outputs, one entry per row.
#[derive(Debug)]
pub struct Draws<'a> {
    /// Numbers in [0, 1).
    pub uniforms: &'a [f32],
    /// Chosen actions.
    pub actions: &'a mut [i64],
    /// Log-probabilities of the chosen actions.
    pub logp: &'a mut [f32],
}

/// Draws an action for every row of logits (row-major), with its log-probability.
///
/// The action is where a row's number falls in the cumulated probabilities. There is at least one logit in a row. The
/// caller has checked the lengths.
#[inline(always)]
pub fn categorical(logits: &[f32], buffers: &mut DrawBuffers, draws: Draws<'_>) {
    let Draws { uniforms, actions, logp } = draws;
    let (rows, last) = (actions.len(), actions.len() % LANES);
    let num_actions = logits.len() / rows.max(1);
    let in_blocks = if last <= FEW { rows - last } else { rows };
    buffers.logits.resize(num_actions, [0.0; LANES]);
    buffers.exps.resize(num_actions, [0.0; LANES]);
    let (block_actions, actions) = actions.split_at_mut(in_blocks);
    let (block_logp, logp) = logp.split_at_mut(in_blocks);
    let (block_logits, logits) = logits.split_at(in_blocks * num_actions);
    let (block_uniforms, uniforms) = uniforms.split_at(in_blocks);
    let blocks = block_actions.chunks_mut(LANES).zip(block_logp.chunks_mut(LANES));
    let given = block_logits.chunks(LANES * num_actions).zip(block_uniforms.chunks(LANES));
    for ((actions, logp), (logits, uniforms)) in blocks.zip(given) {
        for (lane, row) in logits.chunks_exact(num_actions).enumerate() {
            buffers.logits.iter_mut().zip(row).for_each(|(lanes, x)| lanes[lane] = *x);
        }
        let (chosen, chosen_logp) = choose(&mut buffers.logits, &mut buffers.exps, uniforms);
        actions.copy_from_slice(&chosen[..actions.len()]);
        logp.copy_from_slice(&chosen_logp[..logp.len()]);
    }
    let (own_logits, _) = buffers.logits.as_flattened_mut().as_chunks_mut();
    let (exps, _) = buffers.exps.as_flattened_mut().as_chunks_mut();
    let rows = actions.iter_mut().zip(logp).zip(logits.chunks_exact(num_actions.max(1)).zip(uniforms));
    for ((action, logp), (logits, uniform)) in rows {
        let own_logits = &mut own_logits[..num_actions];
        own_logits.as_flattened_mut().copy_from_slice(logits);
        ([*action], [*logp]) = choose(own_logits, exps, &[*uniform]);
    }
}

/// Chooses from logits, lane by lane. `exps` has at least as many entries as there are logits.
#[inline(always)]
fn choose<const N: usize>(logits: &mut [[f32; N]], exps: &mut [[f32; N]], uniforms: &[f32]) -> ([i64; N], [f32; N]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_their_share_of_the_numbers_between_0_and_1() {
        const ROWS: usize = 2_000;
        let logits = [0.5, -1.0, f32::NEG_INFINITY, 2.0];
        let uniforms: Vec<f32> = (0..ROWS).map(|row| row as f32 / ROWS as f32).collect();
        let (mut actions, mut logp) = ([0; ROWS], [0.0; ROWS]);
        let draws = Draws { uniforms: &uniforms, actions: &mut actions, logp: &mut logp };
        categorical(&logits.repeat(ROWS), &mut DrawBuffers::default(), draws);
        assert!(actions.is_sorted());
        for (action, logit) in logits.iter().enumerate() {
            let chosen = actions.iter().zip(&logp).filter(|(a, _)| **a == action as i64);
            let share = chosen.clone().count() as f32 / ROWS as f32;
            let probability = math::exp(*logit) / logits.map(math::exp).iter().sum::<f32>();
            assert!((share - probability).abs() <= 1.0 / ROWS as f32, "{action}: {share} {probability}");
            assert!(chosen.into_iter().all(|(_, logp)| (logp - math::log(probability)).abs() < 1e-6));
        }
    }
}
