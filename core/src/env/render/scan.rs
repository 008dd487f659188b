//! Scanline filling of areas.

use super::{Colour, Frame};
use crate::{math, prelude::*};

/// Samples of a pixel in each direction. Edges have that number squared of shades between two colours.
const SAMPLES: usize = 4;

/// Fills areas from the points where their outline crosses a row; reuses its memory.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The crossings of the outline with the line of samples, ascending.
    crossings: Vec<f64>,
    /// Number of covered samples of every pixel of the row. All 0 between rows.
    covered: Vec<u8>,
}

impl Scan {
    /// Fills the spans between every first and second crossing of an outline, which is between `top` and `bottom`.
    ///
    /// `cross` appends the crossings, in any order, at a height in pixels from the top. All numbers are finite.
    pub(super) fn fill(
        &mut self,
        frame: &mut Frame,
        [top, bottom]: [f64; 2],
        colour: Colour,
        mut cross: impl FnMut(f64, &mut Vec<f64>),
    ) {
        let (width, height) = (frame.width(), f64::from(frame.height()));
        // Between 0 and the height, so integers and small.
        let rows =
            math::floor_f64(top.clamp(0.0, height)) as usize..math::floor_f64(bottom.clamp(0.0, height)) as usize;
        self.covered.resize(width as usize, 0);
        for y in rows.start..=rows.end {
            let (mut first, mut end) = (usize::MAX, 0);
            for sample in 0..SAMPLES {
                self.crossings.clear();
                cross(y as f64 + sample_place(sample), &mut self.crossings);
                self.crossings.sort_by(f64::total_cmp);
                for span in self.crossings.chunks_exact(2) {
                    let [from, to] = [span[0], span[1]].map(|x| first_sample_after(x, width));
                    cover(&mut self.covered, from, to);
                    (first, end) = (first.min(from / SAMPLES), end.max(to.div_ceil(SAMPLES)));
                }
            }
            let touched = frame.row_mut(y).iter_mut().zip(&mut self.covered).take(end).skip(first);
            touched.for_each(|(pixel, covered)| *pixel = mixed(*pixel, colour, core::mem::take(covered)));
        }
    }
}

/// Returns the position of a sample within its pixel.
fn sample_place(sample: usize) -> f64 {
    (sample as f64 + 0.5) / SAMPLES as f64
}

/// Returns the index of the first sample of a row that is not left of `x`, clamped to the row.
fn first_sample_after(x: f64, width: u32) -> usize {
    let samples = SAMPLES as f64;
    math::floor_f64(x * samples + 0.5).clamp(0.0, f64::from(width) * samples) as usize
}

/// Counts the samples `from..to` of a row for their pixels.
fn cover(covered: &mut [u8], from: usize, to: usize) {
    let pixels = covered.iter_mut().enumerate().take(to.div_ceil(SAMPLES)).skip(from / SAMPLES);
    for (x, covered) in pixels {
        let within = to.min((x + 1) * SAMPLES).saturating_sub(from.max(x * SAMPLES));
        // At most all samples of the pixel, since spans of one line do not overlap.
        *covered += within as u8;
    }
}

/// Blends `over` over `under` by the covered share of the pixel.
fn mixed(under: Colour, over: Colour, covered: u8) -> Colour {
    const ALL: u16 = SAMPLES as u16 * SAMPLES as u16;
    let share = u16::from(covered).min(ALL);
    // The case of most pixels of a shape.
    if share == ALL {
        return over;
    }
    core::array::from_fn(|i| ((u16::from(under[i]) * (ALL - share) + u16::from(over[i]) * share + ALL / 2) / ALL) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_mixed_by_what_they_cover() {
        let mut frame = Frame::new();
        frame.fill(4, 1, [0; 3]);
        Scan::default().fill(&mut frame, [0.0, 1.0], [160; 3], |_, xs| xs.extend([2.25, 0.5]));
        assert_eq!([0, 1, 2, 3].map(|x| frame.pixel(x, 0).unwrap()[0]), [80, 160, 40, 0]);
        // Only the upper half of the row.
        Scan::default().fill(&mut frame, [0.0, 1.0], [0; 3], |y, xs| xs.extend([0.0, if y < 0.5 { 9.0 } else { 0.0 }]));
        assert_eq!([0, 1, 2, 3].map(|x| frame.pixel(x, 0).unwrap()[0]), [40, 80, 20, 0]);
    }

    #[test]
    fn uncovered_pixels_keep_their_colour() {
        for covered in 0..=16 {
            assert_eq!(mixed([255, 7, 0], [255, 7, 0], covered), [255, 7, 0]);
        }
        assert_eq!((mixed([9, 8, 7], [1, 2, 3], 0), mixed([9, 8, 7], [1, 2, 3], 16)), ([9, 8, 7], [1, 2, 3]));
    }
}
