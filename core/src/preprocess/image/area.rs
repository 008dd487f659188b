//! Resizes many images between the same two sizes.

use super::{
    ImageError, Interpolation, Size,
    colour::check_output,
    resize::{PixelSpan, check},
};
use crate::prelude::*;

/// [`resize`](super::resize()) by [area](Interpolation::Area), prepared for images of one size: the same numbers, but
/// faster.
#[derive(Clone, Debug)]
pub struct AreaResizer {
    from: Size,
    to: Size,
    vertical: Vec<PixelSpan>,
    horizontal: Vec<PixelSpan>,
    /// A row of the new height and the old width: weighted sums of old rows, below 2^24.
    row: Vec<u32>,
}

impl AreaResizer {
    /// Prepares for images of one size and one number of channels.
    #[must_use]
    pub fn new(from: Size, to: Size, channels: usize) -> Self {
        let span = Interpolation::Area.span();
        Self {
            from,
            to,
            vertical: (0..to.height).map(|y| span(y, from.height, to.height)).collect(),
            horizontal: (0..to.width).map(|x| span(x, from.width, to.width)).collect(),
            row: vec![0; usize::from(from.width) * channels],
        }
    }

    /// Resizes an image.
    ///
    /// # Errors
    /// The errors of [`resize`](super::resize()), and [`ImageError::WrongSize`] for another number of channels.
    pub fn resize(&mut self, image: &[u8], out: &mut [u8]) -> Result<(), ImageError> {
        let Self { from, to, vertical, horizontal, row } = self;
        let channels = check(image, *from, *to)?;
        if usize::from(from.width) * channels != row.len() {
            let Size { height, width } = *from;
            return Err(ImageError::WrongSize { bytes: image.len(), height, width });
        }
        check_output(to.pixels().saturating_mul(channels), out.len())?;
        let out_rows = out.chunks_exact_mut(usize::from(to.width) * channels);
        for (vertical, out) in vertical.iter().zip(out_rows) {
            let rows = image.get(vertical.first * row.len()..).unwrap_or_default().chunks_exact(row.len());
            row.fill(0);
            for (k, old) in rows.take(vertical.len).enumerate() {
                let weight = vertical.weight(k) as u32;
                row.iter_mut().zip(old).for_each(|(sum, pixel)| *sum += weight * u32::from(*pixel));
            }
            for (horizontal, pixel) in horizontal.iter().zip(out.chunks_exact_mut(channels)) {
                let total = vertical.total * horizontal.total;
                for (channel, value) in pixel.iter_mut().enumerate() {
                    let sums = row.get(horizontal.first * channels + channel..).unwrap_or_default();
                    let sum = horizontal.sum(sums.iter().step_by(channels).map(|sum| u64::from(*sum)));
                    *value = ((sum + total / 2) / total) as u8;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::resize, *};

    proptest! {
        #[test]
        fn prepared_or_not_is_the_same(
            from in (1u16..9, 1u16..9), to in (1u16..12, 1u16..12), channels in 1usize..4, image: [[u8; 32]; 6],
        ) {
            let (from, to) = (Size::new(from.0, from.1), Size::new(to.0, to.1));
            let image = &image.as_flattened()[..from.pixels() * channels];
            let mut wanted = vec![0; to.pixels() * channels];
            resize(image, from, &mut wanted, to, Interpolation::Area).unwrap();
            let (mut resizer, mut out) = (AreaResizer::new(from, to, channels), vec![1; wanted.len()]);
            for _ in 0..2 {
                resizer.resize(image, &mut out).unwrap();
                prop_assert_eq!(&out, &wanted);
            }
            prop_assert!(resizer.resize(image, &mut out[1..]).is_err());
            prop_assert!(resizer.resize(&image[1..], &mut out).is_err());
        }
    }

    #[test]
    fn sums_of_the_largest_images_fit() {
        let (from, to) = (Size::new(u16::MAX, 2), Size::new(1, 1));
        let mut out = [0];
        AreaResizer::new(from, to, 1).resize(&vec![255; from.pixels()], &mut out).unwrap();
        assert_eq!(out, [255]);
    }
}
