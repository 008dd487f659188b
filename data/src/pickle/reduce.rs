//! Applies the known names to their arguments. This is the only place where a pickle could execute code, and it does not.

use super::{
    PickleError,
    machine::Machine,
    shortened,
    values::{DTypeOf, Data, Name, Node, PickleArray, Value},
};

impl Machine<'_> {
    /// Applies a known name to a tuple.
    pub(super) fn reduce(&mut self, call: Value, args: Value) -> Result<Value, PickleError> {
        let Value::Name(name) = call else { return Err(self.damaged("a call of what is no name")) };
        let args = self.objects.tuple(args).ok_or_else(|| self.damaged("a call without arguments"))?.to_vec();
        match (name, args.as_slice()) {
            (Name::Reconstruct, [Value::Name(Name::NdArray), ..]) => {
                let dtype = DTypeOf { kind: b'V', size: 0, big_endian: false };
                self.objects.make(Node::Array(PickleArray {
                    dims: [0; PickleArray::MAX_DIMS],
                    ndim: 0,
                    dtype,
                    fortran: false,
                    data: Data::Missing,
                }))
            }
            (Name::FromBuffer, [Value::Bytes(data), dtype, shape, order, ..]) => {
                let (dims, ndim) = self.shape(*shape)?;
                let fortran = self.objects.text(*order) == Some("F");
                let dtype = self.dtype(*dtype)?;
                self.objects.make(Node::Array(PickleArray { dims, ndim, dtype, fortran, data: Data::Bytes(*data) }))
            }
            (Name::Scalar, [dtype, data @ (Value::Bytes(_) | Value::Text(_))]) => {
                let (dtype, data) = (self.dtype(*dtype)?, self.data(*data)?);
                let dims = [0; PickleArray::MAX_DIMS];
                self.objects.make(Node::Array(PickleArray { dims, ndim: 0, dtype, fortran: false, data }))
            }
            (Name::DType, [text, ..]) => self.new_dtype(*text),
            (Name::Encode, [Value::Text(_), encoding]) => {
                if !matches!(self.objects.text(*encoding), Some("latin1" | "latin-1")) {
                    return Err(self.damaged("bytes in an unknown encoding"));
                }
                self.latin1(args.first().copied().unwrap_or(Value::None))
            }
            (Name::Bytes, []) => self.objects.make_bytes(Vec::new()).map(Value::Bytes),
            (Name::Bytes, [bytes @ Value::Bytes(_)]) => Ok(*bytes),
            (Name::Bytes, [text @ Value::Text(_), ..]) => self.latin1(*text),
            (Name::OrderedDict, []) => self.objects.make(Node::Dict(Vec::new())),
            (Name::OrderedDict, [pairs]) => self.ordered_dict(*pairs),
            _ => Err(self.damaged("arguments that do not fit")),
        }
    }

    /// Completes a type or an array.
    pub(super) fn build(&mut self, object: Value, state: Value) -> Result<(), PickleError> {
        let state = self.objects.tuple(state).ok_or_else(|| self.damaged("a state that is no tuple"))?.to_vec();
        let wrong = self.damaged("a state that does not fit");
        match (self.objects.node(object), state.as_slice()) {
            (Some(Node::DType(dtype)), [Value::Int(_), order, ..]) => {
                let big_endian = match self.objects.text(*order) {
                    Some("<" | "|" | "=") => false,
                    Some(">") => true,
                    _ => return Err(wrong),
                };
                let dtype = DTypeOf { big_endian, ..*dtype };
                if let Some(node) = self.objects.node_mut(object) {
                    *node = Node::DType(dtype);
                }
                Ok(())
            }
            (Some(Node::Array(_)), [Value::Int(_), shape, dtype, Value::Bool(fortran), data]) => {
                let (dims, ndim) = self.shape(*shape)?;
                let (dtype, data, fortran) = (self.dtype(*dtype)?, self.data(*data)?, *fortran);
                if let Some(node) = self.objects.node_mut(object) {
                    *node = Node::Array(PickleArray { dims, ndim, dtype, fortran, data });
                }
                Ok(())
            }
            _ => Err(wrong),
        }
    }

    /// Creates a type from `f4`, `i8`, `b1`, `O8` and so on, optionally after a byte order.
    fn new_dtype(&mut self, text: Value) -> Result<Value, PickleError> {
        let text = self.objects.text(text).ok_or_else(|| self.damaged("a type that is no text"))?;
        let (order, name) = match text.as_bytes() {
            [order @ (b'<' | b'>' | b'|' | b'='), rest @ ..] => (*order, rest),
            name => (b'=', name),
        };
        let size = name.get(1..).and_then(|size| std::str::from_utf8(size).ok()).and_then(|size| size.parse().ok());
        match (name, size) {
            ([kind @ (b'b' | b'i' | b'u' | b'f'), ..], Some(size)) if matches!(size, 1 | 2 | 4 | 8) => {
                self.objects.make(Node::DType(DTypeOf { kind: *kind, size, big_endian: order == b'>' }))
            }
            ([b'O', ..], _) => self.objects.make(Node::DType(DTypeOf { kind: b'O', size: 8, big_endian: false })),
            _ => Err(PickleError::DType(shortened(name))),
        }
    }

    fn dtype(&self, value: Value) -> Result<DTypeOf, PickleError> {
        match self.objects.node(value) {
            Some(Node::DType(dtype)) => Ok(*dtype),
            _ => Err(self.damaged("a type is needed")),
        }
    }

    fn shape(&self, value: Value) -> Result<([u32; PickleArray::MAX_DIMS], u8), PickleError> {
        let items = self.objects.tuple(value).ok_or_else(|| self.damaged("a shape is needed"))?;
        let mut dims = [0; PickleArray::MAX_DIMS];
        if items.len() > dims.len() {
            return Err(self.damaged("an array of too many dimensions"));
        }
        for (dim, item) in dims.iter_mut().zip(items) {
            let size = if let Value::Int(size) = item { u32::try_from(*size).ok() } else { None };
            *dim = size.ok_or_else(|| self.damaged("a shape is needed"))?;
        }
        Ok((dims, items.len() as u8))
    }

    fn data(&mut self, value: Value) -> Result<Data, PickleError> {
        match value {
            Value::Bytes(slice) => Ok(Data::Bytes(slice)),
            Value::Text(_) => match self.latin1(value)? {
                Value::Bytes(slice) => Ok(Data::Bytes(slice)),
                _ => Err(self.damaged("the elements of an array")),
            },
            Value::Node(list) if matches!(self.objects.node(value), Some(Node::List(_))) => Ok(Data::Objects(list)),
            _ => Err(self.damaged("the elements of an array")),
        }
    }

    /// Returns the bytes of a text of characters below 256.
    fn latin1(&mut self, text: Value) -> Result<Value, PickleError> {
        let Value::Text(slice) = text else { return Err(self.damaged("bytes that are no text")) };
        let bytes = match std::str::from_utf8(self.objects.bytes(slice)) {
            Ok(text) => text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect::<Option<Vec<u8>>>(),
            // A string of Python 2, which holds the bytes themselves.
            Err(_) => return Ok(Value::Bytes(slice)),
        };
        let bytes = bytes.ok_or_else(|| self.damaged("bytes above 255"))?;
        self.objects.make_bytes(bytes).map(Value::Bytes)
    }

    fn ordered_dict(&mut self, pairs: Value) -> Result<Value, PickleError> {
        let wrong = self.damaged("a dict of what are no pairs");
        let Some(Node::List(items)) = self.objects.node(pairs) else { return Err(wrong) };
        let mut entries = Vec::with_capacity(items.len());
        for item in items {
            entries.push(match self.objects.node(*item) {
                Some(Node::List(pair) | Node::Tuple(pair)) if pair.len() == 2 => (pair[0], pair[1]),
                _ => return Err(wrong),
            });
        }
        self.objects.pay_values(2 * entries.len())?;
        self.objects.make(Node::Dict(entries))
    }
}
