//! Digits of numbers in pictures.

use crate::env::render::{Canvas, CanvasPoint, Colour};

/// The strokes of each digit, 2 wide and 4 high.
const STROKES: [&[CanvasPoint]; 10] = [
    &[[0.6, 0.0], [1.4, 0.0], [2.0, 0.7], [2.0, 3.3], [1.4, 4.0], [0.6, 4.0], [0.0, 3.3], [0.0, 0.7], [0.6, 0.0]],
    &[[0.3, 0.8], [1.2, 0.0], [1.2, 4.0]],
    &[[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0], [0.0, 4.0], [2.0, 4.0]],
    &[[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.5, 2.0], [2.0, 2.0], [2.0, 4.0], [0.0, 4.0]],
    &[[0.0, 0.0], [0.0, 2.0], [2.0, 2.0], [2.0, 0.0], [2.0, 4.0]],
    &[[2.0, 0.0], [0.0, 0.0], [0.0, 2.0], [2.0, 2.0], [2.0, 4.0], [0.0, 4.0]],
    &[[2.0, 0.0], [0.0, 0.0], [0.0, 4.0], [2.0, 4.0], [2.0, 2.0], [0.0, 2.0]],
    &[[0.0, 0.0], [2.0, 0.0], [0.8, 4.0]],
    &[[0.0, 2.0], [0.0, 0.0], [2.0, 0.0], [2.0, 4.0], [0.0, 4.0], [0.0, 2.0], [2.0, 2.0]],
    &[[2.0, 2.0], [0.0, 2.0], [0.0, 0.0], [2.0, 0.0], [2.0, 4.0], [0.0, 4.0]],
];

/// Draws a number below 100 of this height around a point; of larger ones the last two digits.
pub(super) fn draw_number(canvas: &mut Canvas<'_>, [x, y]: CanvasPoint, height: f64, number: u32, colour: Colour) {
    let unit = height / 4.0;
    let [tens, ones] = [number / 10 % 10, number % 10];
    let both = [(tens, -1.75 * unit), (ones, 1.75 * unit)];
    let alone = [(ones, 0.0)];
    for (digit, aside) in if tens > 0 { &both[..] } else { &alone[..] } {
        let at = |[right, down]: [f64; 2]| [x + aside + (right - 1.0) * unit, y + (down - 2.0) * unit];
        for ends in STROKES.get(*digit as usize).into_iter().flat_map(|strokes| strokes.windows(2)) {
            canvas.line(at(ends[0]), at(ends[1]), unit * 0.62, colour);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{
            Frame,
            render::palette::{INK, PAPER},
        },
        prelude::*,
    };

    /// All numbers differ, fit their height and, with two digits, are twice as wide.
    #[test]
    fn numbers_have_distinct_pictures() {
        let mut seen = BTreeSet::new();
        for number in 0..100 {
            let mut frame = Frame::new();
            draw_number(&mut Canvas::new(&mut frame, [40, 30], PAPER), [20.0, 15.0], 16.0, number, INK);
            let inked: Vec<[u32; 2]> = (0..30)
                .flat_map(|y| (0..40).map(move |x| [x, y]))
                .filter(|[x, y]| frame.pixel(*x, *y) != Some(PAPER))
                .collect();
            assert!(inked.iter().all(|[x, y]| (5..35).contains(y) && (7..33).contains(x)), "{number}");
            assert_eq!(inked.iter().any(|[x, _]| *x < 12), number >= 10, "{number}");
            assert!(seen.insert(frame.rgb().to_vec()), "{number}");
        }
    }
}
