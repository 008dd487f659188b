//! ONNX files that are read back.

use std::collections::BTreeSet;

use prost::Message as _;
use rollmesh_core::policy::{ModelConfig, ModelSpec};

use super::{
    proto::{FLOAT, Graph},
    *,
};

fn graph(model: &str, obs_shape: &[usize]) -> (Graph, Weights) {
    let config: ModelConfig = serde_json::from_str(model).unwrap();
    let spec = ModelSpec::new(&config, obs_shape, 4).unwrap();
    let weights = spec.init_weights(3).unwrap();
    let model = Model::decode(&*to_onnx(&spec, &weights).unwrap()).unwrap();
    assert_eq!((model.opset_import[0].version, model.ir_version), (17, 8));
    (model.graph.unwrap(), weights)
}

#[test]
fn values_are_defined_before_use_and_weights_keep_their_bits() {
    for (model, obs_shape) in [
        (r#"{"fcnet_hiddens": [6, 5], "fcnet_activation": "gelu", "fcnet_use_layernorm": true}"#, &[3][..]),
        (r#"{"fcnet_hiddens": [5], "use_lstm": true, "lstm_cell_size": 3, "lstm_use_prev_action": true}"#, &[3]),
        (r#"{"fcnet_hiddens": [5], "use_gru": true, "gru_cell_size": 3}"#, &[3]),
        (r#"{"fcnet_hiddens": [5], "free_log_std": true}"#, &[3]),
        (r#"{"conv_filters": [[3, 2, 1], [2, 2, 1]], "fcnet_hiddens": []}"#, &[5, 4, 2]),
    ] {
        let (graph, weights) = graph(model, obs_shape);
        let mut known: BTreeSet<&str> = graph.inputs.iter().map(|input| &*input.name).collect();
        for constant in &graph.initializers {
            assert!(known.insert(&constant.name), "{model}: two values {}", constant.name);
        }
        for node in &graph.nodes {
            assert!(node.inputs.iter().all(|input| known.contains(&**input)), "{model}: {node:?}");
            assert!(node.outputs.iter().all(|output| known.insert(output)), "{model}: {node:?}");
        }
        assert!(graph.outputs.iter().all(|output| known.contains(&*output.name)));
        for tensor in weights.tensors() {
            let constant = graph.initializers.iter().find(|constant| constant.name == tensor.name).unwrap();
            let numbers = constant.raw_data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let sorted = |mut values: Vec<f32>| {
                values.sort_by(f32::total_cmp);
                values
            };
            // Filters are in another order.
            assert_eq!(sorted(numbers.collect()), sorted(tensor.values.clone()), "{model}: {}", tensor.name);
            assert_eq!(constant.data_type, FLOAT);
        }
        let state: usize =
            ModelSpec::new(&serde_json::from_str(model).unwrap(), obs_shape, 4).unwrap().state_lens().iter().sum();
        assert_eq!(graph.outputs.len(), if state > 0 { 3 } else { 2 });
    }
}

#[test]
fn missing_weights_are_named() {
    let spec = ModelSpec::new(&ModelConfig::of_widths(&[4]), &[3], 2).unwrap();
    let other = ModelSpec::new(&ModelConfig::of_widths(&[5]), &[3], 2).unwrap().init_weights(1).unwrap();
    let error = to_onnx(&spec, &other).unwrap_err().to_string();
    assert_eq!(error, "the policy wants tensor 'policy.0.weight [3, 4]'");
}
