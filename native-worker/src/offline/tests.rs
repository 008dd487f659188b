//! Tests of inputs as named in settings.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use rollmesh_core::{
    batch::{ACTIONS, AnyBatch, EPS_ID, OBS, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    callbacks::WorkerInfo,
    column::{ColumnData, ColumnKey, RowShape},
    config::Config,
    sampler::IoContext,
    worker::{InputSource, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, SetupError, WorkerPlace},
};
use rollmesh_data::{
    dataset::BatchStream as _,
    parquet::{ParquetOptions, ParquetWriter},
};

use super::{
    json::{JsonWriter, JsonWriterOptions},
    *,
};
use crate::{NativeWorker as _, Registry, native};

/// Returns two steps of an episode with this number.
fn episode(id: i64) -> AnyBatch {
    let obs = (0..8).map(|x| (id * 8 + x) as f32 / 8.0).collect();
    SampleBatch::new()
        .with(OBS, ColumnData::new(obs, RowShape::vector(4)).unwrap())
        .and_then(|batch| batch.with(ACTIONS, ColumnData::scalars(vec![id % 2, 1 - id % 2])))
        .and_then(|batch| batch.with(REWARDS, ColumnData::scalars(vec![1.0, id as f32])))
        .and_then(|batch| batch.with(EPS_ID, ColumnData::scalars(vec![id; 2])))
        .and_then(|batch| batch.with(T, ColumnData::scalars(vec![0, 1])))
        .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(vec![false, true])))
        .and_then(|batch| batch.with(TRUNCATEDS, ColumnData::scalars(vec![false; 2])))
        .unwrap()
        .into()
}

fn write_json(folder: &Path, ids: std::ops::Range<i64>) {
    let mut writer = JsonWriter::new(folder, JsonWriterOptions::default()).unwrap();
    ids.for_each(|id| writer.append(&episode(id)).unwrap());
}

fn write_parquet(folder: &Path, ids: std::ops::Range<i64>) {
    let mut writer = ParquetWriter::new(folder, "part", ParquetOptions::default()).unwrap();
    ids.for_each(|id| writer.write(&episode(id)).unwrap());
    writer.finish().unwrap();
}

fn worker(input: &str, io_config: &str, place: WorkerPlace) -> Result<RolloutWorker, SetupError> {
    let config = RolloutConfig {
        input: serde_json::from_str(input).unwrap(),
        io_config: io_config.parse().unwrap(),
        create_env_on_local_worker: true,
        ..RolloutConfig::new("CartPole-v1").rollout_fragment_length(2).single_policy("random")
    };
    RolloutWorkerBuilder::new(native(Registry::builtin())).config(config).place(place).native().build()
}

/// Returns the episode numbers of this many samples.
fn ids(worker: &mut RolloutWorker, samples: usize) -> Vec<i64> {
    let sample = |_| worker.sample().unwrap().single().unwrap().get(EPS_ID).unwrap()[0];
    (0..samples).map(sample).collect()
}

#[test]
fn data_sets_are_read_in_epochs_and_no_two_workers_read_the_same() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path(), 0..7);
    write_json(&folder.path().join("lines"), 0..7);
    let table = format!("{:?}", folder.path().join("part-00000.parquet"));
    let lines = format!("{:?}", folder.path().join("lines"));
    for (input, settings) in [(&table, "{}"), (&lines, r#"{"read_all_files": true}"#)] {
        let mut alone = worker(input, settings, WorkerPlace::LOCAL).unwrap();
        assert_eq!(ids(&mut alone, 10), [0, 1, 2, 3, 4, 5, 6, 0, 1, 2], "in order, and from the beginning");
        let of = |worker_index| WorkerPlace { worker_index, num_workers: 2, ..WorkerPlace::LOCAL };
        assert_eq!(ids(&mut worker(input, settings, of(1)).unwrap(), 5), [0, 2, 4, 6, 0]);
        assert_eq!(ids(&mut worker(input, settings, of(2)).unwrap(), 5), [1, 3, 5, 1, 3]);
        let beside_others = worker(input, settings, of(0)).unwrap().sample().unwrap_err().to_string();
        assert!(beside_others.contains("all rows of the files are the remote workers'"), "{beside_others}");
    }
    // Otherwise lines are read endlessly, files at random.
    let endless = ids(&mut worker(&lines, "{}", WorkerPlace::LOCAL).unwrap(), 30);
    assert_eq!(endless.iter().collect::<BTreeSet<_>>().len(), 7);
}

