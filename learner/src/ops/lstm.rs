//! A whole recurrence as one operation, forward and backward through time: no graph of thousands of small operations,
//! which would be slow, and as deep as the sequences are long.

use candle_core::{CpuStorage, CustomOp3, Device, Error, Layout, Result, Shape, Tensor};
use rollmesh_core::{
    kernels::{
        Kernels,
        nets::{Activation, Dense},
    },
    math,
};

use super::{Input, compute, matrix::Matrix, product_of};

/// The number of sequences that have a first step, a second one, and so on: never more than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Steps(Vec<usize>);

impl Steps {
    /// Returns the steps of sequences of these lengths, the longest first.
    pub(in super::super) fn of_lengths(lens: &[usize]) -> Self {
        let longest = lens.first().copied().unwrap_or(0);
        Self((0..longest).map(|step| lens.partition_point(|&len| len > step)).collect())
    }

    /// Returns the first row and the number of rows of each step.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut start = 0;
        self.0.iter().map(move |&n| {
            start += n;
            (start - n, n)
        })
    }

    /// Returns, for each row, the index of the state before it in the first states followed by those after each row.
    pub(super) fn before(&self) -> Vec<u32> {
        let sequences = self.0.first().copied().unwrap_or(0);
        let mut before = Vec::new();
        // The states after a step are those before the next one.
        let mut first = 0;
        for (start, n) in self.blocks() {
            before.extend((first..first + n).map(|at| at as u32));
            first = sequences + start;
        }
        before
    }
}

/// Returns the hidden states `[rows, hidden]` after each row. `x` `[rows, 4 hidden]` are the inputs' terms of the gates
/// (input, forget, candidate, output), `w` `[hidden, 4 hidden]` weighs the hidden states, `states` `[sequences, 2
/// hidden]` are hidden states and cells before the first step. The states get no gradient: it ends where a sequence
/// begins.
pub(in super::super) fn lstm(
    x: &Tensor,
    w: &Tensor,
    states: &Tensor,
    steps: &Steps,
    kernels: Kernels,
) -> Result<Tensor> {
    let cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let recurrence = LstmRecurrence { steps: steps.clone(), kernels };
    let trace = cpu(x)?.contiguous()?.apply_op3(&cpu(w)?, &cpu(states)?.detach(), recurrence)?;
    trace.narrow(1, 0, w.dim(0)?)?.to_device(x.device())
}

/// Gives a trace `[rows, 6 hidden]`: hidden states, cells, and the four gates.
struct LstmRecurrence {
    steps: Steps,
    kernels: Kernels,
}

/// Numbers of a row of the trace, by cell.
const TRACED: usize = 6;

impl CustomOp3 for LstmRecurrence {
    fn name(&self) -> &'static str {
        "lstm"
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
        let (x, w) = (Matrix::of(x, x_layout)?, Matrix::of(w, w_layout)?);
        let (states, hidden) = (Matrix::of(states, states_layout)?, w.rows);
        self.steps.check(x, w, states)?;
        let (rows, x, states) = (x.rows, x.row_major(), states.row_major());
        let dense = Dense::pack(&[&w.row_major()], &vec![0.0; 4 * hidden]);
        // Those of all sequences, one after the other.
        let (mut h, mut c): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        for state in states.chunks_exact(2 * hidden) {
            h.extend_from_slice(&state[..hidden]);
            c.extend_from_slice(&state[hidden..]);
        }
        let mut trace = vec![0.0; rows * TRACED * hidden];
        let mut gates = vec![0.0; h.len() * 4];
        for (start, n) in self.steps.blocks() {
            let gates = &mut gates[..n * 4 * hidden];
            (self.kernels.linear)(&dense, &h[..n * hidden], gates);
            gates.iter_mut().zip(&x[start * 4 * hidden..]).for_each(|(gate, x)| *gate += x);
            let states = h.chunks_exact_mut(hidden).zip(c.chunks_exact_mut(hidden));
            let traces = trace[start * TRACED * hidden..].chunks_exact_mut(TRACED * hidden);
            for ((gates, trace), (h, c)) in gates.chunks_exact_mut(4 * hidden).zip(traces).zip(states) {
                self.step(gates, h, c);
                trace[..hidden].copy_from_slice(h);
                trace[hidden..2 * hidden].copy_from_slice(c);
                trace[2 * hidden..].copy_from_slice(gates);
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
        let hidden = w.dim(0)?;
        let trace_and_grad = Tensor::cat(&[trace, &grad.narrow(1, 0, hidden)?], 1)?;
        let x_grad = compute([&trace_and_grad, w, states], |inputs| self.gradients(inputs))?;
        let before = Tensor::from_vec(self.steps.before(), x_grad.dim(0)?, x_grad.device())?;
        let h = Tensor::cat(&[&states.narrow(1, 0, hidden)?, &trace.narrow(1, 0, hidden)?], 0)?;
        let w_grad = product_of(&h.index_select(&before, 0)?.t()?, &x_grad, &self.kernels)?;
        Ok((Some(x_grad), Some(w_grad), None))
    }
}

impl LstmRecurrence {
    /// Computes a row's step: sums become gates, and the states those after the row.
    fn step(&self, gates: &mut [f32], h: &mut [f32], c: &mut [f32]) {
        let hidden = h.len();
        let (both, rest) = gates.split_at_mut(2 * hidden);
        let (candidate, output) = rest.split_at_mut(hidden);
        both.iter_mut().chain(&mut *output).for_each(|x| *x = math::sigmoid(*x));
        (self.kernels.activate)(Activation::Tanh, candidate);
        let (input, forget) = both.split_at(hidden);
        for (((c, forget), input), candidate) in c.iter_mut().zip(forget).zip(input).zip(&*candidate) {
            *c = forget * *c + input * candidate;
        }
        h.copy_from_slice(c);
        (self.kernels.activate)(Activation::Tanh, h);
        h.iter_mut().zip(output).for_each(|(h, output)| *h *= *output);
    }
}

impl Steps {
    /// Returns whether these are the steps of `sequences` sequences with `rows` rows together.
    pub(super) fn are_of(&self, rows: usize, sequences: usize) -> bool {
        (self.0.iter().sum(), self.0.first().copied().unwrap_or(0)) == (rows, sequences)
    }

