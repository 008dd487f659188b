//! Drawing shapes into a picture.

use super::{Colour, Frame, scan::Scan};
use crate::{math, prelude::*};

/// A point: to the right, and down or up depending on the canvas.
pub type CanvasPoint = [f64; 2];

/// Bound of coordinates in pixels: larger than any picture, and small enough to be squared.
const FAR: f64 = 1e9;

/// Draws filled shapes with smooth edges into a [`Frame`].
///
/// Coordinates and lengths are in pixels from the upper left corner, unless [`with_cells`](Self::with_cells) or
/// [`with_world`](Self::with_world) changes that. Shapes are clipped to the picture. A shape with a NaN, or with a thickness
/// or radius that is not above 0, is not drawn.
///
/// ```
/// use rollmesh_core::env::{
///     Frame,
///     render::{Canvas, palette::{INK, PAPER, SKY_BLUE}},
/// };
///
/// let mut frame = Frame::new();
/// // 64 x 48 pixels, of which 10 are a metre; the origin is in the middle of the lower edge, and up is up.
/// let mut canvas = Canvas::new(&mut frame, [64, 48], PAPER).with_world([32.0, 48.0], 10.0);
/// canvas.circle([0.0, 2.0], 1.0, SKY_BLUE);
/// canvas.line([-1.0, 4.0], [f64::MAX, 4.0], 0.2, INK);
/// assert_eq!(frame.pixel(32, 28), Some(SKY_BLUE));
/// assert_eq!(frame.pixel(63, 8), Some(INK));
/// assert_eq!(frame.pixel(32, 40), Some(PAPER));
/// ```
#[derive(Debug)]
pub struct Canvas<'a> {
    frame: &'a mut Frame,
    /// Position of the origin in pixels.
    origin: CanvasPoint,
    /// Pixels of a unit to the right, and of one along the second axis: the same, or its negative.
    scale: CanvasPoint,
    scan: Scan,
    /// Reused memory for the corners of a shape, in pixels.
    corners: Vec<CanvasPoint>,
}

impl<'a> Canvas<'a> {
    /// Resizes the picture, fills it with one colour, and draws on it in pixels.
    #[must_use]
    pub fn new(frame: &'a mut Frame, [width, height]: [u32; 2], background: Colour) -> Self {
        frame.fill(width, height, background);
        Self { frame, origin: [0.0; 2], scale: [1.0; 2], scan: Scan::default(), corners: Vec::new() }
    }

    /// Changes the unit to cells of `side` pixels: columns to the right, rows down.
    #[must_use]
    pub fn with_cells(self, side: f64) -> Self {
        Self { origin: [0.0; 2], scale: [side; 2], ..self }
    }

    /// Changes the unit to `scale` pixels, to the right and up, from an origin at a pixel.
    #[must_use]
    pub fn with_world(self, origin: CanvasPoint, scale: f64) -> Self {
        Self { origin, scale: [scale, -scale], ..self }
    }

    /// Draws a rectangle between two opposite corners.
    pub fn rectangle(&mut self, [x, y]: CanvasPoint, [to_x, to_y]: CanvasPoint, colour: Colour) {
        self.polygon(&[[x, y], [to_x, y], [to_x, to_y], [x, to_y]], colour);
    }

    /// Draws a line with round ends.
    pub fn line(&mut self, from: CanvasPoint, to: CanvasPoint, thickness: f64, colour: Colour) {
        let (Some(from), Some(to)) = (self.place(from), self.place(to)) else { return };
        let Some(half) = self.length(thickness / 2.0) else { return };
        let [along_x, along_y] = [to[0] - from[0], to[1] - from[1]];
        let length = math::sqrt_f64(along_x * along_x + along_y * along_y);
        let [x, y] = if length > 0.0 { [along_y / length * half, -along_x / length * half] } else { [0.0; 2] };
        let sides =
            [(from, 1.0), (to, 1.0), (to, -1.0), (from, -1.0)].map(|(at, side)| [at[0] + side * x, at[1] + side * y]);
        let heights = [from[1].min(to[1]) - half, from[1].max(to[1]) + half];
        self.scan.fill(self.frame, heights, colour, |height, crossings| {
            // The two ends and the part between them form one convex shape, with at most two crossings.
            cross_outline(&sides, height, crossings);
            cross_circle(from, half, height, crossings);
            cross_circle(to, half, height, crossings);
            let all = || crossings.iter().copied();
            let (left, right) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
            crossings.clear();
            if left < right {
                crossings.extend([left, right]);
            }
        });
    }

    /// Draws lines from each point to the next.
    pub fn path(&mut self, points: &[CanvasPoint], thickness: f64, colour: Colour) {
        for ends in points.windows(2) {
            self.line(ends[0], ends[1], thickness, colour);
        }
    }

