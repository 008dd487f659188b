//! A graph of ONNX operators under construction.

use super::proto::{
    ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_INTS, Attribute, Dimension, FLOAT, Graph, INT64, Node, Tensor,
    TensorShape, TensorType, ValueInfo, ValueType,
};

/// Adds operators and constants. Values are referred to by name; those of operators get new names.
#[derive(Default)]
pub(super) struct GraphBuilder {
    pub(super) graph: Graph,
}

impl GraphBuilder {
    /// Adds an operator with one output.
    pub(super) fn op(&mut self, op: &str, inputs: &[&str]) -> String {
        self.op_with(op, inputs, Vec::new())
    }

    pub(super) fn op_with(&mut self, op: &str, inputs: &[&str], attributes: Vec<Attribute>) -> String {
        let [output] = self.push(op, inputs, attributes, [self.fresh(op)]);
        output
    }

    /// Splits the last dimension into pieces of these lengths.
    pub(super) fn split<const N: usize>(&mut self, x: &str, lens: [usize; N]) -> [String; N] {
        let lens = self.ints("lengths", &lens.map(|len| len as i64));
        let first = self.fresh("Split");
        let outputs = core::array::from_fn(|i| format!("{first}.{i}"));
        self.push("Split", &[x, &lens], vec![int("axis", 1)], outputs)
    }

    pub(super) fn concat(&mut self, parts: &[&str]) -> String {
        self.op_with("Concat", parts, vec![int("axis", 1)])
    }

    /// Reshapes rows `[rows, ...]`; the new shape begins with the number of rows, too.
    pub(super) fn reshape(&mut self, x: &str, dims: &[usize]) -> String {
        let dims: Vec<i64> = [-1].into_iter().chain(dims.iter().map(|&dim| dim as i64)).collect();
        let shape = self.ints("shape", &dims);
        self.op("Reshape", &[x, &shape])
    }

    /// Adds a constant of floats, under this name.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> String {
        let raw_data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims = dims.iter().map(|&dim| dim as i64).collect();
        self.graph.initializers.push(Tensor { dims, data_type: FLOAT, name: name.into(), raw_data });
        name.into()
    }

    fn ints(&mut self, name: &str, values: &[i64]) -> String {
        let name = format!("{name}.{}", self.graph.initializers.len());
        let raw_data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims = vec![values.len() as i64];
        self.graph.initializers.push(Tensor { dims, data_type: INT64, name: name.clone(), raw_data });
        name
    }

    /// Declares rows of this many floats as an input.
    pub(super) fn input(&mut self, name: &str, width: usize) -> String {
        self.graph.inputs.push(rows_of(name, width));
        name.into()
    }

    /// Declares a value as an output, under another name.
    pub(super) fn output(&mut self, value: &str, name: &str, width: usize) {
        self.push("Identity", &[value], Vec::new(), [name.to_owned()]);
        self.graph.outputs.push(rows_of(name, width));
    }

    fn fresh(&self, op: &str) -> String {
        format!("{op}.{}", self.graph.nodes.len())
    }

    fn push<const N: usize>(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
        outputs: [String; N],
    ) -> [String; N] {
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        self.graph.nodes.push(Node { inputs, outputs: outputs.to_vec(), op_type: op.into(), attributes });
        outputs
    }
}

pub(super) fn int(name: &str, i: i64) -> Attribute {
    Attribute { name: name.into(), i, kind: ATTRIBUTE_INT, ..Attribute::default() }
}

pub(super) fn float(name: &str, f: f32) -> Attribute {
    Attribute { name: name.into(), f, kind: ATTRIBUTE_FLOAT, ..Attribute::default() }
}

pub(super) fn ints(name: &str, values: &[usize]) -> Attribute {
    let ints = values.iter().map(|&x| x as i64).collect();
    Attribute { name: name.into(), ints, kind: ATTRIBUTE_INTS, ..Attribute::default() }
}

fn rows_of(name: &str, width: usize) -> ValueInfo {
    let rows = Dimension { value: None, name: Some("rows".into()) };
    let dims = vec![rows, Dimension { value: Some(width as i64), name: None }];
    let tensor = TensorType { element: FLOAT, shape: Some(TensorShape { dims }) };
    ValueInfo { name: name.into(), kind: Some(ValueType { tensor: Some(tensor) }) }
}
