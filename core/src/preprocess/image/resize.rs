//! Resizes images.

use super::{ImageError, Size, colour::check_output};

/// The method by which the pixels of the new image are computed from the old one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Mean of the area that the pixel covers, with partly covered pixels weighted by their share. For smaller images.
    #[doc(alias = "INTER_AREA")]
    Area,
    /// Linear between the centres of the four nearest pixels; beyond the edge, the edge pixel's value.
    #[doc(alias = "INTER_LINEAR")]
    Bilinear,
}

impl Interpolation {
    /// Returns the function that computes the source span of a pixel in a new line from its index and the lengths of the old
    /// and new line.
    pub(super) fn span(self) -> fn(u16, u16, u16) -> PixelSpan {
        match self {
            Self::Area => PixelSpan::area,
            Self::Bilinear => PixelSpan::bilinear,
        }
    }
}

/// Resizes an image of any number of channels; each channel independently.
///
/// The result is the exact rational number, rounded to the nearest, half up.
///
/// # Errors
/// [`ImageError::WrongSize`] when `image` does not have the same number of channels for each pixel of `from`,
/// [`ImageError::WrongOutput`] when the length of `out` does not match `to`, [`ImageError::NoPixels`].
pub fn resize(
    image: &[u8],
    from: Size,
    out: &mut [u8],
    to: Size,
    interpolation: Interpolation,
) -> Result<(), ImageError> {
    let channels = check(image, from, to)?;
    check_output(to.pixels().saturating_mul(channels), out.len())?;
    let mut results = out.iter_mut();
    each(image, from, to, interpolation, |value| {
        if let Some(result) = results.next() {
            *result = value;
        }
    })
}

/// Performs [`resize`] without a buffer: passes each value to a function in order.
pub(in crate::preprocess) fn each(
    image: &[u8],
    from: Size,
    to: Size,
    interpolation: Interpolation,
    mut emit: impl FnMut(u8),
) -> Result<(), ImageError> {
    let channels = check(image, from, to)?;
    let span = interpolation.span();
    let row_len = usize::from(from.width) * channels;
    for y in 0..to.height {
        let vertical = span(y, from.height, to.height);
        let rows = image.get(vertical.first * row_len..).unwrap_or_default();
        for x in 0..to.width {
            let horizontal = span(x, from.width, to.width);
            // This product is below 2^34, and the sums are below 2^42.
            let total = vertical.total * horizontal.total;
            for channel in 0..channels {
                let start = horizontal.first * channels + channel;
                let sum = vertical.sum(rows.chunks_exact(row_len).map(|row| {
                    let pixels = row.get(start..).unwrap_or_default().iter().step_by(channels);
                    horizontal.sum(pixels.map(|pixel| u64::from(*pixel)))
                }));
                emit(((sum + total / 2) / total) as u8);
            }
        }
    }
    Ok(())
}

/// Checks the image and returns the number of channels.
pub(super) fn check(image: &[u8], from: Size, to: Size) -> Result<usize, ImageError> {
    if to.pixels() == 0 {
        return Err(ImageError::NoPixels);
    }
    let channels = image.len().checked_div(from.pixels()).unwrap_or(0);
    if channels == 0 || channels * from.pixels() != image.len() {
        let Size { height, width } = from;
        return Err(ImageError::WrongSize { bytes: image.len(), height, width });
    }
    Ok(channels)
}

/// The pixels of an old line that contribute to a pixel of the new line, and their weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct PixelSpan {
    pub(super) first: usize,
    pub(super) len: usize,
    /// Weight of the first pixel, also if it is the only one.
    head: u64,
    /// Weight of the pixels between.
    middle: u64,
    /// Weight of the last pixel.
    tail: u64,
    /// Sum of the weights.
    pub(super) total: u64,
}

impl PixelSpan {
    /// Computes the span by area. On a line of `from` x `to` parts, an old pixel covers `to` of them and a new one `from`.
    fn area(index: u16, from: u16, to: u16) -> Self {
        let (index, from, to) = (u64::from(index), u64::from(from), u64::from(to));
        let (start, end) = (index * from, (index + 1) * from);
        let (first, last) = (start / to, (end - 1) / to);
        let head = end.min((first + 1) * to) - start;
        let tail = end - last * to;
        Self { first: first as usize, len: (last - first + 1) as usize, head, middle: to, tail, total: from }
    }

    /// Computes the bilinear span. A new pixel's centre is at (index + 1/2) from / to, an old one's at a whole number and a
    /// half.
    fn bilinear(index: u16, from: u16, to: u16) -> Self {
        let (index, from, to) = (u64::from(index), u64::from(from), u64::from(to));
        let total = 2 * to;
        // Distance from the first old centre in units of 1 / total.
        let position = ((2 * index + 1) * from).saturating_sub(to).min((from - 1) * total);
        let (first, tail) = (position / total, position % total);
        let len = if tail == 0 { 1 } else { 2 };
        Self { first: first as usize, len, head: total - tail, middle: 0, tail, total }
    }

