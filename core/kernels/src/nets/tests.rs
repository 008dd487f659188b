//! Networks of all shapes, beside their definition.

use proptest::{collection::vec, prelude::*};
use std::vec;

use super::*;

/// A layer as it is written down.
#[derive(Clone, Debug)]
struct Plain {
    weights: Vec<Vec<f32>>,
    bias: Vec<f32>,
}

impl Plain {
    fn packed(&self) -> Dense {
        let (upper, lower) = self.weights.split_at(self.weights.len() / 2);
        Dense::pack(&[&upper.concat(), &lower.concat()], &self.bias)
    }

    fn forward(&self, row: &[f32]) -> Vec<f32> {
        let sum = |o: usize| row.iter().zip(&self.weights).fold(self.bias[o], |sum, (x, weights)| sum + weights[o] * x);
        (0..self.bias.len()).map(sum).collect()
    }
}

fn forward_all(layers: &[Plain], row: &[f32], tanh_last: bool) -> Vec<f32> {
    let mut row = row.to_vec();
    for (i, layer) in layers.iter().enumerate() {
        row = layer.forward(&row);
        if tanh_last || i + 1 < layers.len() {
            row.iter_mut().for_each(|x| *x = math::tanh(*x));
        }
    }
    row
}

#[derive(Clone, Debug)]
struct Case {
    encoder: Vec<Plain>,
    gates: Option<Plain>,
    policy: Vec<Plain>,
    value: Vec<Plain>,
    rows: usize,
    obs: Vec<f32>,
    state: Vec<f32>,
}

/// Distributions' parameters, values and states.
type Told = (Vec<u32>, Vec<u32>, Vec<u32>);

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

impl Case {
    fn networks(&self) -> Networks {
        let layers = |layers: &[Plain]| layers.iter().map(Plain::packed).collect();
        Networks {
            encoder: layers(&self.encoder),
            gates: self.gates.as_ref().map(Plain::packed),
            policy: layers(&self.policy),
            value: layers(&self.value),
        }
    }

    /// One row after the other, number by number.
    fn definition(&self) -> Told {
        let (mut dist_inputs, mut values, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let (width, state_len) = (self.obs.len() / self.rows, self.state.len() / self.rows);
        for i in 0..self.rows {
            let mut row = self.obs[i * width..][..width].to_vec();
            if let Some(gates) = &self.gates {
                let (hidden, cell) = self.state[i * state_len..][..state_len].split_at(state_len / 2);
                let sums = gates.forward(&[&forward_all(&self.encoder, &row, true), hidden].concat());
                let gate = |gate: usize, cell: usize| sums[gate * state_len / 2 + cell];
                let next =
                    |i: usize| math::sigmoid(gate(1, i)) * cell[i] + math::sigmoid(gate(0, i)) * math::tanh(gate(2, i));
                let cells: Vec<f32> = (0..cell.len()).map(next).collect();
                row = cells.iter().enumerate().map(|(i, cell)| math::sigmoid(gate(3, i)) * math::tanh(*cell)).collect();
                states.extend([&row[..], &cells].concat());
            }
            dist_inputs.extend(forward_all(&self.policy, &row, false));
            values.extend(forward_all(&self.value, &row, false));
        }
        (bits(&dist_inputs), bits(&values), bits(&states))
    }

    /// Of some of the rows.
    fn run<const ROWS: usize, const LANES: usize>(&self, from: usize, to: usize) -> Told {
        let (nets, mut room) = (self.networks(), Room::default());
        let (width, state_len) = (self.obs.len() / self.rows, self.state.len() / self.rows);
        let input =
            Input { obs: &self.obs[from * width..to * width], state: &self.state[from * state_len..to * state_len] };
        let rows = to - from;
        let told = |wanted: bool, room: &mut Room| {
            let mut dist_inputs = vec![9.0; if wanted { rows * nets.dist_inputs_len() } else { 0 }];
            let (mut values, mut state) = (vec![9.0; rows], vec![9.0; if wanted { rows * state_len } else { 0 }]);
            let out = Output { dist_inputs: &mut dist_inputs, values: &mut values, state: &mut state };
            forward::<ROWS, LANES>(&nets, input, room, out);
            (bits(&dist_inputs), bits(&values), bits(&state))
        };
        let all = told(true, &mut room);
        assert_eq!(told(false, &mut room).1, all.1);
        all
    }
}

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![4 => -1.5..1.5f32, 1 => Just(0.0), 1 => Just(-0.0), 1 => -1e-30..1e-30f32]
}

