//! Crashes at every moment, damage of every kind, a full disk.

mod crash_fs;

use std::fs;

use self::crash_fs::{CrashFs, Loss};
use super::*;

const OLD: &[(&str, &[u8])] = &[("ledger.bin", b"old ledger"), ("weights.bin", b"old weights")];
const NEW: &[(&str, &[u8])] = &[("ledger.bin", b"the new ledger"), ("weights.bin", b"the new weights")];

fn is(files: &BTreeMap<String, Vec<u8>>, wanted: &[(&str, &[u8])]) -> bool {
    files.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())).eq(wanted.iter().copied())
}

fn load<S: Storage>(storage: S) -> Result<Option<Found>, CheckpointError> {
    Checkpoints::open_in(storage, "run")?.load()
}

#[test]
fn crash_at_any_moment_leaves_the_old_or_the_new_checkpoint() {
    let fs = CrashFs::default();
    let mut checkpoints = Checkpoints::open_in(fs.clone(), "run").unwrap();
    // Enough that older ones are removed.
    (0..3).for_each(|_| _ = checkpoints.save(OLD).unwrap());
    let before = fs.moments();
    checkpoints.save(NEW).unwrap();
    let (after, mut found_old, mut found_new) = (fs.moments(), 0, 0);
    for moment in before..=after {
        for loss in Loss::ALL {
            let found = load(fs.crashed(moment, loss)).unwrap().expect("one was there");
            let Found { checkpoint: Checkpoint { number, files }, damaged } = found;
            assert!(damaged.is_empty(), "moment {moment}, {loss:?}: {damaged:?}");
            match number {
                2 if is(&files, OLD) => found_old += 1,
                3 if is(&files, NEW) => found_new += 1,
                _ => panic!("moment {moment}, {loss:?}: checkpoint {number} with {files:?}"),
            }
            if moment == after {
                assert_eq!(number, 3, "{loss:?}: it was promised");
            }
        }
    }
    assert!(found_old > 0 && found_new > 0);
}

#[test]
fn resumed_run_saves_and_finds_the_next_checkpoint() {
    let fs = CrashFs::default();
    let mut checkpoints = Checkpoints::open_in(fs.clone(), "run").unwrap();
    checkpoints.save(OLD).unwrap();
    let before = fs.moments();
    checkpoints.save(OLD).unwrap();
    for moment in before..=fs.moments() {
        for loss in Loss::ALL {
            let crashed = fs.crashed(moment, loss);
            let number = Checkpoints::open_in(crashed.clone(), "run").unwrap().save(NEW).unwrap();
            let found = load(crashed).unwrap().expect("it was saved").checkpoint;
            assert!(found.number == number && is(&found.files, NEW), "moment {moment}, {loss:?}");
        }
    }
}

