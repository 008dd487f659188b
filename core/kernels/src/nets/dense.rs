//! One dense layer over many rows.

use alloc::vec::Vec;

/// Outputs whose weights are stored together.
pub(super) const PANEL: usize = 16;

/// Likewise, where a whole panel would be mostly empty: of the last outputs of a layer.
const NARROW: usize = 4;

/// From this number of outputs on, those after the last whole panel have one of their own.
const BROAD: usize = 9;

/// Weights of a panel for one input, where the widest vectors are read best.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Panel([f32; PANEL]);

impl AsRef<[f32]> for Panel {
    #[inline(always)]
    fn as_ref(&self) -> &[f32] {
        &self.0
    }
}

/// Rows of numbers, each at this distance from the one before.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub(super) fn row(self, row: usize, len: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..len]
    }

    #[inline(always)]
    pub(super) fn skip(self, rows: usize) -> Self {
        Self { values: &self.values[rows * self.stride..], ..self }
    }
}

/// Returns the distance between rows of the given number of outputs: of whole panels, and one more, since rows that are
/// a power of two apart would take the same few places of the cache from each other.
#[inline(always)]
pub(super) const fn stride(outputs: usize) -> usize {
    outputs.next_multiple_of(PANEL) + PANEL
}

/// A dense layer of any width, packed for the kernel.
///
/// Each sum starts with the bias and takes the inputs in their order, however many rows there are.
#[derive(Clone, Debug)]
pub struct Dense {
    inputs: usize,
    outputs: usize,
    /// For each panel of outputs, for each input: the panel's weights; filled up with zeros.
    panels: Vec<Panel>,
    /// Likewise, of the outputs after them.
    narrow: Vec<[f32; NARROW]>,
    /// Filled up with zeros to whole panels.
    bias: Vec<f32>,
    /// Whether inputs that are 0 may be skipped, as most of a one-hot vector's or of a picture's are: weights are
    /// finite, so their products are zeros, which change no sum but one that is -0. Sums become that only by beginning
    /// so.
    skips_zeros: bool,
}

impl Dense {
    /// Packs weights given as `[inputs][outputs]`, at least one of each; the matrices stand one below the other. The
    /// caller has checked the lengths.
    #[must_use]
    pub fn pack(matrices: &[&[f32]], bias: &[f32]) -> Self {
        let outputs = bias.len();
        let inputs = matrices.iter().map(|matrix| matrix.len()).sum::<usize>() / outputs.max(1);
        let (panels, narrow, skips_zeros) = (Vec::new(), Vec::new(), false);
        let mut dense = Self { inputs, outputs, panels, narrow, bias: Vec::new(), skips_zeros };
        dense.repack(matrices, bias);
        dense
    }

    /// Takes other weights of the same shape, into the memory that is there: fresh one takes longer than all copying.
    /// The caller has checked the lengths.
    pub fn repack(&mut self, matrices: &[&[f32]], bias: &[f32]) {
        let (panels, in_panels) = self.in_panels();
        self.panels.clear();
        self.panels.reserve_exact(panels * self.inputs);
        self.narrow.clear();
        let rows = || matrices.iter().flat_map(|matrix| matrix.chunks_exact(self.outputs));
        for first in (0..in_panels).step_by(PANEL) {
            self.panels.extend(rows().map(|row| Panel(panel(row, first))));
        }
        for first in (in_panels..self.outputs).step_by(NARROW) {
            self.narrow.extend(rows().map(|row| panel(row, first)));
        }
        self.bias.clear();
        self.bias.extend_from_slice(bias);
        self.bias.resize(self.outputs.next_multiple_of(PANEL), 0.0);
        self.skips_zeros = bias.iter().all(|b| b.to_bits() != (-0.0f32).to_bits());
    }

