//! Bounds the bytes that the crate reads from a file with invalid tables. Tables that share parts, or contain
//! themselves, would be read without end, and each table in memory comes from bytes that were read, so the bytes are
//! counted.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
};

use hdf5_pure::FormatError;

use super::Hdf5Error;
use crate::Source;

/// Maximum number of times that the tables of a file may be read, since groups and arrays are listed one after the
/// other.
const TIMES: u64 = 4;
/// Number of bytes that may be read from any file.
const FEW: u64 = 64 << 10;
/// A table that lists names of a group, and the size of an entry in it.
const NAMES: &[u8] = b"SNOD";
const NAME_ENTRY: u64 = 40;

thread_local! {
    static ALLOWANCE: Cell<Allowance> = Cell::default();
}

/// The bytes that a call may still read.
#[derive(Clone, Copy, Default)]
struct Allowance {
    bytes: u64,
    is_spent: bool,
    /// Longest name that was read, if names are listed: each entry of a table copies its name, which they may share.
    name: Option<u64>,
}

/// Lists groups and arrays of a file of this size. Their tables take a few times the bytes that they are in the file, so the
/// bytes are limited by the buffer, too.
pub(crate) fn listing<T, E: From<Hdf5Error>>(
    size: u64,
    buffer: usize,
    list: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let (of_file, of_buffer) = (size.saturating_mul(TIMES), buffer as u64 / 2);
    let bytes = of_file.min(of_buffer) + FEW;
    within(Allowance { bytes, is_spent: false, name: Some(0) }, list).unwrap_or_else(|| {
        Err(match of_file <= of_buffer {
            true => Hdf5Error::Corrupt("its tables contain each other"),
            false => Hdf5Error::Tables(bytes),
        }
        .into())
    })
}

/// Reads rows of a file of this size.
pub(super) fn reading<T>(size: u64, read: impl FnOnce() -> Result<T, Hdf5Error>) -> Result<T, Hdf5Error> {
    let allowance = Allowance { bytes: size.saturating_mul(TIMES).saturating_add(FEW), ..Allowance::default() };
    within(allowance, read).unwrap_or(Err(Hdf5Error::Corrupt("its tables contain each other")))
}

/// Calls the crate, which checks most of a file with errors, but some of it with assertions. Gives none if the allowance is
/// spent.
fn within<T, E: From<Hdf5Error>>(allowance: Allowance, read: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
    let outer = ALLOWANCE.replace(allowance);
    let result = panic::catch_unwind(AssertUnwindSafe(read));
    if ALLOWANCE.replace(outer).is_spent {
        return None;
    }
    Some(result.unwrap_or_else(|_| Err(Hdf5Error::Corrupt("its parts contradict each other").into())))
}

/// Gives the crate a source's bytes, as far as they are allowed.
pub(super) struct SourceBytes<S>(pub(super) S);

impl<S: Source> hdf5_pure::Source for SourceBytes<S> {
    fn len(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        if offset == u64::MAX {
            return Err(FormatError::OffsetOverflow { offset, length: out.len() as u64 });
        }
        let mut allowance = ALLOWANCE.get();
        spend(&mut allowance, out.len() as u64)?;
        self.0.read_at(offset, out).map_err(|error| FormatError::Source(error.to_string()))?;
        if let Some(longest) = allowance.name {
            let name = out.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
            let longest = longest.max(name as u64);
            allowance.name = Some(longest);
            let names = if out.starts_with(NAMES) { out.len() as u64 / NAME_ENTRY } else { 0 };
            spend(&mut allowance, names.saturating_mul(longest))?;
        }
        Ok(())
    }
}

/// Takes bytes from the allowance of this thread.
fn spend(allowance: &mut Allowance, bytes: u64) -> Result<(), FormatError> {
    allowance.is_spent |= bytes > allowance.bytes;
    allowance.bytes = allowance.bytes.saturating_sub(bytes);
    ALLOWANCE.set(*allowance);
    if allowance.is_spent { Err(FormatError::Source("more was read than is allowed".to_string())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use hdf5_pure::Source as _;

    use super::*;

    #[test]
    fn a_panic_is_damage_and_the_next_call_is_not_affected() {
        let panics = || -> Result<(), Hdf5Error> { panic!("an assertion of the crate") };
        assert!(matches!(listing(10, 10, panics), Err(Hdf5Error::Corrupt(_))));
        assert_eq!(reading(10, || Ok(5)).unwrap(), 5);
    }

    #[test]
    fn reading_on_and_on_ends_even_if_errors_are_ignored() {
        let source = SourceBytes(vec![7; 100]);
        let times = |times: u64| {
            reading(100, || {
                (0..times).for_each(|_| drop(source.read_at(0, &mut [0; 100])));
                Ok(())
            })
        };
        assert!(times(TIMES + FEW / 100).is_ok());
        assert!(matches!(times(TIMES + FEW / 100 + 1), Err(Hdf5Error::Corrupt(_))));
        let more = listing(1 << 20, 100, || source.read_at(0, &mut vec![0; 1 << 17]).map_err(|_| Hdf5Error::NotHdf5));
        assert!(matches!(more, Err(Hdf5Error::Tables(_))));
    }
}
