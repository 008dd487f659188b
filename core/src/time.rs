//! Defines time, which the caller provides.
//!
//! ```
//! use rollmesh_core::time::Micros;
//!
//! let (started, now) = (Micros::from_secs(5), Micros(5_250_000));
//! assert_eq!(now.since(started), Micros::from_millis(250));
//! assert_eq!(started.since(now), Micros(0));
//! ```

use core::{fmt, ops::Add, time::Duration};

use serde::{Deserialize, Serialize};

/// A point on the caller's clock, or a span between two points, in microseconds.
///
/// The core has no clock: its caller passes the current time. Any origin is valid, as long as the clock does not run
/// backwards. In files, it is serialised as its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// Returns a span of milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Returns a span of seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Returns the span since `earlier`; zero if that is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns the span in seconds.
    #[must_use]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns a span of seconds; zero for a negative number or NaN, and the maximum for a number that is too large.
    #[must_use]
    pub const fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e6) as u64)
    }

    /// Returns the span multiplied by `factor`.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

/// Saturates at the maximum.
impl From<Duration> for Micros {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

/// Saturates at the maximum, which no clock reaches.
impl Add for Micros {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ms", self.0 / 1_000, self.0 % 1_000)
    }
}
