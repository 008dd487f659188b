//! Names of columns, cheap to clone.

use core::{borrow::Borrow, cmp::Ordering, fmt, hash, ops::Deref};

use crate::prelude::*;

/// Name of a column: a constant of the program or shared text, so that a clone does not copy the text.
///
/// A dot separates the parts of a nested column: `obs.pos` is the part `pos` of `obs`.
#[derive(Clone)]
pub struct ColumnName(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl ColumnName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl Deref for ColumnName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for ColumnName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl From<&'static str> for ColumnName {
    fn from(text: &'static str) -> Self {
        Self(Text::Static(text))
    }
}

impl From<String> for ColumnName {
    fn from(text: String) -> Self {
        Self(Text::Shared(text.into()))
    }
}

impl From<Arc<str>> for ColumnName {
    fn from(text: Arc<str>) -> Self {
        Self(Text::Shared(text))
    }
}

impl From<Cow<'static, str>> for ColumnName {
    fn from(text: Cow<'static, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl PartialEq for ColumnName {
    fn eq(&self, other: &Self) -> bool {
        // Most names are the same constant or the same shared text.
        let (a, b) = (self.as_str(), other.as_str());
        core::ptr::eq(a, b) || a == b
    }
}

impl Eq for ColumnName {}

impl PartialEq<str> for ColumnName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialOrd for ColumnName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ColumnName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl hash::Hash for ColumnName {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for ColumnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for ColumnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
