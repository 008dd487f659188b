//! Encodes and decodes answers.

use serde::{Deserialize, Serialize};

use super::{
    MAX_JSON_BYTES,
    command::size,
    evaluation::{OutcomeForm, read_outcome, write_outcome},
    metrics::MetricsForm,
    parts::{
        AtMost, BatchForm, ByPolicy, Bytes, Json, Policies, VarsForm, by_policy, json, read_filters, read_weights,
        write_all_weights, write_filters, write_weights,
    },
    too_large,
};
use crate::{
    column::DType,
    env::EnvSpaces,
    policy::{Gradients, LearnInfo},
    prelude::*,
    protocol::message::WeightsUpdate,
    worker::{CommandError, WorkerAnswer},
};

/// Most metrics of a policy's learning.
const MAX_INFO: usize = 4_096;
/// Most results of one function: one per environment.
const MAX_VALUES: usize = crate::ids::SlotId::MAX_PER_RUN as usize;

type Info = AtMost<(String, f64), MAX_INFO>;

/// A [`WorkerAnswer`] on the wire.
#[derive(Serialize, Deserialize)]
enum Form<'a> {
    Done,
    Pong,
    Sample(#[serde(borrow)] BatchForm<'a>),
    Learned { info: ByPolicy<Info>, env_steps: u64 },
    Gradients(ByPolicy<(WeightsUpdate, Info)>),
    Weights(ByPolicy<WeightsUpdate>),
    GlobalVars(VarsForm),
    Filters(#[serde(borrow)] ByPolicy<Bytes<'a>>),
    State(#[serde(borrow)] Bytes<'a>),
    Metrics(#[serde(borrow)] MetricsForm<'a>),
    PolicyIds(Policies),
    Spaces(#[serde(borrow)] ByPolicy<SpacesForm<'a>>),
    CreationArgs(&'a str),
    Text(&'a str),
    Port(u16),
    Value(&'a str),
    Values(#[serde(borrow)] AtMost<Cow<'a, str>, MAX_VALUES>),
    Evaluated(#[serde(borrow)] OutcomeForm<'a>),
}

/// Spaces as JSON, and the names of their rows' types.
#[derive(Serialize, Deserialize)]
struct SpacesForm<'a> {
    #[serde(borrow)]
    observation: Cow<'a, str>,
    #[serde(borrow)]
    observation_type: Cow<'a, str>,
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow)]
    action_type: Cow<'a, str>,
}

impl SpacesForm<'_> {
    fn of(spaces: &EnvSpaces) -> Result<SpacesForm<'static>, CommandError> {
        Ok(SpacesForm {
            observation: json(&spaces.observation)?.into(),
            observation_type: spaces.observation_type.name().into(),
            action: json(&spaces.action)?.into(),
            action_type: spaces.action_type.name().into(),
        })
    }

    fn read(&self, json: &mut Json) -> Result<EnvSpaces, CommandError> {
        let dtype = |name: &str| {
            DType::by_name(name).ok_or_else(|| CommandError::malformed("a space", "its rows have no known type"))
        };
        Ok(EnvSpaces {
            observation: json.read("a space", &self.observation)?,
            observation_type: dtype(&self.observation_type)?,
            action: json.read("a space", &self.action)?,
            action_type: dtype(&self.action_type)?,
        })
    }
}

fn write_info(info: &LearnInfo) -> Info {
    info.iter().map(|(name, number)| (name.clone(), *number)).collect()
}

fn read_info(info: Info) -> LearnInfo {
    info.0.into_iter().collect()
}

pub(super) fn write(answer: &WorkerAnswer) -> Result<Vec<u8>, CommandError> {
    use WorkerAnswer as Answer;
    let text;
    let form = match answer {
        Answer::Done => Form::Done,
        Answer::Pong => Form::Pong,
        Answer::Sample(batch) => Form::Sample(BatchForm::of(batch)),
        Answer::Learned { info, env_steps } => Form::Learned {
            info: info.iter().map(|(id, info)| (id.clone(), write_info(info))).collect(),
            env_steps: *env_steps as u64,
        },
        Answer::Gradients(gradients) => Form::Gradients(
            gradients
                .iter()
                .map(|(id, (gradients, info))| (id.clone(), (write_weights(&gradients.0), write_info(info))))
                .collect(),
        ),
        Answer::Weights(weights) => Form::Weights(write_all_weights(weights)),
        Answer::GlobalVars(vars) => Form::GlobalVars(VarsForm::of(vars)),
        Answer::Filters(filters) => Form::Filters(write_filters(filters)),
        Answer::State(state) => Form::State(Bytes(state.into())),
        Answer::Metrics(metrics) => Form::Metrics(MetricsForm::of(metrics)),
        Answer::PolicyIds(ids) => Form::PolicyIds(ids.iter().cloned().collect()),
        Answer::Spaces(spaces) => Form::Spaces(AtMost(
            spaces
                .iter()
                .map(|(id, spaces)| Ok((id.clone(), SpacesForm::of(spaces)?)))
                .collect::<Result<_, CommandError>>()?,
        )),
        Answer::CreationArgs(config) => {
            text = json(config)?;
            Form::CreationArgs(&text)
        }
        Answer::Text(text) => Form::Text(text),
        Answer::Port(port) => Form::Port(*port),
        Answer::Value(value) => {
            text = json(value)?;
            Form::Value(&text)
        }
        Answer::Values(values) => {
            let texts: AtMost<Cow<'_, str>, _> = values.iter().map(|value| value.to_string().into()).collect();
            let bytes = texts.0.iter().map(|text| text.len()).sum();
            if bytes > MAX_JSON_BYTES {
                return Err(too_large("JSON", bytes, MAX_JSON_BYTES));
            }
            Form::Values(texts)
        }
        Answer::Evaluated(outcome) => Form::Evaluated(write_outcome(outcome)),
    };
    super::write(&form)
}

pub(super) fn read(bytes: &[u8]) -> Result<WorkerAnswer, CommandError> {
    use WorkerAnswer as Answer;
    let mut json = Json::new();
    Ok(match super::read::<Form<'_>>("an answer", bytes)? {
        Form::Done => Answer::Done,
        Form::Pong => Answer::Pong,
        Form::Sample(batch) => Answer::Sample(batch.read()?),
        Form::Learned { info, env_steps } => {
            Answer::Learned { info: by_policy(info, |info| Ok(read_info(info)))?, env_steps: size(env_steps)? }
        }
        Form::Gradients(gradients) => Answer::Gradients(by_policy(gradients, |(gradients, info)| {
            Ok((Gradients(read_weights(gradients)?), read_info(info)))
        })?),
        Form::Weights(weights) => Answer::Weights(by_policy(weights, read_weights)?),
        Form::GlobalVars(vars) => Answer::GlobalVars(vars.read()?),
        Form::Filters(filters) => Answer::Filters(read_filters(filters)?),
        Form::State(state) => Answer::State(state.0.into_owned()),
        Form::Metrics(metrics) => Answer::Metrics(Box::new(metrics.read()?)),
        Form::PolicyIds(ids) => Answer::PolicyIds(ids.0.into_iter().collect()),
        Form::Spaces(spaces) => {
            let mut read = BTreeMap::new();
            for (id, form) in spaces.0 {
                read.insert(id, form.read(&mut json)?);
            }
            Answer::Spaces(read)
        }
        Form::CreationArgs(config) => Answer::CreationArgs(json.read("settings", config)?),
        Form::Text(text) => Answer::Text(text.into()),
        Form::Port(port) => Answer::Port(port),
        Form::Value(value) => Answer::Value(json.config("a function's answer", value)?),
        Form::Values(values) => {
            let read = values.0.iter().map(|value| json.config("a function's answer", value));
            Answer::Values(read.collect::<Result<_, _>>()?)
        }
        Form::Evaluated(form) => Answer::Evaluated(Box::new(read_outcome(form)?)),
    })
}