    /// Returns the weight of the `k`-th pixel of the span.
    pub(super) const fn weight(&self, k: usize) -> u64 {
        match k {
            0 => self.head,
            _ if k + 1 == self.len => self.tail,
            _ => self.middle,
        }
    }

    pub(super) fn sum(&self, values: impl Iterator<Item = u64>) -> u64 {
        values.take(self.len).enumerate().map(|(k, value)| value * self.weight(k)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prelude::*;

    fn resized(image: &[u8], from: (u16, u16), to: (u16, u16), how: Interpolation) -> Vec<u8> {
        let channels = image.len() / (usize::from(from.0) * usize::from(from.1));
        let mut out = vec![0; usize::from(to.0) * usize::from(to.1) * channels];
        resize(image, Size::new(from.0, from.1), &mut out, Size::new(to.0, to.1), how).unwrap();
        out
    }

    #[test]
    fn area_is_the_mean_of_what_is_covered() {
        use Interpolation::Area;
        assert_eq!(resized(&[10, 20, 30, 40], (2, 2), (1, 1), Area), [25]);
        // Thirds: (2 * 0 + 90) / 3 and (90 + 2 * 30) / 3.
        assert_eq!(resized(&[0, 90, 30], (1, 3), (1, 2), Area), [30, 50]);
        assert_eq!(resized(&[0, 90, 30], (3, 1), (2, 1), Area), [30, 50]);
        // Two channels stay separate.
        assert_eq!(resized(&[0, 1, 10, 3], (1, 2), (1, 1), Area), [5, 2]);
        assert_eq!(resized(&[7, 9], (1, 2), (1, 4), Area), [7, 7, 9, 9]);
    }

    #[test]
    fn bilinear_is_linear_between_centres() {
        use Interpolation::Bilinear;
        assert_eq!(resized(&[0, 100], (1, 2), (1, 4), Bilinear), [0, 25, 75, 100]);
        assert_eq!(resized(&[0, 100], (2, 1), (1, 1), Bilinear), [50]);
        assert_eq!(resized(&[0, 40, 80, 120], (2, 2), (1, 1), Bilinear), [60]);
    }

    #[test]
    fn sizes_must_fit() {
        let mut out = [0; 4];
        let size = Size::new(2, 2);
        let error = resize(&[0; 5], size, &mut out, size, Interpolation::Area).unwrap_err();
        assert_eq!(error.to_string(), "5 bytes make no image of 2 x 2 pixels");
        for (len, from, to) in [(0, size, size), (0, Size::new(0, 2), size), (4, size, Size::new(0, 2))] {
            assert!(resize(&vec![0; len], from, &mut out, to, Interpolation::Area).is_err());
        }
        assert!(resize(&[0; 4], size, &mut out, Size::new(3, 1), Interpolation::Bilinear).is_err());
    }

    proptest! {
        /// Compares with the definition: the integral over squares, and the product of two hat functions.
        #[test]
        fn agrees_with_the_definition(h in 1u16..9, w in 1u16..9, to_h in 1u16..9, to_w in 1u16..9, image: [u8; 64]) {
            let image = &image[..usize::from(h) * usize::from(w)];
            let overlap = |i: u16, from: u16, to: u16, k: u16| {
                let scale = f64::from(from) / f64::from(to);
                let (start, end) = (f64::from(i) * scale, f64::from(i + 1) * scale);
                (end.min(f64::from(k + 1)) - start.max(f64::from(k))).max(0.0) / scale
            };
            let hat = |i: u16, from: u16, to: u16, k: u16| {
                let centre = (f64::from(i) + 0.5) * f64::from(from) / f64::from(to) - 0.5;
                (1.0 - (centre.clamp(0.0, f64::from(from - 1)) - f64::from(k)).abs()).max(0.0)
            };
            type Weight<'a> = &'a dyn Fn(u16, u16, u16, u16) -> f64;
            for (how, weight) in [(Interpolation::Area, &overlap as Weight<'_>), (Interpolation::Bilinear, &hat)] {
                let out = resized(image, (h, w), (to_h, to_w), how);
                for (at, got) in out.iter().enumerate() {
                    let (y, x) = (at as u16 / to_w, at as u16 % to_w);
                    let want: f64 = image.iter().enumerate().map(|(k, pixel)| {
                        f64::from(*pixel) * weight(y, h, to_h, k as u16 / w) * weight(x, w, to_w, k as u16 % w)
                    }).sum();
                    prop_assert!((f64::from(*got) - want).abs() <= 0.5 + 1e-9, "{got} {want}");
                }
            }
        }
    }
}