#[test]
fn formats_are_mixed_by_probabilities_and_shuffled() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(&folder.path().join("tables"), 0..5);
    write_json(&folder.path().join("lines"), 100..105);
    let name = |name: &str| folder.path().join(name).display().to_string();
    let mixture = serde_json::json!({name("tables"): 0.5, name("lines"): 0.5}).to_string();
    let read = ids(&mut worker(&mixture, "{}", WorkerPlace::LOCAL).unwrap(), 60);
    let of_tables = read.iter().filter(|id| **id < 100).count();
    assert!((15..45).contains(&of_tables), "{of_tables} of 60");
    let tables = format!("{:?}", name("tables"));
    let shuffled = ids(&mut worker(&tables, r#"{"shuffle_buffer_size": 3}"#, WorkerPlace::LOCAL).unwrap(), 10);
    assert!(!shuffled.is_sorted());
    assert_eq!(shuffled[..5].iter().chain(&shuffled[5..]).collect::<BTreeSet<_>>().len(), 5);
}

#[test]
fn worker_resumes_from_the_input_position_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(&folder.path().join("tables"), 0..7);
    for part in 0..4 {
        write_json(&folder.path().join("lines"), 100 + 10 * part..109 + 10 * part);
    }
    let name = |name: &str| folder.path().join(name).display().to_string();
    let (tables, lines) = (format!("{:?}", name("tables")), format!("{:?}", name("lines")));
    let mixture = serde_json::json!({name("tables"): 0.4, name("lines"): 0.6}).to_string();
    let place = WorkerPlace { worker_index: 1, num_workers: 2, ..WorkerPlace::LOCAL };
    for (input, settings) in [
        (&tables, "{}"),
        (&lines, r#"{"train_batch_size": 4}"#),
        (&lines, r#"{"read_all_files": true, "shuffle_buffer_size": 4}"#),
        (&mixture, r#"{"shuffle_buffer_size": 5, "train_batch_size": 4}"#),
    ] {
        for samples in [0, 1, 5, 30] {
            let mut first = worker(input, settings, place).unwrap();
            ids(&mut first, samples);
            let position = first.input_position().unwrap();
            assert_eq!(first.input_position().as_ref(), Some(&position), "looking changes nothing");
            // The other worker's previous position does not matter.
            let mut second = worker(input, settings, place).unwrap();
            ids(&mut second, 3);
            second.set_input_position(&position).unwrap();
            assert_eq!(ids(&mut second, 40), ids(&mut first, 40), "{input} {settings} behind {samples}");
        }
    }
    let error = |input: &str, other: &str| {
        let position = worker(other, "{}", place).unwrap().input_position().unwrap();
        worker(input, "{}", place).unwrap().set_input_position(&position).unwrap_err().to_string()
    };
    assert!(error(&tables, &lines).contains("the position is that of another input, or damaged"));
    assert!(error(&mixture, &tables).contains("the position is that of another input, or damaged"));
    assert_eq!(worker(r#""sampler""#, "{}", WorkerPlace::LOCAL).unwrap().input_position(), None);
}

#[test]
fn file_changed_since_the_listing_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    write_json(folder.path(), 0..3);
    let lines = format!("{:?}", folder.path());
    for settings in ["{}", r#"{"read_all_files": true}"#] {
        let mut before = worker(&lines, settings, WorkerPlace::LOCAL).unwrap();
        ids(&mut before, 2);
        let position = before.input_position().unwrap();
        write_json(folder.path(), 3..4);
        let mut after = worker(&lines, settings, WorkerPlace::LOCAL).unwrap();
        let error = after.set_input_position(&position).unwrap_err().to_string();
        assert!(error.contains("bring") && error.contains("begin again"), "{error}");
    }
}

#[test]
fn samples_are_mixed_with_files() {
    let folder = tempfile::tempdir().unwrap();
    write_json(folder.path(), 1000..1005);
    let mixture = serde_json::json!({"sampler": 0.5, folder.path().display().to_string(): 0.5}).to_string();
    let mut worker = worker(&mixture, r#"{"train_batch_size": 2}"#, WorkerPlace::LOCAL).unwrap();
    let read: Vec<(i64, usize)> = (0..60)
        .map(|_| worker.sample().unwrap())
        .map(|batch| (batch.single().unwrap().get(EPS_ID).unwrap()[0], batch.env_steps()))
        .collect();
    let sampled = read.iter().filter(|(id, _)| *id < 1000).count();
    assert!((15..45).contains(&sampled), "{sampled} of 60");
    assert!(read.iter().all(|(_, steps)| *steps == 2), "fragments and lines of two steps: {read:?}");
}

#[test]
fn actions_of_recorded_environments_become_those_of_policies() {
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data/pendulum_random_d4rl.hdf5");
    let largest = |io_config: &str| {
        let config = RolloutConfig {
            input: InputSource::Name(golden.display().to_string()),
            io_config: io_config.parse().unwrap(),
            ..RolloutConfig::new("Pendulum-v1").rollout_fragment_length(200).single_policy("random")
        };
        let builder = RolloutWorkerBuilder::new(native(Registry::builtin())).config(config).native();
        let batch = builder.build().unwrap().sample().unwrap();
        let actions = batch.single().unwrap().get(ColumnKey::<f32>::new("actions")).unwrap().to_vec();
        actions.into_iter().map(f32::abs).fold(0.0, f32::max)
    };
    // Pendulum's torque is from -2 to 2.
    assert!((1.5..=2.0).contains(&largest(r#"{"actions_in_input_normalized": true}"#)));
    assert!((0.75..=1.0).contains(&largest("{}")));
}

#[test]
fn registered_name_precedes_files_and_several_formats_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(folder.path(), 0..1);
    write_json(folder.path(), 0..1);
    let both = format!("{:?}", folder.path().display().to_string());
    let error = worker(&both, "{}", WorkerPlace::LOCAL).err().unwrap().to_string();
    assert!(error.contains("are of one format") && error.contains("data merge"), "{error}");
    let registry = Registry::builtin()
        .with_input("mine", |_| Err(rollmesh_core::sampler::SampleError::Input("the registered one".into())));
    let mut context = IoContext::new(WorkerInfo::default(), Config::new(), None);
    let opened = native(registry).open_input(&InputSource::from("mine"), &mut context);
    assert!(opened.err().unwrap().to_string().contains("the registered one"));
    let unknown = worker(r#""cartpole/missing-v7""#, "{}", WorkerPlace::LOCAL).err().unwrap().to_string();
    assert!(unknown.contains("there is no data set 'cartpole/missing-v7'"), "{unknown}");
}

#[test]
fn everything_is_read_once_with_its_place_and_corrupt_lines_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    write_json(folder.path(), 0..2);
    let lines = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&lines).unwrap();
    fs::write(&lines, format!("no line\n{text}")).unwrap();
    write_parquet(folder.path(), 2..4);
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hear = heard.clone();
    let mut logged = open_logged(&[folder.path().display().to_string()], None)
        .unwrap()
        .on_corrupt(move |_, error| hear.lock().unwrap().push(error.to_string()));
    for _ in 0..2 {
        let mut places = Vec::new();
        while let Some(batch) = logged.next_batch().unwrap() {
            let place = logged.place().unwrap();
            places.push((batch.single().unwrap().get(EPS_ID).unwrap()[0], place.file, place.line, place.row));
        }
        assert_eq!(places, [(0, 0, Some(2), 0), (1, 0, Some(3), 0), (2, 1, None, 0), (3, 1, None, 2)]);
        assert_eq!(logged.corrupt_lines(), 1, "of this time");
        logged.rewind().unwrap();
    }
    assert!(heard.lock().unwrap()[0].starts_with("line 1: no JSON"));
}

#[test]
fn samples_are_written_as_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let config = RolloutConfig {
        output: Some(folder.path().display().to_string()),
        io_config: r#"{"format": "parquet"}"#.parse().unwrap(),
        ..RolloutConfig::new("CartPole-v1").rollout_fragment_length(50).single_policy("random")
    };
    let builder = || RolloutWorkerBuilder::new(native(Registry::builtin())).native();
    let mut worker = builder().config(config.clone()).build().unwrap();
    let sampled = worker.sample().unwrap();
    worker.stop().unwrap();
    let mut logged = open_logged(&[folder.path().display().to_string()], None).unwrap();
    assert_eq!(logged.next_batch().unwrap(), Some(sampled));
    let odd = RolloutConfig { io_config: r#"{"format": "csv"}"#.parse().unwrap(), ..config };
    let error = builder().config(odd).build().err().unwrap().to_string();
    assert!(error.contains("json and parquet are known"), "{error}");
}

#[test]
fn reading_lines_holds_the_buffer_however_large_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let obs = ColumnData::new((0..4 * 400).map(|x| x as f32 * 0.37).collect(), RowShape::vector(4)).unwrap();
    let batch =
        SampleBatch::new().with(OBS, obs).and_then(|batch| batch.with(ACTIONS, ColumnData::scalars(vec![1; 400])));
    let batch: AnyBatch = batch.unwrap().into();
    let options = JsonWriterOptions { compress_columns: Vec::new(), ..JsonWriterOptions::default() };
    let mut writer = JsonWriter::new(folder.path(), options).unwrap();
    (0..800).for_each(|_| writer.append(&batch).unwrap());
    let files = inputs::locate(&[folder.path().display().to_string()], &DatasetFolders::default()).unwrap();
    let buffer = 2 << 20;
    let mut logged = Logged::new(files, Some(buffer));
    assert!(logged.progress().1 > 4 * buffer as u64, "{}", logged.progress().1);
    let mut rows = 0;
    let memory = allocation_counter::measure(|| {
        while let Some(batch) = logged.next_batch().unwrap() {
            rows += batch.env_steps();
        }
    });
    assert_eq!((rows, logged.corrupt_lines()), (800 * 400, 0));
    assert!(memory.bytes_max < buffer as u64, "{} bytes were held", memory.bytes_max);
}

#[test]
fn a_dataset_is_what_its_settings_name() {
    let folder = tempfile::tempdir().unwrap();
    write_parquet(&folder.path().join("tables"), 0..4);
    write_json(&folder.path().join("more"), 4..7);
    write_json(&folder.path().join("lines"), 0..4);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let settings =
        |format: &str, paths: serde_json::Value| serde_json::json!({"format": format, "paths": paths}).to_string();
    let open = |settings: &str| worker("\"dataset\"", settings, WorkerPlace::LOCAL);
    for (format, paths, all) in [
        ("parquet", path("tables").into(), 4),
        ("json", path("lines").into(), 4),
        ("json", vec![path("lines"), path("more")].into(), 7),
    ] {
        let read = ids(&mut open(&settings(format, paths)).unwrap(), 9);
        assert_eq!(read, (0..9).map(|n| n % all).collect::<Vec<_>>(), "in epochs");
    }
    for (settings, problem) in [
        ("{}".to_owned(), "set input_config"),
        (serde_json::json!({"paths": path("lines")}).to_string(), "needs a format"),
        (settings("csv", path("lines").into()), "it is json or parquet"),
        (settings("parquet", path("lines").into()), "the paths hold json, but format is 'parquet'"),
        (settings("json", "/nowhere/at/all".into()), "there are no files /nowhere/at/all"),
        (settings("json", 7.into()), "paths"),
    ] {
        let error = open(&settings).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(problem), "{settings}: {error}");
    }
}

#[test]
fn a_corrupt_line_is_counted_once_by_workers_that_share_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    write_json(folder.path(), 0..5);
    fs::write(folder.path().join("z.json"), "no batch\n").unwrap();
    let input = format!("{:?}", folder.path());
    let of = |worker_index| {
        let place = WorkerPlace { worker_index, num_workers: 3, ..WorkerPlace::LOCAL };
        let mut worker = worker(&input, r#"{"read_all_files": true}"#, place).unwrap();
        // Into the next epoch, in which the corrupt line occurs again.
        ids(&mut worker, 3);
        worker.metrics().corrupt_lines
    };
    assert_eq!([1, 2, 3].map(of), [1, 0, 0]);
}
