//! The memory for reading a file stays within the declared limit, whatever the file's size.

use std::{fs::File, io::Write as _};

use rollmesh::offline::json::{JsonReader, JsonReaderOptions};
use rollmesh_core::{
    batch::{ACTIONS, SampleBatch},
    column::ColumnData,
};
use rollmesh_data::json::encode_record;

const BUFFER: usize = 2 << 20;

#[test]
fn lines_in_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.zip");
    let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
    archive.start_file("output.json", zip::write::SimpleFileOptions::default()).unwrap();
    let batch = SampleBatch::new().with(ACTIONS, ColumnData::scalars((0..400i64).collect())).unwrap().into();
    let mut line = Vec::new();
    encode_record(&batch, &[], &mut line).unwrap();
    line.push(b'\n');
    let lines = 5 * BUFFER / line.len();
    (0..lines).for_each(|_| archive.write_all(&line).unwrap());
    archive.finish().unwrap();
    let options = JsonReaderOptions { buffer_size: BUFFER, ..JsonReaderOptions::default() };
    let mut rows = 0;
    let memory = allocation_counter::measure(|| {
        let reader = JsonReader::new(vec![path.clone()], options).unwrap().read_all_files();
        rows = reader.map(|batch| batch.unwrap().env_steps()).sum();
    });
    assert_eq!(rows, lines * 400);
    assert!(memory.bytes_max <= BUFFER as u64, "{} bytes were held", memory.bytes_max);
}
