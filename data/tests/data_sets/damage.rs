//! Damaged files: bytes changed, or the end cut off. For any sizes that they declare, reading them takes no more than
//! four times their size, the declared buffer and a fixed part, and ends with rows or with an error.
//!
//! The same files are damaged each time; with `ROLLMESH_LONG=1` they are many, drawn by a seed that is printed and that
//! `ROLLMESH_DAMAGE_SEED=n` repeats.

use std::{fs, path::Path, sync::LazyLock};

use proptest::prelude::*;
use rollmesh_core::{
    batch::{ACTIONS, AnyBatch, BatchParts, MultiAgentBatch, OBS, SampleBatch},
    column::{BytesColumn, ColumnData, RowShape},
    ids::PolicyId,
};
use rollmesh_data::{
    FileSource,
    d4rl::D4rlFile,
    dataset::{BatchStream, DatasetError},
    limits::DEFAULT_BUFFER,
    minari::MinariDataset,
    parquet::{self, Compression, ParquetOptions, ParquetStream, ParquetWriter},
};

use super::{
    BUFFER, bytes, golden,
    harness::{LARGE, bounded, damage, of},
};

/// Memory of tables and buffers of Arrow's decoders, for any content.
pub(crate) const SMALL: u64 = 64 << 10;

/// Memory that the decoder of HDF5 may reserve for the sizes in the headers of objects, with the buffer.
const HDF5: u64 = 8 << 20;

/// Reads to the end or to an error, and keeps nothing.
fn all_of(stream: &mut impl BatchStream) -> Result<(), DatasetError> {
    while stream.next_batch()?.is_some() {}
    Ok(())
}

fn read_d4rl(file: Vec<u8>) {
    if let Ok(file) = D4rlFile::open(file, BUFFER) {
        let _ = file.summary();
        let _ = all_of(&mut file.stream());
    }
}

fn read_minari(folder: &Path) {
    if let Ok(dataset) = MinariDataset::open(folder, BUFFER) {
        let _ = dataset.summary();
        let _ = all_of(&mut dataset.stream());
    }
}

fn read_parquet(file: Vec<u8>) -> Result<(), DatasetError> {
    all_of(&mut ParquetStream::from_source(file, BUFFER)?)
}

/// Our own tables: batches of one agent with columns of all kinds and sequences, of two policies, and of no rows, which are
/// no tables, in every compression.
static OURS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let floats = |rows: usize| (0..rows * 3).map(|x| (x as f32 * 0.618).fract()).collect();
    let rows = |rows: usize| {
        let obs = ColumnData::new(floats(rows), RowShape::vector(3)).unwrap();
        let batch = SampleBatch::new().with(OBS, obs).unwrap();
        let mut batch = batch.with(ACTIONS, ColumnData::scalars((0..rows as i64).collect())).unwrap();
        batch.insert("infos", BytesColumn::json((0..rows).map(|n| format!("{{\"n\":{n}}}"))).unwrap()).unwrap();
        batch
    };
    let sequences = SampleBatch::from_parts(BatchParts {
        columns: vec![
            ("obs".into(), ColumnData::new(floats(5), RowShape::vector(3)).unwrap().into()),
            ("state_in_0".into(), ColumnData::scalars(vec![0.5f32, 0.25]).into()),
        ],
        seq_lens: Some(ColumnData::scalars(vec![2, 3])),
        max_seq_len: Some(3),
        ..BatchParts::default()
    });
    let policies = [("a", 20), ("b", 10)].map(|(policy, steps)| (PolicyId::new(policy), rows(steps)));
    let batches: [AnyBatch; 5] = [
        rows(300).into(),
        sequences.unwrap().into(),
        MultiAgentBatch::new(policies.into(), 20).into(),
        rows(0).into(),
        rows(50).into(),
    ];
    let write = |compression| {
        let folder = tempfile::tempdir().unwrap();
        let options = ParquetOptions { compression, row_group_rows: 200, ..ParquetOptions::default() };
        let mut writer = ParquetWriter::new(folder.path(), "ours", options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        let files = writer.finish().unwrap();
        files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
    };
    [Compression::None, Compression::Snappy, Compression::Zstd].into_iter().flat_map(write).collect()
});

/// Copies the metadata and some episodes of a data set; returns the file of the first episode.
pub(crate) fn few_episodes(name: &str, to: &Path) -> std::path::PathBuf {
    let from = golden(name).join("data");
    fs::create_dir_all(to.join("data")).unwrap();
    fs::copy(from.join("metadata.json"), to.join("data/metadata.json")).unwrap();
    let mut first = None;
    for episode in ["0", "1"] {
        fs::create_dir(to.join("data").join(episode)).unwrap();
        for entry in fs::read_dir(from.join(episode)).unwrap() {
            let path = entry.unwrap().path();
            let copy = to.join("data").join(episode).join(path.file_name().unwrap());
            fs::copy(&path, &copy).unwrap();
            if path.extension().is_some_and(|ending| ending != "json") {
                first = first.or(Some(copy));
            }
        }
    }
    first.unwrap()
}

fn size_of(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { size_of(&path) } else { fs::metadata(path).unwrap().len() as usize }).sum()
}

of!(d4rl, (which in 0..4usize, damage in damage(6), early in any::<bool>()) {
    let file = match which {
        0 => bytes("pendulum_small_contiguous.hdf5"),
        1 => bytes("pendulum_random_d4rl.hdf5"),
        2 => bytes("../../d4rl/ends.hdf5"),
        _ => bytes("../../d4rl/ends_with_next.hdf5"),
    };
    // Headers and tables are at the beginning.
    let part = if early { 0..4000 } else { 0..file.len() };
    let file = damage.of(file, part);
    bounded("d4rl", file.len(), HDF5, || read_d4rl(file));
});

