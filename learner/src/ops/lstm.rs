//! A whole recurrence as one operation, forward and backward through time: no graph of thousands of small operations,
//! which would be slow, and as deep as the sequences are long.

use candle_core::{CpuStorage, CustomOp3, Device, Error, Layout, Result, Shape, Tensor};
use ndarray::{Array2, ArrayView2, linalg::general_mat_mul, s};
use rollmesh_core::math;

use super::{Product, matrix, storage};

/// How many sequences have a first step, a second one, and so on: never more than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Steps(Vec<usize>);

impl Steps {
    /// Of sequences of these lengths, the longest first.
    pub(in super::super) fn of_lengths(lens: &[usize]) -> Self {
        let longest = lens.first().copied().unwrap_or(0);
        Self((0..longest).map(|step| lens.partition_point(|&len| len > step)).collect())
    }

    /// Where the rows of each step begin, and how many they are.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut start = 0;
        self.0.iter().map(move |&n| {
            start += n;
            (start - n, n)
        })
    }

    /// Of each row, where the state before it is among the first states and then those after each row.
    fn before(&self) -> Vec<u32> {
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

/// Hidden states `[rows, hidden]` after each row. `x` `[rows, 4 hidden]` is what the inputs add to the gates (input,
/// forget, candidate, output), `w` `[hidden, 4 hidden]` what hidden states do, `states` `[sequences, 2 hidden]` are hidden
/// states and cells before the first step. The states get no gradient: it ends where a sequence begins.
pub(in super::super) fn lstm(x: &Tensor, w: &Tensor, states: &Tensor, steps: &Steps) -> Result<Tensor> {
    let cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let trace = cpu(x)?.contiguous()?.apply_op3(&cpu(w)?, &cpu(states)?.detach(), Recurrence(steps.clone()))?;
    trace.narrow(1, 0, w.dim(0)?)?.to_device(x.device())
}

/// Gives a trace `[rows, 6 hidden]`: hidden states, cells, and the four gates.
struct Recurrence(Steps);

impl CustomOp3 for Recurrence {
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
        let (x, w, states) = (matrix(x, x_layout)?, matrix(w, w_layout)?, matrix(states, states_layout)?);
        let hidden = w.nrows();
        self.check(&x, &w, &states)?;
        let mut trace = Array2::<f32>::zeros((x.nrows(), 6 * hidden));
        let mut h = states.slice(s![.., ..hidden]).to_owned();
        let mut c = states.slice(s![.., hidden..]).to_owned();
        for (start, n) in self.0.blocks() {
            let mut gates = x.slice(s![start..start + n, ..]).to_owned();
            general_mat_mul(1.0, &h.slice(s![..n, ..]), &w, 1.0, &mut gates);
            for row in 0..n {
                for j in 0..hidden {
                    let gate = |k: usize| gates[[row, k * hidden + j]];
                    let (i, f, g, o) =
                        (math::sigmoid(gate(0)), math::sigmoid(gate(1)), math::tanh(gate(2)), math::sigmoid(gate(3)));
                    let cell = f * c[[row, j]] + i * g;
                    (c[[row, j]], h[[row, j]]) = (cell, o * math::tanh(cell));
                    for (k, value) in [h[[row, j]], cell, i, f, g, o].into_iter().enumerate() {
                        trace[[start + row, k * hidden + j]] = value;
                    }
                }
            }
        }
        Ok(storage(trace))
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
        // An operation takes three tensors.
        let trace_and_grad = Tensor::cat(&[trace, &grad.narrow(1, 0, hidden)?], 1)?;
        let x_grad = trace_and_grad.apply_op3_no_bwd(w, states, &RecurrenceGrad(self.0.clone()))?;
        let before = Tensor::from_vec(self.0.before(), x_grad.dim(0)?, x_grad.device())?;
        let h = Tensor::cat(&[&states.narrow(1, 0, hidden)?, &trace.narrow(1, 0, hidden)?], 0)?;
        let w_grad = h.index_select(&before, 0)?.t()?.apply_op2_no_bwd(&x_grad, &Product)?;
        Ok((Some(x_grad), Some(w_grad), None))
    }
}

