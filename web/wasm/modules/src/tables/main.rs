//! Reads Parquet and HDF5 files: a module of its own, which the page loads when such a file is opened.

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use js_sys::Uint8Array;
use rollmesh_core::encoding::encode;
use rollmesh_data::{Source, limits::DEFAULT_BUFFER, survey::TableInspection};
use wasm_bindgen::prelude::*;
use web_sys::{File, FileReaderSync};

/// The number of bins of a histogram.
const BINS: u32 = 16;

fn main() {
    console_error_panic_hook::set_once();
}

thread_local! {
    /// The file of this Web Worker. A thread-local, since a [`Source`] is `Send` and JavaScript objects are not.
    static FILE: RefCell<Option<(File, FileReaderSync)>> = const { RefCell::new(None) };
}

/// The file, of which only the ranges that the decoders request are read.
struct OpenedFile {
    size: u64,
    /// The number of bytes read; a byte that is read twice counts twice.
    read: AtomicU64,
}

impl Source for OpenedFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        // The file was changed or removed since the user chose it.
        let changed = |_| io::Error::other("the browser cannot read it any more; choose it again");
        let bytes = FILE.with_borrow(|file| {
            let (file, reader) = file.as_ref().ok_or(JsValue::NULL)?;
            let piece = file.slice_with_f64_and_f64(offset as f64, end as f64)?;
            reader.read_as_array_buffer(&piece).map(|buffer| Uint8Array::new(&buffer))
        });
        bytes.map_err(changed)?.copy_to(out);
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// A Parquet file, or an HDF5 file of D4RL or Minari, that was dropped on a page.
#[wasm_bindgen]
pub struct TableHandle {
    file: Arc<OpenedFile>,
    inspection: TableInspection,
}

#[wasm_bindgen]
impl TableHandle {
    /// Opens the one file of this Web Worker. Names at most `places` places of each problem, and keeps the first steps from an
    /// episode on.
    #[wasm_bindgen(constructor)]
    pub fn new(file: File, places: u32, episode: u32) -> Result<Self, JsError> {
        let opened = Arc::new(OpenedFile { size: file.size() as u64, read: AtomicU64::new(0) });
        let reader = FileReaderSync::new().map_err(|_| JsError::new("this browser reads no files in Web Workers"))?;
        FILE.set(Some((file, reader)));
        let inspection = TableInspection::open(opened.clone(), DEFAULT_BUFFER, places as usize)?;
        Ok(Self { file: opened, inspection: inspection.replaying(episode) })
    }

    /// Inspects the next batch; returns false at the end.
    pub fn inspect(&mut self) -> Result<bool, JsError> {
        Ok(self.inspection.inspect_next()?)
    }

    /// Returns the steps to be replayed in the form that the page shows, once, as soon as they are complete.
    #[wasm_bindgen(js_name = takeClip)]
    pub fn take_clip(&mut self) -> Option<Vec<u8>> {
        self.inspection.take_clip().map(|clip| encode(&clip))
    }

    /// Returns the number of bytes read, which is below the file's size before the end.
    pub fn read(&self) -> f64 {
        self.file.read.load(Ordering::Relaxed).min(self.file.size.saturating_sub(1)) as f64
    }

    /// Returns the findings so far as JSON; values that are not finite are null.
    pub fn report(&self) -> Result<String, JsError> {
        Ok(serde_json::to_string(&self.inspection.found(BINS))?)
    }
}
