//! What became of episodes, as plain objects.

use js_sys::{Array, BigInt, Object};
use rollmesh_core::worker::WorkerMetrics;
use wasm_bindgen::prelude::*;

use crate::batch::set;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** What has happened since the last time somebody asked. */
export interface Metrics {
    /** Episodes that have ended, in the order of their ends. */
    episodes: Episode[];
    /** Env steps that were taken and will be in no batch, since something failed. */
    discardedEnvSteps: number;
    /** Rows of agents in those. */
    discardedAgentSteps: number;
    /** Environments that failed again and again: the others go on without them. */
    quarantined: { env: number; reason: string }[];
    /** What may be a mistake; everything is said once. */
    warnings: string[];
}

/** An episode that has ended, or was lost with its environment. */
export interface Episode {
    /** As in column `eps_id`. */
    id: bigint;
    /** Index of the environment. */
    env: number;
    /** Env steps. */
    length: number;
    /** Sum of the raw rewards of all agents. */
    episodeReturn: number;
    /** Why the episode was lost, if it was: its rows are nowhere. */
    faulty?: string;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// Metrics as an object, see the TypeScript declarations.
    #[wasm_bindgen(typescript_type = "Metrics")]
    pub type Metrics;
}

pub(crate) fn to_js(metrics: &WorkerMetrics) -> Metrics {
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
    .unchecked_into()
}
