//! The metrics of a worker as plain objects.

use js_sys::{Array, BigInt, Object};
use rollmesh_core::worker::WorkerMetrics;
use wasm_bindgen::prelude::*;

use crate::columns::set;

pub(crate) fn to_js(metrics: &WorkerMetrics) -> JsValue {
    let object = |fields: &[(&str, JsValue)]| {
        let object = Object::new();
        fields.iter().for_each(|(name, value)| set(&object, name, value));
        JsValue::from(object)
    };
    let episodes = metrics.episodes.iter().map(|episode| {
        let mut fields = vec![
            ("id", BigInt::from(episode.episode_id).into()),
            ("env", (episode.env as f64).into()),
            ("length", episode.length.into()),
            ("episodeReturn", episode.episode_return.into()),
        ];
        fields.extend(episode.faulty.as_ref().map(|reason| ("faulty", reason.into())));
        object(&fields)
    });
    let quarantined = metrics.quarantined.iter();
    let quarantined =
        quarantined.map(|out| object(&[("env", (out.env as f64).into()), ("reason", (&out.reason).into())]));
    let warnings = metrics.warnings.iter().map(|warning| JsValue::from(warning.to_string()));
    object(&[
        ("episodes", episodes.collect::<Array>().into()),
        ("discardedEnvSteps", (metrics.discarded_env_steps as f64).into()),
        ("discardedAgentSteps", (metrics.discarded_agent_steps as f64).into()),
        ("quarantined", quarantined.collect::<Array>().into()),
        ("warnings", warnings.collect::<Array>().into()),
    ])
}
