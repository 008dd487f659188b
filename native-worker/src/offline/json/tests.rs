use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use rollmesh_core::{
    batch::{ACTIONS, AnyBatch, OBS, REWARDS, SampleBatch, T, TERMINATEDS},
    column::{BytesColumn, ColumnData, RowShape},
    sampler::{BatchMode, InputReader as _, OutputWriter as _},
    worker::{InputSource, Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, WorkerPlace},
};
use rollmesh_data::{dataset::DatasetReader, json::encode_record};
use tempfile::TempDir;

use super::*;
use crate::{
    NativeWorker as _,
    offline::{
        OfflineError,
        inputs::{DatasetFolders, Format, Located, locate},
        logged::Logged,
    },
};

/// Returns a row with a unique `t`.
fn row(t: i64) -> AnyBatch {
    SampleBatch::new()
        .with(OBS, ColumnData::new(vec![t as f32; 4], RowShape::vector(4)).unwrap())
        .and_then(|batch| batch.with(T, ColumnData::scalars(vec![t])))
        .unwrap()
        .into()
}

fn t(batch: &AnyBatch) -> i64 {
    batch.single().unwrap().get(T).unwrap()[0]
}

fn written(rows: std::ops::Range<i64>, max_file_size: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let options = JsonWriterOptions { max_file_size, ..JsonWriterOptions::default() };
    let mut writer = JsonWriter::new(folder.path(), options).unwrap();
    rows.for_each(|t| writer.append(&row(t)).unwrap());
    folder
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let found = locate(&[folder.path().to_str().unwrap().into()], &DatasetFolders::default()).unwrap();
    found.into_iter().map(|found| found.path).collect()
}

fn reader(folder: &TempDir, options: JsonReaderOptions) -> JsonReader {
    JsonReader::new(files(folder), options).unwrap()
}

fn distinct(reader: &mut JsonReader, reads: usize) -> BTreeSet<i64> {
    (0..reads).map(|_| t(&reader.next_batch().unwrap())).collect()
}

fn line(t: i64) -> String {
    format!("{{\"type\": \"SampleBatch\", \"t\": [{t}]}}\n")
}

