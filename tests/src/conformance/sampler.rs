//! `sampler.*`: environments sampled by a worker's sampler.

use std::sync::Arc;

use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
    env::{EnvContext, EnvStart, InProcess},
    filter::{Filter, FilterKind},
    ids::{AgentId, PolicyId, SlotId},
    policy::{PolicyEntry, PolicyMap},
    run::HomeIndex,
    sampler::{
        BatchMode, CountStepsBy, Episodic, EpisodicOptions, Horizon, InputReader, RewardClipping, SampleError,
        SamplerHost, SamplerInput,
    },
    time::Micros,
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
    let env = mocks::env(&args["env"])?;
    let num_envs: u32 = if args["num_envs"].is_null() { 1 } else { integer(&args["num_envs"])? };
    let options = options(args, num_envs, env.single_agent)?;
    let start = |vector_index| EnvStart {
        slot: SlotId(vector_index),
        episode: 0,
        context: EnvContext::new(HomeIndex { worker_index: 0, vector_index }),
    };
    let envs = InProcess::new(env.maker, (0..num_envs).map(start).collect(), 0).map_err(|_| Fault::EnvError)?;
    let envs = envs.restart_failed(args["restart_failed_sub_environments"] == true);

    let filtered = args["filter"] == "mean_std";
    let ids: Vec<PolicyId> = match &args["policies"] {
        Value::Null => vec![PolicyId::DEFAULT],
        names => list(names, |name| Ok(PolicyId::new(text(name)?.to_string())))?,
    };
    let mut policies = PolicyMap::new();
    for id in &ids {
        let kind = if filtered { FilterKind::MeanStdFilter } else { FilterKind::NoFilter };
        let filter = Filter::new(kind, env.obs).map_err(|_| bad("a filter"))?;
        let entry = PolicyEntry::new("mock", MockPolicy::boxed()?).with_filter(filter);
        policies.insert(id.clone(), entry).map_err(|_| Fault::AlreadyExists)?;
    }
    let mapping = mapping(args, ids.clone());
    let (worker, mut callbacks) = (WorkerInfo::default(), CallbackList::new());
    let mut host = SamplerHost {
        worker: &worker,
        policies: &mut policies,
        mapping: &mapping,
        observation_fn: None,
        callbacks: &mut callbacks,
        clock: &|| Micros(0),
    };
    let sampler = Episodic::new(options.clone(), Box::new(envs)).map_err(fault)?;
    let mut sampler: Box<dyn SamplerInput> = Box::new(sampler);
    let report = args["report"].as_array().ok_or_else(|| bad("columns to report"))?;
    let report = report.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let (mut samples, mut metrics, mut filters, mut faulty) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..integer::<u32>(&args["samples"])? {
        samples.push(sample_json(&sample(&mut sampler, &mut host, &options)?, &report));
        let (whole, lost): (Vec<_>, Vec<_>) =
            SamplerInput::metrics(&mut *sampler).into_iter().partition(|episode| episode.faulty.is_none());
        faulty += lost.len();
        let episode = |m: &rollmesh_core::episode::RolloutMetrics| json!({"length": m.length, "reward": float_json(m.episode_return)});
        metrics.push(whole.iter().map(episode).collect::<Value>());
        if let Some(filter) = host.policies.peek(&ids[0]).and_then(|entry| entry.filter.mean_std()) {
            let (running, buffer) = (filter.running(), filter.buffer());
            filters.push(json!({"n": running.n(), "mean": running.mean(), "buffer_n": buffer.n()}));
        }
    }
    Ok(json!({"samples": samples, "metrics": metrics, "filter": filters, "faulty_episodes": faulty}))
}

fn options(args: &Value, num_envs: u32, single_agent: bool) -> Result<EpisodicOptions, Fault> {
    let mut options = EpisodicOptions::new((0..num_envs).map(|env| (SlotId(env), 0)).collect());
    options.fragment_length = integer(&args["fragment"])?;
    options.single_agent = single_agent;
    if args["mode"] == "complete_episodes" {
        options.batch_mode = BatchMode::CompleteEpisodes;
    }
    if args["count_steps_by"] == "agent_steps" {
        options.count_steps_by = CountStepsBy::AgentSteps;
    }
    if !args["clip_rewards"].is_null() {
        let clipping: RewardClipping =
            serde_json::from_value(args["clip_rewards"].clone()).map_err(|_| Fault::InvalidArgument)?;
        options.clip_rewards = clipping;
    }
    if !args["horizon"].is_null() {
        options.horizon = Some(integer(&args["horizon"])?);
        let soft = args["soft_horizon"] == true;
        options.horizon_means = if soft { Horizon::LegacySoft } else { Horizon::LegacyHard };
    }
    Ok(options)
}

fn mapping(args: &Value, ids: Vec<PolicyId>) -> PolicyMappingFn {
    match args["mapping"].as_str() {
        Some("agent_mod") => Arc::new(move |agent, _, _, _| match agent {
            AgentId::Index(index) => ids[*index as usize % ids.len()].clone(),
            AgentId::Name(_) => PolicyId::DEFAULT,
        }),
        Some("unknown") => Arc::new(|_, _, _, _| PolicyId::new("nobody")),
        _ => Arc::new(|_, _, _, _| PolicyId::DEFAULT),
    }
}

/// Pulls batches as a worker does.
fn sample(
    reader: &mut impl InputReader,
    host: &mut SamplerHost<'_>,
    options: &EpisodicOptions,
) -> Result<AnyBatch, Fault> {
    let wanted = options.fragment_length as usize * options.slots.len();
    let most = match options.batch_mode {
        BatchMode::TruncateEpisodes => options.slots.len(),
        BatchMode::CompleteEpisodes => usize::MAX,
    };
    let (mut batches, mut steps) = (Vec::new(), 0);
    while steps < wanted && batches.len() < most {
        let batch = reader.next(host).map_err(fault)?;
        steps += match options.count_steps_by {
            CountStepsBy::EnvSteps => batch.env_steps(),
            CountStepsBy::AgentSteps => batch.agent_steps(),
        };
        batches.push(batch);
    }
    AnyBatch::concat(&batches).map_err(batch_fault)
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

fn fault(error: SampleError) -> Fault {
    match error {
        SampleError::Env(_) => Fault::EnvError,
        SampleError::UnknownPolicy { .. } | SampleError::PolicyMap(_) => Fault::UnknownPolicy,
        SampleError::Batch(error) => batch_fault(error),
        error => Fault::BadCase(error.to_string()),
    }
}