    /// Returns the number of inputs per row.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of outputs per row.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) const fn skips_zeros(&self) -> bool {
        self.skips_zeros
    }

    /// Returns the number of whole panels and of their outputs; the outputs after them are in narrow panels.
    #[inline(always)]
    const fn in_panels(&self) -> (usize, usize) {
        let rest = self.outputs % PANEL;
        let in_panels = if rest < BROAD { self.outputs - rest } else { self.outputs };
        (in_panels.div_ceil(PANEL), in_panels)
    }

    /// Applies the layer to rows, and writes rows at a distance of `stride` each: at least the outputs, filled up to
    /// whole panels.
    ///
    /// Sums of `ROWS` rows and `LANES` outputs are kept in registers together: as many as there are registers for.
    #[inline(always)]
    pub(super) fn forward<const ROWS: usize, const LANES: usize>(
        &self,
        input: Rows<'_>,
        count: usize,
        output: &mut [f32],
        stride: usize,
    ) {
        let tiled = count - count % FEW;
        for row in tiled..count {
            self.forward_row(&Whole(input.row(row, self.inputs)), &mut output[row * stride..][..stride]);
        }
        if tiled == 0 {
            return;
        }
        let (panels, in_panels) = self.in_panels();
        for panel in 0..panels {
            let weights = &self.panels[panel * self.inputs..][..self.inputs];
            for lane in (0..PANEL).step_by(LANES) {
                let first = panel * PANEL + lane;
                let Some(bias) = self.bias[first..].first_chunk::<LANES>() else { continue };
                tiles::<ROWS, LANES>(weights, lane, bias, input, &mut output[first..], stride, tiled);
            }
        }
        for (panel, first) in (in_panels..self.outputs).step_by(NARROW).enumerate() {
            let weights = &self.narrow[panel * self.inputs..][..self.inputs];
            let Some(bias) = self.bias[first..].first_chunk() else { continue };
            tiles::<ROWS, NARROW>(weights, 0, bias, input, &mut output[first..], stride, tiled);
        }
    }

    /// Applies the layer to a single row, and writes as many numbers as [`stride`] returns.
    ///
    /// Places are given by indices: iterators over pieces divide by their lengths, which takes longer than a small layer.
    /// A function of its own in wasm, as [`tiles`] is.
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    pub(super) fn forward_row(&self, row: &impl Row, output: &mut [f32]) {
        let (panels, in_panels) = self.in_panels();
        let (bias, _) = self.bias.as_chunks::<PANEL>();
        let (out, _) = output.as_chunks_mut::<PANEL>();
        let weights = |panel: usize| &self.panels[panel * self.inputs..][..self.inputs];
        let mut panel = 0;
        while let (true, Some(bias), Some(out)) =
            (panel + 4 <= panels, bias[panel..].first_chunk(), out[panel..].first_chunk_mut())
        {
            *out = row.add_four(*bias, [0, 1, 2, 3].map(|k| weights(panel + k)));
            panel += 4;
        }
        while panel < panels {
            out[panel] = row.add(bias[panel], weights(panel));
            panel += 1;
        }
        for (panel, first) in (in_panels..self.outputs).step_by(NARROW).enumerate() {
            let weights = &self.narrow[panel * self.inputs..][..self.inputs];
            if let (Some(bias), Some(out)) = (self.bias[first..].first_chunk(), output[first..].first_chunk_mut()) {
                *out = row.add::<NARROW>(*bias, weights);
            }
        }
    }
}

/// Inputs of a single row.
pub(super) trait Row {
    /// Returns a panel's sums: the given ones, to which all weighted inputs are added.
    fn add<const LANES: usize>(&self, sums: [f32; LANES], weights: &[impl AsRef<[f32]>]) -> [f32; LANES];

    /// Does the same as [`add`](Self::add) for four panels: with one, each addition would wait for the one before.
    fn add_four(&self, sums: [[f32; PANEL]; 4], weights: [&[Panel]; 4]) -> [[f32; PANEL]; 4];
}

/// All of them.
pub(super) struct Whole<'a>(pub(super) &'a [f32]);

/// Those that are not 0, and where they stand.
pub(super) struct Few<'a>(pub(super) &'a [(u32, f32)]);

impl Row for Whole<'_> {
    #[inline(always)]
    fn add<const LANES: usize>(&self, mut sums: [f32; LANES], weights: &[impl AsRef<[f32]>]) -> [f32; LANES] {
        for (x, weights) in self.0.iter().zip(weights) {
            let Some(weights) = weights.as_ref().first_chunk() else { continue };
            add_product(&mut sums, *x, weights);
        }
        sums
    }

    #[inline(always)]
    fn add_four(&self, sums: [[f32; PANEL]; 4], weights: [&[Panel]; 4]) -> [[f32; PANEL]; 4] {
        let ([mut a, mut b, mut c, mut d], [p, q, r, s]) = (sums, weights);
        for ((((x, p), q), r), s) in self.0.iter().zip(p).zip(q).zip(r).zip(s) {
            add_product(&mut a, *x, &p.0);
            add_product(&mut b, *x, &q.0);
            add_product(&mut c, *x, &r.0);
            add_product(&mut d, *x, &s.0);
        }
        [a, b, c, d]
    }
}

