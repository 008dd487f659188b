//! The only source of transcendental functions: the same bits on every target.
//!
//! Everything is built from IEEE additions, multiplications, divisions and bit operations, in one fixed order,
//! without fused multiply-add, branch-free so that loops over arrays vectorise. Platform libraries differ in the
//! last bit between systems and versions; nothing in this crate may call them.
//!
//! Functions without a suffix are for 32-bit floats, those with `_f64` for 64 bits; sine and cosine are too.
//!
//! ```
//! use rollmesh_kernels::math;
//!
//! // The same bits wherever this runs.
//! assert_eq!(math::exp(1.0).to_bits(), 0x402D_F854);
//! assert_eq!(math::softplus(-100.0), math::exp(-100.0));
//! ```

// Coefficients stand as they were published.
#![allow(clippy::excessive_precision)]

/// Returns the square root, correctly rounded as IEEE demands.
#[must_use]
pub fn sqrt(x: f32) -> f32 {
    libm::sqrtf(x)
}

/// Returns the square root, correctly rounded as IEEE demands.
#[must_use]
pub fn sqrt_f64(x: f64) -> f64 {
    libm::sqrt(x)
}

/// Returns the largest integer that is not above `x`; exact.
#[must_use]
pub fn floor_f64(x: f64) -> f64 {
    libm::floor(x)
}

/// Adding and subtracting this rounds a float of small magnitude to the nearest integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
const ROUND64: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// Computes e^x, within 1e-6 relative where the result is a normal number. Overflows to infinity, underflows to zero.
///
/// Uses reduction by multiples of ln 2 and a polynomial with the coefficients of Cephes' `expf` (Moshier, 1989).
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(-104.0, 89.0);
    let shifted = x * core::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_375 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5.000_000_1e-1;
    let y = p * (r * r) + r + 1.0;
    // 2^n in two factors, since neither 2^128 nor 2^-150 is a normal number.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Computes e^x - 1 - x, the distance of the exponential function from its tangent at 0: within 1e-5 relative where
/// e^|x| is no more than a float can hold, and never negative.
#[must_use]
pub fn exp_beyond_tangent(x: f64) -> f64 {
    if !(-0.5..=0.5).contains(&x) {
        return f64::from(exp(x as f32)) - 1.0 - x;
    }
    // x^2/2! + x^3/3! + ... + x^12/12!, from the back.
    let mut sum = 0.0;
    for k in (2..=12).rev() {
        sum = (sum + 1.0) * x / f64::from(k);
    }
    sum * x
}

/// Computes the natural logarithm, within 1e-6 relative; -infinity at 0, NaN below.
///
/// Splits off the exponent and uses the polynomial of Cephes' `logf` (Moshier, 1989).
#[inline(always)]
#[must_use]
pub fn log(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    // Mantissa in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3F35_04F3);
    let exponent = (shifted as i32) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23));
    let e = exponent as f32 - if subnormal { 23.0 } else { 0.0 };
    let f = mantissa - 1.0;
    let z = f * f;
    let mut p = 7.037_683_6e-2;
    p = p * f - 1.151_461e-1;
    p = p * f + 1.167_699_8e-1;
    p = p * f - 1.242_014_1e-1;
    p = p * f + 1.424_932_3e-1;
    p = p * f - 1.666_805_7e-1;
    p = p * f + 2.000_071_4e-1;
    p = p * f - 2.499_999_4e-1;
    p = p * f + 3.333_333_1e-1;
    let y = f * z * p - e * 2.121_944_4e-4 - 0.5 * z;
    let result = f + y + e * 0.693_359_375;
    let result = if x == f32::INFINITY { x } else { result };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    if x >= 0.0 { result } else { f32::NAN }
}

/// Computes log(1 + x), within 1e-6 relative, also for small x; -infinity at -1, NaN below.
///
/// The logarithm is corrected for the rounding error of 1 + x (Kahan).
#[inline(always)]
#[must_use]
pub fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    let d = u - 1.0;
    let corrected = log(u) * (x / d);
    if d == 0.0 {
        x
    } else if u > 0.0 && u < f32::INFINITY {
        corrected
    } else {
        log(u)
    }
}

/// Computes log(1 + e^x), within 1e-6 relative where the result is a normal number: x where x is large.
#[inline(always)]
#[must_use]
pub fn softplus(x: f32) -> f32 {
    let (positive, negative) = if x > 0.0 { (x, -x) } else { (0.0, x) };
    positive + log1p(exp(negative))
}

