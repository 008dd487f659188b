//! Files that need not exist.

use std::io;

/// Returns the result of an access to a file or a directory; `None` if it does not exist.
pub(crate) fn if_exists<T>(accessed: io::Result<T>) -> io::Result<Option<T>> {
    match accessed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        accessed => accessed.map(Some),
    }
}
