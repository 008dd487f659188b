//! Reading damaged lines takes at most four times the size of the line and of its decompressed columns, and a fixed
//! part.

use std::{fs, path::Path, sync::LazyLock};

use proptest::prelude::*;
use rollmesh_data::{json::decode_record, limits::JsonLimits};

/// Memory that any line may take: names, tables of columns, objects of small pickles, and blocks of `lz4.frame`'s usual size.
const FLOOR: u64 = (64 + 4 * 64) << 10;
/// The lines of all files, valid and damaged ones, each with the maximum size of its decompressed columns. Readers do
/// not know this size: their usual limit is far larger.
static LINES: LazyLock<Vec<(Vec<u8>, usize)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data");
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).expect("the files are in the repository") {
        let path = entry.expect("an entry").path();
        let name = path.to_string_lossy();
        // The folder also contains data sets of other formats.
        if name.ends_with(".json") && !name.ends_with(".expected.json") {
            let text = fs::read(path).expect("a file");
            lines.extend(text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).filter(|line| line.len() > 40));
        }
    }
    lines.sort();
    lines.dedup();
    let with_held = |line: Vec<u8>| {
        let held = held(&line);
        (line, held)
    };
    lines.into_iter().map(with_held).collect()
});

/// Returns the number of bytes that must be decompressed to decode a line, up to a factor of two; the minimum for lines
/// that cannot be decoded.
fn held(line: &[u8]) -> usize {
    let mut limits = (10..=20).map(|power| 1 << power);
    let enough = limits.find(|limit| decode_record(line, &JsonLimits { decompressed: *limit }).is_ok());
    enough.unwrap_or(1 << 10)
}

/// Returns the peak memory of reading a line.
fn peak(line: &[u8]) -> u64 {
    allocation_counter::measure(|| drop(decode_record(line, &JsonLimits::default()))).bytes_max
}

fn allowed(line: &[u8], held: usize) -> u64 {
    FLOOR + 4 * (line.len() + held) as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_lines_take_no_more_than_four_times_their_size(
        line: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 0..6),
    ) {
        let (mut line, held) = line.get(&LINES).clone();
        for (at, byte, how) in changes {
            let at = at.index(line.len());
            match how {
                0 => line[at] = byte,
                1 => line.insert(at, byte),
                2 => line.truncate(at.max(1)),
                // Repeats a piece in the middle.
                _ => {
                    let piece = line[at..line.len().min(at + usize::from(byte))].to_vec();
                    let to = line.len() / 2;
                    line.splice(to..to, piece);
                }
            }
        }
        prop_assert!(peak(&line) <= allowed(&line, held), "{} of {}", peak(&line), allowed(&line, held));
    }
}

#[test]
fn dense_lines_take_no_more_than_four_times_their_size() {
    let of = |rows: &str, n: usize| {
        format!("{{\"type\": \"SampleBatch\", \"a\": [{}{rows}]}}", format!("{rows},").repeat(n))
    };
    let commas = format!("{{\"type\": \"SampleBatch\", \"a\": [1{}", ",".repeat(1_000_000));
    let lists = format!("{{\"type\": \"SampleBatch\", \"a\": [{}", "[".repeat(1_000_000));
    for line in [
        of("1", 1_000_000),
        of("[1]", 500_000),
        of("true", 300_000),
        of("1.5", 500_000),
        of("null", 300_000),
        of("{}", 400_000),
        commas,
        lists,
    ] {
        let (peak, allowed) = (peak(line.as_bytes()), FLOOR + 4 * line.len() as u64);
        assert!(peak <= allowed, "{}: {peak} of {allowed}", &line[..40]);
    }
    // Integers are converted to floats in place.
    let late = of("1", 1_000_000).replace("1]}", "1.5]}");
    assert!(peak(late.as_bytes()) <= FLOOR + 4 * late.len() as u64);
}

/// A compressed column declares 25 MB with a match that refers to missing data.
#[test]
fn false_claim_of_a_compressed_column_costs_two_blocks() {
    // The header of a frame and a block of one letter, a match without data with its length in many bytes, and a last
    // letter.
    let mut block = vec![0x1f, b'a', 2, 0];
    block.extend(vec![255; 100_000]);
    block.extend([0, 0x10, b'z']);
    let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73];
    frame.extend((block.len() as u32).to_le_bytes());
    frame.extend(block);
    frame.extend([0; 4]);
    let line = format!("{{\"type\": \"SampleBatch\", \"obs\": \"{}\"}}", base64(&frame));
    let error = decode_record(line.as_bytes(), &JsonLimits::default()).unwrap_err().to_string();
    assert!(error.contains("the LZ4 frame cannot be decoded: DecompressionError"), "{error}");
    // The frame's header declares that its blocks have up to 4 MiB each.
    let (peak, allowed) = (peak(line.as_bytes()), (8 << 20) + FLOOR + 4 * line.len() as u64);
    assert!(peak <= allowed, "{peak} of {allowed}");
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = (0..3).fold(0, |word, place| word << 8 | u32::from(three.get(place).copied().unwrap_or(0)));
        for place in 0..4 {
            let letter = char::from(LETTERS[(word >> (18 - 6 * place)) as usize & 63]);
            text.push(if place > three.len() { '=' } else { letter });
        }
    }
    text
}
