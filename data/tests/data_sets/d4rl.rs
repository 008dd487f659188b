//! D4RL's files.

use std::{ops::Range, path::Path};

use rollmesh_core::{
    batch::{AnyBatch, EPS_ID, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    column::Column,
};
use rollmesh_data::{
    FileSource,
    d4rl::{D4rlFile, D4rlStream},
    dataset::DatasetError,
    limits::DEFAULT_BUFFER,
};

use super::{BUFFER, all, bytes, golden, joined};

fn stream(buffer: usize) -> D4rlStream {
    D4rlFile::open(bytes("pendulum_small_contiguous.hdf5"), buffer).unwrap().stream()
}

#[test]
fn rows_do_not_depend_on_the_buffer() {
    let whole = joined(&all(&mut stream(BUFFER)).unwrap());
    assert_eq!(whole.len(), 248);
    // Chunks of the other file are larger than these windows, and episodes are cut by them.
    for buffer in [8 << 10, 12 << 10, 100 << 10] {
        assert_eq!(joined(&all(&mut stream(buffer)).unwrap()), whole, "{buffer}");
    }
    let large = |buffer| D4rlFile::open(bytes("pendulum_random_d4rl.hdf5"), buffer).unwrap().stream();
    let whole = all(&mut large(BUFFER)).unwrap();
    assert_eq!(joined(&all(&mut large(20 << 10)).unwrap()), joined(&whole));
    assert_eq!(whole.iter().map(AnyBatch::env_steps).collect::<Vec<_>>(), [199; 10]);
}

#[test]
fn last_observation_of_a_cut_episode_is_that_of_the_dropped_row() {
    let file = D4rlFile::open(bytes("pendulum_small_contiguous.hdf5"), BUFFER).unwrap();
    let observations = file.read("observations", 0..250).unwrap();
    let mut stream = file.stream();
    let batches = all(&mut stream).unwrap();
    // A timeout after 200 rows, and 50 rows of an open episode.
    assert_eq!((batches.len(), stream.rows_given_up()), (2, 2));
    for (batch, (first, last)) in batches.iter().zip([(0, 199), (200, 249)]) {
        let batch = batch.single().unwrap();
        assert_eq!(batch.column("obs").unwrap(), &observations.slice(first..last));
        assert_eq!(batch.column("new_obs").unwrap(), &observations.slice(first + 1..last + 1));
        let truncated: Vec<bool> = (first + 1..last + 1).map(|row| row == last).collect();
        assert_eq!(batch.get(TRUNCATEDS).unwrap(), truncated);
        assert!(!batch.get(TERMINATEDS).unwrap().contains(&true));
        assert_eq!(batch.get(T).unwrap(), (0..batch.len() as i64).collect::<Vec<_>>());
    }
    assert_eq!(joined(&batches).get(EPS_ID).unwrap()[198..200], [0, 1]);
}

#[test]
fn a_chunk_larger_than_the_buffer_is_named() {
    let read = D4rlFile::open(bytes("pendulum_random_d4rl.hdf5"), 4096).and_then(|file| file.summary());
    assert!(matches!(read, Err(DatasetError::Hdf5(_))), "{read:?}");
}

/// The rows of an episode that are steps, and the flags of its end: in a terminal state, and by a cut.
type Episode = (Range<usize>, bool, bool);

/// Reads rows of a column of the file, one by one.
fn picked(file: &D4rlFile, name: &str, rows: impl Iterator<Item = usize>) -> Column {
    let whole = file.read(name, 0..file.rows()).unwrap();
    let rows = rows.map(|row| {
        let mut one = SampleBatch::new();
        one.insert("column", whole.slice(row..row + 1)).unwrap();
        one
    });
    let mut column = SampleBatch::concat(&rows.collect::<Vec<_>>()).unwrap();
    column.remove("column").unwrap()
}

/// Checks that all columns are those of the file, for any buffer.
fn check(path: &Path, episodes: &[Episode]) {
    let open = |buffer| D4rlFile::open(FileSource::open(path).unwrap(), buffer).unwrap();
    let file = open(DEFAULT_BUFFER);
    let recorded = file.columns().any(|name| name == "next_observations");
    let steps = || episodes.iter().flat_map(|(rows, ..)| rows.clone());
    let last = |row: usize| episodes.iter().find(|(rows, ..)| rows.end == row + 1);
    for buffer in [20 << 10, 100 << 10, DEFAULT_BUFFER] {
        let mut stream = open(buffer).stream();
        let read = joined(&all(&mut stream).unwrap());
        let known = file.columns().filter(|name| !["terminals", "timeouts", "next_observations"].contains(name));
        let mut columns = 0;
        for name in known {
            let column = if name == "observations" { "obs" } else { name };
            assert_eq!(read.column(column), Some(&picked(&file, name, steps())), "{buffer}: {name}");
            columns += 1;
        }
        let following = match recorded {
            true => picked(&file, "next_observations", steps()),
            // The file lacks the observation after a terminal state.
            false => {
                picked(&file, "observations", steps().map(|row| row + usize::from(last(row).is_none_or(|end| !end.1))))
            }
        };
        assert_eq!(read.column("new_obs"), Some(&following), "{buffer}");
        let flags = |of: fn(&Episode) -> bool| steps().map(|row| last(row).is_some_and(of)).collect::<Vec<_>>();
        assert_eq!(read.get(TERMINATEDS).unwrap(), flags(|end| end.1), "{buffer}");
        assert_eq!(read.get(TRUNCATEDS).unwrap(), flags(|end| end.2), "{buffer}");
        let numbered = || episodes.iter().enumerate();
        let ids: Vec<i64> = numbered().flat_map(|(id, (rows, ..))| vec![id as i64; rows.len()]).collect();
        assert_eq!(read.get(EPS_ID).unwrap(), ids);
        let ts: Vec<i64> = numbered().flat_map(|(_, (rows, ..))| 0..rows.len() as i64).collect();
        assert_eq!(read.get(T).unwrap(), ts);
        assert_eq!(read.iter().count(), columns + 5, "new_obs, two flags, eps_id and t are made");
        assert_eq!(stream.rows_given_up(), file.rows() - read.len() as u64);
        assert!(read.get(REWARDS).unwrap().iter().any(|reward| *reward != 0.0));
    }
}

#[test]
fn every_column_is_the_files() {
    let random: Vec<Episode> = (0..10).map(|n| (200 * n..200 * n + 199, false, true)).collect();
    check(&golden("pendulum_random_d4rl.hdf5"), &random);
    check(&golden("pendulum_small_contiguous.hdf5"), &[(0..199, false, true), (200..249, false, true)]);
}

/// The episodes end in every way, see `make.py` next to the files.
#[test]
fn episodes_end_in_every_way() {
    let ends = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/d4rl").join(name);
    check(
        &ends("ends.hdf5"),
        &[(0..4, true, false), (4..7, false, true), (8..9, true, false), (9..11, true, true), (11..13, false, true)],
    );
    check(
        &ends("ends_with_next.hdf5"),
        &[(0..4, true, false), (4..8, false, true), (8..9, true, false), (9..11, true, true), (11..14, false, false)],
    );
}
