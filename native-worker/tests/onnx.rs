//! Policies as ONNX files in ONNX Runtime, against the acting policies.
//!
//! They need a Python with `onnxruntime`, so no bare `cargo test` runs them: `cargo xtask test onnx` does.

use std::{env, fs, path::Path, process::Command};

use rollmesh_core::{
    column::DType,
    column::RowShape,
    env::{EnvSpaces, Moment, RowsMut, RowsRef},
    filter::{FILTER_PREFIX, Filter, MeanStdConfig, MeanStdFilter},
    ids::SlotId,
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, ModelConfig, ModelSpec, NetPolicy, Policy as _},
    space::Space,
};
use rollmesh_learner::to_onnx;
use serde_json::json;

const ROWS: usize = 7;

/// Models for vectors of [`OBS`] numbers.
const MODELS: [&str; 8] = [
    r#"{"fcnet_hiddens": [16, 8]}"#,
    r#"{"fcnet_hiddens": [9], "fcnet_activation": "silu", "vf_share_layers": true, "fcnet_use_layernorm": true}"#,
    r#"{"fcnet_hiddens": [9, 5], "fcnet_activation": "gelu", "post_fcnet_hiddens": [4], "post_fcnet_activation": "elu"}"#,
    r#"{"fcnet_hiddens": [6], "use_lstm": true, "lstm_cell_size": 5}"#,
    r#"{"fcnet_hiddens": [6], "use_gru": true, "gru_cell_size": 5}"#,
    r#"{"fcnet_hiddens": [6], "use_lstm": true, "lstm_cell_size": 5, "lstm_use_prev_action": true, "lstm_use_prev_reward": true}"#,
    r#"{"fcnet_hiddens": [6], "use_gru": true, "gru_cell_size": 5, "lstm_use_prev_reward": true}"#,
    r#"{"fcnet_hiddens": [], "fcnet_activation": "relu"}"#,
];

/// Models for images of 9 x 8 pixels with 2 channels.
const IMAGES: [&str; 2] = [
    r#"{"fcnet_hiddens": [7], "conv_filters": [[4, [3, 2], [2, 1]], [3, 2, 2]], "conv_activation": "relu"}"#,
    r#"{"fcnet_hiddens": [7], "conv_filters": [[4, 5, 3], [3, [1, 2], 1], [2, 2, 1]], "conv_activation": "tanh"}"#,
];

const OBS: usize = 6;

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin() * 2.0).collect()
}

/// Writes a policy as `{number}.onnx`, and inputs with the expected outputs as `{number}.json`.
fn write(folder: &Path, number: usize, spaces: &EnvSpaces, model: &str, is_filtered: bool) {
    let config: ModelConfig = serde_json::from_str(model).unwrap();
    let spec = ModelSpec::for_spaces(spaces, &config).unwrap();
    let mut weights = spec.init_weights(number as u64).unwrap();
    if is_filtered {
        let clip = MeanStdConfig { clip: Some(1.5), ..MeanStdConfig::UNCLIPPED };
        let mut filter = MeanStdFilter::new(RowShape::vector(OBS as u32), clip).unwrap();
        filter.filter_rows(&mut numbers(OBS * 40), true).unwrap();
        weights = weights.with_filter(FILTER_PREFIX, &Filter::MeanStdFilter(filter));
    }
    fs::write(folder.join(format!("{number}.onnx")), to_onnx(&spec, &weights).unwrap()).unwrap();

    let mut policy = NetPolicy::new(spaces, &config, weights, 1, Kernels::PORTABLE).unwrap();
    let mut obs = numbers(ROWS * spaces.observation.shape().elements());
    if spec.mask_len > 0 {
        for row in obs.chunks_mut(spec.mask_len + spec.obs_len) {
            row[..spec.mask_len].iter_mut().enumerate().for_each(|(i, x)| *x = f32::from(u8::from(i != 1)));
        }
    }
    let state_len: usize = policy.state_lens().iter().sum();
    let before = numbers(ROWS * state_len);
    let moments = [0; ROWS].map(|_| Moment { slot: SlotId(0), episode: 0, t: 0, agent: 0 });
    let (mut logp, mut values, mut states) = ([0.0; ROWS], [0.0; ROWS], vec![0.0; ROWS * state_len]);
    let mut dist_inputs = vec![0.0; ROWS * policy.dist_inputs_len()];
    let width = spaces.action.shape().elements();
    let (mut integers, mut floats) = (vec![0i64; ROWS * width], vec![0f32; ROWS * width]);
    let actions =
        if spaces.action_type == DType::I64 { RowsMut::I64(&mut integers) } else { RowsMut::F32(&mut floats) };
    let out = ActionOutput {
        state: &mut states,
        dist_inputs: &mut dist_inputs,
        ..ActionOutput::new(actions, &mut logp, &mut values)
    };
    let input = ActionInput { state: &before, ..ActionInput::new(RowsRef::F32(&obs), &moments) };
    policy.compute_actions(input, out).unwrap();
    // The file leaves the previous step to the caller.
    for row in states.chunks_mut(state_len.max(1)) {
        let own = row.len() - spec.previous().len();
        row[own..].fill(0.0);
    }
    let case = json!({
        "model": model, "rows": ROWS, "obs": obs, "state_in": before, "action_dist_inputs": dist_inputs,
        "vf_preds": values, "state_out": states,
    });
    fs::write(folder.join(format!("{number}.json")), case.to_string()).unwrap();
}

#[test]
fn onnx_runtime_computes_the_outputs_of_every_model() {
    let interpreter = env::var_os("VIRTUAL_ENV").expect("a virtual environment: run `cargo xtask test onnx`");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onnx");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let vector = |len: usize| Space::vector(&vec![-9.0; len], &vec![9.0; len]);
    let spaces = |observation: Space, action: Space| EnvSpaces::with_usual_types(observation, action);
    let compound = Space::tuple([Space::Discrete { n: 3 }, vector(2)]).unwrap();
    let discrete = || Space::Discrete { n: 4 };
    let masked = Space::dict([("action_mask", Space::MultiBinary { n: 4 }), ("obs", vector(OBS))]).unwrap();
    let image = Space::uniform(DType::F32, RowShape::new(&[9, 8, 2]).unwrap(), -9.0, 9.0);

    let mut number = 0;
    let mut add = |spaces: EnvSpaces, model: &str, is_filtered| {
        write(&folder, number, &spaces, model, is_filtered);
        number += 1;
    };
    for model in MODELS {
        add(spaces(vector(OBS), discrete()), model, false);
    }
    for model in IMAGES {
        add(spaces(image.clone(), discrete()), model, false);
    }
    add(spaces(vector(OBS), discrete()), MODELS[0], true);
    add(spaces(vector(OBS), vector(2)), r#"{"fcnet_hiddens": [5], "free_log_std": true}"#, false);
    add(spaces(vector(OBS), compound), MODELS[0], false);
    add(spaces(masked, discrete()), MODELS[1], false);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/onnx_outputs.py");
    let status = Command::new(Path::new(&interpreter).join("bin/python3")).arg(script).arg(&folder).status().unwrap();
    assert!(status.success(), "{status}");
}
