//! The recurrence of gated recurrent units as one operation, as that of an [LSTM](super::lstm()).

use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor, bail};
use rollmesh_core::{
    kernels::{
        Kernels,
        nets::{Activation, Dense},
    },
    math,
};

use super::{Input, Steps, compute, matrix::Matrix, product_of, sum_of_rows};

/// Returns the hidden states `[rows, hidden]` after each row. `x` `[rows, 3 hidden]` are the inputs' terms of the gates
/// (reset, update, candidate), `w` `[hidden, 3 hidden]` and `b` `[3 hidden]` weigh the hidden states, `states`
/// `[sequences, hidden]` are hidden states before the first step. The states get no gradient: it ends where a sequence
/// begins.
pub(in super::super) fn gru(
    x: &Tensor,
    w: &Tensor,
    b: &Tensor,
    states: &Tensor,
    steps: &Steps,
    kernels: Kernels,
) -> Result<Tensor> {
    let cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let recurrence = GruRecurrence { steps: steps.clone(), kernels };
    // An operation takes three tensors.
    let w_and_b = Tensor::cat(&[w, &b.unsqueeze(0)?], 0)?;
    let trace = cpu(x)?.contiguous()?.apply_op3(&cpu(&w_and_b)?, &cpu(states)?.detach(), recurrence)?;
    trace.narrow(1, 0, w.dim(0)?)?.to_device(x.device())
}

/// Gives a trace `[rows, 5 hidden]`: hidden states, the three gates, and the hidden states' part of the candidates.
struct GruRecurrence {
    steps: Steps,
    kernels: Kernels,
}

/// Numbers of a row of the trace, by cell.
const TRACED: usize = 5;

impl CustomOp3 for GruRecurrence {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        states: &CpuStorage,
        states_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w, states) = (Matrix::of(x, x_layout)?, Matrix::of(w, w_layout)?, Matrix::of(states, states_layout)?);
        let (hidden, rows) = (states.columns, x.rows);
        let fits = (w.rows, w.columns, x.columns) == (hidden + 1, 3 * hidden, 3 * hidden);
        // The code below indexes without further checks.
        if hidden == 0 || !fits || !self.steps.are_of(rows, states.rows) {
            let shape = |matrix: Matrix<'_>| (matrix.rows, matrix.columns);
            bail!("gru of {:?}, {:?}, {:?} in {:?}", shape(x), shape(w), shape(states), self.steps)
        }
        let (x, w) = (x.row_major(), w.row_major());
        let (w, b) = w.split_at(hidden * 3 * hidden);
        let dense = Dense::pack(&[w], b);
        let mut h = states.row_major().into_owned();
        let mut trace = vec![0.0; rows * TRACED * hidden];
        let mut sums = vec![0.0; h.len() * 3];
        for (start, n) in self.steps.blocks() {
            let sums = &mut sums[..n * 3 * hidden];
            (self.kernels.linear)(&dense, &h[..n * hidden], sums);
            let rows = sums.chunks_exact(3 * hidden).zip(x[start * 3 * hidden..].chunks_exact(3 * hidden));
            let traces = trace[start * TRACED * hidden..].chunks_exact_mut(TRACED * hidden);
            for (((sums, x), trace), h) in rows.zip(traces).zip(h.chunks_exact_mut(hidden)) {
                self.step(x, sums, trace, h);
            }
        }
        Ok((CpuStorage::F32(trace), (rows, TRACED * hidden).into()))
    }

    fn bwd(
        &self,
        _x: &Tensor,
        w: &Tensor,
        states: &Tensor,
        trace: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let hidden = states.dim(1)?;
        let trace_and_grad = Tensor::cat(&[trace, &grad.narrow(1, 0, hidden)?], 1)?;
        let grads = compute([&trace_and_grad, w, states], |inputs| self.gradients(inputs))?;
        let x_grad = grads.narrow(1, 0, 3 * hidden)?;
        let h_side = Tensor::cat(&[grads.narrow(1, 0, 2 * hidden)?, grads.narrow(1, 3 * hidden, hidden)?], 1)?;
        let before = Tensor::from_vec(self.steps.before(), grads.dim(0)?, grads.device())?;
        let h = Tensor::cat(&[states, &trace.narrow(1, 0, hidden)?], 0)?;
        let w_grad = product_of(&h.index_select(&before, 0)?.t()?, &h_side, &self.kernels)?;
        let b_grad = sum_of_rows(&h_side)?.unsqueeze(0)?;
        Ok((Some(x_grad.contiguous()?), Some(Tensor::cat(&[w_grad, b_grad], 0)?), None))
    }
}

