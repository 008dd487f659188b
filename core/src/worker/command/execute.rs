//! Executes commands by calling the worker's methods.

use super::{CommandError, CommandErrorKind, PolicyRoles, TrainedPolicies, WorkerAnswer, WorkerCommand};
use crate::{
    prelude::*,
    worker::{NewPolicy, PoliciesToTrain, RolloutError, RolloutWorker},
};

impl RolloutWorker {
    /// Executes a command, which may come from another process.
    ///
    /// # Errors
    /// Returns the error of the command's method, in a serialisable form.
    #[doc(alias = "apply")]
    pub fn execute(&mut self, command: WorkerCommand) -> Result<WorkerAnswer, CommandError> {
        use WorkerAnswer as Answer;
        use WorkerCommand as Command;
        Ok(match command {
            Command::Ping => Answer::Pong,
            Command::Sample => Answer::Sample(self.sample()?),
            Command::SampleOfSlice { step, start } => Answer::Sample(self.samples().next_of_slice(step, start)?),
            Command::SampleAndLearn { expected, options } => {
                let (info, env_steps) = self.sample_and_learn(expected, &options)?;
                Answer::Learned { info, env_steps }
            }
            Command::LearnOnBatch(batch) => {
                Answer::Learned { info: self.learn_on_batch(&batch)?, env_steps: batch.env_steps() }
            }
            Command::ComputeGradients(batch) => Answer::Gradients(self.compute_gradients(&batch)?),
            Command::ApplyGradients(gradients) => {
                Answer::Learned { info: self.apply_gradients(&gradients)?, env_steps: 0 }
            }
            Command::Weights { policies } => Answer::Weights(self.weights(policies.as_deref())?),
            Command::SetWeights { weights, global_vars, weights_seq_no } => {
                done(self.set_weights(&weights, global_vars.as_ref(), weights_seq_no))?
            }
            Command::GlobalVars => Answer::GlobalVars(self.global_vars()),
            Command::SetGlobalVars { vars, policies } => done(self.set_global_vars(&vars, policies.as_deref()))?,
            Command::Filters { flush_after } => Answer::Filters(self.filters(flush_after)?),
            Command::SyncFilters(filters) => done(self.sync_filters(&filters))?,
            Command::State => Answer::State(self.save()?),
            Command::SetState(state) => done(self.restore(&state))?,
            Command::SamplerState => Answer::State(self.sampler_state()?),
            Command::SetSamplerState(state) => done(self.set_sampler_state(&state))?,
            Command::SetupDataParallel(config) => done(self.setup_data_parallel(&config))?,
            Command::Metrics => Answer::Metrics(Box::new(self.metrics())),
            Command::AddPolicy { id, policy, state, roles } => {
                let new = NewPolicy { state, ..NewPolicy::from(&policy) };
                self.check_roles(&roles)?;
                self.add_policy(id, new, None, None)?;
                done(self.set_roles(roles))?
            }
            Command::RemovePolicy { id, roles } => {
                self.check_roles(&roles)?;
                self.remove_policy(&id, None, None)?;
                done(self.set_roles(roles))?
            }
            Command::SetPolicyMappingFn(function) => done(self.set_policy_mapping_fn_by_name(&function.to_string()))?,
            Command::SetPoliciesToTrain(trained) => {
                self.set_is_policy_to_train(trained);
                Answer::Done
            }
            Command::PoliciesToTrain(batch) => Answer::PolicyIds(self.policies_to_train(batch.as_ref())),
            Command::Spaces => Answer::Spaces(self.spaces()),
            Command::AssertHealthy => done(self.assert_healthy())?,
            Command::Hostname => Answer::Text(self.hostname()?),
            Command::NodeIp => Answer::Text(self.node_ip()?),
            Command::FindFreePort => Answer::Port(self.find_free_port()?),
            Command::CreationArgs => Answer::CreationArgs(Box::new(self.creation_args().clone())),
            Command::Lock => done(self.lock())?,
            Command::Unlock => done(self.unlock())?,
            Command::Stop => done(self.stop())?,
            Command::Apply(function) => Answer::Value(self.apply(&function.name, &function.arguments)?),
            Command::ForEachEnv(function) => Answer::Values(self.foreach_env_by_name(&function)?),
            Command::ForPolicy { id, function } => Answer::Value(self.for_policy_by_name(&id, &function)?),
            Command::ForEachPolicy(function) => Answer::Values(self.foreach_policy_by_name(&function)?),
            Command::ForEachPolicyToTrain(function) => Answer::Values(self.foreach_policy_to_train_by_name(&function)?),
            Command::Evaluate { .. } => {
                let why = "this worker samples, and has no evaluation of its own: ask one that evaluates";
                return Err(CommandError::new(CommandErrorKind::NotSetUp, why));
            }
        })
    }

    /// Checks that the roles can be applied.
    fn check_roles(&self, roles: &PolicyRoles) -> Result<(), RolloutError> {
        roles.policy_mapping_fn.iter().try_for_each(|function| self.mapping_of_name(&function.to_string()).map(|_| ()))
    }

    fn set_roles(&mut self, roles: PolicyRoles) -> Result<(), RolloutError> {
        if let Some(trained) = roles.policies_to_train {
            self.set_is_policy_to_train(trained);
        }
        match roles.policy_mapping_fn {
            Some(function) => self.set_policy_mapping_fn_by_name(&function.to_string()),
            None => Ok(()),
        }
    }
}

impl From<TrainedPolicies> for PoliciesToTrain {
    fn from(trained: TrainedPolicies) -> Self {
        match trained {
            TrainedPolicies::All => Self::All,
            TrainedPolicies::Ids(ids) => Self::Ids(ids),
        }
    }
}

fn done(result: Result<(), RolloutError>) -> Result<WorkerAnswer, CommandError> {
    result?;
    Ok(WorkerAnswer::Done)
}
