//! Damages files, and measures the memory that reading them takes.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    panic,
    path::Path,
    sync::Once,
};

use proptest::{prelude::*, test_runner::RngSeed};

/// The changes that damage a file.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    changes: Vec<(prop::sample::Index, u8)>,
    cut: Option<prop::sample::Index>,
}

impl Damage {
    /// Returns the damaged file: bytes are changed in `part`, and the cut may be anywhere.
    pub(crate) fn of(&self, mut file: Vec<u8>, part: std::ops::Range<usize>) -> Vec<u8> {
        let part = &mut file[part];
        for (place, byte) in &self.changes {
            let place = place.index(part.len());
            part[place] = *byte;
        }
        if let Some(cut) = &self.cut {
            file.truncate(cut.index(file.len()));
        }
        file
    }
}

pub(crate) fn damage(most: usize) -> impl Strategy<Value = Damage> {
    // Bytes with a special meaning are drawn more often than random ones.
    let byte = prop_oneof![Just(0), Just(1), Just(0x7f), Just(0xff), any::<u8>()];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), byte), 1..most);
    (changes, prop::option::weighted(0.1, any::<prop::sample::Index>()))
        .prop_map(|(changes, cut)| Damage { changes, cut })
}

/// Memory that tables and buffers of Parquet's decoders take for any content, with a page of the buffer's size and its
/// columns.
pub(crate) const LARGE: u64 = 4 << 20;

/// Suppresses the messages of panics in external crates, which readers catch: the symbols of a backtrace take far more
/// memory than the file.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            let is_ours = about.location().is_none_or(|place| Path::new(place.file()).is_relative());
            if is_ours {
                usual(about);
            }
        }));
    });
}

pub(crate) fn bounded(name: &str, len: usize, fixed: u64, read: impl FnOnce()) {
    hush();
    let memory = allocation_counter::measure(read);
    let limit = 4 * len as u64 + fixed;
    assert!(memory.bytes_max <= limit, "{name}: {} bytes were held, {limit} are allowed", memory.bytes_max);
}

pub(crate) fn config(name: &str) -> ProptestConfig {
    let is_long = std::env::var_os("ROLLMESH_LONG").is_some_and(|value| value == "1");
    let asked = std::env::var("ROLLMESH_DAMAGE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = asked.unwrap_or_else(|| if is_long { RandomState::new().build_hasher().finish() } else { 11 });
    if is_long || asked.is_some() {
        eprintln!("damaged {name}: ROLLMESH_DAMAGE_SEED={seed}");
    }
    let cases = if is_long { 20_000 } else { 100 };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..ProptestConfig::default() }
}

/// A test of damaged files.
macro_rules! of {
    ($name:ident, ($($value:ident in $strategy:expr),+) $check:block) => {
        #[test]
        fn $name() {
            proptest!(super::harness::config(stringify!($name)), |($($value in $strategy),+)| $check);
        }
    };
}

pub(crate) use of;
