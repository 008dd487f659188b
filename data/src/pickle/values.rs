//! Defines the values of a pickle while it is read.

use super::PickleError;

/// Bytes of the pickle itself, or converted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    Within { start: u32, len: u32 },
    Made(u32),
}

/// The names that a pickle may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Reconstruct,
    FromBuffer,
    Scalar,
    NdArray,
    DType,
    Encode,
    Bytes,
    OrderedDict,
}

/// One value. Small, because there are many; large values are [`Node`]s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Slice),
    Bytes(Slice),
    Name(Name),
    Node(u32),
}

/// An array, or its known part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PickleArray {
    pub(super) dims: [u32; Self::MAX_DIMS],
    pub(super) ndim: u8,
    pub(super) dtype: DTypeOf,
    pub(super) fortran: bool,
    pub(super) data: Data,
}

impl PickleArray {
    /// Maximum dimensions: the rows, and the dimensions of a row.
    pub(super) const MAX_DIMS: usize = rollmesh_core::column::RowShape::MAX_DIMS + 1;

    pub(super) fn dims(&self) -> &[u32] {
        self.dims.get(..usize::from(self.ndim)).unwrap_or_default()
    }
}

/// The location of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Data {
    /// Unknown so far.
    Missing,
    Bytes(Slice),
    /// Python objects in a list.
    Objects(u32),
}

/// NumPy's type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DTypeOf {
    /// `b`, `i`, `u`, `f`, `O`, …
    pub(super) kind: u8,
    /// Size of one element in bytes.
    pub(super) size: u8,
    pub(super) big_endian: bool,
}

/// A compound value. Later steps of the pickle change it, so other values refer to it by its number.
#[derive(Debug)]
pub(crate) enum Node {
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    DType(DTypeOf),
    Array(PickleArray),
}

/// All objects of a pickle.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    pub(super) pickle: &'a [u8],
    nodes: Vec<Node>,
    made: Vec<Vec<u8>>,
    /// Memory that objects may still use.
    left: usize,
}

/// Memory that objects of a small pickle may use.
const FLOOR: usize = 16 << 10;
/// A growing vector has up to twice the required size, and also its old buffer during a move.
const GROWTH: usize = 3;

impl<'a> Objects<'a> {
    pub(super) fn new(pickle: &'a [u8]) -> Self {
        Self { pickle, nodes: Vec::new(), made: Vec::new(), left: FLOOR.saturating_add(pickle.len().saturating_mul(2)) }
    }

    /// Counts `bytes` bytes of memory.
    pub(super) fn pay(&mut self, bytes: usize) -> Result<(), PickleError> {
        let too_many = PickleError::TooManyObjects { bytes: self.pickle.len() };
        self.left = self.left.checked_sub(bytes).ok_or(too_many)?;
        Ok(())
    }

    /// Counts the memory of appended values.
    pub(super) fn pay_values(&mut self, values: usize) -> Result<(), PickleError> {
        self.pay(values.saturating_mul(GROWTH * size_of::<Value>()))
    }

    pub(super) fn make(&mut self, node: Node) -> Result<Value, PickleError> {
        self.pay(GROWTH * size_of::<Node>())?;
        self.nodes.push(node);
        Ok(Value::Node((self.nodes.len() - 1) as u32))
    }

    pub(super) fn make_bytes(&mut self, bytes: Vec<u8>) -> Result<Slice, PickleError> {
        // An array in text form is as long as the text, and the count of the pickle covers it.
        self.pay(GROWTH * size_of::<Vec<u8>>() + bytes.len() / 2)?;
        self.made.push(bytes);
        Ok(Slice::Made((self.made.len() - 1) as u32))
    }

    pub(crate) fn bytes(&self, slice: Slice) -> &[u8] {
        match slice {
            Slice::Within { start, len } => {
                self.pickle.get(start as usize..start as usize + len as usize).unwrap_or_default()
            }
            Slice::Made(made) => self.made.get(made as usize).map_or(&[], |bytes| bytes),
        }
    }

    /// Returns the node that a value refers to, if any.
    pub(crate) fn node(&self, value: Value) -> Option<&Node> {
        if let Value::Node(node) = value { self.nodes.get(node as usize) } else { None }
    }

    pub(super) fn node_mut(&mut self, value: Value) -> Option<&mut Node> {
        if let Value::Node(node) = value { self.nodes.get_mut(node as usize) } else { None }
    }

    /// Returns the items of a tuple.
    pub(super) fn tuple(&self, value: Value) -> Option<&[Value]> {
        if let Some(Node::Tuple(items)) = self.node(value) { Some(items) } else { None }
    }

    /// Returns the text of a value, if it is valid text.
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        if let Value::Text(slice) = value { std::str::from_utf8(self.bytes(slice)).ok() } else { None }
    }
}

/// Returns the known name, if the name is allowed.
pub(super) fn known_name(module: &[u8], name: &[u8]) -> Option<Name> {
    Some(match (module, name) {
        (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"_reconstruct") => Name::Reconstruct,
        (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"scalar") => Name::Scalar,
        (b"numpy.core.numeric" | b"numpy._core.numeric", b"_frombuffer") => Name::FromBuffer,
        (b"numpy", b"ndarray") => Name::NdArray,
        (b"numpy", b"dtype") => Name::DType,
        (b"_codecs", b"encode") => Name::Encode,
        (b"builtins" | b"__builtin__", b"bytes" | b"bytearray") => Name::Bytes,
        (b"collections", b"OrderedDict") => Name::OrderedDict,
        _ => return None,
    })
}
