//! Networks of all shapes, compared with their definition.

use proptest::{collection::vec, prelude::*};
use std::vec;

use super::*;
use crate::math;

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

fn forward_all(layers: &[Plain], row: &[f32], activation: Activation, is_last_too: bool) -> Vec<f32> {
    let mut row = row.to_vec();
    for (i, layer) in layers.iter().enumerate() {
        row = layer.forward(&row);
        if is_last_too || i + 1 < layers.len() {
            activation.apply(&mut row);
        }
    }
    row
}

fn packed(layers: &[Plain], activation: Activation, is_last_too: bool) -> Vec<Layer> {
    let activation = |i| if is_last_too || i + 1 < layers.len() { activation } else { Activation::Linear };
    layers.iter().enumerate().map(|(i, layer)| Layer::Dense(layer.packed(), activation(i))).collect()
}

#[derive(Clone, Debug)]
struct Case {
    activation: Activation,
    kind: MemoryKind,
    encoder: Vec<Plain>,
    gates: Option<Plain>,
    policy: Vec<Plain>,
    value: Vec<Plain>,
    rows: usize,
    obs: Vec<f32>,
    state: Vec<f32>,
}

/// Distributions' parameters, values and states.
type OutputBits = (Vec<u32>, Vec<u32>, Vec<u32>);

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

impl Case {
    fn networks(&self) -> Networks {
        let memory = self.gates.as_ref().map(|gates| Layer::Memory(Memory::new(self.kind, gates.packed(), 0)));
        let mut trunk = packed(&self.encoder, self.activation, true);
        trunk.extend(memory);
        let head = |layers: &[Plain]| packed(layers, self.activation, false);
        Networks { trunk, policy: head(&self.policy), value: head(&self.value) }
    }

