//! Data sets in D4RL's, Minari's and Parquet form: what is read is what was written, each row once, and no file makes a
//! reader panic or take more memory than it may.
#![cfg(feature = "offline-parquet")]

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use proptest::prelude::*;
use rollmesh::offline::{
    d4rl::D4rlFile,
    dataset::{BatchStream, DEFAULT_BUFFER, DatasetError, DatasetReader},
    hdf5::{FileSource, Hdf5File},
    json::{JsonReader, JsonReaderOptions},
    minari::{MinariDataset, MinariInfo, MinariWriter},
    parquet::{self, Compression, ParquetOptions, ParquetStream, ParquetWriter},
};
use rollmesh_core::{
    batch::{
        ACTIONS, AnyBatch, BatchParts, EPS_ID, MultiAgentBatch, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS,
        TRUNCATEDS,
    },
    column::{BytesColumn, Column, ColumnData, DType, Granularity, RowShape},
    ids::PolicyId,
    space::{BoxSpace, Space},
};
use serde_json::Map;

const BUFFER: usize = 1 << 20;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(golden(name)).unwrap()
}

fn all(stream: &mut impl BatchStream) -> Result<Vec<AnyBatch>, DatasetError> {
    std::iter::from_fn(|| stream.next_batch().transpose()).collect()
}

fn joined(batches: &[AnyBatch]) -> SampleBatch {
    SampleBatch::concat(batches.iter().map(|batch| batch.single().unwrap())).unwrap()
}

mod d4rl {
    use super::*;

    fn stream(buffer: usize) -> rollmesh::offline::d4rl::D4rlStream {
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
    fn the_last_observation_of_a_cut_episode_is_that_of_the_row_given_up() {
        let file = D4rlFile::open(bytes("pendulum_small_contiguous.hdf5"), BUFFER).unwrap();
        let observations = file.read("observations", 0..250).unwrap();
        let mut stream = file.stream();
        let batches = all(&mut stream).unwrap();
        // A timeout after 200 rows, and 50 rows that nobody ended.
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
}

mod minari {
    use super::*;

    fn batches(name: &str) -> Vec<AnyBatch> {
        all(&mut MinariDataset::open(&golden(name), BUFFER).unwrap().stream()).unwrap()
    }

    #[test]
    fn all_three_layouts_hold_the_same_episodes() {
        let expected = batches("minari_cartpole_hdf5");
        assert_eq!(expected.len(), 30);
        assert_eq!(batches("minari_cartpole_arrow"), expected);
        assert_eq!(batches("minari_cartpole_parquet"), expected);
        let first = expected[0].single().unwrap();
        assert_eq!(first.len(), 24);
        assert_eq!(first.get(TERMINATEDS).unwrap().iter().position(|flag| *flag), Some(23));
        // What comes after a step is what the next one begins with.
        assert_eq!(first.get(OBS).unwrap()[4..], first.get(NEW_OBS).unwrap()[..23 * 4]);
    }

    #[test]
    fn metadata_are_read() {
        let dataset = MinariDataset::open(&golden("minari_cartpole_hdf5"), BUFFER).unwrap();
        assert_eq!(dataset.metadata()["dataset_id"], "cartpole/randomhdf5-v0");
        assert_eq!(dataset.episodes(), 30);
    }

    #[test]
    fn a_written_data_set_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let shape = RowShape::new(&[2, 2]).unwrap();
        let pos = BoxSpace::uniform(DType::F32, shape, f64::NEG_INFINITY, 1.0).unwrap();
        let observation_space = Space::dict([("pos", Space::Box(pos)), ("goal", Space::discrete(5).unwrap())]).unwrap();
        let info = MinariInfo {
            dataset_id: "test/nested-v0".to_string(),
            observation_space,
            action_space: Space::discrete(2).unwrap(),
            more: Map::new(),
        };
        let mut writer = MinariWriter::create(folder.path(), info.clone()).unwrap();
        let episode = |id: i64, steps: usize| {
            let pos: Vec<f32> = (0..(steps + 1) * 4).map(|x| x as f32 + id as f32).collect();
            let goal: Vec<i64> = (0..=steps as i64).collect();
            let pos = Column::from(ColumnData::new(pos, shape).unwrap());
            let goal = Column::from(ColumnData::scalars(goal));
            let mut batch = SampleBatch::new();
            for (name, rows) in [("obs", 0..steps), ("new_obs", 1..steps + 1)] {
                batch.insert(format!("{name}.goal"), goal.slice(rows.clone())).unwrap();
                batch.insert(format!("{name}.pos"), pos.slice(rows)).unwrap();
            }
            let flags = |last: bool| ColumnData::scalars((1..=steps).map(|t| last && t == steps).collect());
            batch.insert("actions", ColumnData::scalars(vec![1i64; steps])).unwrap();
            batch.insert("rewards", ColumnData::scalars(vec![0.5f32; steps])).unwrap();
            batch.insert("terminateds", flags(id == 0)).unwrap();
            batch.insert("truncateds", flags(id == 1)).unwrap();
            batch.insert("eps_id", ColumnData::scalars(vec![id; steps])).unwrap();
            batch.insert("t", ColumnData::scalars((0..steps as i64).collect())).unwrap();
            batch
        };
        let episodes = [episode(0, 3), episode(1, 1)];
        for episode in &episodes {
            writer.write_episode(episode).unwrap();
        }
        assert!(matches!(writer.write_episode(&SampleBatch::new()), Err(DatasetError::Empty(_))));
        assert!(MinariWriter::create(folder.path(), info).is_err(), "it is there already");

        let read = all(&mut MinariDataset::open(folder.path(), BUFFER).unwrap().stream()).unwrap();
        assert_eq!(read.len(), 2);
        for (read, episode) in read.iter().zip(&episodes) {
            assert!(read.single().unwrap().same_bits(episode), "{read:?}\n{episode:?}");
        }
    }

    #[test]
    fn an_episode_larger_than_the_buffer_is_named() {
        for name in ["minari_cartpole_hdf5", "minari_cartpole_arrow"] {
            let dataset = MinariDataset::open(&golden(name), 16 << 10).unwrap();
            let stream = &mut dataset.stream();
            let all = all(stream);
            let small = 16 << 10;
            assert!(all.is_ok() || matches!(all, Err(DatasetError::TooLarge { buffer, .. }) if buffer == small));
        }
    }
}

mod tables {
    use super::*;