fn folder_of(contents: &[(&str, String)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    contents.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
    folder
}

#[test]
fn files_are_changed_when_they_are_full() {
    assert_eq!(files(&written(0..2, 1_000)).len(), 1);
    let folder = written(0..100, 5_000);
    let files = files(&folder);
    assert!(files.len() >= 2, "{}", files.len());
    // The first line that reaches the limit is the last one of its file.
    let sizes: Vec<u64> = files.iter().map(|file| fs::metadata(file).unwrap().len()).collect();
    assert!(sizes.iter().all(|size| *size < 6_000), "{sizes:?}");
}

#[test]
fn written_batches_are_read_eventually() {
    let folder = written(0..100, 5_000);
    let read = distinct(&mut reader(&folder, JsonReaderOptions::default()), 1_000);
    assert!(read.len() > 90, "{}", read.len());
}

#[test]
fn empty_files_blank_lines_and_corrupt_ones_are_skipped() {
    let blank = format!("\n\n  \n{}\n\n", line(1));
    let folder = folder_of(&[("1.json", String::new()), ("2.json", blank), ("3.json", line(2))]);
    assert_eq!(distinct(&mut reader(&folder, JsonReaderOptions::default()), 100).len(), 2);

    let good: String = (0..4).map(line).collect();
    let folder = folder_of(&[("1.json", format!("{good}{}", &line(4)[..20]))]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    let mut reader = reader(&folder, JsonReaderOptions::default())
        .on_corrupt(move |path, error| hear.lock().unwrap().push((path.to_path_buf(), error.to_string())));
    assert_eq!(distinct(&mut reader, 100).len(), 4);
    // In every pass over the files.
    assert_eq!(reader.corrupt_lines(), 24);
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 24);
    assert!(heard[0].0.ends_with("1.json") && heard[0].1.starts_with("line 5: no JSON"), "{heard:?}");
}

#[test]
fn files_without_any_batch_are_an_error() {
    for contents in
        [[("1.json", String::new()), ("2.json", String::new())], [("1.json", "\n\n".into()), ("2.json", " \n".into())]]
    {
        let error = reader(&folder_of(&contents), JsonReaderOptions::default()).next_batch().unwrap_err();
        assert!(matches!(error, OfflineError::NoData { files: 2, .. }), "{error}");
    }
    let corrupt = folder_of(&[("1.json", "bad\n".repeat(101))]);
    let error = reader(&corrupt, JsonReaderOptions::default()).next_batch().unwrap_err().to_string();
    assert!(error.contains("101 lines in a row"), "{error}");
    let few = folder_of(&[("1.json", "bad\n".repeat(3))]);
    let error = reader(&few, JsonReaderOptions::default()).next_batch().unwrap_err().to_string();
    assert!(error.contains("the last problem was line 3"), "{error}");
    assert!(matches!(JsonReader::new(Vec::new(), JsonReaderOptions::default()), Err(OfflineError::NoFiles(_))));
}

#[test]
fn an_epoch_reads_every_line_once_and_in_order() {
    let good: String = (0..5).map(line).collect();
    let more: String = (5..8).map(line).collect();
    let folder = folder_of(&[("a.json", format!("{good}\nbad\n")), ("b.json", String::new()), ("c.json", more)]);
    let mut epoch = reader(&folder, JsonReaderOptions::default()).read_all_files();
    let read: Vec<i64> = epoch.by_ref().map(|batch| t(&batch.unwrap())).collect();
    assert_eq!(read, (0..8).collect::<Vec<_>>());
    assert_eq!(epoch.corrupt_lines(), 1);
}

#[test]
fn workers_share_the_lines() {
    let folder = written(0..100, 3_000);
    assert!(files(&folder).len() > 1);
    let options = |shard| JsonReaderOptions {
        shard: Some((shard, 3)),
        worker_index: shard + 1,
        num_workers: 3,
        ..JsonReaderOptions::default()
    };
    let mut all = Vec::new();
    for shard in 0..3 {
        let epoch: BTreeSet<i64> =
            reader(&folder, options(shard)).read_all_files().map(|batch| t(&batch.unwrap())).collect();
        assert!((25..45).contains(&epoch.len()), "{}", epoch.len());
        // Endless reading stays within the shard.
        assert!(distinct(&mut reader(&folder, options(shard)), 500).is_subset(&epoch));
        all.extend(epoch);
    }
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());

    let single = folder_of(&[("1.json", line(0))]);
    let error = reader(&single, options(1)).next_batch().unwrap_err().to_string();
    assert!(error.contains("dataset_shards should be smaller"), "{error}");
}