    /// Computes the outputs by definition: one row after the other, number by number.
    fn definition(&self) -> OutputBits {
        let (mut dist_inputs, mut values, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let (width, state_len) = (self.obs.len() / self.rows, self.state.len() / self.rows);
        for i in 0..self.rows {
            let mut row = forward_all(&self.encoder, &self.obs[i * width..][..width], self.activation, true);
            if let Some(gates) = &self.gates {
                let (cells, before) = (gates.bias.len() / 4, &self.state[i * state_len..][..state_len]);
                let hidden = &before[..cells];
                let sums = gates.forward(&[&row, hidden].concat());
                let sum = |gate: usize, cell: usize| sums[gate * cells + cell];
                let share = |gate: usize, cell: usize| math::sigmoid(sum(gate, cell));
                let mut state = match self.kind {
                    MemoryKind::Lstm => {
                        let next = |i: usize| share(1, i) * before[cells + i] + share(0, i) * math::tanh(sum(2, i));
                        let cell: Vec<f32> = (0..cells).map(next).collect();
                        row = (0..cells).map(|i| share(3, i) * math::tanh(cell[i])).collect();
                        cell
                    }
                    MemoryKind::Gru => {
                        let candidate = |i: usize| math::tanh(sum(2, i) + share(0, i) * sum(3, i));
                        let next = |i: usize| (1.0 - share(1, i)) * candidate(i) + share(1, i) * hidden[i];
                        row = (0..cells).map(next).collect();
                        vec![]
                    }
                };
                states.extend_from_slice(&row);
                states.append(&mut state);
            }
            dist_inputs.extend(forward_all(&self.policy, &row, self.activation, false));
            values.extend(forward_all(&self.value, &row, self.activation, false));
        }
        (bits(&dist_inputs), bits(&values), bits(&states))
    }

    /// Computes the outputs of some of the rows.
    fn run<const ROWS: usize, const LANES: usize>(&self, from: usize, to: usize) -> OutputBits {
        let (nets, mut buffers) = (self.networks(), NetBuffers::default());
        let (width, state_len) = (self.obs.len() / self.rows, self.state.len() / self.rows);
        let input =
            Input { obs: &self.obs[from * width..to * width], state: &self.state[from * state_len..to * state_len] };
        let rows = to - from;
        let results = |wanted: bool, buffers: &mut NetBuffers| {
            let mut dist_inputs = vec![9.0; if wanted { rows * nets.dist_inputs_len() } else { 0 }];
            let (mut values, mut state) = (vec![9.0; rows], vec![9.0; if wanted { rows * state_len } else { 0 }]);
            let out = Output { dist_inputs: &mut dist_inputs, values: &mut values, state: &mut state };
            forward::<ROWS, LANES>(&nets, input, buffers, out);
            (bits(&dist_inputs), bits(&values), bits(&state))
        };
        let all = results(true, &mut buffers);
        assert_eq!(results(false, &mut buffers).1, all.1);
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
    let activation = proptest::sample::select(Activation::ALL.to_vec());
    // With a memory, with shared layers, and with two networks.
    let kind = prop_oneof![Just(MemoryKind::Lstm), Just(MemoryKind::Gru)];
    let trunk = (proptest::option::of(1..20usize), any::<bool>(), kind);
    (widths, trunk, rows, 0..4u32, activation).prop_flat_map(
        |((obs, hidden, outputs), (cells, is_shared, kind), rows, zeros, activation)| {
            let before = [&[obs], &hidden[..]].concat();
            let features = *before.last().unwrap();
            let with = |last: usize| match cells {
                None if is_shared => vec![features, last],
                None => [&before[..], &[last]].concat(),
                Some(cells) => vec![cells, last],
            };
            let gates = cells.map(|cells| layer(features + cells, 4 * cells).boxed());
            let gates = gates.map_or_else(|| Just(None).boxed(), |gates| gates.prop_map(Some).boxed());
            let encoder = if is_shared || cells.is_some() { before.clone() } else { Vec::new() };
            // From full rows to nearly empty ones.
            let number = move || prop_oneof![1 => number(), 3 * zeros + 1 => Just(if zeros == 0 { 0.5 } else { 0.0 })];
            let states = cells.unwrap_or(0) * if kind == MemoryKind::Lstm { 2 } else { 1 };
            let values = (vec(number(), rows * obs), vec(-1.0..1.0f32, rows * states));
            (layers(&encoder), gates, layers(&with(outputs)), layers(&with(1)), values).prop_map(
                move |(encoder, gates, policy, value, (obs, state))| Case {
                    activation,
                    kind,
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
        let results = case.definition();
        prop_assert_eq!(&case.run::<4, 8>(0, case.rows), &results);
        prop_assert_eq!(&case.run::<4, 16>(0, case.rows), &results);
        prop_assert_eq!(&case.run::<16, 16>(0, case.rows), &results);
        let alone = case.run::<16, 16>(case.rows - 1, case.rows);
        prop_assert_eq!(&results.0[results.0.len() - alone.0.len()..], alone.0);
        prop_assert_eq!(results.1.last(), alone.1.last());
        prop_assert_eq!(&results.2[results.2.len() - alone.2.len()..], alone.2);
    }
}

#[test]
fn zeros_are_skipped_where_no_bit_changes() {
    let weights = [1.0, -1.0, 0.0, -0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::MAX, -f32::MAX];
    for bias in [0.0, -0.0, 1.5, -f32::MIN_POSITIVE] {
        for inputs in [[0.0, -0.0], [-0.0, -0.0], [0.0, 1e-9], [-1e-9, 0.0], [0.0, f32::MAX]] {
            // Enough rows that zeros are looked for.
            let rows = (0..SPARSE).map(|i| weights.map(|w| if i % 2 == 0 { w } else { -w }).to_vec()).collect();
            let layer = Plain { weights: rows, bias: vec![bias; 8] };
            let obs = (0..SPARSE).map(|i| if i < 2 { inputs[i] } else { -0.0 }).collect();
            let (policy, value) = (vec![layer.clone()], vec![layer]);
            let (activation, encoder) = (Activation::Tanh, vec![]);
            let kind = MemoryKind::Lstm;
            let case = Case { activation, kind, encoder, gates: None, policy, value, rows: 1, obs, state: vec![] };
            let dist_inputs = case.run::<4, 8>(0, 1).0;
            assert_eq!(dist_inputs, case.definition().0, "{bias} {inputs:?}");
        }
    }
}

/// Computes convolutions as sums over patches, place by place, as they are written down.
fn convolved(shape: &ConvShape, filters: &Plain, image: &[f32]) -> Vec<f32> {
    let [height, width, channels] = shape.input;
    let mut out = Vec::new();
    for y in 0..shape.places[0] {
        for x in 0..shape.places[1] {
            let mut patch = Vec::new();
            for (i, j) in (0..shape.kernel[0]).flat_map(|i| (0..shape.kernel[1]).map(move |j| (i, j))) {
                let row = (y * shape.stride[0] + i).checked_sub(shape.padding[0]).filter(|row| *row < height);
                let column = (x * shape.stride[1] + j).checked_sub(shape.padding[1]).filter(|column| *column < width);
                let at = row.zip(column).map(|(row, column)| (row * width + column) * channels);
                patch.extend((0..channels).map(|c| at.map_or(0.0, |at| image[at + c])));
            }
            out.extend(filters.forward(&patch));
        }
    }
    out
}

fn conv_case() -> impl Strategy<Value = (ConvShape, Plain, Plain, Vec<f32>, usize)> {
    let sizes = (1..9usize, 1..9usize, 1..4usize, prop_oneof![1..6usize, Just(16usize), Just(20usize)]);
    let patch = (1..5usize, 1..5usize, 1..4usize, 1..4usize, 0..3usize, 0..3usize);
    (sizes, patch, 1..4usize).prop_flat_map(|((height, width, channels, filters), patch, rows)| {
        let (k, l, s, t, above, left) = patch;
        let places = [(height + above).div_ceil(s), (width + left).div_ceil(t)];
        let shape = ConvShape {
            input: [height, width, channels],
            filters,
            kernel: [k, l],
            stride: [s, t],
            padding: [above, left],
            places,
        };
        let (head, images) = (layer(shape.outputs(), 1), vec(number(), rows * shape.inputs()));
        (layer(shape.patch_len(), filters), head, images)
            .prop_map(move |(filters, head, images)| (shape, filters, head, images, rows))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn convolutions_give_the_bits_of_the_definition((shape, filters, head, images, rows) in conv_case()) {
        let conv = Layer::Conv(Conv::new(shape, filters.packed()), Activation::Relu);
        let last = || Layer::Dense(head.packed(), Activation::Linear);
        let nets = Networks { trunk: vec![conv], policy: vec![last()], value: vec![last()] };
        let expected = images.chunks(shape.inputs()).flat_map(|image| {
            let mut features = convolved(&shape, &filters, image);
            Activation::Relu.apply(&mut features);
            head.forward(&features)
        });
        let expected = bits(&expected.collect::<Vec<_>>());
        let results = |forward: fn(&Networks, Input<'_>, &mut NetBuffers, Output<'_>)| {
            let (mut values, mut dist_inputs) = (vec![9.0; rows], vec![9.0; rows]);
            let out = Output { dist_inputs: &mut dist_inputs, values: &mut values, state: &mut [] };
            forward(&nets, Input { obs: &images, state: &[] }, &mut NetBuffers::default(), out);
            (bits(&values), bits(&dist_inputs))
        };
        prop_assert_eq!(results(forward::<4, 8>), (expected.clone(), expected.clone()));
        prop_assert_eq!(results(forward::<16, 16>), (expected.clone(), expected));
    }

    /// The adjoint: for all images and patches, `<patches(image), p> = <image, add_patches(p)>`.
    #[test]
    fn gradients_of_patches_return_to_their_image((shape, _, _, images, _) in conv_case()) {
        // Small whole numbers, whose sums are exact.
        let whole = |x: &f32| (x * 8.0) as i32 as f32;
        let image: Vec<f32> = images[..shape.inputs()].iter().map(whole).collect();
        let mut patches = vec![9.0; shape.num_patches() * shape.patch_len()];
        shape.patches(&image, &mut patches);
        let grads: Vec<f32> = (0..patches.len()).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut back = vec![0.0; image.len()];
        shape.add_patches(&grads, &mut back);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        prop_assert_eq!(dot(&patches, &grads), dot(&image, &back));
    }
}

/// Numbers of the previous step have the same effect as inputs.
#[test]
fn numbers_of_the_previous_step_are_taken_from_the_state() {
    let numbers =
        |len: usize, k: usize| -> vec::Vec<f32> { (0..len).map(|i| ((i * k % 101) as f32 - 50.0) / 60.0).collect() };
    let (rows, inputs, previous, cells) = (7, 3, 2, 4);
    for (kind, own) in [(MemoryKind::Lstm, 2 * cells), (MemoryKind::Gru, cells)] {
        let gates = || Dense::pack(&[&numbers((inputs + previous + cells) * 4 * cells, 37)], &numbers(4 * cells, 11));
        let results = |previous: usize, obs: &[f32], state: &[f32]| {
            let head = || vec![Layer::Dense(Dense::pack(&[&numbers(cells, 7)], &[0.5]), Activation::Linear)];
            let trunk = vec![Layer::Memory(Memory::new(kind, gates(), previous))];
            let nets = Networks { trunk, policy: head(), value: head() };
            assert_eq!((nets.obs_len(), nets.state_len()), (obs.len() / rows, state.len() / rows));
            let (mut values, mut after) = (vec![9.0; rows], vec![9.0; state.len()]);
            let out = Output { dist_inputs: &mut [], values: &mut values, state: &mut after };
            forward::<4, 8>(&nets, Input { obs, state }, &mut NetBuffers::default(), out);
            (values, after)
        };
        let (obs, state, steps) = (numbers(rows * inputs, 13), numbers(rows * own, 17), numbers(rows * previous, 19));
        let joined = |a: &[f32], b: &[f32]| -> vec::Vec<f32> {
            let pairs = a.chunks(a.len() / rows).zip(b.chunks(b.len() / rows));
            pairs.flat_map(|(a, b)| [a, b].concat()).collect()
        };
        let (values, after) = results(previous, &obs, &joined(&state, &steps));
        let (expected, states) = results(0, &joined(&obs, &steps), &state);
        assert_eq!((values, after), (expected, joined(&states, &vec![0.0; rows * previous])));
    }
}

#[test]
fn every_tile_normalises_rows_alike() {
    for (width, rows) in [(1, 1), (5, 7), (16, 66), (40, 19)] {
        let numbers =
            |len: usize| -> vec::Vec<f32> { (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect() };
        let (weight, bias, obs) = (numbers(width), numbers(width + 1)[1..].to_vec(), numbers(rows * width));
        let norm = || Layer::Norm(LayerNorm::new(&weight, &bias), Activation::Tanh);
        let head = || Layer::Dense(Dense::pack(&[&numbers(width)], &[0.5]), Activation::Linear);
        let nets = Networks { trunk: vec![norm()], policy: vec![norm(), head()], value: vec![head()] };
        let results = |forward: fn(&Networks, Input<'_>, &mut NetBuffers, Output<'_>)| {
            let (mut values, mut dist_inputs) = (vec![9.0; rows], vec![9.0; rows]);
            let out = Output { dist_inputs: &mut dist_inputs, values: &mut values, state: &mut [] };
            forward(&nets, Input { obs: &obs, state: &[] }, &mut NetBuffers::default(), out);
            (bits(&values), bits(&dist_inputs))
        };
        let normal = |x: &[f32]| {
            let mut y = vec![9.0; x.len()];
            layer_norm(x, &weight, &bias, &mut y);
            Activation::Tanh.apply(&mut y);
            y
        };
        let sums = |x: &[f32]| -> vec::Vec<f32> {
            let sum = |row: &[f32]| row.iter().zip(numbers(width)).fold(0.5, |sum, (x, w)| sum + w * x);
            x.chunks(width).map(sum).collect()
        };
        let features = normal(&obs);
        let expected = (bits(&sums(&features)), bits(&sums(&normal(&features))));
        assert_eq!(results(forward::<4, 8>), expected, "{width}");
        assert_eq!(results(forward::<16, 16>), expected, "{width}");
    }
}

#[test]
fn appended_numbers_stand_behind_every_row() {
    let head = || Plain { weights: vec![vec![1.0, -1.0], vec![0.5, 2.0]], bias: vec![0.25, 0.0] };
    let policy = vec![Layer::Dense(head().packed(), Activation::Linear), Layer::Append(2, vec![7.0, 8.0, 9.0])];
    let value = vec![Layer::Dense(Dense::pack(&[&[1.0, 1.0]], &[0.0]), Activation::Linear)];
    let nets = Networks { trunk: vec![], policy, value };
    let (mut values, mut dist_inputs) = ([0.0; 2], [0.0; 10]);
    let out = Output { dist_inputs: &mut dist_inputs, values: &mut values, state: &mut [] };
    forward::<4, 8>(&nets, Input { obs: &[1.0, 0.0, 0.0, 2.0], state: &[] }, &mut NetBuffers::default(), out);
    assert_eq!(nets.dist_inputs_len(), 5);
    assert_eq!(dist_inputs, [1.25, -1.0, 7.0, 8.0, 9.0, 1.25, 4.0, 7.0, 8.0, 9.0]);
}
