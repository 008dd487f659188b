//! Executes the program that a pickle consists of, with a stack of values and a memo of earlier ones.

use super::{
    PickleError,
    reader::OpcodeReader,
    shortened,
    values::{Node, Objects, Slice, Value, known_name},
};

pub(super) struct Machine<'a> {
    pub(super) reader: OpcodeReader<'a>,
    pub(super) objects: Objects<'a>,
    pub(super) stack: Vec<Value>,
    /// Stack positions where the open groups begin.
    marks: Vec<u32>,
    memo: Vec<Value>,
}

/// Reads a pickle: all its objects, and its final value.
///
/// # Errors
/// [`PickleError`].
pub(crate) fn read(pickle: &[u8]) -> Result<(Objects<'_>, Value), PickleError> {
    let mut machine = Machine {
        reader: OpcodeReader::new(pickle),
        objects: Objects::new(pickle),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    while !machine.step()? {}
    let result = machine.pop()?;
    Ok((machine.objects, result))
}

impl Machine<'_> {
    pub(super) fn damaged(&self, what: &'static str) -> PickleError {
        self.reader.damaged(what)
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        self.objects.pay_values(1)?;
        self.stack.push(value);
        Ok(())
    }

    /// Pops the top of the stack, but not beyond the start of an open group.
    fn pop(&mut self) -> Result<Value, PickleError> {
        let floor = self.marks.last().map_or(0, |mark| *mark as usize);
        let top = if self.stack.len() > floor { self.stack.pop() } else { None };
        top.ok_or_else(|| self.damaged("the stack is empty"))
    }

    fn top(&self) -> Result<Value, PickleError> {
        self.stack.last().copied().ok_or_else(|| self.damaged("the stack is empty"))
    }

    /// Returns the values since the last mark.
    fn group(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.damaged("no group is open"))?;
        self.objects.pay_values(self.stack.len().saturating_sub(mark as usize))?;
        let items = self.stack.get(mark as usize..).unwrap_or_default().to_vec();
        self.stack.truncate(mark as usize);
        Ok(items)
    }

    fn last(&mut self, n: usize) -> Result<Vec<Value>, PickleError> {
        let mut items = vec![Value::None; n];
        for item in items.iter_mut().rev() {
            *item = self.pop()?;
        }
        self.objects.pay_values(n)?;
        Ok(items)
    }

    fn push_node(&mut self, node: Node) -> Result<(), PickleError> {
        let value = self.objects.make(node)?;
        self.push(value)
    }

    fn memoize(&mut self, place: usize) -> Result<(), PickleError> {
        let value = self.top()?;
        // Memo places are consecutive; a pickle with gaps pays for them.
        let len = place.saturating_add(1);
        self.objects.pay_values(len.saturating_sub(self.memo.len()))?;
        if len > self.memo.len() {
            self.memo.resize(len, Value::None);
        }
        if let Some(slot) = self.memo.get_mut(place) {
            *slot = value;
        }
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), PickleError> {
        let value = self.memo.get(place).copied().ok_or_else(|| self.damaged("the memo has no such entry"))?;
        self.push(value)
    }

    fn push_made(&mut self, bytes: Vec<u8>, kind: fn(Slice) -> Value) -> Result<(), PickleError> {
        let slice = self.objects.make_bytes(bytes)?;
        self.push(kind(slice))
    }

    fn push_slice(&mut self, len_bytes: u8, kind: fn(Slice) -> Value) -> Result<(), PickleError> {
        let len = self.reader.len(len_bytes)?;
        let slice = self.reader.slice(len)?;
        self.push(kind(slice))
    }

    fn named(&self, module: &[u8], name: &[u8]) -> Result<Value, PickleError> {
        let forbidden = || PickleError::Forbidden(format!("{}.{}", shortened(module), shortened(name)));
        known_name(module, name).map(Value::Name).ok_or_else(forbidden)
    }

    /// Executes one step; returns true after the last one.
    fn step(&mut self) -> Result<bool, PickleError> {
        match self.reader.u8()? {
            b'.' => return Ok(true),
            0x80 => {
                if self.reader.u8()? > 5 {
                    return Err(self.damaged("a protocol above 5"));
                }
            }
            // The length of the next part, which is not needed here.
            0x95 => _ = self.reader.len(8)?,
            b'(' => {
                self.objects.pay_values(1)?;
                self.marks.push(self.stack.len() as u32);
            }
            b'0' => _ = self.pop()?,
            b'1' => _ = self.group()?,
            b'2' => self.push(self.top()?)?,
            op @ (b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j') => self.memory(op)?,
            op @ (b'c' | b'i' | 0x93) => self.name(op)?,
            b'P' | b'Q' => return Err(PickleError::Forbidden("a persistent id".into())),
            op @ (0x82..=0x84) => {
                let code = self.reader.take(1 << (op - 0x82))?;
                return Err(PickleError::Forbidden(format!("the extension {code:?}")));
            }
            b'R' => {
                let (args, call) = (self.pop()?, self.pop()?);
                let result = self.reduce(call, args)?;
                self.push(result)?;
            }
            b'b' => {
                let (state, object) = (self.pop()?, self.top()?);
                self.build(object, state)?;
            }
            op => {
                if !self.atom(op)? && !self.container(op)? {
                    return Err(self.damaged("an instruction that no array needs"));
                }
            }
        }
        Ok(false)
    }

    fn memory(&mut self, op: u8) -> Result<(), PickleError> {
        match op {
            b'p' => {
                let place = self.reader.number(b"")?;
                self.memoize(place)
            }
            b'q' => {
                let place = self.reader.u8()?.into();
                self.memoize(place)
            }
            b'r' => {
                let place = self.reader.len(4)? as usize;
                self.memoize(place)
            }
            0x94 => self.memoize(self.memo.len()),
            b'g' => {
                let place = self.reader.number(b"")?;
                self.recall(place)
            }
            b'h' => {
                let place = self.reader.u8()?.into();
                self.recall(place)
            }
            _ => {
                let place = self.reader.len(4)? as usize;
                self.recall(place)
            }
        }
    }

    fn name(&mut self, op: u8) -> Result<(), PickleError> {
        if op == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            let (Value::Text(module), Value::Text(name)) = (module, name) else {
                return Err(self.damaged("a name that is no text"));
            };
            let named = self.named(self.objects.bytes(module), self.objects.bytes(name))?;
            return self.push(named);
        }
        let (module, name) = (self.reader.line()?, self.reader.line()?);
        let named = self.named(module, name)?;
        // The other instruction also creates an object, which arrays do not need.
        if op == b'c' { self.push(named) } else { Err(self.damaged("an instance")) }
    }

    /// Reads numbers, texts and bytes.
    fn atom(&mut self, op: u8) -> Result<bool, PickleError> {
        let value = match op {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(self.reader.u8()?.into()),
            b'M' => Value::Int(self.reader.u16()?.into()),
            b'J' => Value::Int(self.reader.i32()?.into()),
            b'G' => Value::Float(self.reader.f64()?),
            b'F' => Value::Float(self.reader.number(b"")?),
            b'L' => Value::Int(self.reader.number(b"L")?),
            b'I' => {
                let before = self.reader.at;
                match self.reader.line()? {
                    b"00" => Value::Bool(false),
                    b"01" => Value::Bool(true),
                    _ => {
                        self.reader.at = before;
                        Value::Int(self.reader.number(b"")?)
                    }
                }
            }
            0x8a | 0x8b => {
                let len = self.reader.len(if op == 0x8a { 1 } else { 4 })?;
                Value::Int(self.reader.long(len)?)
            }
            b'V' => {
                let line = self.reader.line()?;
                let text = self.reader.raw_unicode(line)?;
                self.push_made(text, Value::Text)?;
                return Ok(true);
            }
            b'S' => {
                let line = self.reader.line()?;
                let text = self.reader.quoted(line)?;
                self.push_made(text, Value::Text)?;
                return Ok(true);
            }
            // From Python 2, whose strings are both bytes and text.
            b'T' => return self.push_slice(4, Value::Text).map(|()| true),
            b'U' => return self.push_slice(1, Value::Text).map(|()| true),
            b'X' => return self.push_slice(4, Value::Text).map(|()| true),
            0x8c => return self.push_slice(1, Value::Text).map(|()| true),
            0x8d => return self.push_slice(8, Value::Text).map(|()| true),
            b'B' => return self.push_slice(4, Value::Bytes).map(|()| true),
            b'C' => return self.push_slice(1, Value::Bytes).map(|()| true),
            0x8e | 0x96 => return self.push_slice(8, Value::Bytes).map(|()| true),
            _ => return Ok(false),
        };
        self.push(value)?;
        Ok(true)
    }

    /// Reads lists, tuples and dicts.
    fn container(&mut self, op: u8) -> Result<bool, PickleError> {
        match op {
            b']' => self.push_node(Node::List(Vec::new()))?,
            b')' => self.push_node(Node::Tuple(Vec::new()))?,
            b'}' => self.push_node(Node::Dict(Vec::new()))?,
            b'l' => {
                let items = self.group()?;
                self.push_node(Node::List(items))?;
            }
            b't' => {
                let items = self.group()?;
                self.push_node(Node::Tuple(items))?;
            }
            0x85..=0x87 => {
                let items = self.last(usize::from(op - 0x84))?;
                self.push_node(Node::Tuple(items))?;
            }
            b'a' => {
                let item = self.last(1)?;
                self.append(&item)?;
            }
            b'e' => {
                let items = self.group()?;
                self.append(&items)?;
            }
            b'd' => {
                let items = self.group()?;
                self.push_node(Node::Dict(Vec::new()))?;
                self.set_items(&items)?;
            }
            b's' => {
                let items = self.last(2)?;
                self.set_items(&items)?;
            }
            b'u' => {
                let items = self.group()?;
                self.set_items(&items)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn append(&mut self, items: &[Value]) -> Result<(), PickleError> {
        let list = self.top()?;
        self.objects.pay_values(items.len())?;
        match self.objects.node_mut(list) {
            Some(Node::List(list)) => list.extend_from_slice(items),
            _ => return Err(self.damaged("items for what is no list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Value]) -> Result<(), PickleError> {
        let dict = self.top()?;
        let (pairs, []) = items.as_chunks::<2>() else { return Err(self.damaged("a key without a value")) };
        self.objects.pay_values(items.len())?;
        match self.objects.node_mut(dict) {
            Some(Node::Dict(dict)) => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            _ => return Err(self.damaged("entries for what is no dict")),
        }
        Ok(())
    }
}
