//! Encodes and decodes commands.

use serde::{Deserialize, Serialize};

use super::parts::{
    AtMost, BatchForm, ByPolicy, Bytes, FnForm, Json, Policies, TrainedForm, VarsForm, by_policy, json, read_filters,
    read_weights, write_all_weights, write_filters, write_weights,
};
use crate::{
    evaluation::EvaluationRequest,
    ids::PolicyId,
    policy::{Gradients, PolicyState},
    prelude::*,
    protocol::{convert, message::WeightsUpdate},
    worker::{CommandError, PolicyRoles, SgdOptions, WorkerCommand},
};

/// A [`WorkerCommand`] on the wire.
#[derive(Serialize, Deserialize)]
enum Form<'a> {
    Ping,
    Sample,
    SampleAndLearn {
        expected: u64,
        num_sgd_iter: u32,
        minibatch_size: u64,
        standardize_fields: AtMost<String, 256>,
    },
    LearnOnBatch(#[serde(borrow)] BatchForm<'a>),
    ComputeGradients(#[serde(borrow)] BatchForm<'a>),
    ApplyGradients(ByPolicy<WeightsUpdate>),
    Weights(Option<Policies>),
    SetWeights {
        weights: ByPolicy<WeightsUpdate>,
        global_vars: Option<VarsForm>,
        weights_seq_no: Option<u64>,
    },
    GlobalVars,
    SetGlobalVars {
        vars: VarsForm,
        policies: Option<Policies>,
    },
    Filters {
        flush_after: bool,
    },
    SyncFilters(#[serde(borrow)] ByPolicy<Bytes<'a>>),
    State,
    SetState(#[serde(borrow)] Bytes<'a>),
    Metrics,
    AddPolicy {
        id: PolicyId,
        policy: String,
        #[serde(borrow)]
        state: Option<Bytes<'a>>,
        roles: RolesForm,
    },
    RemovePolicy {
        id: PolicyId,
        roles: RolesForm,
    },
    SetPolicyMappingFn(FnForm),
    SetPoliciesToTrain(TrainedForm),
    PoliciesToTrain(#[serde(borrow)] Option<BatchForm<'a>>),
    Spaces,
    AssertHealthy,
    Hostname,
    NodeIp,
    FindFreePort,
    CreationArgs,
    Lock,
    Unlock,
    Stop,
    Apply(FnForm),
    ForEachEnv(FnForm),
    ForPolicy {
        id: PolicyId,
        function: FnForm,
    },
    ForEachPolicy(FnForm),
    ForEachPolicyToTrain(FnForm),
    SampleOfSlice {
        step: u64,
        start: u64,
    },
    Evaluate {
        weights: Option<WeightsUpdate>,
        request: EvaluationRequest,
    },
    SamplerState,
    SetSamplerState(#[serde(borrow)] Bytes<'a>),
}

#[derive(Serialize, Deserialize)]
struct RolesForm {
    policy_mapping_fn: Option<FnForm>,
    policies_to_train: Option<TrainedForm>,
}

impl RolesForm {
    fn of(roles: &PolicyRoles) -> Result<Self, CommandError> {
        Ok(Self {
            policy_mapping_fn: roles.policy_mapping_fn.as_ref().map(FnForm::of).transpose()?,
            policies_to_train: roles.policies_to_train.as_ref().map(TrainedForm::of),
        })
    }

    fn read(self, json: &mut Json) -> Result<PolicyRoles, CommandError> {
        Ok(PolicyRoles {
            policy_mapping_fn: self.policy_mapping_fn.map(|form| form.read(json)).transpose()?,
            policies_to_train: self.policies_to_train.map(TrainedForm::read),
        })
    }
}

fn policies(ids: &[PolicyId]) -> Policies {
    ids.iter().cloned().collect()
}

pub(super) fn write(command: &WorkerCommand) -> Result<Vec<u8>, CommandError> {
    use WorkerCommand as Command;
    let form = match command {
        Command::Ping => Form::Ping,
        Command::Sample => Form::Sample,
        Command::SampleOfSlice { step, start } => Form::SampleOfSlice { step: *step, start: *start },
        Command::SampleAndLearn { expected, options } => Form::SampleAndLearn {
            expected: *expected as u64,
            num_sgd_iter: options.num_sgd_iter,
            minibatch_size: options.minibatch_size as u64,
            standardize_fields: options.standardize_fields.iter().cloned().collect(),
        },
        Command::LearnOnBatch(batch) => Form::LearnOnBatch(BatchForm::of(batch)),
        Command::ComputeGradients(batch) => Form::ComputeGradients(BatchForm::of(batch)),
        Command::ApplyGradients(gradients) => Form::ApplyGradients(
            gradients.iter().map(|(id, gradients)| (id.clone(), write_weights(&gradients.0))).collect(),
        ),
        Command::Weights { policies: of } => Form::Weights(of.as_deref().map(policies)),
        Command::SetWeights { weights, global_vars, weights_seq_no } => Form::SetWeights {
            weights: write_all_weights(weights),
            global_vars: global_vars.as_ref().map(VarsForm::of),
            weights_seq_no: *weights_seq_no,
        },
        Command::GlobalVars => Form::GlobalVars,
        Command::SetGlobalVars { vars, policies: of } => {
            Form::SetGlobalVars { vars: VarsForm::of(vars), policies: of.as_deref().map(policies) }
        }
        Command::Filters { flush_after } => Form::Filters { flush_after: *flush_after },
        Command::SyncFilters(filters) => Form::SyncFilters(write_filters(filters)),
        Command::State => Form::State,
        Command::SetState(state) => Form::SetState(Bytes(state.into())),
        Command::SamplerState => Form::SamplerState,
        Command::SetSamplerState(state) => Form::SetSamplerState(Bytes(state.into())),
        Command::Metrics => Form::Metrics,
        Command::AddPolicy { id, policy, state, roles } => Form::AddPolicy {
            id: id.clone(),
            policy: json(policy)?,
            state: match state {
                Some(state) => {
                    let bytes = state.encode().map_err(|why| CommandError::malformed("a policy's state", why))?;
                    Some(Bytes(bytes.into()))
                }
                None => None,
            },
            roles: RolesForm::of(roles)?,
        },
        Command::RemovePolicy { id, roles } => Form::RemovePolicy { id: id.clone(), roles: RolesForm::of(roles)? },
        Command::SetPolicyMappingFn(function) => Form::SetPolicyMappingFn(FnForm::of(function)?),
        Command::SetPoliciesToTrain(trained) => Form::SetPoliciesToTrain(TrainedForm::of(trained)),
        Command::PoliciesToTrain(batch) => Form::PoliciesToTrain(batch.as_ref().map(BatchForm::of)),
        Command::Spaces => Form::Spaces,
        Command::AssertHealthy => Form::AssertHealthy,
        Command::Hostname => Form::Hostname,
        Command::NodeIp => Form::NodeIp,
        Command::FindFreePort => Form::FindFreePort,
        Command::CreationArgs => Form::CreationArgs,
        Command::Lock => Form::Lock,
        Command::Unlock => Form::Unlock,
        Command::Stop => Form::Stop,
        Command::Apply(function) => Form::Apply(FnForm::of(function)?),
        Command::ForEachEnv(function) => Form::ForEachEnv(FnForm::of(function)?),
        Command::ForPolicy { id, function } => Form::ForPolicy { id: id.clone(), function: FnForm::of(function)? },
        Command::ForEachPolicy(function) => Form::ForEachPolicy(FnForm::of(function)?),
        Command::ForEachPolicyToTrain(function) => Form::ForEachPolicyToTrain(FnForm::of(function)?),
        Command::Evaluate { weights, request } => {
            let update = weights.as_ref().map(|weights| convert::readable_weights_update(0, weights)).transpose();
            let weights = update.map_err(|why| CommandError::malformed("weights", why))?;
            Form::Evaluate { weights, request: request.clone() }
        }
    };
    super::write(&form)
}

pub(super) fn read(bytes: &[u8]) -> Result<WorkerCommand, CommandError> {
    use WorkerCommand as Command;
    let mut json = Json::new();
    let json = &mut json;
    Ok(match super::read::<Form<'_>>("a command", bytes)? {
        Form::Ping => Command::Ping,
        Form::Sample => Command::Sample,
        Form::SampleOfSlice { step, start } => Command::SampleOfSlice { step, start },
        Form::SampleAndLearn { expected, num_sgd_iter, minibatch_size, standardize_fields } => {
            Command::SampleAndLearn {
                expected: size(expected)?,
                options: SgdOptions {
                    num_sgd_iter,
                    minibatch_size: size(minibatch_size)?,
                    standardize_fields: standardize_fields.0,
                },
            }
        }
        Form::LearnOnBatch(batch) => Command::LearnOnBatch(batch.read()?),
        Form::ComputeGradients(batch) => Command::ComputeGradients(batch.read()?),
        Form::ApplyGradients(gradients) => {
            Command::ApplyGradients(by_policy(gradients, |form| read_weights(form).map(Gradients))?)
        }
        Form::Weights(policies) => Command::Weights { policies: policies.map(|policies| policies.0) },
        Form::SetWeights { weights, global_vars, weights_seq_no } => Command::SetWeights {
            weights: by_policy(weights, read_weights)?,
            global_vars: global_vars.map(VarsForm::read).transpose()?,
            weights_seq_no,
        },
        Form::GlobalVars => Command::GlobalVars,
        Form::SetGlobalVars { vars, policies } => {
            Command::SetGlobalVars { vars: vars.read()?, policies: policies.map(|policies| policies.0) }
        }
        Form::Filters { flush_after } => Command::Filters { flush_after },
        Form::SyncFilters(filters) => Command::SyncFilters(read_filters(filters)?),
        Form::State => Command::State,
        Form::SetState(state) => Command::SetState(state.0.into_owned()),
        Form::SamplerState => Command::SamplerState,
        Form::SetSamplerState(state) => Command::SetSamplerState(state.0.into_owned()),
        Form::Metrics => Command::Metrics,
        Form::AddPolicy { id, policy, state, roles } => Command::AddPolicy {
            id,
            policy: json.read("a policy's settings", &policy)?,
            state: match state {
                Some(state) => {
                    let state = PolicyState::decode(&state.0);
                    Some(state.map_err(|why| CommandError::malformed("a policy's state", why))?)
                }
                None => None,
            },
            roles: roles.read(json)?,
        },
        Form::RemovePolicy { id, roles } => Command::RemovePolicy { id, roles: roles.read(json)? },
        Form::SetPolicyMappingFn(function) => Command::SetPolicyMappingFn(function.read(json)?),
        Form::SetPoliciesToTrain(trained) => Command::SetPoliciesToTrain(trained.read()),
        Form::PoliciesToTrain(batch) => Command::PoliciesToTrain(batch.map(BatchForm::read).transpose()?),
        Form::Spaces => Command::Spaces,
        Form::AssertHealthy => Command::AssertHealthy,
        Form::Hostname => Command::Hostname,
        Form::NodeIp => Command::NodeIp,
        Form::FindFreePort => Command::FindFreePort,
        Form::CreationArgs => Command::CreationArgs,
        Form::Lock => Command::Lock,
        Form::Unlock => Command::Unlock,
        Form::Stop => Command::Stop,
        Form::Apply(function) => Command::Apply(function.read(json)?),
        Form::ForEachEnv(function) => Command::ForEachEnv(function.read(json)?),
        Form::ForPolicy { id, function } => Command::ForPolicy { id, function: function.read(json)? },
        Form::ForEachPolicy(function) => Command::ForEachPolicy(function.read(json)?),
        Form::ForEachPolicyToTrain(function) => Command::ForEachPolicyToTrain(function.read(json)?),
        Form::Evaluate { weights, request } => {
            Command::Evaluate { weights: weights.map(read_weights).transpose()?, request }
        }
    })
}

/// Converts a number to this machine's `usize`.
pub(super) fn size(number: u64) -> Result<usize, CommandError> {
    usize::try_from(number).map_err(|why| CommandError::malformed("a number", why))
}