fn layer(inputs: usize, outputs: usize) -> impl Strategy<Value = Plain> {
    // Biases of -0, where zeros may not be left out, are rare in a layer but not among layers.
    let bias = prop_oneof![vec(-1.0..1.0f32, outputs), vec(number(), outputs)];
    (vec(vec(number(), outputs), inputs), bias).prop_map(|(weights, bias)| Plain { weights, bias })
}

fn layers(widths: &[usize]) -> impl Strategy<Value = Vec<Plain>> + use<> {
    widths.windows(2).map(|pair| layer(pair[0], pair[1])).collect::<Vec<_>>()
}

fn case() -> impl Strategy<Value = Case> {
    let widths = (prop_oneof![1..9usize, 30..50usize], vec(1..70usize, 0..3), prop_oneof![1..5usize, 5..40usize]);
    let rows = prop_oneof![1..6usize, 14..20usize, 60..70usize];
    (widths, proptest::option::of(1..20usize), rows, 0..4u32).prop_flat_map(
        |((obs, hidden, outputs), cells, rows, zeros)| {
            let before = [&[obs], &hidden[..]].concat();
            let features = *before.last().unwrap();
            let with = |last: usize| match cells {
                None => [&before[..], &[last]].concat(),
                Some(cells) => vec![cells, last],
            };
            let gates = cells.map(|cells| layer(features + cells, 4 * cells).boxed());
            let gates = gates.map_or_else(|| Just(None).boxed(), |gates| gates.prop_map(Some).boxed());
            let encoder = if cells.is_some() { before.clone() } else { Vec::new() };
            // From full rows to nearly empty ones.
            let number = move || prop_oneof![1 => number(), 3 * zeros + 1 => Just(if zeros == 0 { 0.5 } else { 0.0 })];
            let values = (vec(number(), rows * obs), vec(-1.0..1.0f32, rows * 2 * cells.unwrap_or(0)));
            (layers(&encoder), gates, layers(&with(outputs)), layers(&with(1)), values).prop_map(
                move |(encoder, gates, policy, value, (obs, state))| Case {
                    encoder,
                    gates,
                    policy,
                    value,
                    rows,
                    obs,
                    state,
                },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_tile_gives_the_bits_of_the_definition(case in case()) {
        let told = case.definition();
        prop_assert_eq!(&case.run::<4, 8>(0, case.rows), &told);
        prop_assert_eq!(&case.run::<4, 16>(0, case.rows), &told);
        prop_assert_eq!(&case.run::<16, 16>(0, case.rows), &told);
        let alone = case.run::<16, 16>(case.rows - 1, case.rows);
        prop_assert_eq!(&told.0[told.0.len() - alone.0.len()..], alone.0);
        prop_assert_eq!(told.1.last(), alone.1.last());
        prop_assert_eq!(&told.2[told.2.len() - alone.2.len()..], alone.2);
    }
}

#[test]
fn zeros_are_left_out_where_no_bit_changes() {
    let weights = [1.0, -1.0, 0.0, -0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::MAX, -f32::MAX];
    for bias in [0.0, -0.0, 1.5, -f32::MIN_POSITIVE] {
        for inputs in [[0.0, -0.0], [-0.0, -0.0], [0.0, 1e-9], [-1e-9, 0.0], [0.0, f32::MAX]] {
            // Enough rows that zeros are looked for.
            let rows = (0..SPARSE).map(|i| weights.map(|w| if i % 2 == 0 { w } else { -w }).to_vec()).collect();
            let layer = Plain { weights: rows, bias: vec![bias; 8] };
            let obs = (0..SPARSE).map(|i| if i < 2 { inputs[i] } else { -0.0 }).collect();
            let (policy, value) = (vec![layer.clone()], vec![layer]);
            let case = Case { encoder: vec![], gates: None, policy, value, rows: 1, obs, state: vec![] };
            let dist_inputs = case.run::<4, 8>(0, 1).0;
            assert_eq!(dist_inputs, case.definition().0, "{bias} {inputs:?}");
        }
    }
}