    /// Draws a filled circle.
    pub fn circle(&mut self, centre: CanvasPoint, radius: f64, colour: Colour) {
        let (Some(centre), Some(radius)) = (self.place(centre), self.length(radius)) else { return };
        let heights = [centre[1] - radius, centre[1] + radius];
        self.scan.fill(self.frame, heights, colour, |height, xs| cross_circle(centre, radius, height, xs));
    }

    /// Fills a closed outline. Points that the outline surrounds twice are outside (even-odd rule).
    pub fn polygon(&mut self, corners: &[CanvasPoint], colour: Colour) {
        let mut places = core::mem::take(&mut self.corners);
        places.clear();
        places.extend(corners.iter().filter_map(|corner| self.place(*corner)));
        if places.len() == corners.len() {
            let heights = places.iter().map(|corner| corner[1]);
            let ends = [heights.clone().fold(FAR, f64::min), heights.fold(-FAR, f64::max)];
            self.scan.fill(self.frame, ends, colour, |height, xs| cross_outline(&places, height, xs));
        }
        self.corners = places;
    }

    /// Converts a point to pixels; `None` for NaN.
    fn place(&self, point: CanvasPoint) -> Option<CanvasPoint> {
        let place: CanvasPoint = core::array::from_fn(|i| (self.origin[i] + point[i] * self.scale[i]).clamp(-FAR, FAR));
        (!place.iter().any(|x| x.is_nan())).then_some(place)
    }

    /// Converts a length to pixels; `None` unless it is above 0.
    fn length(&self, length: f64) -> Option<f64> {
        let length = length * self.scale[0].abs();
        (length > 0.0).then(|| length.min(FAR))
    }
}

/// Appends where a circle crosses a height.
fn cross_circle([x, y]: CanvasPoint, radius: f64, height: f64, crossings: &mut Vec<f64>) {
    let (away, squared) = (height - y, radius * radius);
    if away * away < squared {
        let half = math::sqrt_f64(squared - away * away);
        crossings.extend([x - half, x + half]);
    }
}

