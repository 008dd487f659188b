//! Tests sampling in slices with the browser's clock.
#![cfg(target_arch = "wasm32")]

use js_sys::{Object, Reflect, Uint8Array};
use rollmesh_wasm::{BatchHandle, WorkerHandle};
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_test::wasm_bindgen_test;

const CONFIGS: [&str; 2] = [
    r#"{"env": "CartPole-v1", "num_envs": 4, "rollout_fragment_length": 300, "seed": 3}"#,
    r#"{"env": "MultiAgentCartPole-v1", "num_envs": 2, "rollout_fragment_length": 60, "seed": 5,
        "batch_mode": "complete_episodes", "observation_filter": "MeanStdFilter"}"#,
];

fn get(object: &JsValue, name: &str) -> JsValue {
    Reflect::get(object, &name.into()).unwrap_or_default()
}

/// Returns the names and bytes of everything in a batch.
fn content(batch: &BatchHandle) -> Vec<(String, Vec<u8>)> {
    let batch = &batch.to_object().unwrap_or_default();
    let mut content = vec![(format!("{:?} {:?}", get(batch, "envSteps"), get(batch, "agentSteps")), Vec::new())];
    let policies: Object = get(batch, "policies").unchecked_into();
    for policy in Object::entries(&policies).iter() {
        let (id, rows) = (get(&policy, "0"), get(&policy, "1"));
        let columns: Object = get(&rows, "columns").unchecked_into();
        for column in Object::entries(&columns).iter() {
            let (name, column) = (get(&column, "0"), get(&column, "1"));
            let bytes = Uint8Array::new(&get(&get(&column, "data"), "buffer")).to_vec();
            content.push((format!("{id:?} {name:?} {:?} {:?}", get(&column, "dtype"), get(&column, "shape")), bytes));
        }
    }
    content
}

#[wasm_bindgen_test]
fn a_batch_within_a_millisecond_each_is_the_one_without_a_limit() {
    for config in CONFIGS {
        let (whole, sliced) = (worker(config), worker(config));
        for _ in 0..2 {
            let wanted = whole.sample_within(f64::INFINITY).ok().flatten().map(|batch| content(&batch));
            assert!(wanted.as_ref().is_some_and(|content| content.len() > 10), "{config}");
            let batch = (0..1_000_000).find_map(|_| sliced.sample_within(1.0).ok().flatten());
            assert!(batch.map(|batch| content(&batch)) == wanted, "{config}");
        }
    }
}

#[wasm_bindgen_test]
fn a_call_without_time_takes_one_step() {
    let worker = worker(CONFIGS[0]);
    assert_eq!(worker.steps_per_sample().ok(), Some(1_200));
    let calls = (1..1_000).find(|_| worker.sample_within(0.0).is_ok_and(|batch| batch.is_some()));
    assert_eq!(calls, Some(300));
}

fn worker(config: &str) -> WorkerHandle {
    match WorkerHandle::new(config) {
        Ok(worker) => worker,
        Err(_) => panic!("{config} is refused"),
    }
}
