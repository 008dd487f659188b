//! Encodes statistics and filters as bytes.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Filter, MeanStdConfig, MeanStdFilter, RunningStat};
use crate::{column::RowShape, encoding, prelude::*};

/// Version of the encodings, their first byte.
const VERSION: u8 = 1;
/// The largest encoding that is accepted: two statistics with the maximum number of elements, and the other fields.
const MAX_BYTES: usize = 2 * 2 * 8 * RunningStat::MAX_ELEMENTS + 256;

/// The reason why bytes do not decode to a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterStateError {
    /// There are too many bytes.
    #[error("filter state has at most {MAX_BYTES} bytes, this one {0}")]
    TooLarge(usize),
    /// Another version encoded them.
    #[error("the filter state has version {0}, this program reads {VERSION}")]
    Version(u8),
    /// They are not a filter's state, are damaged, or hold impossible statistics.
    #[error("the filter state is damaged")]
    Damaged,
}

#[derive(Serialize, Deserialize)]
struct StatBytes<'a> {
    dims: Cow<'a, [u32]>,
    n: u64,
    mean: Cow<'a, [f64]>,
    m2: Cow<'a, [f64]>,
}

#[derive(Serialize, Deserialize)]
enum FilterBytes<'a> {
    NoFilter,
    MeanStdFilter {
        demean: bool,
        destd: bool,
        clip: Option<f64>,
        training: bool,
        running: StatBytes<'a>,
        buffer: StatBytes<'a>,
    },
}

impl<'a> From<&'a RunningStat> for StatBytes<'a> {
    fn from(stat: &'a RunningStat) -> Self {
        let dims = Cow::Owned(stat.shape().dims().to_vec());
        Self { dims, n: stat.n(), mean: stat.mean().into(), m2: stat.m2().into() }
    }
}

impl StatBytes<'_> {
    fn into_stat(self) -> Option<RunningStat> {
        let shape = RowShape::new(&self.dims).ok()?;
        RunningStat::from_parts(shape, self.n, self.mean.into_owned(), self.m2.into_owned())
    }
}

impl FilterBytes<'_> {
    fn into_filter(self) -> Option<Filter> {
        match self {
            Self::NoFilter => Some(Filter::NoFilter),
            Self::MeanStdFilter { demean, destd, clip, training, running, buffer } => {
                let config = MeanStdConfig { demean, destd, clip };
                let mut filter = MeanStdFilter::from_parts(config, running.into_stat()?, buffer.into_stat()?).ok()?;
                if !training {
                    filter.in_eval();
                }
                Some(Filter::MeanStdFilter(filter))
            }
        }
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    encoding::encode_after(vec![VERSION], value)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FilterStateError> {
    if bytes.len() > MAX_BYTES {
        return Err(FilterStateError::TooLarge(bytes.len()));
    }
    let (&version, body) = bytes.split_first().ok_or(FilterStateError::Damaged)?;
    if version != VERSION {
        return Err(FilterStateError::Version(version));
    }
    encoding::decode(body).ok_or(FilterStateError::Damaged)
}

impl RunningStat {
    /// Encodes the statistics: the version, then shape, count, means and sums of squares in postcard's format. Keeps every
    /// bit.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&StatBytes::from(self))
    }

    /// Decodes bytes, which may be untrusted.
    ///
    /// # Errors
    /// [`FilterStateError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FilterStateError> {
        decode::<StatBytes<'_>>(bytes)?.into_stat().ok_or(FilterStateError::Damaged)
    }
}

impl Filter {
    /// Encodes the filter: the version, then the kind and its fields in postcard's format. Keeps every bit.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&match self {
            Self::NoFilter => FilterBytes::NoFilter,
            Self::MeanStdFilter(filter) => {
                let MeanStdConfig { demean, destd, clip } = filter.config();
                let (training, running, buffer) =
                    (filter.is_training(), filter.running().into(), filter.buffer().into());
                FilterBytes::MeanStdFilter { demean, destd, clip, training, running, buffer }
            }
        })
    }

    /// Decodes bytes, which may be untrusted.
    ///
    /// # Errors
    /// [`FilterStateError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FilterStateError> {
        decode::<FilterBytes<'_>>(bytes)?.into_filter().ok_or(FilterStateError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_fixed() {
        let mut stat = RunningStat::new(RowShape::vector(1)).unwrap();
        stat.push(&[1.5]).unwrap();
        let bytes = stat.encode();
        let wanted = [&[1, 1, 1, 1, 1][..], &1.5_f64.to_le_bytes(), &[1], &[0; 8]].concat();
        assert_eq!(bytes, wanted);
        assert_eq!(RunningStat::decode(&bytes), Ok(stat));
        assert_eq!(Filter::NoFilter.encode(), [1, 0]);
        assert_eq!(Filter::decode(&[1, 0]), Ok(Filter::NoFilter));
    }

    #[test]
    fn malformed_filter_state_is_refused() {
        assert_eq!(Filter::decode(&[]), Err(FilterStateError::Damaged));
        assert_eq!(Filter::decode(&[2, 0]), Err(FilterStateError::Version(2)));
        assert_eq!(Filter::decode(&[1, 0, 0]), Err(FilterStateError::Damaged));
        assert_eq!(Filter::decode(&vec![1; MAX_BYTES + 1]), Err(FilterStateError::TooLarge(MAX_BYTES + 1)));
        let stat = |dims: &[u32], n: u64, mean: &[f64], m2: &[f64]| {
            RunningStat::decode(&encode(&StatBytes { dims: dims.into(), n, mean: mean.into(), m2: m2.into() }))
        };
        assert!(stat(&[2], 3, &[1.0, 2.0], &[0.5, 0.0]).is_ok());
        // Statistics that no rows can produce.
        assert!(stat(&[2], 3, &[1.0], &[0.5]).is_err());
        assert!(stat(&[0], 3, &[], &[]).is_err());
        assert!(stat(&[u32::MAX, u32::MAX], 3, &[1.0], &[0.5]).is_err());
        for (n, mean, m2) in [(0, 1.0, 0.0), (1, 1.0, 1.0), (2, f64::NAN, 1.0), (2, 1.0, -1.0), (2, 1e101, 0.0)] {
            assert!(stat(&[1], n, &[mean], &[m2]).is_err(), "{n} {mean} {m2}");
        }
        assert!(stat(&[1], 2, &[0.0], &[f64::INFINITY]).is_err() && stat(&[1], u64::MAX, &[0.0], &[1.0]).is_err());
    }
}
