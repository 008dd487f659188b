//! Lines of JSON as workers read them.

use std::fs;

use rollmesh::offline::{
    OfflineError,
    json::{JsonReader, JsonReaderOptions},
};
use rollmesh_data::{json::JsonLines, limits::JsonLimits};

use super::{golden, same_bits};

/// The batches of a file, up to an error, and the number of skipped lines.
type Read<B> = (Vec<B>, u64, Option<String>);

#[test]
fn files_hold_what_their_lines_hold() {
    let folder = golden("");
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        if !name.ends_with(".json") || name.ends_with(".expected.json") {
            continue;
        }
        let text = fs::read(&path).unwrap();
        let mut lines = JsonLines::lenient(JsonLimits::default());
        let mut expected: Read<_> = (Vec::new(), 0, None);
        for line in text.split(|byte| *byte == b'\n') {
            match lines.read(line) {
                Ok(batch) => expected.0.extend(batch),
                Err(error) => {
                    expected.2 = Some(error.to_string());
                    break;
                }
            }
        }
        expected.1 = lines.corrupt_lines();

        let reader = JsonReader::new(vec![path], JsonReaderOptions::default()).unwrap();
        let mut all = reader.read_all_files();
        let mut read: Read<_> = (Vec::new(), 0, None);
        for batch in all.by_ref() {
            match batch {
                Ok(batch) => read.0.push(batch),
                Err(OfflineError::Json { source, .. }) => read.2 = Some(source.to_string()),
                Err(error) => panic!("{name}: {error}"),
            }
        }
        read.1 = all.corrupt_lines();
        assert_eq!((read.0.len(), read.1, read.2), (expected.0.len(), expected.1, expected.2), "{name}");
        assert!(read.0.iter().zip(&expected.0).all(|(read, expected)| same_bits(read, expected)), "{name}");
        files += 1;
    }
    assert!(files > 25, "{files}");
}
