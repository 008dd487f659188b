//! Python's pickles, as far as NumPy arrays need them. Nothing is ever called: the few names that make up an array are
//! known here and stand for what they would make, and a pickle that names anything else is refused.
//!
//! Protocols 0 to 5; arrays of NumPy 1 and 2 in either order of rows and bytes; scalars; lists, tuples and dicts.

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

/// Why a pickle cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// It names something that is no part of an array. Nothing of it was run.
    #[error("it names '{0}', which is no part of a NumPy array; nothing was run")]
    Forbidden(String),
    /// It stops in the middle.
    #[error("the pickle is cut short")]
    Short,
    /// It cannot be understood.
    #[error("the pickle is damaged at byte {at}: {what}")]
    Damaged {
        /// Where.
        at: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// It consists of so many objects that they would take far more memory than the pickle.
    #[error("the pickle is made of too many small objects for its {bytes} bytes; write the column uncompressed")]
    TooManyObjects {
        /// Bytes of the pickle.
        bytes: usize,
    },
    /// It holds something that is no column.
    #[error("the pickle holds {0}, which is no column of numbers")]
    NoColumn(&'static str),
    /// Rows of unequal shape.
    #[error("the pickle holds rows of unequal shape")]
    Ragged,
    /// An array of elements that columns do not hold.
    #[error("the pickle holds an array of NumPy's type '{0}', which no column holds")]
    DType(String),
}

/// Text of others for a message.
fn shortened(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..text.len().min(80)).unwrap_or_default()).into_owned()
}
