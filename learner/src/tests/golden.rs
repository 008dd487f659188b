//! Golden cases of the scripts in `tests/peers`: a model, a batch, and PyTorch's losses and gradients of them.

use candle_core::Device;
use rollmesh_core::{
    batch::{BatchParts, SampleBatch},
    column::{Column, ColumnData, DType, Element, RowShape},
    config::Config,
    env::EnvSpaces,
    ids::WeightsVersion,
    kernels::Kernels,
    policy::{Gradients, LearnInfo, ModelSpec},
    space::Space,
    weights::{Tensor, Weights},
};
use serde_json::Value;

use super::super::{test_support::spaces, *};

pub(super) struct GoldenCase(Value);

/// Reads the cases of a file.
pub(super) fn cases(golden: &str) -> impl Iterator<Item = GoldenCase> {
    let mut golden: Value = serde_json::from_str(golden).unwrap();
    let Value::Array(cases) = golden["cases"].take() else { panic!("no cases") };
    cases.into_iter().map(GoldenCase)
}

impl GoldenCase {
    pub(super) fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    pub(super) fn get(&self, key: &str) -> &Value {
        &self.0[key]
    }

    pub(super) fn learner(&self) -> Learner {
        let settings: Config = self.0["settings"].to_string().parse().unwrap();
        let config = (algorithm(self.0["algorithm"].as_str().unwrap()).unwrap().parse)(&settings).unwrap();
        let spaces = self.spaces();
        let spec = ModelSpec::for_spaces(&spaces, &serde_json::from_value(self.0["model"].clone()).unwrap()).unwrap();
        Learner::new(config, &spaces, &spec, 1, &self.weights(), Device::Cpu, Kernels::PORTABLE).unwrap()
    }

    fn spaces(&self) -> EnvSpaces {
        let action = space(&self.0["space"]);
        let shape = RowShape::new(&numbers::<u32>(&self.0["obs_shape"])).unwrap();
        let seen = Space::uniform(DType::F32, shape, -9.0, 9.0);
        let observation = match self.mask_len() {
            0 => seen,
            n => Space::dict([("action_mask", Space::MultiBinary { n: n as u32 }), ("obs", seen)]).unwrap(),
        };
        EnvSpaces { observation, ..spaces(1, action) }
    }

    fn mask_len(&self) -> usize {
        self.0["mask_len"].as_u64().unwrap_or(0) as usize
    }

    fn weights(&self) -> Weights {
        let tensor = |tensor: &Value| Tensor {
            name: tensor["name"].as_str().unwrap().into(),
            shape: numbers(&tensor["shape"]),
            values: numbers(&tensor["values"]),
        };
        let tensors = self.0["weights"].as_array().unwrap().iter().map(tensor).collect();
        Weights::new(WeightsVersion(self.0["version"].as_u64().unwrap_or(0)), tensors).unwrap()
    }

    pub(super) fn batch(&self) -> SampleBatch {
        let columns = self.0["columns"].as_object().unwrap();
        let obs_len = numbers::<usize>(&self.0["obs_shape"]).iter().product::<usize>() + self.mask_len();
        let rows = columns["obs"].as_array().unwrap().len() / obs_len;
        let seq_lens = self.0["seq_lens"].as_array().map(|_| numbers::<i32>(&self.0["seq_lens"]));
        let column = |(name, values): (&String, &Value)| {
            let rows = if name.starts_with("state_in_") { seq_lens.as_ref().unwrap().len() } else { rows };
            let column = match &values[0] {
                Value::Bool(_) => column_of::<bool>(values, rows),
                number if number.is_i64() => column_of::<i64>(values, rows),
                _ => column_of::<f32>(values, rows),
            };
            (name.clone().into(), column)
        };
        SampleBatch::from_parts(BatchParts {
            columns: columns.iter().map(column).collect(),
            seq_lens: seq_lens.as_ref().map(|lens| ColumnData::scalars(lens.clone())),
            ..BatchParts::default()
        })
        .unwrap()
    }

    /// Compares the losses and the gradients of the batch.
    pub(super) fn check_gradients(&self, learner: &mut Learner) -> UpdateStats {
        let (Gradients(gradients), stats) = learner.compute_gradients(&self.batch()).unwrap();
        self.check_losses(&stats.learn_info(), &self.0["losses"]);
        self.check_tensors(&gradients, &self.0["gradients"]);
        stats
    }

    pub(super) fn check_losses(&self, found: &LearnInfo, wanted: &Value) {
        for (name, wanted) in wanted.as_object().unwrap() {
            let (found, wanted) = (found[name], wanted.as_f64().unwrap());
            // A loss may be the sum of numbers that are near 1 and almost cancel.
            let gap = (found - wanted).abs();
            assert!(gap <= 1e-5 * wanted.abs() + 1e-6, "{}, {name}: {found}, not {wanted}", self.name());
        }
    }

    /// Compares tensors by name: no element's error is above 1e-5 of the tensor's largest element.
    pub(super) fn check_tensors(&self, found: &Weights, wanted: &Value) {
        let wanted = wanted.as_object().unwrap();
        assert_eq!(found.tensors().len(), wanted.len(), "{}", self.name());
        for Tensor { name, values: found, .. } in found.tensors() {
            let wanted: Vec<f32> = numbers(&wanted[name]);
            assert_eq!(found.len(), wanted.len(), "{}, {name}", self.name());
            let largest = wanted.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let gap = found.iter().zip(&wanted).fold(0.0f32, |gap, (found, wanted)| gap.max((found - wanted).abs()));
            assert!(gap <= 1e-5 * largest + 1e-6, "{}, {name}: {found:?}, not {wanted:?}", self.name());
        }
    }
}

/// Reads a space of actions in the scripts' format.
fn space(space: &Value) -> Space {
    if let Some(parts) = space["parts"].as_array() {
        return Space::Tuple(parts.iter().map(self::space).collect());
    }
    if let Some(len) = space["len"].as_u64() {
        return Space::vector(&vec![-9.0; len as usize], &vec![9.0; len as usize]);
    }
    if let Some(n) = space["binary"].as_u64() {
        return Space::MultiBinary { n: n as u32 };
    }
    let nvec: Vec<u32> = numbers(&space["nvec"]);
    if let [n] = nvec[..] { Space::Discrete { n } } else { Space::MultiDiscrete { nvec } }
}

fn column_of<T: Element + serde::de::DeserializeOwned>(values: &Value, rows: usize) -> Column
where
    ColumnData<T>: Into<Column>,
{
    let values: Vec<T> = numbers(values);
    match values.len() / rows {
        1 => ColumnData::scalars(values).into(),
        width => ColumnData::new(values, RowShape::vector(width as u32)).unwrap().into(),
    }
}

fn numbers<T: serde::de::DeserializeOwned>(values: &Value) -> Vec<T> {
    serde_json::from_value(values.clone()).unwrap()
}
