//! Runs `sampler.*`: environments sampled by a worker.

use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    episode::RolloutMetrics,
    filter::FilterKind,
    ids::{AgentId, PolicyId},
    sampler::{BatchMode, CountStepsBy, Horizon, SampleError},
    worker::{
        NewPolicy, RolloutConfig, RolloutError, RolloutWorker,
        config::{FragmentLength, PreprocessorPref},
    },
};
use serde_json::{Map, Value, json};

use super::{
    Answer, Fault,
    mocks::{self, MockPolicy},
    values::{bad, batch_fault, column_json, float_json, integer, list, text},
};

pub(super) fn answer(name: &str, args: &Value) -> Answer {
    if name != "run" {
        return Err(Fault::UnknownOperation);
    }
    let ids: Vec<PolicyId> = match &args["policies"] {
        Value::Null => vec![PolicyId::DEFAULT],
        names => list(names, |name| Ok(PolicyId::new(text(name)?.to_string())))?,
    };
    let mut worker = worker(args, &ids)?;
    let report = args["report"].as_array().ok_or_else(|| bad("columns to report"))?;
    let report = report.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let (mut samples, mut metrics, mut filters, mut faulty) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..integer::<u32>(&args["samples"])? {
        samples.push(sample_json(&worker.sample().map_err(fault)?, &report));
        let episodes = worker.metrics().episodes;
        let (whole, lost): (Vec<_>, Vec<_>) = episodes.into_iter().partition(|episode| episode.faulty.is_none());
        faulty += lost.len();
        metrics.push(whole.iter().map(episode_json).collect::<Value>());
        let entry = worker.filters(false).map_err(fault)?;
        if let Some(filter) = entry.get(&ids[0]).and_then(|filter| filter.mean_std()) {
            let (running, buffer) = (filter.running(), filter.buffer());
            filters.push(json!({"n": running.n(), "mean": running.mean(), "buffer_n": buffer.n()}));
        }
    }
    Ok(json!({"samples": samples, "metrics": metrics, "filter": filters, "faulty_episodes": faulty}))
}

fn worker(args: &Value, ids: &[PolicyId]) -> Result<RolloutWorker, Fault> {
    let mut builder = RolloutWorker::builder().config(config(args)?).multi_agent_env_spec(mocks::env(&args["env"])?);
    for id in ids {
        builder = builder.policy(id.clone(), NewPolicy::object(MockPolicy::boxed()?));
    }
    let ids = ids.to_vec();
    builder = match args["mapping"].as_str() {
        Some("agent_mod") => builder.policy_mapping_fn(move |agent, _, _, _| match agent {
            AgentId::Index(index) => ids[*index as usize % ids.len()].clone(),
            AgentId::Name(_) => PolicyId::DEFAULT,
        }),
        Some("unknown") => builder.policy_mapping_fn(|_, _, _, _| PolicyId::new("unknown")),
        _ => builder,
    };
    builder.build().map_err(|error| fault(error.into()))
}

fn config(args: &Value) -> Result<RolloutConfig, Fault> {
    let mut config = RolloutConfig {
        num_envs: if args["num_envs"].is_null() { 1 } else { integer(&args["num_envs"])? },
        rollout_fragment_length: FragmentLength::Steps(integer(&args["fragment"])?),
        preprocessor_pref: PreprocessorPref::None,
        restart_failed_sub_environments: args["restart_failed_sub_environments"] == true,
        ..RolloutConfig::default()
    };
    if args["mode"] == "complete_episodes" {
        config.batch_mode = BatchMode::CompleteEpisodes;
    }
    if args["count_steps_by"] == "agent_steps" {
        config.count_steps_by = CountStepsBy::AgentSteps;
    }
    if args["filter"] == "mean_std" {
        config.observation_filter = FilterKind::MeanStdFilter;
    }
    let clip_rewards = args["clip_rewards"].clone();
    config.clip_rewards = serde_json::from_value(clip_rewards).map_err(|_| Fault::InvalidArgument)?;
    if !args["horizon"].is_null() {
        config.horizon = Some(integer(&args["horizon"])?);
        let soft = args["soft_horizon"] == true;
        config.horizon_means = if soft { Horizon::LegacySoft } else { Horizon::LegacyHard };
    }
    Ok(config)
}

fn episode_json(episode: &RolloutMetrics) -> Value {
    json!({"length": episode.length, "reward": float_json(episode.episode_return)})
}

fn sample_json(sample: &AnyBatch, report: &[&str]) -> Value {
    let policies = sample.as_multi_agent().policy_batches;
    let policies = policies.iter().map(|(id, batch)| (id.to_string(), policy_json(batch, report)));
    json!({
        "env_steps": sample.env_steps(),
        "agent_steps": sample.agent_steps(),
        "policies": policies.collect::<Map<_, _>>(),
    })
}

fn policy_json(batch: &SampleBatch, report: &[&str]) -> Value {
    let columns = report.iter().filter_map(|name| Some(((*name).to_string(), column_json(batch.column(name)?)?)));
    json!({"count": batch.len(), "columns": columns.collect::<Map<_, _>>()})
}

fn fault(error: RolloutError) -> Fault {
    match error {
        RolloutError::Sample(SampleError::Env(_) | SampleError::EnvAt { .. }) => Fault::EnvError,
        RolloutError::Sample(SampleError::UnknownPolicy { .. } | SampleError::PolicyMap(_)) => Fault::UnknownPolicy,
        RolloutError::Sample(SampleError::Batch(error)) => batch_fault(error),
        error => Fault::BadCase(error.to_string()),
    }
}