of!(minari_in_hdf5, (damage in damage(40)) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::copy(golden("minari_cartpole_hdf5/data/metadata.json"), data.join("metadata.json")).unwrap();
    let file = damage.of(bytes("minari_cartpole_hdf5/data/main_data.hdf5"), 0..30_000);
    fs::write(data.join("main_data.hdf5"), &file).unwrap();
    bounded("minari", file.len(), HDF5, || read_minari(folder.path()));
});

of!(minari_in_tables, (is_arrow in any::<bool>(), damage in damage(6)) {
    let folder = tempfile::tempdir().unwrap();
    let name = if is_arrow { "minari_cartpole_arrow" } else { "minari_cartpole_parquet" };
    let first = few_episodes(name, folder.path());
    let file = fs::read(&first).unwrap();
    let len = file.len();
    fs::write(&first, damage.of(file, 0..len)).unwrap();
    let fixed = if is_arrow { SMALL } else { LARGE };
    bounded(name, size_of(folder.path()), fixed, || read_minari(folder.path()));
});

of!(minaris_metadata, (damage in damage(6)) {
    let folder = tempfile::tempdir().unwrap();
    few_episodes("minari_cartpole_arrow", folder.path());
    let path = folder.path().join("data/metadata.json");
    let text = fs::read(&path).unwrap();
    let len = text.len();
    fs::write(&path, damage.of(text, 0..len)).unwrap();
    bounded("metadata", size_of(folder.path()), SMALL, || read_minari(folder.path()));
});

of!(tables_of_others, (which in 0..3usize, damage in damage(6), late in any::<bool>()) {
    let file = bytes(&format!("transitions_{}.parquet", ["none", "snappy", "zstd"][which]));
    // The table of contents is at the end.
    let part = if late { file.len() - 3100..file.len() } else { 0..file.len() };
    let file = damage.of(file, part);
    bounded("tables of others", file.len(), LARGE, || drop(read_parquet(file)));
});

of!(our_tables, (which in 0..OURS.len(), damage in damage(6), late in any::<bool>()) {
    let file = OURS[which].clone();
    let part = if late { file.len() / 2..file.len() } else { 0..file.len() };
    let file = damage.of(file, part);
    bounded("our tables", file.len(), LARGE, || drop(read_parquet(file)));
});

#[test]
fn files_of_these_tests_are_readable_before_damage() {
    assert!(OURS.len() >= 3);
    for file in OURS.iter() {
        read_parquet(file.clone()).unwrap();
    }
    for name in ["minari_cartpole_arrow", "minari_cartpole_parquet"] {
        let folder = tempfile::tempdir().unwrap();
        few_episodes(name, folder.path());
        all_of(&mut MinariDataset::open(folder.path(), DEFAULT_BUFFER).unwrap().stream()).unwrap();
    }
}

/// Chunks may be deflated to a thousandth, but an array has no more rows than its chunks.
#[test]
fn rows_that_no_chunk_holds_are_refused() {
    let mut file = bytes("pendulum_random_d4rl.hdf5");
    let (rows, many) = (2000u64.to_le_bytes(), 400_000u64.to_le_bytes());
    let places: Vec<usize> = (0..file.len() - 8).filter(|at| file[*at..*at + 8] == rows).collect();
    assert!(!places.is_empty());
    for at in places {
        file[at..at + 8].copy_from_slice(&many);
    }
    bounded("rows", file.len(), HDF5, || {
        let error = D4rlFile::open(file, BUFFER).err().expect("no such rows").to_string();
        assert!(error.contains("an array is larger than its chunks"), "{error}");
    });
}

/// The declared list of a data set's chunks may extend over the rest of the file.
#[test]
fn lists_of_chunks_that_never_end_are_bounded() {
    let whole = bytes("minari_cartpole_hdf5/data/main_data.hdf5");
    let lists = whole.windows(6).enumerate().filter(|(_, head)| *head == b"TREE\x01\x00");
    let lists: Vec<usize> = lists.map(|(at, _)| at).collect();
    assert!(!lists.is_empty());
    for at in lists.into_iter().step_by(4) {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::copy(golden("minari_cartpole_hdf5/data/metadata.json"), data.join("metadata.json")).unwrap();
        // An entry takes 32 or 40 bytes, by the dimensions of the data set.
        for entry in [32, 40] {
            let mut file = whole.clone();
            let entries = u16::try_from((file.len() - at - 64) / entry).unwrap_or(u16::MAX);
            file[at + 6..at + 8].copy_from_slice(&entries.to_le_bytes());
            fs::write(data.join("main_data.hdf5"), &file).unwrap();
            bounded("lists of chunks", file.len(), HDF5, || read_minari(folder.path()));
        }
    }
}

#[test]
fn each_kind_is_named() {
    let open = |name: &str| D4rlFile::open(FileSource::open(&golden(name)).unwrap(), BUFFER).err();
    assert!(matches!(open("mal_missing_column.hdf5"), Some(DatasetError::MissingColumn(_))));
    assert!(matches!(open("mal_lengths.hdf5"), Some(DatasetError::LengthMismatch { .. })));
    assert!(matches!(open("mal_truncated.hdf5"), Some(DatasetError::Hdf5(_))));
    let error = open("mal_not_hdf5.hdf5").unwrap();
    assert_eq!(error.to_string(), "this is no HDF5 file");
    let error = parquet::summary(bytes("mal_truncated.parquet"), BUFFER).unwrap_err();
    assert!(matches!(error, DatasetError::Corrupt(_)), "{error:?}");
}
