//! Models of the user's own.

use super::*;
use crate::policy::{ModelRegistry, PolicyRegistry};

const GAME: &str = r#"{
    "trunk": [
        {"layer": "conv", "filters": 4, "kernel": 3, "stride": 1, "activation": "relu"},
        {"layer": "layer_norm"},
        {"layer": "conv", "filters": 3, "kernel": [2, 1], "stride": 2, "is_padded": true},
        {"layer": "dense", "outputs": 9, "activation": "gelu"},
        {"layer": "lstm", "cells": 5}
    ],
    "policy": [{"layer": "dense", "outputs": 6, "activation": "tanh"}]
}"#;

fn described(model: &str) -> Result<ModelConfig, serde_json::Error> {
    serde_json::from_str(&format!(r#"{{"custom_model": {model}}}"#))
}

#[test]
fn layers_are_those_of_the_description() {
    let spec = ModelSpec::new(&described(GAME).unwrap(), &[6, 5, 2], 3).unwrap();
    let layer = |layer: &LayerSpec| format!("{} {} {}", layer.name, layer.outputs(), layer.activation().name());
    let layers: Vec<String> = spec.layers().map(layer).collect();
    let trunk =
        ["encoder.0 48 relu", "encoder.1 48 linear", "encoder.2 12 linear", "encoder.3 9 gelu", "lstm 5 linear"];
    assert_eq!(layers, [&trunk[..], &["policy.0 6 tanh", "policy.1 3 linear", "value.0 1 linear"]].concat());
    let images = Space::uniform(DType::F32, RowShape::new(&[6, 5, 2]).unwrap(), -9.0, 9.0);
    let mut policy = policy(&spaces(images, Space::Discrete { n: 3 }), &described(GAME).unwrap());
    let (obs, state) = (numbers(60), numbers(10));
    let acted = act(&mut policy, ActionInput { state: &state, ..ActionInput::new(RowsRef::F32(&obs), NOW) });
    assert!(acted.state != state && acted.logp[0] < 0.0);
}

#[test]
fn registered_names_are_resolved_and_mistakes_are_named() {
    let context = |registry: &PolicyRegistry, name: &str| PolicyContext {
        models: registry.models().clone(),
        ..PolicyContext::new(spaces(floats(4), floats(1)), 9, Kernels::PORTABLE)
            .with_config(format!(r#"{{"model": {{"custom_model": "{name}", "free_log_std": true}}}}"#).parse().unwrap())
    };
    let mut registry = PolicyRegistry::builtin();
    let error = NetPolicy::for_context(&context(&registry, "tower")).unwrap_err().to_string();
    assert!(error.ends_with("registered, of which there is none, not 'tower'"), "{error}");
    let tower = r#"{"policy": [{"layer": "dense", "outputs": 7}], "value": [{"layer": "layer_norm"}]}"#;
    registry.register_model("tower", serde_json::from_str(tower).unwrap());
    let policy = NetPolicy::for_context(&context(&registry, "tower")).unwrap();
    let tensors: Vec<&str> = policy.weights().tensors().iter().map(|tensor| &*tensor.name).collect();
    let expected = [
        "policy.0.bias",
        "policy.0.weight",
        "policy.1.bias",
        "policy.1.weight",
        "policy.log_std",
        "value.0.bias",
        "value.0.weight",
        "value.1.bias",
        "value.1.weight",
    ];
    assert_eq!(tensors, expected);
    let error = NetPolicy::for_context(&context(&registry, "towr")).unwrap_err().to_string();
    assert_eq!(error, "the policy takes a custom_model that the program has registered: tower, not 'towr'");
    assert_eq!(ModelRegistry::default().resolved(ModelConfig::default()), Ok(ModelConfig::default()));

    let unknown = described(r#"{"trunk": [{"layer": "dens", "outputs": 3}]}"#).unwrap_err().to_string();
    assert!(unknown.contains("unknown variant `dens`, expected one of `dense`, `conv`, `layer_norm`"), "{unknown}");
    let error = |model: &str| ModelSpec::new(&described(model).unwrap(), &[4], 2).unwrap_err().to_string();
    let found = error(r#"{"trunk": [{"layer": "conv", "filters": 1, "kernel": 1, "stride": 1}]}"#);
    assert!(found.ends_with("not encoder.0 over None"), "{found}");
    let found = error(r#"{"policy": [{"layer": "gru", "cells": 2}]}"#);
    assert_eq!(found, "the policy takes memory as the last layer of the trunk, not it elsewhere");
}