/// Computes 1 / (1 + e^-x), the logistic function, within 1e-6 relative where e^-x is no more than a float can hold.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes the error function, within 1e-6 absolute, odd, and never beyond ±1.
///
/// Uses a rational function of degree 13 over 8 with the coefficients that Eigen uses, and ±1 from where that is
/// the nearest float.
#[inline(always)]
#[must_use]
pub fn erf(x: f32) -> f32 {
    const END: f32 = 3.9;
    let is_end = x.abs() >= END;
    let end = if x < 0.0 { -1.0 } else { 1.0 };
    let x = x.clamp(-END, END);
    let z = x * x;
    let mut p = -2.726_142_3e-10;
    p = p * z + 2.770_681_4e-8;
    p = p * z - 2.101_024e-6;
    p = p * z - 5.692_506_4e-5;
    p = p * z - 7.349_906_3e-4;
    p = p * z - 2.954_599_8e-3;
    p = p * z - 1.609_603_3e-2;
    let mut q = -1.456_607_2e-5;
    q = q * z - 2.133_740_6e-4;
    q = q * z - 1.682_827e-3;
    q = q * z - 7.373_329_2e-3;
    q = q * z - 1.426_473_9e-2;
    let y = (x * p / q).clamp(-1.0, 1.0);
    if is_end { end } else { y }
}

/// Returns the probability that a standard normal number is below `x`, within 1e-6 absolute.
#[inline(always)]
#[must_use]
pub fn normal_cdf(x: f32) -> f32 {
    0.5 + 0.5 * erf(x * core::f32::consts::FRAC_1_SQRT_2)
}

/// Returns the density of standard normal numbers at `x`.
#[inline(always)]
#[must_use]
pub fn normal_density(x: f32) -> f32 {
    const AT_0: f32 = 0.398_942_28; // 1 / sqrt(2 pi)
    AT_0 * exp(-0.5 * x * x)
}

/// Computes the natural logarithm, within 1 unit of the last place; -infinity at 0, NaN below.
///
/// Splits off the exponent and uses the polynomial of fdlibm's `log` (Sun, 1993).
#[inline(always)]
#[must_use]
pub fn log_f64(x: f64) -> f64 {
    let subnormal = x < f64::MIN_POSITIVE;
    let scaled = if subnormal { x * 18_014_398_509_481_984.0 } else { x };
    let bits = scaled.to_bits();
    // Mantissa in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3FE6_A09E_667F_3BCD);
    let exponent = (shifted as i64) >> 52;
    let mantissa = f64::from_bits(bits.wrapping_sub((exponent as u64) << 52));
    let e = exponent as f64 - if subnormal { 54.0 } else { 0.0 };
    let f = mantissa - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut p = 1.479_819_860_511_658_6e-1;
    p = p * z + 1.531_383_769_920_937_3e-1;
    p = p * z + 1.818_357_216_161_805e-1;
    p = p * z + 2.222_219_843_214_978_4e-1;
    p = p * z + 2.857_142_874_366_239e-1;
    p = p * z + 3.999_999_999_940_941_9e-1;
    p = p * z + 6.666_666_666_666_735e-1;
    let half = 0.5 * f * f;
    let result = e * 6.931_471_803_691_238e-1 - ((half - (s * (half + z * p) + e * 1.908_214_929_270_587_7e-10)) - f);
    let result = if x == f64::INFINITY { x } else { result };
    let result = if x == 0.0 { f64::NEG_INFINITY } else { result };
    if x >= 0.0 { result } else { f64::NAN }
}

/// Computes the hyperbolic tangent, within 1e-6 absolute, odd, and never beyond ±1.
///
/// Uses a rational function of degree 13 over 6 with the coefficients that Eigen uses, clamped where it reaches 1.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let x = x.clamp(-7.905_311, 7.905_311);
    let z = x * x;
    let mut p = -2.760_768_5e-16;
    p = p * z + 2.000_188e-13;
    p = p * z - 8.604_672e-11;
    p = p * z + 5.122_297e-8;
    p = p * z + 1.485_722_4e-5;
    p = p * z + 6.372_619_3e-4;
    p = p * z + 4.893_524_6e-3;
    let mut q = 1.198_258_4e-6;
    q = q * z + 1.185_347_1e-4;
    q = q * z + 2.268_434_6e-3;
    q = q * z + 4.893_525e-3;
    (x * p / q).clamp(-1.0, 1.0)
}

