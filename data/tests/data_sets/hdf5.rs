//! HDF5 files whose tables share parts, whose lists and names are far longer than the file, and with objects that are not read.

use std::{fs, path::Path};

use hdf5_pure::File;
use rollmesh_data::{Hdf5Error, d4rl::D4rlFile, dataset::DatasetError, minari::MinariDataset};

use super::{BUFFER, bytes, harness::bounded};

/// Memory that the decoder may take with the buffer.
const HDF5: u64 = 8 << 20;

fn place(file: &[u8], what: &[u8]) -> usize {
    file.windows(what.len()).position(|part| part == what).unwrap()
}

fn put(file: &mut [u8], at: usize, number: usize) {
    file[at..at + 8].copy_from_slice(&(number as u64).to_le_bytes());
}

/// Checks that reading a file takes little memory, and returns its error.
fn refused(name: &str, file: Vec<u8>) -> Hdf5Error {
    let mut error = None;
    bounded(name, file.len(), HDF5, || error = D4rlFile::open(file, BUFFER).err());
    let Some(DatasetError::Hdf5(error)) = error else { panic!("{name}: {error:?}") };
    error
}

/// Puts forty nodes above a tree of groups (0) or chunks (1), each of which has the next one as all its sixteen children.
fn deep(mut file: Vec<u8>, kind: u8, key: usize) -> Vec<u8> {
    let root = place(&file, &[b"TREE", &[kind][..]].concat());
    let (from, to) = ((root as u64).to_le_bytes(), file.len());
    for at in 0..file.len() - 8 {
        if file[at..at + 8] == from {
            put(&mut file, at, to);
        }
    }
    let size = 24 + 16 * (key + 8) + key;
    for level in (1..=40u8).rev() {
        let next = if level == 1 { root } else { file.len() + size };
        file.extend([b"TREE", &[kind, level, 16, 0][..], &[0xff; 16]].concat());
        for _ in 0..16 {
            file.extend([&vec![0; key][..], &(next as u64).to_le_bytes()].concat());
        }
        file.extend(vec![0; key]);
    }
    file
}

#[test]
fn trees_whose_nodes_are_shared_are_read_to_a_limit() {
    let groups = refused("groups", deep(bytes("pendulum_small_contiguous.hdf5"), 0, 8));
    assert!(matches!(groups, Hdf5Error::Corrupt(_)), "{groups}");
    // A key is as long as the array has dimensions.
    let chunks = [24, 32].map(|key| refused("chunks", deep(bytes("pendulum_random_d4rl.hdf5"), 1, key)).to_string());
    assert!(chunks.iter().any(|error| error.contains("tables")), "{chunks:?}");
}

#[test]
fn names_that_are_shared_are_counted_each_time() {
    let mut file = bytes("pendulum_small_contiguous.hdf5");
    let (heap, tree, entry) = (place(&file, b"HEAP"), place(&file, b"TREE"), place(&file, b"SNOD") + 8);
    let (entry, names, name) = (file[entry..entry + 40].to_vec(), file.len(), 200_000);
    file.extend([b"SNOD", &[1, 0][..], &2000u16.to_le_bytes()].concat());
    (0..2000).for_each(|_| file.extend([&[0; 8], &entry[8..]].concat()));
    put(&mut file, tree + 32, names);
    let end = file.len();
    put(&mut file, heap + 8, name + 1);
    put(&mut file, heap + 24, end);
    file.extend(vec![b'a'; name]);
    file.push(0);
    let error = refused("names", file);
    assert!(matches!(error, Hdf5Error::Tables(_)), "{error}");
}

#[test]
fn chunks_are_counted_before_they_are_listed() {
    let mut file = bytes("pendulum_random_d4rl.hdf5");
    for at in 0..file.len() - 8 {
        if file[at..at + 8] == 2000u64.to_le_bytes() {
            put(&mut file, at, 1 << 40);
        }
    }
    let error = refused("chunks", file).to_string();
    assert!(error.contains("more chunks than the file has bytes"), "{error}");
}

#[test]
fn soft_links_are_named() {
    let mut file = bytes("pendulum_small_contiguous.hdf5");
    let last = place(&file, b"SNOD") + 8 + 4 * 40;
    file[last + 8..last + 16].fill(0xff);
    file[last + 16] = 2;
    let error = refused("soft links", file);
    assert!(matches!(error, Hdf5Error::SoftLinks), "{error}");
}

/// Returns a D4RL file with a long text in the first row, and short ones in the others.
fn with_texts(path: &Path, text: &str) -> Vec<u8> {
    let file = File::create(path).unwrap();
    let root = file.root();
    for name in ["observations", "actions", "rewards"] {
        root.create_dataset(name, |array| {
            array.with_f32_data(&[0.5; 64]);
        })
        .unwrap();
    }
    root.create_dataset("terminals", |array| {
        array.with_u8_data(&[0; 64]);
    })
    .unwrap();
    let texts: Vec<&str> = std::iter::once(text).chain([".."; 63]).collect();
    root.create_dataset("notes", |array| {
        array.with_vlen_strings(&texts);
    })
    .unwrap();
    drop(root);
    file.close().unwrap();
    fs::read(path).unwrap()
}

#[test]
fn texts_that_are_shared_are_counted_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let len = 400_000u32;
    let mut file = with_texts(&folder.path().join("texts.hdf5"), &"x".repeat(len as usize));
    let lengths = |file: Vec<u8>| {
        let file = D4rlFile::open(file, BUFFER).unwrap();
        file.read("notes", 0..64).map(|column| column.rows()).map_err(|error| error.to_string())
    };
    assert_eq!(lengths(file.clone()), Ok(64));
    // A row has a length and an address of 12 bytes.
    let is_row =
        |at: &usize| file[*at..].starts_with(&len.to_le_bytes()) && file[*at + 16..].starts_with(&[2, 0, 0, 0]);
    let first = (0..file.len() - 16 * 64).find(is_row).unwrap();
    let row = file[first..first + 16].to_vec();
    file[first..first + 16 * 64].copy_from_slice(&row.repeat(64));
    bounded("texts", file.len(), HDF5, || {
        let error = lengths(file).unwrap_err();
        assert!(error.contains("a range of texts takes 25600000 bytes"), "{error}");
    });
}

#[test]
fn arrays_of_an_episode_that_are_not_needed_may_be_of_any_kind() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    fs::write(data.join("metadata.json"), r#"{"data_format": "hdf5", "jpeg_encoding": false}"#).unwrap();
    let file = File::create(data.join("main_data.hdf5")).unwrap();
    let root = file.root();
    root.create_group("episode_0").unwrap();
    for (name, rows) in [("observations", 3), ("actions", 2), ("rewards", 2)] {
        root.create_dataset(&format!("episode_0/{name}"), |array| {
            array.with_f32_data(&vec![0.5; rows]);
        })
        .unwrap();
    }
    for name in ["terminations", "truncations"] {
        root.create_dataset(&format!("episode_0/{name}"), |array| {
            array.with_u8_data(&[0, 1]);
        })
        .unwrap();
    }
    root.create_dataset("episode_0/spectrum", |array| {
        array.with_complex32_data(&[(0.5, 1.0)]);
    })
    .unwrap();
    drop(root);
    file.close().unwrap();
    let dataset = MinariDataset::open(data, BUFFER).unwrap();
    assert_eq!(dataset.episode(0).unwrap().unwrap().steps(), 2);
}