impl GruRecurrence {
    /// Computes a row's step: from the inputs' and the hidden states' part of the gates to the trace, and to the state
    /// after the row.
    fn step(&self, x: &[f32], sums: &[f32], trace: &mut [f32], h: &mut [f32]) {
        let hidden = h.len();
        let (after, rest) = trace.split_at_mut(hidden);
        let (gates, own) = rest.split_at_mut(3 * hidden);
        own.copy_from_slice(&sums[2 * hidden..]);
        gates.iter_mut().zip(x).for_each(|(gate, x)| *gate = *x);
        let (both, candidate) = gates.split_at_mut(2 * hidden);
        both.iter_mut().zip(sums).for_each(|(gate, sum)| *gate = math::sigmoid(*gate + sum));
        let (reset, update) = both.split_at(hidden);
        let parts = candidate.iter_mut().zip(reset).zip(&*own);
        parts.for_each(|((candidate, reset), own)| *candidate += reset * own);
        (self.kernels.activate)(Activation::Tanh, candidate);
        for (((after, h), update), candidate) in after.iter_mut().zip(h).zip(update).zip(&*candidate) {
            *h = (1.0 - update) * candidate + update * *h;
            *after = *h;
        }
    }
}

impl GruRecurrence {
    /// Returns the gradients `[rows, 4 hidden]` of the sums of both gates, of the candidates' inputs and of the hidden
    /// states' part of these, from the trace alongside the gradient of the hidden states.
    fn gradients(&self, [trace, w, states]: [Input<'_>; 3]) -> Result<(Vec<f32>, Shape)> {
        let Self { steps, kernels } = self;
        let (trace, w) = (trace.matrix()?, w.matrix()?);
        let states = states.matrix()?;
        let (hidden, rows, sequences) = (states.columns, trace.rows, states.rows);
        let (trace, states) = (trace.row_major(), states.row_major());
        let (traced, gates) = ((TRACED + 1) * hidden, 4 * hidden);
        // Without the biases.
        let back = w
            .transposed()
            .row_major()
            .chunks_exact(hidden + 1)
            .flat_map(|row| &row[..hidden])
            .copied()
            .collect::<Vec<_>>();
        let dense = Dense::pack(&[&back], &vec![0.0; hidden]);
        let mut grads = vec![0.0; rows * gates];
        // Gradients of the states before the step that comes after the one at hand.
        let mut h_grad = vec![0.0; sequences * hidden];
        let (mut through_gates, mut h_side) = (vec![0.0; h_grad.len()], vec![0.0; 3 * h_grad.len()]);
        let blocks: Vec<_> = steps.blocks().collect();
        for (step, &(start, n)) in blocks.iter().enumerate().rev() {
            let before = step.checked_sub(1).and_then(|step| blocks.get(step)).map(|&(start, _)| start);
            let found =
                trace[start * traced..].chunks_exact(traced).zip(grads[start * gates..].chunks_exact_mut(gates));
            let sides = h_grad.chunks_exact_mut(hidden).zip(h_side.chunks_exact_mut(3 * hidden));
            for (row, ((of_row, grads), (h_grad, h_side))) in found.zip(sides).enumerate().take(n) {
                let h_before = match before {
                    None => &states[row * hidden..],
                    Some(before) => &trace[(before + row) * traced..],
                };
                step_back(of_row, &h_before[..hidden], grads, h_grad);
                h_side[..2 * hidden].copy_from_slice(&grads[..2 * hidden]);
                h_side[2 * hidden..].copy_from_slice(&grads[3 * hidden..]);
            }
            let through_gates = &mut through_gates[..n * hidden];
            (kernels.linear)(&dense, &h_side[..n * 3 * hidden], through_gates);
            h_grad.iter_mut().zip(through_gates).for_each(|(h_grad, through)| *h_grad += *through);
        }
        Ok((grads, (rows, gates).into()))
    }
}

/// Computes a row's step backwards: from its trace with the gradient of its hidden states, the hidden states before it,
/// and the gradients that those after it have from later steps, to the gradients of its sums; `h_grad` becomes that of
/// the hidden states before it, without the part through the gates.
fn step_back(traced: &[f32], h_before: &[f32], grads: &mut [f32], h_grad: &mut [f32]) {
    let hidden = h_grad.len();
    let at = |k: usize| &traced[k * hidden..][..hidden];
    let (reset, update, candidate, own, grad) = (at(1), at(2), at(3), at(4), at(5));
    let (both, rest) = grads.split_at_mut(2 * hidden);
    let (reset_grads, update_grads) = both.split_at_mut(hidden);
    let (candidate_grads, own_grads) = rest.split_at_mut(hidden);
    for j in 0..hidden {
        let h = grad[j] + h_grad[j];
        candidate_grads[j] = h * (1.0 - update[j]) * (1.0 - candidate[j] * candidate[j]);
        own_grads[j] = candidate_grads[j] * reset[j];
        reset_grads[j] = candidate_grads[j] * own[j] * reset[j] * (1.0 - reset[j]);
        update_grads[j] = h * (h_before[j] - candidate[j]) * update[j] * (1.0 - update[j]);
        h_grad[j] = h * update[j];
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{D, Var};

    use super::*;

    fn var(rows: usize, columns: usize, scale: f32) -> Var {
        let values: Vec<f32> = (0..rows * columns).map(|i| scale * (i as f32 * 1.7 + scale).sin()).collect();
        Var::from_slice(&values, (rows, columns), &Device::Cpu).unwrap()
    }

    fn close(a: &Tensor, b: &Tensor) {
        let gap = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
        assert!(gap < 1e-6, "{a} {b}");
    }

    /// Computes the same with candle's own operations, one sequence after the other.
    fn reference(x: &Tensor, w: &Tensor, b: &Tensor, states: &Tensor, lens: &[usize], steps: &Steps) -> Result<Tensor> {
        let mut outputs = vec![None; x.dim(0)?];
        let blocks: Vec<_> = steps.blocks().collect();
        let sigmoid = |x: Tensor| ((x.neg()?.exp()? + 1.0)?).recip();
        for (sequence, &len) in lens.iter().enumerate() {
            let mut h = states.narrow(0, sequence, 1)?;
            for &(start, _) in &blocks[..len] {
                let (x, own) = (x.narrow(0, start + sequence, 1)?, h.matmul(w)?.broadcast_add(b)?);
                let (x, own) = (x.chunk(3, D::Minus1)?, own.chunk(3, D::Minus1)?);
                let reset = sigmoid((&x[0] + &own[0])?)?;
                let update = sigmoid((&x[1] + &own[1])?)?;
                let candidate = (&x[2] + (reset * &own[2])?)?.tanh()?;
                h = (((1.0 - &update)? * candidate)? + (update * h)?)?;
                outputs[start + sequence] = Some(h.clone());
            }
        }
        Tensor::cat(&outputs.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0)
    }

    #[test]
    fn recurrence_and_gradients_equal_candles() {
        let lens = [4, 2, 2, 1];
        let steps = Steps::of_lengths(&lens);
        let (x, w, states) = (var(9, 9, 0.9), var(3, 9, 0.7), var(4, 3, 0.5));
        let b = Var::from_slice(&[0.1f32, -0.2, 0.3, 0.4, -0.5, 0.6, -0.7, 0.8, 0.9], 9, &Device::Cpu).unwrap();
        let ours = gru(&x, &w, &b, &states, &steps, Kernels::PORTABLE).unwrap();
        let candles = reference(&x, &w, &b, &states.as_detached_tensor(), &lens, &steps).unwrap();
        close(&ours, &candles);

        let ours = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let candles = candles.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for var in [&x, &w, &b] {
            close(ours.get(var).unwrap(), candles.get(var).unwrap());
        }
        assert!(ours.get(&states).is_none());
        assert!(gru(&var(8, 9, 1.0), &w, &b, &states, &steps, Kernels::PORTABLE).is_err());
    }
}
