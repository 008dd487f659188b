//! Reads Python's pickles, as far as NumPy arrays need them. Reading never calls Python code: the module has a list of
//! the few names that build arrays and creates their results itself, and rejects a pickle with any other name.
//!
//! It supports protocols 0 to 5; arrays of NumPy 1 and 2 in either order of rows and bytes; scalars; lists, tuples and
//! dicts.
//!
//! No crate does this: `serde-pickle` 1.2 supports only the names of sets and byte arrays, drops the arguments of every
//! other call, and so loses the elements of an array; it also copies a pickle's bytes and does not limit the number of
//! objects. The crates that keep calls are parts of machine-learning frameworks, or unmaintained.

mod arrays;
mod machine;
mod reader;
mod reduce;
#[cfg(test)]
mod tests;
mod text;
mod values;
mod write;

pub(super) use arrays::columns;
pub(super) use machine::read;
pub(super) use write::Pickle;

/// An error of reading a pickle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The pickle contains a name that does not belong to an array. Nothing in it was executed.
    #[error("it names '{0}', which is no part of a NumPy array; nothing was run")]
    Forbidden(String),
    /// The pickle ends early.
    #[error("the pickle is cut short")]
    Short,
    /// The pickle is damaged.
    #[error("the pickle is damaged at byte {at}: {what}")]
    Damaged {
        /// The position.
        at: usize,
        /// The cause.
        what: &'static str,
    },
    /// The pickle has so many objects that they would need far more memory than the pickle.
    #[error("the pickle is made of too many small objects for its {bytes} bytes; write the column uncompressed")]
    TooManyObjects {
        /// Size of the pickle in bytes.
        bytes: usize,
    },
    /// The content cannot be a column.
    #[error("the pickle holds {0}, which is no column of numbers")]
    NoColumn(&'static str),
    /// Rows differ in shape.
    #[error("the pickle holds rows of unequal shape")]
    Ragged,
    /// Columns cannot hold the array's elements.
    #[error("the pickle holds an array of NumPy's type '{0}', which no column holds")]
    DType(String),
}

/// Shortens untrusted text for a message.
fn shortened(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..text.len().min(80)).unwrap_or_default()).into_owned()
}