    fn written(batches: &[AnyBatch], options: ParquetOptions) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ParquetWriter::new(folder.path(), "out", options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        let files = writer.finish().unwrap();
        (folder, files)
    }

    fn read(files: &[PathBuf]) -> Vec<AnyBatch> {
        files.iter().flat_map(|file| all(&mut ParquetStream::open(file, BUFFER).unwrap()).unwrap()).collect()
    }

    fn same(a: &AnyBatch, b: &AnyBatch) -> bool {
        match (a, b) {
            (AnyBatch::Single(a), AnyBatch::Single(b)) => a.same_bits(b),
            (AnyBatch::Multi(a), AnyBatch::Multi(b)) => {
                let pairs = || a.policy_batches.iter().zip(&b.policy_batches);
                a.env_steps == b.env_steps
                    && a.policy_batches.len() == b.policy_batches.len()
                    && pairs().all(|((p, a), (q, b))| p == q && a.same_bits(b))
            }
            _ => false,
        }
    }

    fn check(batches: &[AnyBatch], options: ParquetOptions) {
        let (_folder, files) = written(batches, options);
        let read = read(&files);
        assert_eq!(read.len(), batches.len());
        for (read, written) in read.iter().zip(batches) {
            assert!(same(read, written), "{written:?}\ncame back as\n{read:?}");
        }
    }