    /// Checks the shapes, since the code above and below indexes without further checks.
    fn check(&self, x: Matrix<'_>, w: Matrix<'_>, states: Matrix<'_>) -> Result<()> {
        let hidden = w.rows;
        let fits = hidden > 0
            && self.are_of(x.rows, states.rows)
            && (x.columns, w.columns, states.columns) == (4 * hidden, 4 * hidden, 2 * hidden);
        let shape = |matrix: Matrix<'_>| (matrix.rows, matrix.columns);
        let shapes = || format!("lstm of {:?}, {:?}, {:?} in {self:?}", shape(x), shape(w), shape(states));
        if fits { Ok(()) } else { Err(Error::Msg(shapes())) }
    }
}

/// Computes a row's step backwards: from its trace with the gradient of its hidden states, the cells before it, and the
/// gradients that the states after it have from later steps, to the gradient of its gates' sums; `c_grad` becomes that
/// of the cells before it.
fn step_back(traced: &[f32], c_before: &[f32], h_grad: &[f32], grads: &mut [f32], c_grad: &mut [f32]) {
    let hidden = c_grad.len();
    let at = |k: usize| &traced[k * hidden..][..hidden];
    let (cells, i, f, g, o, own) = (at(1), at(2), at(3), at(4), at(5), at(6));
    let (i_grads, rest) = grads.split_at_mut(hidden);
    let (f_grads, rest) = rest.split_at_mut(hidden);
    let (g_grads, o_grads) = rest.split_at_mut(hidden);
    for j in 0..hidden {
        let out = math::tanh(cells[j]);
        let h = own[j] + h_grad[j];
        let c = c_grad[j] + h * o[j] * (1.0 - out * out);
        i_grads[j] = c * g[j] * i[j] * (1.0 - i[j]);
        f_grads[j] = c * c_before[j] * f[j] * (1.0 - f[j]);
        g_grads[j] = c * i[j] * (1.0 - g[j] * g[j]);
        o_grads[j] = h * out * o[j] * (1.0 - o[j]);
        c_grad[j] = c * f[j];
    }
}

impl LstmRecurrence {
    /// Returns the gradient of the sums of the gates, from the trace alongside the gradient of the hidden states.
    fn gradients(&self, [trace, w, states]: [Input<'_>; 3]) -> Result<(Vec<f32>, Shape)> {
        let Self { steps, kernels } = self;
        let (trace, w) = (trace.matrix()?, w.matrix()?);
        let (states, hidden) = (states.matrix()?, w.rows);
        let (rows, sequences) = (trace.rows, states.rows);
        let (trace, states) = (trace.row_major(), states.row_major());
        let (traced, gates) = ((TRACED + 1) * hidden, 4 * hidden);
        let dense = Dense::pack(&[&w.transposed().row_major()], &vec![0.0; hidden]);
        let mut grads = vec![0.0; rows * gates];
        // Gradients of the states before the step that comes after the one at hand.
        let (mut h_grad, mut c_grad) = (vec![0.0; sequences * hidden], vec![0.0; sequences * hidden]);
        let blocks: Vec<_> = steps.blocks().collect();
        for (step, &(start, n)) in blocks.iter().enumerate().rev() {
            let before = step.checked_sub(1).and_then(|step| blocks.get(step)).map(|&(start, _)| start);
            let states_grads = h_grad.chunks_exact(hidden).zip(c_grad.chunks_exact_mut(hidden));
            let found =
                trace[start * traced..].chunks_exact(traced).zip(grads[start * gates..].chunks_exact_mut(gates));
            for (row, ((of_row, grads), (h_grad, c_grad))) in found.zip(states_grads).enumerate().take(n) {
                let c_before = match before {
                    None => &states[(2 * row + 1) * hidden..],
                    Some(before) => &trace[(before + row) * traced + hidden..],
                };
                step_back(of_row, &c_before[..hidden], h_grad, grads, c_grad);
            }
            (kernels.linear)(&dense, &grads[start * gates..][..n * gates], &mut h_grad[..n * hidden]);
        }
        Ok((grads, (rows, gates).into()))
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
    fn reference(x: &Tensor, w: &Tensor, states: &Tensor, lens: &[usize], steps: &Steps) -> Tensor {
        let hidden = w.dim(0).unwrap();
        let mut outputs = vec![None; x.dim(0).unwrap()];
        let blocks: Vec<_> = steps.blocks().collect();
        for (sequence, &len) in lens.iter().enumerate() {
            let state = states.narrow(0, sequence, 1).unwrap();
            let (mut h, mut c) = (state.narrow(1, 0, hidden).unwrap(), state.narrow(1, hidden, hidden).unwrap());
            for &(start, _) in &blocks[..len] {
                let gates = (x.narrow(0, start + sequence, 1).unwrap() + h.matmul(w).unwrap()).unwrap();
                let gates = gates.chunk(4, D::Minus1).unwrap();
                let sigmoid = |k: usize| ((gates[k].neg()?.exp()? + 1.0)?).recip();
                let (i, f, o) = (sigmoid(0).unwrap(), sigmoid(1).unwrap(), sigmoid(3).unwrap());
                c = ((f * c).unwrap() + (i * gates[2].tanh().unwrap()).unwrap()).unwrap();
                h = (o * c.tanh().unwrap()).unwrap();
                outputs[start + sequence] = Some(h.clone());
            }
        }
        Tensor::cat(&outputs.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0).unwrap()
    }

    #[test]
    fn recurrence_and_gradients_equal_candles() {
        let lens = [4, 2, 2, 1];
        let steps = Steps::of_lengths(&lens);
        assert_eq!(steps, Steps(vec![4, 3, 1, 1]));
        let (x, w, states) = (var(9, 12, 0.9), var(3, 12, 0.7), var(4, 6, 0.5));
        let ours = lstm(&x, &w, &states, &steps, Kernels::PORTABLE).unwrap();
        let candles = reference(&x, &w, &states.as_detached_tensor(), &lens, &steps);
        close(&ours, &candles);

        let ours = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let candles = candles.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for var in [&x, &w] {
            close(ours.get(var).unwrap(), candles.get(var).unwrap());
        }
        assert!(ours.get(&states).is_none());
    }

    #[test]
    fn shapes_that_do_not_fit_are_an_error() {
        let steps = Steps::of_lengths(&[2, 1]);
        assert!(lstm(&var(4, 12, 1.0), &var(3, 12, 1.0), &var(2, 6, 1.0), &steps, Kernels::PORTABLE).is_err());
        assert!(lstm(&var(3, 12, 1.0), &var(3, 12, 1.0), &var(3, 6, 1.0), &steps, Kernels::PORTABLE).is_err());
    }

    #[test]
    fn a_very_long_sequence_is_no_deep_graph() {
        let steps = Steps::of_lengths(&[50_000]);
        let (x, w, states) = (var(50_000, 4, 0.9), var(1, 4, 0.7), var(1, 2, 0.5));
        let grads = lstm(&x, &w, &states, &steps, Kernels::PORTABLE).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&x).unwrap().dims(), [50_000, 4]);
    }
}