#[test]
fn full_disk_changes_no_saved_checkpoint() {
    let fs = CrashFs::default();
    let mut checkpoints = Checkpoints::open_in(fs.clone(), "run").unwrap();
    checkpoints.save(OLD).unwrap();
    let mut failed = 0;
    for room in 0.. {
        fs.fail_after(room);
        match checkpoints.save(NEW) {
            Err(CheckpointError::Io { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
                fs.fail_after(usize::MAX);
                let found = checkpoints.load().unwrap().expect("the old one").checkpoint;
                // The last step that can fail is syncing the new checkpoint's name.
                let is_whole = if found.number == 0 { is(&found.files, OLD) } else { is(&found.files, NEW) };
                assert!(is_whole, "room for {room}: {found:?}");
                failed += 1;
            }
            Err(error) => panic!("{error}"),
            Ok(_) => break,
        }
    }
    assert!(failed > 3);
    fs.fail_after(usize::MAX);
    assert!(is(&checkpoints.load().unwrap().expect("the new one").checkpoint.files, NEW));
}

/// Saves two checkpoints on the real disk.
fn on_disk() -> (tempfile::TempDir, Checkpoints) {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(dir.path().join("checkpoints")).unwrap();
    checkpoints.save(OLD).unwrap();
    checkpoints.save(NEW).unwrap();
    (dir, checkpoints)
}

#[test]
fn only_the_latest_are_kept() {
    let (_dir, mut checkpoints) = on_disk();
    (2..5).for_each(|number| assert_eq!(checkpoints.save(NEW).unwrap(), number));
    let mut names = Disk.list(&checkpoints.dir).unwrap();
    names.sort_unstable();
    assert_eq!(names, ["00000000000000000003", "00000000000000000004"]);
    assert_eq!(Checkpoints::open(&checkpoints.dir).unwrap().save(OLD).unwrap(), 5);
}

#[test]
fn checkpoint_with_a_flipped_bit_or_a_missing_end_is_invalid() {
    let (_dir, checkpoints) = on_disk();
    for file in [MANIFEST, "ledger.bin", "weights.bin"] {
        let path = checkpoints.dir.join(name_of(1)).join(file);
        let whole = fs::read(&path).unwrap();
        let flipped = (0..whole.len() * 8).map(|bit| {
            let mut contents = whole.clone();
            contents[bit / 8] ^= 1 << (bit % 8);
            contents
        });
        let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
        for contents in flipped.chain(cut) {
            fs::write(&path, contents).unwrap();
            let Found { checkpoint, damaged } = checkpoints.load().unwrap().expect("the one before");
            assert!(checkpoint.number == 0 && is(&checkpoint.files, OLD));
            assert!(damaged.len() == 1 && damaged[0].number == 1 && damaged[0].reason.starts_with(file), "{damaged:?}");
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(is(&checkpoints.load().unwrap().expect("it is whole again").checkpoint.files, NEW));
}

#[test]
fn without_a_valid_checkpoint_the_error_names_the_damage_of_each() {
    let (_dir, checkpoints) = on_disk();
    fs::remove_file(checkpoints.dir.join(name_of(1)).join(MANIFEST)).unwrap();
    fs::write(checkpoints.dir.join(name_of(0)).join("weights.bin"), b"far too long to be what was saved").unwrap();
    let error = checkpoints.load().unwrap_err().to_string();
    assert!(error.contains("checkpoint 1: manifest.json cannot be read"), "{error}");
    assert!(error.contains("checkpoint 0: weights.bin cannot be read: it has 33 bytes instead of 11"), "{error}");
}

#[test]
fn one_in_anothers_place_and_one_of_a_later_format_are_noticed() {
    let (_dir, checkpoints) = on_disk();
    fs::copy(checkpoints.dir.join(name_of(0)).join(MANIFEST), checkpoints.dir.join(name_of(1)).join(MANIFEST)).unwrap();
    assert_eq!(checkpoints.load().unwrap().unwrap().damaged[0].reason, "manifest.json is of checkpoint 0");
    let list = r#"{"format":2,"number":1,"files":[]}"#;
    let later = format!("{list}\n{}\n", rollmesh_core::hash::bytes_hash(list.as_bytes()));
    fs::write(checkpoints.dir.join(name_of(1)).join(MANIFEST), later).unwrap();
    let reason = &checkpoints.load().unwrap().unwrap().damaged[0].reason;
    assert_eq!(reason, "manifest.json has format 2, this version reads 1");
}

#[test]
fn names_lead_nowhere_else() {
    let (_dir, mut checkpoints) = on_disk();
    for name in ["", ".", "..", "../weights", "a/b", ".hidden", "A", MANIFEST, &"a".repeat(65)] {
        let saved = checkpoints.save(&[(name, b"")]);
        assert!(matches!(saved, Err(CheckpointError::BadName(bad)) if bad == name), "{name}");
    }
    assert!(matches!(checkpoints.save(&[("a", b"1"), ("a", b"2")]), Err(CheckpointError::BadName(_))));
    assert_eq!(checkpoints.save(&[]).unwrap(), 2);
}
