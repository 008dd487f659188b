//! The page's files compressed: once each, and kept in memory.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Mutex, MutexGuard, PoisonError},
};

use flate2::{Compression, write::GzEncoder};
use hyper::{HeaderMap, body::Bytes, header};
use rollmesh_core::hash::Hash128;

/// Larger files are sent as they are, and no more than this is kept of all compressed ones.
const MAX_BYTES: usize = 32 << 20;
/// Smaller files fit into one packet either way.
const MIN_BYTES: usize = 1 << 10;

/// Compressed files by the hash of their contents: a file that changes is another one.
#[derive(Default)]
pub(super) struct CompressedFiles(Mutex<BTreeMap<Hash128, Bytes>>);

impl CompressedFiles {
    /// Returns the file with that hash compressed; `None` if its size makes that pointless. The first call for a file takes about 60 ms per
    /// megabyte.
    pub(super) fn gzip(&self, hash: Hash128, file: &[u8]) -> Option<Bytes> {
        if !(MIN_BYTES..=MAX_BYTES).contains(&file.len()) {
            return None;
        }
        if let Some(known) = self.files().get(&hash) {
            return Some(known.clone());
        }
        // Without the lock: another request for the same file compresses it as well, to the same bytes.
        // As small as it gets, because this is done once for all clients.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(file).ok()?;
        let packed = Bytes::from(encoder.finish().ok()?);
        let mut files = self.files();
        if files.values().map(Bytes::len).sum::<usize>() + packed.len() > MAX_BYTES {
            files.clear();
        }
        files.insert(hash, packed.clone());
        Some(packed)
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Hash128, Bytes>> {
        // No code panics while holding the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the client accepts gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values: Vec<&str> =
        headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).collect();
    let weight = |wanted: &str| {
        let mut codings = values.iter().flat_map(|value| value.split(','));
        codings.find_map(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            parts.next().filter(|name| name.eq_ignore_ascii_case(wanted))?;
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            Some(weight.map_or(1.0, |weight| weight.trim().parse().unwrap_or(0.0)))
        })
    };
    weight("gzip").or_else(|| weight("*")).is_some_and(|weight| weight > 0.0)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use hyper::header::HeaderValue;
    use rollmesh_core::hash::bytes_hash;

    use super::*;

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        for (values, accepts) in [
            (&[][..], false),
            (&[""], false),
            (&["gzip"], true),
            (&["deflate, gzip;q=1.0, *;q=0.5"], true),
            (&["br", "GZIP"], true),
            (&["*"], true),
            (&["gzip;q=0"], false),
            (&["gzip; q=0.0, *"], false),
            (&["gzip;q=much"], false),
            (&["identity"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(accepts_gzip(&headers), accepts, "{values:?}");
        }
    }

    #[test]
    fn files_are_compressed_once_and_forgotten_above_the_limit() {
        let files = CompressedFiles::default();
        let text = b"rollmesh ".repeat(1_000);
        let packed = files.gzip(bytes_hash(&text), &text).expect("long enough");
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!(unpacked, text);
        assert_eq!(files.gzip(bytes_hash(&text), &text).expect("known").as_ptr(), packed.as_ptr());
        assert_eq!(files.gzip(bytes_hash(b"short"), b"short"), None);

        files.files().insert(bytes_hash(b"large"), vec![0; MAX_BYTES].into());
        let other = b"other ".repeat(1_000);
        files.gzip(bytes_hash(&other), &other).expect("long enough");
        assert_eq!(files.files().len(), 1);
    }
}
