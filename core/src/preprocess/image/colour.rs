//! Converts pixels one by one.

use super::ImageError;

/// Weights of red, green and blue in units of 2^-15: ITU-R BT.601's 0.299, 0.587 and 0.114, as OpenCV rounds them.
const WEIGHTS: [u32; 3] = [9798, 19235, 3735];

/// Converts pixels of red, green and blue to their luma by ITU-R BT.601, rounded to the nearest, half up.
///
/// # Errors
/// [`ImageError::NotRgb`] unless `rgb` holds three bytes per pixel, [`ImageError::WrongOutput`] unless `out` holds one.
#[doc(alias = "rgb2gray")]
pub fn grey(rgb: &[u8], out: &mut [u8]) -> Result<(), ImageError> {
    let (pixels, []) = rgb.as_chunks::<3>() else { return Err(ImageError::NotRgb(rgb.len())) };
    check_output(pixels.len(), out.len())?;
    out.iter_mut().zip(pixels).for_each(|(out, pixel)| *out = luma(*pixel));
    Ok(())
}

#[inline]
pub(in crate::preprocess) const fn luma([r, g, b]: [u8; 3]) -> u8 {
    let [red, green, blue] = WEIGHTS;
    // At most 255, since the weights sum to 2^15.
    ((r as u32 * red + g as u32 * green + b as u32 * blue + (1 << 14)) >> 15) as u8
}

/// Converts bytes to numbers from 0 to 1: x / 255.
///
/// # Errors
/// [`ImageError::WrongOutput`] for a buffer of another length.
pub fn to_unit(bytes: &[u8], out: &mut [f32]) -> Result<(), ImageError> {
    check_output(bytes.len(), out.len())?;
    out.iter_mut().zip(bytes).for_each(|(out, x)| *out = f32::from(*x) / 255.0);
    Ok(())
}

/// Converts bytes to numbers from -1 to almost 1: (x - 128) / 128, like RLlib's option `zero_mean`.
///
/// # Errors
/// [`ImageError::WrongOutput`] for a buffer of another length.
#[doc(alias = "zero_mean")]
pub fn to_zero_mean(bytes: &[u8], out: &mut [f32]) -> Result<(), ImageError> {
    check_output(bytes.len(), out.len())?;
    out.iter_mut().zip(bytes).for_each(|(out, x)| *out = (f32::from(*x) - 128.0) / 128.0);
    Ok(())
}

pub(super) const fn check_output(wanted: usize, found: usize) -> Result<(), ImageError> {
    if wanted == found { Ok(()) } else { Err(ImageError::WrongOutput { wanted, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn grey_is_the_weighted_sum_to_the_nearest() {
        let mut out = [0; 5];
        grey(&[255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 10, 20, 30], &mut out).unwrap();
        // 76.245, 149.685, 29.07, 255, 18.15
        assert_eq!(out, [76, 150, 29, 255, 18]);
        for x in 0..=255 {
            let mut out = [0];
            grey(&[x; 3], &mut out).unwrap();
            assert_eq!(out, [x], "grey stays grey");
        }
    }

    #[test]
    fn bytes_become_floats() {
        let mut out = [0.0; 3];
        to_unit(&[0, 51, 255], &mut out).unwrap();
        assert_eq!(out, [0.0, 0.2, 1.0]);
        to_zero_mean(&[0, 128, 255], &mut out).unwrap();
        assert_eq!(out, [-1.0, 0.0, 0.992_187_5]);
    }

    #[test]
    fn buffers_must_fit() {
        assert_eq!(grey(&[0; 4], &mut [0]), Err(ImageError::NotRgb(4)));
        let error = grey(&[0; 6], &mut [0]).unwrap_err();
        assert_eq!(error.to_string(), "the result has 2 elements, the buffer 1");
        assert!(to_unit(&[0], &mut []).is_err() && to_zero_mean(&[], &mut [0.0]).is_err());
    }
}
