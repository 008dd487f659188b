//! Reads HDF5 files: the part of the format in which data sets of experience are written.
//!
//! Superblocks of versions 0 to 3, groups of both kinds, attributes, contiguous, compact and chunked data with the
//! filters deflate, shuffle, LZF and Fletcher-32, numbers, enumerations and strings. What is not read is named in the
//! error. Pure code over a [`Source`], so that a page can use it for a file that was dropped there.
//!
//! Nothing that a file says is believed: every size is checked against the file and against the declared buffer before
//! memory is taken, links are followed to a limited depth, and tables are walked at most as long as the file could hold
//! entries.
//!
//! ```no_run
//! use rollmesh_data::{FileSource, hdf5::Hdf5File};
//!
//! let file = Hdf5File::open(FileSource::open("hopper-medium.hdf5".as_ref())?, 64 << 20)?;
//! let observations = file.dataset("observations")?;
//! println!("{:?}, first rows: {:?}", observations.dims(), observations.read_rows(0..5)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod btree;
mod chunked;
mod cursor;
mod dataset;
mod datatype;
mod filters;
mod group;
mod header;
mod heap;
mod lookup;
mod values;

use std::{io, sync::Arc};

pub use dataset::Dataset;
pub use group::{Attribute, Link, Node};

use cursor::Cursor;

use crate::Source;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Hdf5Error {
    /// There is no HDF5 signature where one can be.
    #[error("this is no HDF5 file")]
    NotHdf5,
    /// The file is damaged, or was not written to its end.
    #[error("the file is damaged: {0}")]
    Corrupt(&'static str),
    /// The file uses a part of the format that is not read here.
    #[error(
        "{0} is not read here; rewrite the file with `h5repack --low=0 --high=0`, or with h5py's libver=\"earliest\""
    )]
    Unsupported(String),
    /// A part that can only be read at once is larger than the declared buffer.
    #[error("{what} takes {bytes} bytes, the buffer is {buffer}: declare a larger one")]
    TooLarge {
        /// What is read at once.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The declared buffer.
        buffer: usize,
    },
    /// There is nothing of this name.
    #[error("the file has no '{0}'")]
    Missing(String),
    /// There is something of this name, but it is no data set, or no group.
    #[error("'{name}' is no {wanted}")]
    NotA {
        /// The name.
        name: String,
        /// What was looked for.
        wanted: &'static str,
    },
    /// The medium failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The address of what is not there.
const UNDEFINED: u64 = u64::MAX;

/// What reading any part needs: the bytes, the sizes of addresses and lengths, and the limit.
pub(super) struct Context {
    source: Box<dyn Source>,
    /// Where addresses count from.
    base: u64,
    offset_size: u8,
    length_size: u8,
    /// No single allocation is larger, and none is larger than the file unless inflated data really are.
    buffer: usize,
}

impl Context {
    /// Bytes that must be in the file.
    fn bytes(&self, address: u64, len: u64, what: &'static str) -> Result<Vec<u8>, Hdf5Error> {
        let start = self.base.checked_add(address).ok_or(Hdf5Error::Corrupt("an address beyond the end"))?;
        if start.checked_add(len).is_none_or(|end| end > self.source.size()) {
            return Err(Hdf5Error::Corrupt("an address beyond the end"));
        }
        let len = self.fits(len, what)?;
        let mut bytes = vec![0; len];
        self.source.read_at(start, &mut bytes)?;
        Ok(bytes)
    }

    /// At most so many bytes, as far as there are any.
    fn up_to(&self, address: u64, len: u64, what: &'static str) -> Result<Vec<u8>, Hdf5Error> {
        let left = self.source.size().saturating_sub(self.base.saturating_add(address));
        self.bytes(address, len.min(left), what)
    }

    fn fits(&self, bytes: u64, what: &'static str) -> Result<usize, Hdf5Error> {
        match usize::try_from(bytes) {
            Ok(len) if len <= self.buffer => Ok(len),
            _ => Err(Hdf5Error::TooLarge { what, bytes, buffer: self.buffer }),
        }
    }