#[test]
fn seed_and_worker_determine_the_order() {
    let folder = written(0..60, 2_000);
    let order = |seed, worker_index| {
        let options = JsonReaderOptions { seed, worker_index, num_workers: 2, ..JsonReaderOptions::default() };
        let mut reader = reader(&folder, options);
        (0..200).map(|_| t(&reader.next_batch().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(order(3, 1), order(3, 1));
    assert_ne!(order(3, 1), order(4, 1));
    assert_ne!(order(3, 1), order(3, 2));
    // Workers begin with different files.
    assert_eq!((order(3, 0)[0], order(4, 0)[0]), (0, 0));
    assert_ne!(order(3, 1)[0], 0);
}

#[test]
fn batches_are_joined_until_there_are_enough_rows() {
    let folder = written(0..10, 1 << 20);
    let mut reader = reader(&folder, JsonReaderOptions { batch_size: 4, ..JsonReaderOptions::default() });
    assert_eq!(reader.next_batch().unwrap().single().unwrap().get(T).unwrap(), [0, 1, 2, 3]);
    assert_eq!(reader.next_batch().unwrap().env_steps(), 4);
}

#[test]
fn joining_lines_holds_the_buffer_and_names_what_is_too_much() {
    let obs = ColumnData::new((0..4096).map(|x| f64::from(x) * 0.5).collect(), RowShape::vector(4096)).unwrap();
    let mut row = SampleBatch::new();
    row.insert("obs", obs).unwrap();
    let mut line = Vec::new();
    encode_record(&row.into(), &[], &mut line).unwrap();
    let line = String::from_utf8(line).unwrap() + "\n";
    let folder = folder_of(&[("1.json", line.repeat(300))]);
    let buffer_size = 2 << 20;
    for (batch_size, rows) in [(1, Some(1)), (16, Some(16)), (17, None), (100_000, None)] {
        let options = JsonReaderOptions { batch_size, buffer_size, ..JsonReaderOptions::default() };
        let mut read = None;
        let memory = allocation_counter::measure(|| {
            let mut reader = reader(&folder, options.clone());
            read = Some((0..20).map(|_| reader.next_batch().map(|batch| batch.env_steps())).collect::<Vec<_>>());
        });
        assert!(memory.bytes_max <= buffer_size as u64, "{batch_size} rows: {} bytes were held", memory.bytes_max);
        for read in read.unwrap() {
            match (read, rows) {
                (Ok(read), Some(rows)) => assert_eq!(read, rows),
                (Err(error @ OfflineError::Joined { .. }), None) => {
                    let text = error.to_string();
                    assert!(text.starts_with("17 rows of lines") && text.contains("train_batch_size"), "{text}");
                }
                other => panic!("{batch_size} rows: {other:?}"),
            }
        }
    }
}

#[test]
fn lines_beyond_the_buffer_are_passed_over() {
    let long = format!("{{\"type\": \"SampleBatch\", \"t\": [{}0]}}\n", "0, ".repeat(100_000));
    let folder = folder_of(&[("1.json", format!("{}{long}{}", line(1), line(2)))]);
    let options = JsonReaderOptions { buffer_size: 64 << 10, ..JsonReaderOptions::default() };
    let mut epoch = reader(&folder, options).read_all_files();
    assert_eq!(epoch.by_ref().map(|batch| t(&batch.unwrap())).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(epoch.corrupt_lines(), 1);
}

/// Returns a line whose column is compressed to a thousandth.
fn flat_line(rows: usize, t: i64) -> String {
    let batch = SampleBatch::new().with(T, ColumnData::scalars(vec![t; rows])).unwrap().into();
    let mut line = Vec::new();
    encode_record(&batch, &[T.name()], &mut line).unwrap();
    String::from_utf8(line).unwrap() + "\n"
}

/// Returns text of several times the size that one thread reads alone: lines of all lengths, blank and corrupt ones, and
/// lines that exceed the limit of decoding ahead, or of a line.
fn motley(from: i64) -> String {
    let numbers = |t: i64, n: usize| format!("{{\"type\": \"SampleBatch\", \"t\": [{t}{}]}}\n", ", 7".repeat(n));
    let odd = |t: i64| match t % 100 {
        10 => "\n".into(),
        20 => "no line\n".into(),
        30 => numbers(t, 40_000),
        40 => flat_line(40_000, t),
        50 if t % 500 == 50 => flat_line(600_000, t),
        60 if t % 500 == 60 => numbers(t, 800_000),
        _ => numbers(t, 1_000),
    };
    (from..from + 600).map(odd).collect::<String>() + "the end is missing"
}

/// Returns the batches and reports of the reader, line by line; an error comes last.
fn all_of(reader: JsonReader) -> Vec<String> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    let mut all = reader
        .on_corrupt(move |path, error| {
            hear.lock().unwrap().push(format!("{}: {error}", path.file_name().unwrap().display()))
        })
        .read_all_files();
    while let Some(next) = all.next() {
        let next = next.map(|batch| (t(&batch), batch.env_steps())).map_err(|error| error.to_string());
        let about = format!("line {}: {next:?}, {} corrupt", all.line(), all.corrupt_lines());
        heard.lock().unwrap().push(about);
    }
    let heard = heard.lock().unwrap();
    heard.clone()
}

#[test]
fn number_of_threads_does_not_change_results() {
    let folder = folder_of(&[("a.json", motley(0)), ("b.json", line(-1)), ("c.json", motley(1_000))]);
    // The limit of a line is 2 MiB, decompressed or not; some lines exceed it.
    let options = |shard| JsonReaderOptions { buffer_size: 32 << 20, shard, ..JsonReaderOptions::default() };
    for shard in [None, Some((1, 3))] {
        let alone = all_of(reader(&folder, options(shard)).with_helpers(0));
        let kinds = |what: &str| alone.iter().filter(|heard| heard.contains(what)).count();
        assert!(kinds("corrupt") > 190 && kinds("no JSON") > 2 && kinds("there is room for") > 0, "{alone:?}");
        assert!(kinds("raise the buffer's size") > 0, "{alone:?}");
        for helpers in [1, 3] {
            assert_eq!(all_of(reader(&folder, options(shard)).with_helpers(helpers)), alone, "{helpers} of {shard:?}");
        }
    }
    let endless = |helpers| {
        let mut reader = reader(&folder, options(None)).with_helpers(helpers);
        (0..1_500).map(|_| t(&reader.next_batch().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(endless(2), endless(0));
}

#[test]
fn an_error_comes_behind_what_could_be_read_before() {
    let folder = folder_of(&[("a.json", motley(0) + &"\nno line".repeat(200))]);
    let damaged = folder.path().join("b.zip");
    let mut archive = zip::ZipWriter::new(fs::File::create(&damaged).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, text) in [("one.json", motley(1_000)), ("two.json", line(7))] {
        archive.start_file(name, options).unwrap();
        archive.write_all(text.as_bytes()).unwrap();
    }
    archive.finish().unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    // The deflated bytes begin behind the name.
    let place = bytes.windows(8).position(|name| name == b"two.json").unwrap() + 8;
    bytes[place] = 0xff;
    fs::write(&damaged, bytes).unwrap();
    for file in ["a.json", "b.zip"] {
        let read = |helpers| {
            let reader = JsonReader::new(vec![folder.path().join(file)], JsonReaderOptions::default()).unwrap();
            all_of(reader.with_helpers(helpers))
        };
        let alone = read(0);
        assert!(alone.len() > 400 && alone.last().unwrap().contains("Err("), "{:?}", alone.last());
        assert_eq!(read(2), alone, "{file}");
    }
}

#[test]
fn archives_are_read_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = zip::ZipWriter::new(fs::File::create(folder.path().join("a.zip")).unwrap());
    for (name, method, rows) in [
        ("one.json", zip::CompressionMethod::Deflated, 0..1_000),
        ("readme.txt", zip::CompressionMethod::Stored, 0..1),
        ("inner/two.json", zip::CompressionMethod::Stored, 1_000..1_010),
    ] {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        archive.start_file(name, options).unwrap();
        // The last line has no newline.
        archive.write_all(rows.map(line).collect::<String>().trim_end().as_bytes()).unwrap();
    }
    archive.finish().unwrap();
    let read = || reader(&folder, JsonReaderOptions::default()).read_all_files();
    assert_eq!(read().map(|batch| t(&batch.unwrap())).collect::<Vec<_>>(), (0..1_010).collect::<Vec<_>>());

    // The name does not matter.
    fs::rename(folder.path().join("a.zip"), folder.path().join("a.json")).unwrap();
    assert_eq!(read().map(|batch| t(&batch.unwrap())).collect::<Vec<_>>(), (0..1_010).collect::<Vec<_>>());
    fs::remove_file(folder.path().join("a.json")).unwrap();

    fs::write(folder.path().join("a.zip"), b"no archive").unwrap();
    let error = read().next().unwrap().unwrap_err();
    assert!(matches!(error, OfflineError::Zip { .. }), "{error}");
}

#[test]
fn unreadable_file_is_skipped_after_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = zip::ZipWriter::new(fs::File::create(folder.path().join("a.zip")).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    archive.start_file("one.json", options).unwrap();
    archive.write_all((0..1_000).map(line).collect::<String>().as_bytes()).unwrap();
    archive.finish().unwrap();
    let path = folder.path().join("a.zip");
    let mut bytes = fs::read(&path).unwrap();
    // The deflated bytes begin after 30 bytes and the name.
    bytes[38..70].fill(0xff);
    fs::write(&path, bytes).unwrap();
    fs::write(folder.path().join("b.json"), line(7)).unwrap();
    fs::write(folder.path().join("c.zip"), "no archive").unwrap();
    let mut reader = reader(&folder, JsonReaderOptions { seed: 3, ..JsonReaderOptions::default() });
    let (mut errors, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        match reader.next_batch() {
            Ok(batch) => rows.push(t(&batch)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    assert_eq!((errors.len(), rows), (2, vec![7; 48]), "{errors:?}");
}

#[test]
fn corrupt_lines_are_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.json"), format!("nonsense\n{}", line(7))).unwrap();
    let mut endless = reader(&folder, JsonReaderOptions::default());
    endless.next_batch().unwrap();
    assert_eq!((endless.losses().corrupt_lines, endless.losses().corrupt_lines), (1, 0));
    let files = vec![Located { path: folder.path().join("a.json"), format: Format::Json }];
    let mut epochs = DatasetReader::new(Logged::new(files, None));
    for _ in 0..2 {
        assert!(epochs.next_in_epoch().unwrap().is_some());
        assert!(epochs.next_in_epoch().unwrap().is_none());
    }
    assert_eq!((epochs.losses().corrupt_lines, epochs.losses().corrupt_lines), (2, 0), "once per epoch");
    assert!(epochs.next_in_epoch().unwrap().is_some());
    assert_eq!(epochs.losses().corrupt_lines, 1);
}

#[test]
fn no_file_is_written_to_twice() {
    let folder = tempfile::tempdir().unwrap();
    let writer = || {
        let options = JsonWriterOptions { worker_index: 3, ..JsonWriterOptions::default() };
        JsonWriter::new(folder.path(), options).unwrap().with_clock(|| UNIX_EPOCH + Duration::from_secs(86_400))
    };
    let (mut first, mut second) = (writer(), writer());
    first.append(&row(0)).unwrap();
    second.append(&row(1)).unwrap();
    first.append(&row(2)).unwrap();
    let names: Vec<String> =
        files(&folder).iter().map(|file| file.file_name().unwrap().to_str().unwrap().into()).collect();
    assert_eq!(names, ["output-1970-01-02_00-00-00_worker-3_0.json", "output-1970-01-02_00-00-00_worker-3_1.json"]);
    // Every line is on disk as soon as it is written.
    let read: Vec<i64> =
        reader(&folder, JsonReaderOptions::default()).read_all_files().map(|batch| t(&batch.unwrap())).collect();
    assert_eq!(read, [0, 2, 1]);
    assert_eq!((first.close(), first.close()), (Ok(()), Ok(())));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = JsonWriter::new(folder.path(), JsonWriterOptions::default()).unwrap();
    writer.append(&row(0)).unwrap();
    writer.redirect(Path::new("/dev/full"));
    let error = writer.append(&row(1)).unwrap_err();
    assert!(matches!(error, OfflineError::DiskFull { .. }), "{error}");
    // There is space again: the writer continues with the same batch, in another file.
    writer.append(&row(1)).unwrap();
    let read = reader(&folder, JsonReaderOptions::default()).read_all_files();
    assert_eq!(read.map(|batch| t(&batch.unwrap())).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn many_batches_are_written_as_one_by_one() {
    let (folder, expected) = (tempfile::tempdir().unwrap(), written(0..100, 5_000));
    let options = JsonWriterOptions { max_file_size: 5_000, ..JsonWriterOptions::default() };
    let mut writer = JsonWriter::new(folder.path(), options).unwrap();
    let mut few: VecDeque<Arc<AnyBatch>> = (0..100).map(row).map(Arc::new).collect();
    let mut rest = few.split_off(30);
    for some in [&mut few, &mut VecDeque::new(), &mut rest] {
        writer.append_all(some).unwrap();
        assert!(some.is_empty());
    }
    let text = |folder| files(folder).iter().map(|file| fs::read_to_string(file).unwrap()).collect::<Vec<_>>();
    assert!(text(&folder).len() > 2);
    assert_eq!(text(&folder), text(&expected));
}

#[cfg(target_os = "linux")]
#[test]
fn batches_that_were_not_written_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = JsonWriter::new(folder.path(), JsonWriterOptions::default()).unwrap();
    let mut batches: VecDeque<Arc<AnyBatch>> = (0..20).map(row).map(Arc::new).collect();
    writer.append(&row(-1)).unwrap();
    writer.redirect(Path::new("/dev/full"));
    let error = writer.append_all(&mut batches).unwrap_err();
    assert!(matches!(error, OfflineError::DiskFull { .. }) && batches.len() == 20, "{error}");
    // There is space again.
    batches.insert(10, unwritable().into());
    let error = writer.append_all(&mut batches).unwrap_err();
    assert!(matches!(error, OfflineError::Encode(_)), "{error}");
    assert_eq!(*batches.pop_front().unwrap(), unwritable());
    writer.append_all(&mut batches).unwrap();
    let read = reader(&folder, JsonReaderOptions::default()).read_all_files();
    assert_eq!(read.map(|batch| t(&batch.unwrap())).collect::<Vec<_>>(), (-1..20).collect::<Vec<_>>());
}

/// Returns a batch that cannot be encoded as JSON.
fn unwritable() -> AnyBatch {
    let mut batch = SampleBatch::new();
    batch.insert("raw", BytesColumn::bytes([&b"bytes"[..]]).unwrap()).unwrap();
    batch.into()
}

#[test]
fn a_directory_that_cannot_be_is_an_error() {
    let error = JsonWriter::new("/dev/null/rows", JsonWriterOptions::default()).err().unwrap();
    assert!(matches!(error, OfflineError::Write { .. }), "{error}");
}

fn worker(config: RolloutConfig) -> RolloutWorker {
    let builder = RolloutWorkerBuilder::new(crate::native(Registry::builtin())).config(config);
    builder.native().build().unwrap()
}

#[test]
fn samples_of_one_worker_are_read_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(6).seed(5);
    let mut sampling = worker(RolloutConfig { output: Some(path.into()), ..config.clone() });
    let samples = [sampling.sample().unwrap(), sampling.sample().unwrap()];
    sampling.stop().unwrap();
    let text = fs::read_to_string(&files(&folder)[0]).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(text.lines().all(|line| line.starts_with(r#"{"type": "SampleBatch", "obs": "BCJNGG"#)), "{text}");

    let io_config = r#"{"train_batch_size": 1}"#.parse().unwrap();
    let mut reading = worker(RolloutConfig { input: path.into(), io_config, ..config });
    for sample in samples {
        let (read, sample) = (reading.sample().unwrap(), sample.single().unwrap().clone());
        let read = read.single().unwrap();
        assert!(read.get(ACTIONS).is_ok() && read.get(REWARDS).is_ok() && read.get(TERMINATEDS).is_ok());
        for (name, column) in sample.iter() {
            assert!(read.column(name).unwrap().same_bits(column), "{name}: {column:?}");
        }
    }
}

#[test]
fn workers_of_a_run_read_different_lines() {
    let folder = written(0..40, 1 << 20);
    let mut all = BTreeSet::new();
    for index in 1..=4 {
        let config = RolloutConfig {
            env: Some("CartPole-v1".into()),
            input: InputSource::Files(vec![folder.path().join("*.json").to_str().unwrap().into()]),
            batch_mode: BatchMode::CompleteEpisodes,
            io_config: r#"{"train_batch_size": 40}"#.parse().unwrap(),
            ..RolloutConfig::default()
        };
        let builder =
            RolloutWorkerBuilder::new(crate::native(Registry::builtin())).config(config.rollout_fragment_length(1));
        let mut worker = builder.place(WorkerPlace::remote(index, 4)).native().build().unwrap();
        let batch = worker.sample().unwrap();
        let ts = batch.single().unwrap().get(T).unwrap().to_vec();
        assert_eq!(ts.len(), 10);
        all.extend(ts);
    }
    assert_eq!(all.len(), 40);
}
