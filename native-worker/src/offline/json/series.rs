//! The files of a resumable writer: numbered, with a unique name.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{JsonWriter, JsonWriterOptions, writer::date};
use crate::{files::if_exists, offline::OfflineError};

/// The writer's position in its series. A resumed writer truncates the series to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeriesPlace {
    /// Number of a file.
    pub(crate) file: u64,
    /// Its length in bytes; 0 means before that file.
    pub(crate) bytes: u64,
}

/// Returns a unique name of a series.
pub(crate) fn new_series(worker_index: u32) -> io::Result<String> {
    let unique = getrandom::u64().map_err(io::Error::other)?;
    Ok(format!("output-{}-{unique:016x}_worker-{worker_index}", date(SystemTime::now())))
}

/// Returns whether a text from a file is a valid name of a series, which cannot match other files.
pub(crate) fn is_series(name: &str) -> bool {
    name.starts_with("output-") && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
}

pub(super) fn file_name(series: &str, number: u64) -> String {
    format!("{series}_{number}.json")
}

fn number_of(series: &str, file_name: &str) -> Option<u64> {
    file_name.strip_prefix(series)?.strip_prefix('_')?.strip_suffix(".json")?.parse().ok()
}

impl JsonWriter {
    /// Creates a writer that continues a series at this position; rows after it are removed. Returns false if the files are
    /// shorter than that; then it continues in another file.
    pub(crate) fn in_series(
        directory: &Path,
        options: JsonWriterOptions,
        series: &str,
        place: SeriesPlace,
    ) -> Result<(Self, bool), OfflineError> {
        let SeriesPlace { file: number, bytes } = place;
        let writer = Self::new(directory, options)?;
        let failed = |path: &Path, source| OfflineError::write(path.to_owned(), source);
        let next = if bytes == 0 { number } else { number.saturating_add(1) };
        remove_from(directory, series, next).map_err(|source| failed(directory, source))?;
        if bytes == 0 {
            return Ok((writer.of_series(series, next, None, 0), true));
        }
        let path = directory.join(file_name(series, number));
        match cut(&path, bytes).map_err(|source| failed(&path, source))? {
            Some(file) => Ok((writer.of_series(series, next, Some((path, file)), bytes), true)),
            None => Ok((writer.of_series(series, next, None, 0), false)),
        }
    }
}

/// Opens a file for appending and truncates it to this length. `None` if it is shorter or missing.
fn cut(path: &Path, bytes: u64) -> io::Result<Option<File>> {
    let Some(file) = if_exists(OpenOptions::new().append(true).open(path))? else { return Ok(None) };
    if file.metadata()?.len() < bytes {
        return Ok(None);
    }
    file.set_len(bytes)?;
    Ok(Some(file))
}

/// Removes the files of a series from this number on.
fn remove_from(directory: &Path, series: &str, first: u64) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| number_of(series, name));
        if number.is_some_and(|number| number >= first) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        batch::{ACTIONS, SampleBatch},
        column::ColumnData,
    };

    use super::*;

    const SERIES: &str = "output-x_worker-0";

    fn open(directory: &Path, place: SeriesPlace) -> (JsonWriter, bool) {
        // Two batches in each file.
        let options = JsonWriterOptions { max_file_size: 100, ..JsonWriterOptions::default() };
        JsonWriter::in_series(directory, options, SERIES, place).unwrap()
    }

    fn write(writer: &mut JsonWriter, action: i64) {
        let batch = SampleBatch::new().with(ACTIONS, ColumnData::scalars(vec![action])).unwrap();
        writer.append(&batch.into()).unwrap();
    }

    /// Returns names and contents.
    fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> =
            entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
        files.sort();
        files
    }

    #[test]
    fn from_every_place_the_same_files_follow() {
        let directory = tempfile::tempdir().unwrap();
        let calm = directory.path().join("calm");
        let (mut writer, _) = open(&calm, SeriesPlace::default());
        let mut places = vec![writer.place()];
        for action in 0..7 {
            write(&mut writer, action);
            places.push(writer.place());
        }
        let calm = files(&calm);
        assert!(calm.len() > 2, "{calm:?}");
        for (done, place) in places.into_iter().enumerate() {
            let dir = directory.path().join(done.to_string());
            let (mut writer, _) = open(&dir, SeriesPlace::default());
            // Files of others, and of another series with a common prefix.
            let others =
                ["output-x_worker-0_1.jsonl", "output-x_worker-00_5.json", "output-x_worker-0_.json", "a.json"];
            others.iter().for_each(|name| fs::write(dir.join(name), name).unwrap());
            (0..7).for_each(|action| write(&mut writer, action + 10 * i64::from(action as usize >= done)));
            drop(writer);
            let (mut writer, is_whole) = open(&dir, place);
            assert!(is_whole);
            assert_eq!(writer.place(), place);
            (done as i64..7).for_each(|action| write(&mut writer, action));
            drop(writer);
            for name in others {
                assert_eq!(fs::read(dir.join(name)).unwrap(), name.as_bytes());
                fs::remove_file(dir.join(name)).unwrap();
            }
            assert_eq!(files(&dir), calm, "after {done} batches");
        }
    }

    #[test]
    fn missing_lines_are_reported_and_no_hole_is_filled() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(directory.path(), SeriesPlace::default());
        write(&mut writer, 1);
        let place = writer.place();
        drop(writer);
        let path = directory.path().join(file_name(SERIES, 0));
        fs::write(&path, "{").unwrap();
        let (mut writer, is_whole) = open(directory.path(), place);
        write(&mut writer, 2);
        assert_eq!((is_whole, fs::read(&path).unwrap()), (false, b"{".to_vec()));
        fs::remove_file(&path).unwrap();
        assert!(!open(directory.path(), place).1);
    }

    #[test]
    fn names_are_unique_and_lead_nowhere_else() {
        let (a, b) = (new_series(3).unwrap(), new_series(3).unwrap());
        assert!(a != b && is_series(&a) && a.ends_with("_worker-3"));
        assert!(["", "a", "../output-", "output-/b", "output-.b", "output-ä"].iter().all(|name| !is_series(name)));
    }
}