/// Appends where the edges of an outline cross a height: an even number of times.
fn cross_outline(corners: &[CanvasPoint], height: f64, crossings: &mut Vec<f64>) {
    let Some(mut from) = corners.last() else { return };
    for to in corners {
        // Each corner counts for one of the two edges that meet there.
        if (from[1] <= height) != (to[1] <= height) {
            crossings.push(from[0] + (height - from[1]) * (to[0] - from[0]) / (to[1] - from[1]));
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GROUND: Colour = [200; 3];
    const BLACK: Colour = [0; 3];

    /// Returns how dark each pixel is: 16 for a covered one.
    fn drawn(size: [u32; 2], draw: impl FnOnce(&mut Canvas<'_>)) -> Vec<Vec<u32>> {
        let mut frame = Frame::new();
        draw(&mut Canvas::new(&mut frame, size, GROUND));
        let dark = |x, y| ((200 - u32::from(frame.pixel(x, y).unwrap()[0])) * 16 + 100) / 200;
        (0..size[1]).map(|y| (0..size[0]).map(|x| dark(x, y)).collect()).collect()
    }

    #[test]
    fn rectangles_cover_whole_pixels_and_parts() {
        let found = drawn([4, 3], |canvas| canvas.rectangle([3.0, 2.0], [1.0, 0.5], BLACK));
        assert_eq!(found, [[0, 8, 8, 0], [0, 16, 16, 0], [0, 0, 0, 0]]);
    }

    #[test]
    fn cells_and_worlds_lie_where_they_should() {
        let mut frame = Frame::new();
        let mut canvas = Canvas::new(&mut frame, [6, 4], GROUND).with_cells(2.0);
        canvas.rectangle([1.0, 0.0], [2.0, 1.0], BLACK);
        let mut canvas = canvas.with_world([4.0, 4.0], 2.0);
        canvas.rectangle([-2.0, 0.0], [-1.0, 1.0], [1; 3]);
        let at = |x, y| frame.pixel(x, y).unwrap()[0];
        assert_eq!([at(1, 0), at(2, 0), at(3, 1), at(4, 0), at(2, 2)], [200, 0, 0, 200, 200]);
        assert_eq!([at(0, 2), at(1, 3), at(0, 1), at(2, 3)], [1, 1, 200, 200]);
    }

    #[test]
    fn circles_and_round_ends_are_as_large_as_they_should() {
        let sum = |picture: Vec<Vec<u32>>| f64::from(picture.into_iter().flatten().sum::<u32>()) / 16.0;
        let circle = sum(drawn([40, 40], |canvas| canvas.circle([20.3, 19.8], 15.0, BLACK)));
        assert!((circle - core::f64::consts::PI * 225.0).abs() < 3.0, "{circle}");
        let line = sum(drawn([80, 80], |canvas| canvas.line([20.0, 20.0], [60.0, 50.0], 8.0, BLACK)));
        assert!((line - (50.0 * 8.0 + core::f64::consts::PI * 16.0)).abs() < 6.0, "{line}");
        let dot = sum(drawn([40, 40], |canvas| canvas.line([20.0, 20.0], [20.0, 20.0], 8.0, BLACK)));
        assert!((dot - core::f64::consts::PI * 16.0).abs() < 2.0, "{dot}");
    }

    #[test]
    fn outlines_may_be_bent() {
        let arrow = [[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [3.0, 4.0], [3.0, 1.0], [0.0, 1.0]];
        let found = drawn([4, 4], |canvas| canvas.polygon(&arrow, BLACK));
        assert_eq!(found, [[16, 16, 16, 16], [0, 0, 0, 16], [0, 0, 0, 16], [0, 0, 0, 16]]);
    }

    #[test]
    fn degenerate_shapes_draw_nothing() {
        let found = drawn([9, 9], |canvas| {
            canvas.circle([f64::NAN, 4.0], 3.0, BLACK);
            canvas.circle([4.0, 4.0], f64::NAN, BLACK);
            canvas.circle([4.0, 4.0], -3.0, BLACK);
            canvas.line([0.0, 0.0], [9.0, f64::NAN], 3.0, BLACK);
            canvas.line([0.0, 0.0], [9.0, 9.0], 0.0, BLACK);
            canvas.polygon(&[[0.0, 0.0], [9.0, f64::NAN], [9.0, 9.0], [0.0, 9.0]], BLACK);
            canvas.polygon(&[], BLACK);
            canvas.polygon(&[[0.0, 0.0], [9.0, 9.0]], BLACK);
            canvas.path(&[[1.0, 1.0]], 1.0, BLACK);
        });
        assert_eq!(found, vec![vec![0; 9]; 9]);
    }

    #[test]
    fn shape_larger_than_the_canvas_covers_it() {
        let all = vec![vec![16; 9]; 9];
        let far = [f64::INFINITY, f64::MAX, 1e12];
        for far in far {
            assert_eq!(drawn([9, 9], |canvas| canvas.rectangle([-far, -far], [far, far], BLACK)), all);
            assert_eq!(drawn([9, 9], |canvas| canvas.circle([4.0, 4.0], far, BLACK)), all);
            assert_eq!(drawn([9, 9], |canvas| canvas.line([-far, 4.0], [far, 4.0], 1e9, BLACK)), all);
        }
    }

    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![-20.0..60.0f64, any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(f64::MAX)]
    }

    fn point() -> impl Strategy<Value = CanvasPoint> {
        [number(), number()]
    }

    proptest! {
        /// No input panics, and every pixel is a mixture of the colours.
        #[test]
        fn no_number_does_harm(
            size in [0..40u32, 0..40u32],
            (from, to, length) in (point(), point(), number()),
            corners in proptest::collection::vec(point(), 0..7),
            (origin, scale) in (point(), number()),
        ) {
            let mut frame = Frame::new();
            let draw = |mut canvas: Canvas<'_>| {
                canvas.line(from, to, length, BLACK);
                canvas.circle(from, length, [100; 3]);
                canvas.polygon(&corners, [10; 3]);
                canvas.rectangle(from, to, [10; 3]);
            };
            draw(Canvas::new(&mut frame, size, GROUND).with_world(origin, scale));
            draw(Canvas::new(&mut frame, size, GROUND).with_cells(scale));
            draw(Canvas::new(&mut frame, size, GROUND));
            prop_assert_eq!(frame.rgb().len(), size[0] as usize * size[1] as usize * 3);
            prop_assert!(frame.rgb().iter().all(|value| *value <= 200));
        }

        /// A shape moved by whole pixels is the same shape: clipping does not change the visible part.
        #[test]
        fn clipping_keeps_the_visible_part(corners in proptest::collection::vec([0..160u32, 0..160u32], 3..7)) {
            let corners: Vec<CanvasPoint> = corners.iter().map(|at| at.map(|x| f64::from(x) / 4.0)).collect();
            let moved: Vec<CanvasPoint> = corners.iter().map(|[x, y]| [x - 16.0, y - 8.0]).collect();
            let whole = drawn([40, 40], |canvas| canvas.polygon(&corners, BLACK));
            let part = drawn([8, 8], |canvas| canvas.polygon(&moved, BLACK));
            let cut: Vec<Vec<u32>> = whole[8..16].iter().map(|row| row[16..24].to_vec()).collect();
            prop_assert_eq!(part, cut);
        }
    }
}