impl Row for Few<'_> {
    #[inline(always)]
    fn add<const LANES: usize>(&self, mut sums: [f32; LANES], weights: &[impl AsRef<[f32]>]) -> [f32; LANES] {
        for (i, x) in self.0 {
            let Some(weights) = weights[*i as usize].as_ref().first_chunk() else { continue };
            add_product(&mut sums, *x, weights);
        }
        sums
    }

    #[inline(always)]
    fn add_four(&self, sums: [[f32; PANEL]; 4], weights: [&[Panel]; 4]) -> [[f32; PANEL]; 4] {
        let ([mut a, mut b, mut c, mut d], [p, q, r, s]) = (sums, weights);
        for (i, x) in self.0 {
            let i = *i as usize;
            add_product(&mut a, *x, &p[i].0);
            add_product(&mut b, *x, &q[i].0);
            add_product(&mut c, *x, &r[i].0);
            add_product(&mut d, *x, &s[i].0);
        }
        [a, b, c, d]
    }
}

/// Rows fewer than that are worked on one by one.
const FEW: usize = 4;

/// Computes one panel of outputs, or part of it, over rows that are a multiple of [`FEW`].
///
/// A function of its own in wasm: V8 unrolls a loop more often the deeper it is nested, and then the sums do not fit in registers.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
fn tiles<const ROWS: usize, const LANES: usize>(
    weights: &[impl AsRef<[f32]>],
    lane: usize,
    bias: &[f32; LANES],
    input: Rows<'_>,
    output: &mut [f32],
    stride: usize,
    count: usize,
) {
    let mut done = 0;
    while count - done >= ROWS.max(FEW) {
        let (input, output) = (input.skip(done), &mut output[done * stride..]);
        match ROWS {
            16.. => tile_of_16(weights, lane, bias, input, output, stride),
            _ => tile_of_4(weights, lane, bias, input, output, stride),
        }
        done += ROWS.max(FEW);
    }
    while count - done >= FEW {
        tile_of_4(weights, lane, bias, input.skip(done), &mut output[done * stride..], stride);
        done += FEW;
    }
}

/// Sums that have names: as an array of arrays they are taken apart into single numbers and never become vectors again.
macro_rules! tile {
    ($name:ident: $($sum:ident $x:ident $row:literal),*) => {
        #[inline(always)]
        fn $name<const LANES: usize>(
            weights: &[impl AsRef<[f32]>],
            lane: usize,
            bias: &[f32; LANES],
            input: Rows<'_>,
            output: &mut [f32],
            stride: usize,
        ) {
            // Indices below one length: a bounds check within the loop keeps V8 from holding the sums in registers.
            let len = weights.len();
            $(let $x = input.row($row, len);)*
            $(let mut $sum = *bias;)*
            for i in 0..len {
                let Some(weights) = weights[i].as_ref()[lane..].first_chunk::<LANES>() else { continue };
                $(add_product(&mut $sum, $x[i], weights);)*
            }
            $(output[$row * stride..][..LANES].copy_from_slice(&$sum);)*
        }
    };
}

tile!(tile_of_4: a p 0, b q 1, c r 2, d s 3);
tile!(
    tile_of_16: a a_x 0, b b_x 1, c c_x 2, d d_x 3, e e_x 4, f f_x 5, g g_x 6, h h_x 7, i i_x 8, j j_x 9, k k_x 10,
    l l_x 11, m m_x 12, n n_x 13, o o_x 14, p p_x 15
);

#[inline(always)]
fn add_product<const LANES: usize>(sum: &mut [f32; LANES], x: f32, weights: &[f32; LANES]) {
    for lane in 0..LANES {
        sum[lane] += weights[lane] * x;
    }
}

/// Returns a panel's weights of one input; `row` has the weights of all outputs.
fn panel<const WIDTH: usize>(row: &[f32], first: usize) -> [f32; WIDTH] {
    let rest = row.get(first..).unwrap_or_default();
    let filled_up = || core::array::from_fn(|k| rest.get(k).copied().unwrap_or(0.0));
    rest.first_chunk().copied().unwrap_or_else(filled_up)
}
