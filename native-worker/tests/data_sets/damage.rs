//! Damaged files of lines and archives of them: no damage causes a panic, and reading takes at most four times the file
//! and a fixed part.

use std::{fs, io::Write as _, path::Path, sync::LazyLock};

use proptest::prelude::*;
use rollmesh::offline::json::{JsonReader, JsonReaderOptions};

use super::{
    bytes,
    harness::{LARGE, bounded, damage, of},
};

fn read_lines(path: &Path) {
    let reader = JsonReader::new(vec![path.to_path_buf()], JsonReaderOptions::default()).unwrap();
    reader.read_all_files().take_while(Result::is_ok).for_each(drop);
}

/// Three files of lines, two of them deflated.
static ARCHIVE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let methods = [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated];
    for (number, method) in methods.into_iter().enumerate() {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(format!("{number}.json"), options).unwrap();
        writer.write_all(&bytes("single_compressed.json")).unwrap();
    }
    writer.finish().unwrap().into_inner()
});

of!(archives, (damage in damage(8), late in any::<bool>()) {
    // The table of contents is at the end.
    let part = if late { ARCHIVE.len() - 250..ARCHIVE.len() } else { 0..ARCHIVE.len() };
    let file = damage.of(ARCHIVE.clone(), part);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.zip");
    fs::write(&path, &file).unwrap();
    bounded("zip", file.len(), LARGE, || read_lines(&path));
});

of!(lines, (which in 0..4usize, damage in damage(8)) {
    let name = ["single_plain", "single_lz4_all", "multi_compressed", "pickle_protocols"][which];
    let file = bytes(&format!("{name}.json"));
    let len = file.len();
    let file = damage.of(file, 0..len);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.json");
    fs::write(&path, &file).unwrap();
    bounded(name, len, LARGE, || read_lines(&path));
});