/// Computes sine and cosine, within 2 units of the last place for |x| up to 2^20. Larger arguments give some number,
/// and arguments that are not finite give NaN.
///
/// Uses reduction by multiples of pi/2 in two parts and the polynomials of fdlibm's kernels (Sun, 1993).
#[inline(always)]
#[must_use]
pub fn sin_cos(x: f64) -> (f64, f64) {
    let shifted = x * core::f64::consts::FRAC_2_PI + ROUND64;
    let n = shifted - ROUND64;
    let r = x - n * 1.570_796_326_734_125_6 - n * 6.077_100_506_506_192e-11;
    let z = r * r;
    let mut p = 1.589_690_995_211_55e-10;
    p = p * z - 2.505_076_025_340_686_3e-8;
    p = p * z + 2.755_731_370_707_006_8e-6;
    p = p * z - 1.984_126_982_985_795e-4;
    p = p * z + 8.333_333_333_322_49e-3;
    p = p * z - 1.666_666_666_666_663_2e-1;
    let sin = r + r * z * p;
    let mut q = -1.135_964_755_778_819_5e-11;
    q = q * z + 2.087_572_321_298_175e-9;
    q = q * z - 2.755_731_435_139_066_3e-7;
    q = q * z + 2.480_158_728_947_673e-5;
    q = q * z - 1.388_888_888_887_411e-3;
    q = q * z + 4.166_666_666_666_66e-2;
    let half = 0.5 * z;
    let w = 1.0 - half;
    let cos = w + (((1.0 - w) - half) + z * z * q);
    let quadrant = shifted.to_bits();
    let (s, c) = if quadrant & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let sin_sign = (quadrant & 2) << 62;
    let cos_sign = (quadrant.wrapping_add(1) & 2) << 62;
    (f64::from_bits(s.to_bits() ^ sin_sign), f64::from_bits(c.to_bits() ^ cos_sign))
}

