//! Minari's data sets.

use std::{collections::BTreeSet, fs, sync::Arc};

use rollmesh_core::{
    batch::{AnyBatch, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS},
    column::{Column, ColumnData, DType, RowShape},
    space::{BoxSpace, Space},
};
use rollmesh_data::{
    FileSource,
    dataset::{self, DatasetError},
    minari::{MinariDataset, MinariInfo, MinariWriter},
    survey::TableInspection,
};
use serde_json::Map;

use super::{BUFFER, all, golden};

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
    // The observation after a step is the one before the next step.
    assert_eq!(first.get(OBS).unwrap()[4..], first.get(NEW_OBS).unwrap()[..23 * 4]);
}

#[test]
fn file_of_episodes_alone_is_read_without_its_folder() {
    let path = golden("minari_cartpole_hdf5/data/main_data.hdf5");
    assert_eq!(all(&mut *dataset::open(&path, BUFFER).unwrap()).unwrap(), batches("minari_cartpole_hdf5"));
    let source = Arc::new(FileSource::open(&path).unwrap());
    let mut file = TableInspection::open(source, BUFFER, 5).unwrap();
    while file.inspect_next().unwrap() {}
    let found = file.found(16);
    let policy = &found.report.policies["default_policy"];
    assert_eq!((found.report.batches, found.report.env_steps, policy.episodes, policy.unfinished), (30, 812, 30, 0));
    assert_eq!(found.problems.len(), 0, "{:?}", found.problems);
}

#[test]
fn every_column_is_the_data_sets() {
    for name in ["minari_cartpole_hdf5", "minari_cartpole_arrow", "minari_cartpole_parquet"] {
        let dataset = MinariDataset::open(&golden(name), BUFFER).unwrap();
        for (place, batch) in batches(name).iter().enumerate() {
            let (batch, episode) = (batch.single().unwrap(), dataset.episode(place).unwrap().unwrap());
            let steps = episode.steps();
            let [(_, observations)] = episode.observations.as_slice() else { panic!("one array of observations") };
            let [(_, actions)] = episode.actions.as_slice() else { panic!("one array of actions") };
            assert_eq!(observations.rows(), steps + 1);
            for (column, expected) in [
                ("obs", observations.slice(0..steps)),
                ("new_obs", observations.slice(1..steps + 1)),
                ("actions", actions.clone()),
                ("terminateds", episode.terminations.clone()),
                ("truncateds", episode.truncations.clone()),
            ] {
                assert_eq!(batch.column(column), Some(&expected), "{name}: {column} of {place}");
            }
            let Column::F64(rewards) = &episode.rewards else { panic!("rewards of 64 bits") };
            let rewards: Vec<f32> = rewards.values().iter().map(|reward| *reward as f32).collect();
            assert_eq!(batch.get(REWARDS).unwrap(), rewards);
            assert_eq!(batch.get(EPS_ID).unwrap(), vec![episode.id; steps]);
            assert_eq!(batch.get(T).unwrap(), (0..steps as i64).collect::<Vec<_>>());
            assert_eq!(batch.iter().count(), 8);
        }
    }
}

#[test]
fn metadata_are_read() {
    let dataset = MinariDataset::open(&golden("minari_cartpole_hdf5"), BUFFER).unwrap();
    assert_eq!(dataset.metadata()["dataset_id"], "cartpole/randomhdf5-v0");
    assert_eq!(dataset.episodes(), 30);
}

#[test]
fn written_data_set_round_trips() {
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

    // The metadata cannot be written: a folder has the name of their temporary file.
    let data = folder.path().join("data");
    let names = || fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>();
    let before = names();
    fs::create_dir(data.join("metadata.json.tmp")).unwrap();
    assert!(writer.write_episode(&episodes[0]).is_err());
    fs::remove_dir(data.join("metadata.json.tmp")).unwrap();
    assert_eq!(names(), before, "nothing of the episode is left");
    // The program was killed before it counted an episode, and in the middle of the next one.
    fs::create_dir(data.join("2")).unwrap();
    fs::copy(data.join("1/part-0.parquet"), data.join("2/part-0.parquet")).unwrap();
    fs::create_dir(data.join("3.part")).unwrap();

    let read = all(&mut MinariDataset::open(folder.path(), BUFFER).unwrap().stream()).unwrap();
    assert_eq!(read.len(), 2);
    for (read, episode) in read.iter().zip(&episodes) {
        assert!(read.single().unwrap().same_bits(episode), "{read:?}\n{episode:?}");
    }
}

#[test]
fn an_episode_larger_than_the_buffer_is_named() {
    for name in ["minari_cartpole_hdf5", "minari_cartpole_arrow", "minari_cartpole_parquet"] {
        let small = 1 << 10;
        let read = MinariDataset::open(&golden(name), small).and_then(|dataset| all(&mut dataset.stream()));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("the buffer"), "{name}: {error}");
    }
}