impl Recurrence {
    /// The code above and below indexes freely.
    fn check(&self, x: &ArrayView2<'_, f32>, w: &ArrayView2<'_, f32>, states: &ArrayView2<'_, f32>) -> Result<()> {
        let (hidden, rows) = (w.nrows(), self.0.0.iter().sum::<usize>());
        let sequences = self.0.0.first().copied().unwrap_or(0);
        let fits = x.dim() == (rows, 4 * hidden) && w.ncols() == 4 * hidden && states.dim() == (sequences, 2 * hidden);
        let shapes = || format!("lstm of {:?}, {:?}, {:?} in {rows} steps", x.dim(), w.dim(), states.dim());
        if fits { Ok(()) } else { Err(Error::Msg(shapes())) }
    }
}

/// Gradient of what is added to the gates, from the trace beside the gradient of the hidden states.
struct RecurrenceGrad(Steps);

impl CustomOp3 for RecurrenceGrad {
    fn name(&self) -> &'static str {
        "lstm-grad"
    }

    fn cpu_fwd(
        &self,
        trace: &CpuStorage,
        trace_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        states: &CpuStorage,
        states_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (trace, w, states) = (matrix(trace, trace_layout)?, matrix(w, w_layout)?, matrix(states, states_layout)?);
        let hidden = w.nrows();
        let mut grads = Array2::<f32>::zeros((trace.nrows(), 4 * hidden));
        // Gradients of the states before the step that comes after the one at hand.
        let mut h_grad = Array2::<f32>::zeros((states.nrows(), hidden));
        let mut c_grad = Array2::<f32>::zeros((states.nrows(), hidden));
        let blocks: Vec<_> = self.0.blocks().collect();
        for (step, &(start, n)) in blocks.iter().enumerate().rev() {
            let before = step.checked_sub(1).and_then(|step| blocks.get(step)).map(|&(start, _)| start);
            for row in 0..n {
                for j in 0..hidden {
                    let at = |k: usize| trace[[start + row, k * hidden + j]];
                    let (cell, i, f, g, o) = (at(1), at(2), at(3), at(4), at(5));
                    let cell_before =
                        before.map_or_else(|| states[[row, hidden + j]], |before| trace[[before + row, hidden + j]]);
                    let out = math::tanh(cell);
                    let h = at(6) + h_grad[[row, j]];
                    let c = c_grad[[row, j]] + h * o * (1.0 - out * out);
                    let gates = [
                        c * g * i * (1.0 - i),
                        c * cell_before * f * (1.0 - f),
                        c * i * (1.0 - g * g),
                        h * out * o * (1.0 - o),
                    ];
                    for (k, value) in gates.into_iter().enumerate() {
                        grads[[start + row, k * hidden + j]] = value;
                    }
                    c_grad[[row, j]] = c * f;
                }
            }
            let (rows, mut h_grad) = (grads.slice(s![start..start + n, ..]), h_grad.slice_mut(s![..n, ..]));
            general_mat_mul(1.0, &rows, &w.t(), 0.0, &mut h_grad);
        }
        Ok(storage(grads))
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

    /// The same with candle's own operations, one sequence after the other.
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
        let ours = lstm(&x, &w, &states, &steps).unwrap();
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
        assert!(lstm(&var(4, 12, 1.0), &var(3, 12, 1.0), &var(2, 6, 1.0), &steps).is_err());
        assert!(lstm(&var(3, 12, 1.0), &var(3, 12, 1.0), &var(3, 6, 1.0), &steps).is_err());
    }

    #[test]
    fn a_very_long_sequence_is_no_deep_graph() {
        let steps = Steps::of_lengths(&[50_000]);
        let (x, w, states) = (var(50_000, 4, 0.9), var(1, 4, 0.7), var(1, 2, 0.5));
        let grads = lstm(&x, &w, &states, &steps).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&x).unwrap().dims(), [50_000, 4]);
    }
}
