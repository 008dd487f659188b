//! Reads a file of logged experience in slices, between which the page stays responsive.

use std::{cell::Cell, rc::Rc, sync::Arc};

use js_sys::Uint8Array;
use rollmesh_data::{limits::LONGEST_LINE, survey::Inspection};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::File;

use crate::{
    shell::Store,
    state::{Event, FileStatus, OpenedFile},
};

/// Bytes of a slice: some milliseconds of work.
const SLICE: u64 = 1 << 20;
/// Places that are named of each problem, and bins of a histogram.
const PLACES: usize = 5;
const BINS: u32 = 16;

/// A file that is being read. Dropping it ends that.
pub(crate) struct DataFile {
    is_wanted: Rc<Cell<bool>>,
}

impl DataFile {
    /// Begins to read. The store hears how it goes.
    pub(crate) fn start(store: Store, file: File) -> Self {
        let is_wanted = Rc::new(Cell::new(true));
        spawn_local(read(store, file, is_wanted.clone()));
        Self { is_wanted }
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        self.is_wanted.set(false);
    }
}

async fn read(store: Store, file: File, is_wanted: Rc<Cell<bool>>) {
    let bytes = file.size() as u64;
    let mut inspection = Inspection::new(LONGEST_LINE, PLACES);
    let mut read = 0;
    loop {
        let status = match slice(&file, read..(read + SLICE).min(bytes)).await {
            _ if !is_wanted.get() => return,
            Ok(piece) => {
                read += piece.len() as u64;
                take(&mut inspection, &piece, read == bytes)
            }
            // It was changed or removed since it was chosen.
            Err(_) => FileStatus::Failed("the browser cannot read it any more; choose it again".into()),
        };
        let found = Arc::new(inspection.found(BINS));
        store.dispatch(Event::FileRead(OpenedFile { name: file.name(), bytes, read, found, status: status.clone() }));
        if status != FileStatus::Reading {
            return;
        }
    }
}

/// Looks at everything in a piece.
fn take(inspection: &mut Inspection, piece: &[u8], is_last: bool) -> FileStatus {
    if let Err(other) = inspection.push(piece) {
        return FileStatus::Failed(other.to_string());
    }
    if is_last {
        inspection.finish();
    }
    while inspection.next_batch().is_some() {}
    match inspection.gave_up() {
        Some(reason) => FileStatus::Failed(reason.into()),
        None if is_last => FileStatus::Read,
        None => FileStatus::Reading,
    }
}

async fn slice(file: &File, bytes: std::ops::Range<u64>) -> Result<Vec<u8>, JsValue> {
    let blob = file.slice_with_f64_and_f64(bytes.start as f64, bytes.end as f64)?;
    let buffer = JsFuture::from(blob.array_buffer()).await?;
    Ok(Uint8Array::new(&buffer).to_vec())
}