    /// The most entries of so many bytes that the file could hold: a walk over more is a cycle.
    fn most(&self, entry: u64) -> u64 {
        self.source.size() / entry.max(1) + 1
    }

    fn cursor<'a>(&self, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor::new(bytes, self.offset_size, self.length_size)
    }
}

/// An open file.
pub struct Hdf5File {
    context: Arc<Context>,
    root: u64,
}

impl Hdf5File {
    /// Opens a file. Nothing that is read at once, a chunk, a table or a range of rows, may be larger than `buffer` bytes.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn open(source: impl Source + 'static, buffer: usize) -> Result<Self, Hdf5Error> {
        Self::open_boxed(Box::new(source), buffer)
    }

    fn open_boxed(source: Box<dyn Source>, buffer: usize) -> Result<Self, Hdf5Error> {
        let mut base = 0;
        // The signature is at the start, or after a block of the user's at 512, 1024, 2048, ….
        while !is_signature(&*source, base)? {
            base = if base == 0 { 512 } else { base * 2 };
            if base >= source.size() {
                return Err(Hdf5Error::NotHdf5);
            }
        }
        let mut context = Context { source, base, offset_size: 8, length_size: 8, buffer: buffer.max(1024) };
        let bytes = context.up_to(8, 128, "the superblock")?;
        let root = superblock(&mut context, &bytes)?;
        Ok(Self { context: Arc::new(context), root })
    }

    /// The group in which all others are.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn root(&self) -> Result<Node, Hdf5Error> {
        Node::open(&self.context, self.root)
    }

    /// A data set by path: `infos/qpos`.
    ///
    /// # Errors
    /// [`Hdf5Error::Missing`], [`Hdf5Error::NotA`], and others.
    pub fn dataset(&self, path: &str) -> Result<Dataset, Hdf5Error> {
        path.split('/').try_fold(self.root()?, |node, name| node.child(name))?.dataset(path)
    }
}

fn is_signature(source: &dyn Source, at: u64) -> Result<bool, Hdf5Error> {
    let mut signature = [0; 8];
    match source.read_at(at, &mut signature) {
        Ok(()) => Ok(&signature == b"\x89HDF\r\n\x1a\n"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes over the sizes and gives the address of the root group.
fn superblock(context: &mut Context, bytes: &[u8]) -> Result<u64, Hdf5Error> {
    let mut cursor = context.cursor(bytes);
    let version = cursor.u8()?;
    let modern = match version {
        0 | 1 => false,
        2 | 3 => true,
        _ => return Err(Hdf5Error::Unsupported(format!("a superblock of version {version}"))),
    };
    cursor.skip(if modern { 0 } else { 4 })?;
    let (offset_size, length_size) = (cursor.u8()?, cursor.u8()?);
    if ![2, 4, 8].contains(&offset_size) || ![2, 4, 8].contains(&length_size) {
        return Err(Hdf5Error::Corrupt("sizes of addresses"));
    }
    (context.offset_size, context.length_size) = (offset_size, length_size);
    let mut cursor = Cursor::new(cursor.rest(), offset_size, length_size);
    let skipped = match version {
        0 => 9,
        1 => 13,
        _ => 1,
    };
    cursor.skip(skipped)?;
    let base = cursor.offset()?;
    let _extension_or_free_space = cursor.offset()?;
    let end = cursor.offset()?;
    // With a user block some writers say where the block ends, others 0.
    if base != 0 && base != context.base {
        return Err(Hdf5Error::Corrupt("the base address"));
    }
    let available = context.source.size() - context.base.min(context.source.size());
    if end.saturating_sub(base) > available {
        return Err(Hdf5Error::Corrupt("it was not written to its end"));
    }
    if !modern {
        let (_driver, _name) = (cursor.offset()?, cursor.offset()?);
    }
    cursor.offset()
}
