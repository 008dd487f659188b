//! Reads HDF5 files: the part of the format that data sets of experience use.
//!
//! It supports superblocks of versions 0 to 3, groups of both kinds, attributes, contiguous, compact and chunked data with
//! the filters deflate, shuffle, LZF and Fletcher-32, numbers, enumerations and strings. For other parts, the error names
//! the unsupported part. The code reads from any [`Source`], so that a page can use it for a dropped file.
//!
//! The reader does not trust files: it checks every size against the file and against the declared buffer before it
//! allocates memory, follows links to a limited depth, and limits the length of tables to the number of entries that the
//! file could hold.
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
    /// There is no HDF5 signature at any possible position.
    #[error("this is no HDF5 file")]
    NotHdf5,
    /// The file is damaged or incomplete.
    #[error("the file is damaged: {0}")]
    Corrupt(&'static str),
    /// The file uses an unsupported part of the format.
    #[error(
        "{0} is not read here; rewrite the file with `h5repack --low=0 --high=0`, or with h5py's libver=\"earliest\""
    )]
    Unsupported(String),
    /// A part that can only be read at once exceeds the declared buffer.
    #[error("{what} takes {bytes} bytes, the buffer is {buffer}: declare a larger one")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The declared buffer.
        buffer: usize,
    },
    /// There is no member with this name.
    #[error("the file has no '{0}'")]
    Missing(String),
    /// The member with this name is not a data set, or not a group.
    #[error("'{name}' is no {wanted}")]
    NotA {
        /// The name.
        name: String,
        /// The expected kind.
        wanted: &'static str,
    },
    /// Reading the file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The address of an absent object.
const UNDEFINED: u64 = u64::MAX;

/// The common state of all reads: the bytes, the sizes of addresses and lengths, and the limit.
pub(super) struct Context {
    source: Box<dyn Source>,
    /// The base of all addresses.
    base: u64,
    offset_size: u8,
    length_size: u8,
    /// Maximum size of an allocation; an allocation exceeds the file's size only for data that really inflate to it.
    buffer: usize,
}

impl Context {
    /// Returns bytes that must be in the file.
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

    /// Returns at most this number of bytes, as far as they exist.
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

    /// Returns how many entries of this size the file could hold: a longer walk is a cycle.
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
    /// Opens a file. No part that is read at once, such as a chunk, a table or a range of rows, may exceed `buffer` bytes.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn open(source: impl Source + 'static, buffer: usize) -> Result<Self, Hdf5Error> {
        Self::open_boxed(Box::new(source), buffer)
    }

    fn open_boxed(source: Box<dyn Source>, buffer: usize) -> Result<Self, Hdf5Error> {
        let mut base = 0;
        // The signature is at the start, or after a user block at 512, 1024, 2048, ….
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

    /// Returns the root group.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn root(&self) -> Result<Node, Hdf5Error> {
        Node::open(&self.context, self.root)
    }

    /// Returns a data set by path: `infos/qpos`.
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

/// Sets the sizes and returns the address of the root group.
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
    // With a user block, some writers store the block's end, others 0.
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