    fn column(dtype: u8, rows: usize, width: u32, seed: u64) -> Column {
        let shape = if width == 0 { RowShape::SCALAR } else { RowShape::new(&[width, 2]).unwrap() };
        let values = rows * shape.elements();
        let word = |n: usize| (n as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = || (0..values).map(word);
        match dtype {
            0 => ColumnData::new(words().map(|x| f32::from_bits((x >> 32) as u32)).collect(), shape).unwrap().into(),
            1 => ColumnData::new(words().map(f64::from_bits).collect(), shape).unwrap().into(),
            2 => ColumnData::new(words().map(|x| (x >> 32) as i32).collect(), shape).unwrap().into(),
            3 => ColumnData::new(words().map(|x| x as i64).collect(), shape).unwrap().into(),
            4 => ColumnData::new(words().map(|x| (x >> 56) as u8).collect(), shape).unwrap().into(),
            5 => ColumnData::new(words().map(|x| x >> 63 == 1).collect(), shape).unwrap().into(),
            6 => BytesColumn::bytes((0..rows).map(|n| vec![7u8; word(n) as usize % 5])).unwrap().into(),
            _ => BytesColumn::json((0..rows).map(|n| format!("{{\"n\":{n}}}"))).unwrap().into(),
        }
    }

    prop_compose! {
        fn any_single()(
            rows in 0usize..9,
            kinds in prop::collection::vec((0u8..8, 0u32..3), 0..5),
            sequences in prop::collection::vec(1i32..4, 0..3),
            padded in any::<bool>(),
            training in any::<bool>(),
            updates in prop::option::of(prop_oneof![Just(f64::NAN), any::<f64>()]),
            seed in any::<u64>(),
        ) -> SampleBatch {
            let longest = sequences.iter().max().copied().unwrap_or(0) as usize + 1;
            let rows = match (sequences.is_empty(), padded) {
                (true, _) => rows,
                (false, true) => sequences.len() * longest,
                (false, false) => sequences.iter().sum::<i32>() as usize,
            };
            let mut columns: Vec<_> = kinds.iter().enumerate().map(|(n, (dtype, width))| {
                (format!("c{n}").into(), column(*dtype, rows, *width, seed))
            }).collect();
            if !sequences.is_empty() {
                columns.push(("state_in_0".into(), column(0, sequences.len(), 1, seed)));
            }
            let has = !sequences.is_empty();
            SampleBatch::from_parts(BatchParts {
                columns,
                seq_lens: has.then(|| ColumnData::scalars(sequences)),
                max_seq_len: has.then_some(longest),
                zero_padded: has && padded,
                is_training: training,
                num_grad_updates: updates,
                ..BatchParts::default()
            }).unwrap()
        }
    }

    fn any_batch() -> impl Strategy<Value = AnyBatch> {
        let multi = (prop::collection::btree_map("[a-c]", any_single(), 0..4), 0usize..100);
        let multi = multi.prop_map(|(batches, steps)| {
            let batches = batches.into_iter().map(|(policy, batch)| (PolicyId::new(policy), batch));
            AnyBatch::Multi(MultiAgentBatch::new(batches.collect(), steps))
        });
        prop_oneof![any_single().prop_map(AnyBatch::Single), multi]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, rng_seed: prop::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

        #[test]
        fn batches_come_back_bit_for_bit(batches in prop::collection::vec(any_batch(), 1..5), rows in 1usize..20) {
            check(&batches, ParquetOptions { row_group_rows: rows, ..ParquetOptions::default() });
        }
    }

    fn rows(ids: &[i64]) -> AnyBatch {
        let batch = SampleBatch::new().with(EPS_ID, ColumnData::scalars(ids.to_vec())).unwrap();
        batch.with(REWARDS, ColumnData::scalars(ids.iter().map(|id| *id as f32).collect())).unwrap().into()
    }

    #[test]
    fn every_compression_and_time_major_batches_and_policies_at_odds() {
        let lanes = RowShape::vector(3);
        let time_major = SampleBatch::from_parts(BatchParts {
            columns: vec![("obs".into(), ColumnData::new(vec![1.5f32; 12], lanes).unwrap().into())],
            time_major: true,
            ..BatchParts::default()
        });
        // Two policies with different columns of one name, and a name that is ours.
        let p = SampleBatch::new().with(OBS, ColumnData::new(vec![1.0; 6], lanes).unwrap()).unwrap();
        let mut q = SampleBatch::new();
        q.insert("obs", ColumnData::scalars(vec![3i64, 4])).unwrap();
        let odd = MultiAgentBatch::new([(PolicyId::new("p"), p), (PolicyId::new("q"), q)].into(), 2);
        let mut reserved = SampleBatch::new();
        reserved.insert("rollmesh.batch", ColumnData::scalars(vec![1i64])).unwrap();
        let batches = [time_major.unwrap().into(), rows(&[1, 1, 2]), odd.into(), rows(&[3]), reserved.into()];
        for compression in [Compression::None, Compression::Snappy, Compression::Zstd] {
            check(&batches, ParquetOptions { compression, ..ParquetOptions::default() });
        }
    }

    #[test]
    fn compressed_columns_come_back_plain() {
        let mut batch = SampleBatch::new().with(OBS, ColumnData::scalars(vec![0.5; 1000])).unwrap();
        let plain = batch.clone();
        batch.compress(Granularity::Bulk).unwrap();
        let (_folder, files) = written(&[batch.into()], ParquetOptions::default());
        assert_eq!(read(&files), [plain.into()]);
    }

    #[test]
    fn mixtures_settle_on_one_file() {
        let mut other = SampleBatch::new();
        other.insert("obs", ColumnData::scalars(vec![1.0f32])).unwrap();
        let batches: Vec<AnyBatch> =
            (0..20).map(|n| if n % 2 == 0 { rows(&[n]) } else { other.clone().into() }).collect();
        let (_folder, files) = written(&batches, ParquetOptions::default());
        assert_eq!((files.len(), read(&files)), (2, batches));
    }

    #[test]
    fn the_tail_is_there_after_close_after_drop_and_after_errors() {
        let folder = tempfile::tempdir().unwrap();
        let new = || ParquetWriter::new(folder.path(), "out", ParquetOptions::default()).unwrap();
        let mut writer = new();
        writer.write(&rows(&[1])).unwrap();
        drop(writer);
        let mut writer = new();
        writer.write(&rows(&[2])).unwrap();
        let files = writer.finish().unwrap();
        assert_eq!(files, [folder.path().join("out-00001.parquet")], "files that are there stay");
        assert!(matches!(writer.write(&rows(&[3])), Err(DatasetError::Closed)));
        assert_eq!(writer.finish().unwrap(), files);
        let found = [0, 1].map(|n| folder.path().join(format!("out-0000{n}.parquet")));
        assert_eq!(read(&found), [rows(&[1]), rows(&[2])]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn files_are_rotated_by_size_and_a_writer_without_batches_leaves_none() {
        let options = ParquetOptions { max_file_size: 20_000, row_group_rows: 500, ..ParquetOptions::default() };
        let batches: Vec<AnyBatch> = (0..40)
            .map(|n| {
                AnyBatch::from(
                    SampleBatch::new()
                        .with(OBS, ColumnData::scalars((0..500).map(|x| (x * 7919 + n) as f32).collect()))
                        .unwrap(),
                )
            })
            .collect();
        let (folder, files) = written(&batches, options);
        assert!(files.len() >= 2, "{}", files.len());
        for file in &files {
            assert!(fs::metadata(file).unwrap().len() < 30_000);
        }
        assert_eq!(read(&files), batches);
        drop(folder);
        let (folder, files) = written(&[], ParquetOptions::default());
        assert_eq!((files.len(), fs::read_dir(folder.path()).unwrap().count()), (0, 0));
    }

    #[test]
    fn files_of_others_are_cut_into_episodes() {
        for name in ["none", "snappy", "zstd"] {
            let path = golden(&format!("transitions_{name}.parquet"));
            for buffer in [128 << 10, BUFFER] {
                let mut stream = ParquetStream::open(&path, buffer).unwrap();
                assert!(!stream.is_ours());
                let batches = all(&mut stream).unwrap();
                let whole = joined(&batches);
                assert_eq!(whole.len(), 600);
                assert_eq!(whole.column("obs").unwrap().shape(), RowShape::vector(3));
                for batch in &batches {
                    let ids = batch.single().unwrap().get(EPS_ID).unwrap();
                    assert!(ids.iter().all(|id| *id == ids[0]));
                }
            }
        }
    }

    #[test]
    fn workers_share_a_file_and_every_epoch_has_every_batch_once() {
        let batches: Vec<AnyBatch> = (0..10).map(|n| rows(&[n, n])).collect();
        let (_folder, files) = written(&batches, ParquetOptions::default());
        let reader = |shard| DatasetReader::sharded(ParquetStream::open(&files[0], BUFFER).unwrap(), shard);
        let mut whole = reader(None);
        for _ in 0..2 {
            let epoch: Vec<AnyBatch> = whole.read_all().unwrap().map(Result::unwrap).collect();
            assert_eq!(epoch, batches);
        }
        assert_eq!(whole.epochs(), 2);
        let mut shared = Vec::new();
        for shard in 0..3 {
            shared.extend(reader(Some((shard, 3))).read_all().unwrap().map(Result::unwrap));
        }
        shared.sort_by_key(|batch| batch.single().unwrap().get(EPS_ID).unwrap()[0]);
        assert_eq!(shared, batches);
        // Reading goes on after the end of an epoch.
        let mut endless = reader(Some((1, 3)));
        let ids = |batch: &AnyBatch| batch.single().unwrap().get(EPS_ID).unwrap()[0];
        let mut seen = Vec::new();
        while seen.len() < 7 {
            seen.extend(endless.next_in_epoch().unwrap().as_ref().map(ids));
        }
        assert_eq!(seen, [1, 4, 7, 1, 4, 7, 1]);
    }
}

/// Files that were damaged: bytes changed, runs of bytes, or the end cut off.
mod damage {
    use super::*;

    fn damaged(mut file: Vec<u8>, changes: &[(prop::sample::Index, u8)], cut: Option<&prop::sample::Index>) -> Vec<u8> {
        for (place, byte) in changes {
            let place = place.index(file.len());
            file[place] = *byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        file
    }

    /// Bytes that mean something more often than random ones.
    fn byte() -> impl Strategy<Value = u8> {
        prop_oneof![Just(0), Just(1), Just(0x7f), Just(0xff), any::<u8>()]
    }

    fn bounded(name: &str, len: usize, fixed: u64, read: impl FnOnce()) {
        let memory = allocation_counter::measure(read);
        let limit = 4 * len as u64 + fixed;
        assert!(memory.bytes_max <= limit, "{name}: {} bytes were held, {limit} are allowed", memory.bytes_max);
    }

    fn read_d4rl(file: Vec<u8>) {
        if let Ok(file) = D4rlFile::open(file, DEFAULT_BUFFER) {
            let _ = file.summary();
            let _ = all_of(&mut file.stream());
        }
    }

    /// Reads to the end or to an error, and keeps nothing.
    fn all_of(stream: &mut impl BatchStream) -> Result<(), DatasetError> {
        while stream.next_batch()?.is_some() {}
        Ok(())
    }

    fn read_tree(file: Vec<u8>) {
        let Ok(root) = Hdf5File::open(file, DEFAULT_BUFFER).and_then(|file| file.root()) else { return };
        let Ok(links) = root.links() else { return };
        for (_, link) in links.iter().take(3) {
            let Ok(group) = link.open() else { continue };
            let _ = group.attributes();
            for (name, link) in group.links().unwrap_or_default() {
                if let Ok(set) = link.open().and_then(|node| node.dataset(&name)) {
                    let _ = set.read_rows(0..50);
                }
            }
        }
    }

    fn read_parquet(file: Vec<u8>) {
        let len = file.len();
        if let Ok(mut stream) = ParquetStream::from_source(file, len) {
            let _ = all_of(&mut stream);
        }
    }

    fn read_arrow(folder: &Path, file: &[u8]) {
        fs::write(folder.join("data/0/part-0.arrow"), file).unwrap();
        // An episode is read at once, beside the file's own bytes.
        let dataset = MinariDataset::open(folder, 4 * file.len()).unwrap();
        let _ = dataset.episode(0).map(|episode| episode.map(|episode| episode.batch()));
    }

    /// Three files of lines, two of them deflated.
    static ARCHIVE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let methods =
            [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated];
        for (number, method) in methods.into_iter().enumerate() {
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            writer.start_file(format!("{number}.json"), options).unwrap();
            writer.write_all(&bytes("single_compressed.json")).unwrap();
        }
        writer.finish().unwrap().into_inner()
    });

    fn read_archive(path: PathBuf) {
        // Lines are a sixteenth of the buffer at most, and none of these is as long.
        let options = JsonReaderOptions { buffer_size: 16 << 14, ..JsonReaderOptions::default() };
        let reader = JsonReader::new(vec![path], options).unwrap();
        reader.read_all_files().take_while(Result::is_ok).for_each(drop);
    }

    fn config() -> ProptestConfig {
        let cases = std::env::var("DAMAGED_FILES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150);
        ProptestConfig { cases, rng_seed: prop::test_runner::RngSeed::Fixed(11), ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn of_d4rl(
            small in any::<bool>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..6),
            early in any::<bool>(),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let mut file = bytes(if small { "pendulum_small_contiguous.hdf5" } else { "pendulum_random_d4rl.hdf5" });
            if early {
                // Headers and tables are at the beginning.
                let rest = file.split_off(4000);
                file = damaged(file, &changes, None);
                file.extend(rest);
            }
            let file = damaged(file, if early { &[] } else { &changes }, cut.as_ref());
            bounded("d4rl", file.len(), 64 << 10, || read_d4rl(file));
        }

        #[test]
        fn of_minari_in_hdf5(
            changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..40),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let mut file = bytes("minari_cartpole_hdf5/main_data.hdf5".replace("hdf5/main", "hdf5/data/main").as_str());
            let rest = file.split_off(30_000);
            file = damaged(file, &changes, None);
            file.extend(rest);
            let file = damaged(file, &[], cut.as_ref());
            bounded("minari", file.len(), 64 << 10, || read_tree(file));
        }

        #[test]
        fn of_parquet(
            which in 0..3usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..6),
            late in any::<bool>(),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let name = ["none", "snappy", "zstd"][which];
            let mut file = bytes(&format!("transitions_{name}.parquet"));
            let at = if late { file.len() - 3100 } else { 0 };
            let end = damaged(file.split_off(at), &changes, cut.as_ref());
            file.extend(end);
            bounded("parquet", file.len(), 1 << 20, || read_parquet(file));
        }

        #[test]
        fn of_archives(
            changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..8),
            late in any::<bool>(),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let mut file = ARCHIVE.clone();
            // The table of contents is at the end.
            let at = if late { file.len() - 250 } else { 0 };
            let end = damaged(file.split_off(at), &changes, cut.as_ref());
            file.extend(end);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("lines.zip");
            fs::write(&path, &file).unwrap();
            bounded("zip", file.len(), 1 << 20, || read_archive(path));
        }

        #[test]
        fn of_minari_in_arrow(
            changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..6),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("data/0")).unwrap();
            fs::copy(golden("minari_cartpole_arrow/data/metadata.json"), folder.path().join("data/metadata.json")).unwrap();
            let file = damaged(bytes("minari_cartpole_arrow/data/0/part-0.arrow"), &changes, cut.as_ref());
            bounded("arrow", file.len(), 64 << 10, || read_arrow(folder.path(), &file));
        }
    }

    /// Chunks may be deflated to a thousandth, but nobody takes memory for what is not in them.
    #[test]
    fn rows_that_no_chunk_holds_cost_nothing() {
        let mut file = bytes("pendulum_random_d4rl.hdf5");
        let (rows, many) = (2000u64.to_le_bytes(), 400_000u64.to_le_bytes());
        let places: Vec<usize> = (0..file.len() - 8).filter(|at| file[*at..*at + 8] == rows).collect();
        assert!(!places.is_empty());
        for at in places {
            file[at..at + 8].copy_from_slice(&many);
        }
        let len = file.len();
        bounded("rows", len, 64 << 10, || {
            let read = D4rlFile::open(file, DEFAULT_BUFFER).and_then(|file| all_of(&mut file.stream()));
            let error = read.unwrap_err().to_string();
            assert!(error.contains("a data set is larger than its chunks"), "{error}");
        });
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
        let _shared: Arc<str> = error.to_string().into();
    }

    #[test]
    fn reading_holds_the_buffer_however_large_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let options = ParquetOptions { row_group_rows: 4096, max_file_size: u64::MAX, ..ParquetOptions::default() };
        let mut writer = ParquetWriter::new(folder.path(), "large", options).unwrap();
        for n in 0..600i64 {
            let obs =
                ColumnData::new((0..256 * 16).map(|x| (x as i64 * 31 + n) as f32).collect(), RowShape::vector(16));
            let batch = SampleBatch::new().with(OBS, obs.unwrap()).unwrap();
            let batch = batch.with(ACTIONS, ColumnData::scalars(vec![n; 256])).unwrap();
            writer.write(&batch.into()).unwrap();
        }
        let files = writer.finish().unwrap();
        let size = fs::metadata(&files[0]).unwrap().len();
        let buffer = 2 << 20;
        assert!(size > 2 * buffer as u64, "{size}");
        let mut batches = 0;
        let memory = allocation_counter::measure(|| {
            let mut stream = ParquetStream::open(&files[0], buffer).unwrap();
            while stream.next_batch().unwrap().is_some() {
                batches += 1;
            }
        });
        assert_eq!(batches, 600);
        assert!(memory.bytes_max < 2 * buffer as u64, "{} bytes were held", memory.bytes_max);
    }
}