/// Computes `x` modulo 2 pi, as Python's `%` with the double nearest to 2 pi and rounded as it rounds: in [0, 2 pi].
/// For |x| up to 2^26; larger arguments give some number near that range.
///
/// Uses the exact remainder by the nearest multiple, 2 pi in two parts, and a turn more where it is negative.
#[inline(always)]
#[must_use]
pub fn modulo_tau(x: f64) -> f64 {
    use core::f64::consts::TAU;
    // The upper 27 bits: products of both parts with whole numbers up to 2^24 are exact.
    const HIGH: f64 = f64::from_bits(TAU.to_bits() & !0x3FF_FFFF);
    const LOW: f64 = TAU - HIGH;
    let n = (x / TAU + ROUND64) - ROUND64;
    let r = (x - n * HIGH) - n * LOW;
    if r < 0.0 { r + TAU } else { r }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Iterates over every `step`-th of all 2^32 floats.
    fn floats(step: usize) -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(step).map(f32::from_bits)
    }

    // A prime, so that all exponents and signs are met with changing mantissas.
    const STEP: usize = 4099;

    fn check_exp(step: usize) {
        for x in floats(step) {
            let (got, want) = (exp(x), libm::exp(f64::from(x)));
            if x.is_nan() {
                assert!(got.is_nan());
            } else if want > f64::from(f32::MAX) * 1.000_001 {
                assert_eq!(got, f32::INFINITY, "exp({x})");
            } else if want >= f64::from(f32::MIN_POSITIVE) {
                assert!(
                    ((f64::from(got) - want) / want).abs() <= 1e-6 || got.is_infinite(),
                    "exp({x}) = {got}, {want}"
                );
            } else {
                assert!((f64::from(got) - want).abs() <= 3e-45, "exp({x}) = {got}, {want}");
            }
        }
    }

    fn check_log(step: usize) {
        for x in floats(step) {
            let (got, want) = (log(x), libm::log(f64::from(x)));
            if x.is_nan() || x < 0.0 {
                assert!(got.is_nan(), "log({x}) = {got}");
            } else if x == 0.0 || x.is_infinite() {
                assert_eq!(f64::from(got), want);
            } else {
                assert!((f64::from(got) - want).abs() <= 1e-6 * want.abs(), "log({x}) = {got}, {want}");
            }
        }
    }

    fn check_tanh(step: usize) {
        for x in floats(step) {
            let (got, want) = (tanh(x), libm::tanh(f64::from(x)));
            if x.is_nan() {
                assert!(got.is_nan());
            } else {
                assert!((f64::from(got) - want).abs() <= 1e-6, "tanh({x}) = {got}, {want}");
                assert!(got.abs() <= 1.0 && got == -tanh(-x));
            }
        }
    }

    #[test]
    fn exp_is_accurate_over_all_floats() {
        check_exp(STEP);
    }

    #[test]
    fn log_is_accurate_over_all_floats() {
        check_log(STEP);
    }

    #[test]
    fn log1p_and_its_kin_are_accurate_over_all_floats() {
        let near = |got: f32, want: f64| f64::from(got) == want || (f64::from(got) - want).abs() <= 1e-6 * want.abs();
        for x in floats(STEP) {
            let wide = f64::from(x);
            let (got, want) = (log1p(x), libm::log1p(wide));
            assert!(if x >= -1.0 { near(got, want) } else { got.is_nan() }, "log1p({x}) = {got}, {want}");
            // Below 2^-126 the results are no normal numbers.
            let (got, want) = (sigmoid(x), 1.0 / (1.0 + libm::exp(-wide)));
            assert!(
                if x.is_nan() { got.is_nan() } else { near(got, want) || x < -87.0 },
                "sigmoid({x}) = {got}, {want}"
            );
            let (got, want) = (softplus(x), wide.max(0.0) + libm::log1p(libm::exp(-wide.abs())));
            let tiny = want < f64::from(f32::MIN_POSITIVE) && (f64::from(got) - want).abs() <= 3e-45;
            assert!(if x.is_nan() { got.is_nan() } else { near(got, want) || tiny }, "softplus({x}) = {got}, {want}");
        }
    }

    #[test]
    fn log_f64_is_accurate() {
        // A step that changes exponent and mantissa.
        for bits in (0..=u64::MAX).step_by(0x0001_7F2F_4A7C_15A1) {
            let x = f64::from_bits(bits);
            let (got, want) = (log_f64(x), libm::log(x));
            if x.is_nan() || x < 0.0 {
                assert!(got.is_nan(), "log({x}) = {got}");
            } else {
                assert!(got == want || (got - want).abs() <= 2.3e-16 * want.abs(), "log({x}) = {got}, {want}");
            }
        }
        for i in 1..20_000 {
            let x = f64::from(i) * 1.2e-4;
            assert!((log_f64(x) - libm::log(x)).abs() <= 2.3e-16 * libm::log(x).abs(), "log({x})");
        }
        assert_eq!([0.0, 1.0, f64::INFINITY].map(log_f64), [f64::NEG_INFINITY, 0.0, f64::INFINITY]);
    }

    #[test]
    fn tanh_is_accurate_over_all_floats() {
        check_tanh(STEP);
    }

    #[test]
    fn erf_is_accurate_over_all_floats() {
        for x in floats(STEP) {
            let (got, want) = (erf(x), libm::erf(f64::from(x)));
            if x.is_nan() {
                assert!(got.is_nan());
            } else {
                assert!((f64::from(got) - want).abs() <= 1e-6, "erf({x}) = {got}, {want}");
                assert!(got.abs() <= 1.0 && got == -erf(-x));
            }
        }
        // Numbers far below 0 are multiplied by what is left of this.
        assert_eq!((erf(-4.0), normal_cdf(-9.0)), (-1.0, 0.0));
    }

    #[test]
    fn sin_cos_is_accurate() {
        let mut x = 1e-9f64;
        while x < (1 << 20) as f64 {
            for x in [x, -x] {
                let (sin, cos) = sin_cos(x);
                assert!((sin - libm::sin(x)).abs() <= 4.5e-16, "sin({x})");
                assert!((cos - libm::cos(x)).abs() <= 4.5e-16, "cos({x})");
            }
            x *= 1.001_3;
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert!(sin_cos(f64::INFINITY).0.is_nan() && sin_cos(f64::NAN).1.is_nan());
    }

    #[test]
    fn modulo_tau_is_that_of_python() {
        use core::f64::consts::{PI, TAU};
        let python = |x: f64| {
            let r = libm::fmod(x, TAU);
            if r < 0.0 { r + TAU } else { r }
        };
        let check = |x: f64| assert_eq!(modulo_tau(x), python(x), "{x:e}");
        let mut x = 1e-9f64;
        while x < f64::from(1 << 26) {
            check(x);
            check(-x);
            x *= 1.000_7;
        }
        // Around multiples of half a turn, where the nearest multiple changes.
        for turns in -2000..=2000 {
            let x = f64::from(turns) * PI;
            for x in [x.next_down().next_down(), x.next_down(), x, x.next_up(), x.next_up().next_up()] {
                check(x);
            }
        }
        assert_eq!(modulo_tau(0.0), 0.0);
    }
}
