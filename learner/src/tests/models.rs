//! Models of every kind, each with spaces and a train batch.

use rollmesh_core::{
    batch::{ACTIONS, OBS, REWARDS, SampleBatch, state_in},
    column::{ColumnData, DType, RowShape},
    env::EnvSpaces,
    kernels::nets::Activation,
    policy::ModelSpec,
    space::Space,
};

use super::super::test_support::*;

/// A model, and rows that it can learn from.
pub(super) struct ModelCase {
    pub(super) model: String,
    pub(super) spaces: EnvSpaces,
    pub(super) spec: ModelSpec,
    pub(super) batch: SampleBatch,
}

impl ModelCase {
    /// A model of three observed numbers, which are an image for convolutions.
    fn new(model: &str, action: Space) -> Self {
        let mut spaces = spaces(3, action);
        if model.contains("conv") {
            spaces.observation = Space::uniform(DType::F32, RowShape::new(&[3, 1, 1]).unwrap(), -9.0, 9.0);
        }
        let batch = batch(&spaces.action);
        Self::of_spaces(model, spaces, batch)
    }

    /// A model of observations with masks, each of which excludes one action other than the row's own.
    fn masked(model: &str, n: u32) -> Self {
        let seen = spaces(3, Space::Discrete { n });
        let mask = Space::MultiBinary { n };
        let observation = Space::dict([("action_mask", mask), ("obs", seen.observation.clone())]).unwrap();
        let spaces = EnvSpaces::with_usual_types(observation, seen.action);
        let mut batch = batch(&spaces.action);
        let (actions, obs) = (batch.get(ACTIONS).unwrap().to_vec(), batch.get(OBS).unwrap().to_vec());
        let rows = actions.iter().zip(obs.chunks(3)).enumerate().flat_map(|(row, (&action, obs))| {
            let excluded = (action as u32 + 1 + row as u32 % (n - 1)) % n;
            (0..n).map(move |value| f32::from(u8::from(value != excluded))).chain(obs.iter().copied())
        });
        let rows = ColumnData::new(rows.collect(), RowShape::vector(n + 3)).unwrap();
        batch.insert(OBS.name(), rows).unwrap();
        Self::of_spaces(model, spaces, batch)
    }

    /// Adds to a batch what the model sees of previous steps.
    fn of_spaces(model: &str, spaces: EnvSpaces, mut batch: SampleBatch) -> Self {
        let spec = ModelSpec::for_spaces(&spaces, &serde_json::from_str(model).unwrap()).unwrap();
        let previous = spec.previous().len();
        if previous > 0 {
            let rewards = (0..ROWS).map(|row| (row as f32 * 0.8).cos()).collect();
            batch.insert(REWARDS.name(), ColumnData::scalars(rewards)).unwrap();
            let sequences = batch.seq_lens().unwrap().len();
            let first = (0..sequences * previous).map(|i| (i as f32 * 1.9).sin()).collect();
            let first = ColumnData::new(first, RowShape::vector(previous as u32)).unwrap();
            batch.insert(state_in(spec.state_lens().len() - 1), first).unwrap();
        }
        Self { model: model.into(), spaces, spec, batch }
    }

    pub(super) fn is_continuous(&self) -> bool {
        matches!(self.spaces.action, Space::Box(_))
    }
}

/// Models with every layer and every input.
pub(super) fn model_cases() -> Vec<ModelCase> {
    let discrete = || Space::Discrete { n: 3 };
    let activations =
        Activation::NAMES.map(|name| format!(r#"{{"fcnet_hiddens": [4], "fcnet_activation": "{name}"}}"#));
    let layers = [
        r#"{"fcnet_hiddens": [4], "post_fcnet_hiddens": [3], "vf_share_layers": true}"#,
        r#"{"fcnet_hiddens": [4], "conv_filters": [[3, [2, 1], 1], [2, [2, 1], 1]], "conv_activation": "silu"}"#,
        r#"{"fcnet_hiddens": [4], "conv_filters": [[3, [2, 1], [2, 1]]], "conv_activation": "tanh"}"#,
        r#"{"fcnet_hiddens": [3], "conv_filters": [[2, [2, 1], 1]], "use_lstm": true, "lstm_cell_size": 4}"#,
        r#"{"fcnet_hiddens": [3], "use_gru": true, "gru_cell_size": 4}"#,
        r#"{"fcnet_hiddens": [5, 3], "fcnet_use_layernorm": true}"#,
        r#"{"fcnet_hiddens": [3], "use_lstm": true, "lstm_cell_size": 4, "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#,
        r#"{"fcnet_hiddens": [3], "use_gru": true, "gru_cell_size": 4, "lstm_use_prev_reward": true}"#,
        r#"{"custom_model": {
            "trunk": [{"layer": "dense", "outputs": 5, "activation": "silu"}, {"layer": "layer_norm", "activation": "tanh"},
                      {"layer": "gru", "cells": 4}],
            "policy": [{"layer": "dense", "outputs": 3, "activation": "elu"}],
            "value": [{"layer": "dense", "outputs": 4, "activation": "gelu"}, {"layer": "layer_norm"}]
        }}"#,
    ];
    let log_std = [
        r#"{"fcnet_hiddens": [4], "free_log_std": true}"#,
        r#"{"fcnet_hiddens": [3], "use_lstm": true, "lstm_cell_size": 4, "free_log_std": true}"#,
    ];
    let floats = || Space::vector(&[-1.0; 2], &[1.0; 2]);
    let discrete = activations.iter().map(String::as_str).chain(layers).map(|model| ModelCase::new(model, discrete()));
    let masked = [
        r#"{"fcnet_hiddens": [4]}"#,
        r#"{"fcnet_hiddens": [3], "use_lstm": true, "lstm_cell_size": 4, "lstm_use_prev_action": true}"#,
    ];
    discrete
        .chain(log_std.map(|model| ModelCase::new(model, floats())))
        .chain(masked.map(|model| ModelCase::masked(model, 4)))
        .collect()
}
