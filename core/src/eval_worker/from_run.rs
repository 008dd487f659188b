//! Parts of an evaluation worker from the description of the run whose policies it evaluates.

use core::fmt::Display;

use super::EvalMakers;
use crate::{
    callbacks::{CallbackList, WorkerInfo},
    evaluation::{EvalWorkerError, EvaluationError, Evaluator, EvaluatorOptions},
    ids::{PolicyId, SlotId},
    kernels::Kernels,
    prelude::*,
    rng::{Purpose, Streams},
    run::{EvaluationConfig, RunConfig},
    worker::{RegisteredEnv, Registry, RolloutWorkerBuilder, SetupError},
};

impl EvalMakers {
    /// Creates the parts that evaluate the policies of a run: its environment as its workers see it, its policies made to
    /// act, and its callbacks, which are called when an evaluation begins and ends. [`RunConfig::evaluation`] contains the
    /// other settings.
    ///
    /// ```
    /// use rollmesh_core::{eval_worker::EvalMakers, kernels::Kernels, run::RunConfig, worker::Registry};
    ///
    /// let mut run = RunConfig::new("Pendulum-v1").seed(7);
    /// run.evaluation.num_envs = 2;
    /// let makers = EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE)?;
    /// assert_eq!(makers.options().max_episode_steps, Some(200));
    /// # Ok::<(), rollmesh_core::evaluation::EvalWorkerError>(())
    /// ```
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`] for an unregistered name, and a number of sub-environments out of range.
    pub fn of_run(run: &RunConfig, registry: &Registry, kernels: Kernels) -> Result<Self, EvalWorkerError> {
        let unknown = |part, error: &dyn Display| EvalWorkerError::setup(part, error);
        let RunConfig { rollout, evaluation, .. } = run;
        if !(1..=EvaluationConfig::MAX_ENVS).contains(&evaluation.num_envs) {
            let (max, found) = (EvaluationConfig::MAX_ENVS, evaluation.num_envs);
            return Err(EvalWorkerError::setup(
                "environment",
                format!("num_envs must be from 1 to {max}, not {found}"),
            ));
        }
        let limit = match registry.env(run.env()).map_err(|error| unknown("environment", &error))? {
            RegisteredEnv::SingleAgent(spec) => spec.max_episode_steps,
            RegisteredEnv::MultiAgent(spec) => spec.max_episode_steps,
            RegisteredEnv::Base(_) => None,
        };
        let limits = [rollout.horizon.or(limit), evaluation.horizon];
        for policy in rollout.policies.keys().chain([&PolicyId::DEFAULT]) {
            registry.policies.spec(&run.policy(policy).policy).map_err(|error| unknown("policy", &error))?;
        }
        let mut draws =
            Streams::new(evaluation.seed.unwrap_or(rollout.seed), Purpose::Evaluation).at(SlotId(0), 0, 0, 0);
        let seed = (u64::from(draws.next_u32()) << 32) | u64::from(draws.next_u32());
        let options = EvaluatorOptions {
            reward_key: evaluation.reward_key.clone(),
            max_episode_steps: limits.into_iter().flatten().min(),
            normalize_actions: rollout.normalize_actions,
            clip_actions: rollout.clip_actions,
            seed,
            ..EvaluatorOptions::default()
        };
        let (described, known) = (run.clone(), registry.clone());
        let makers = Self::of(move |options| {
            let in_env = |error: EvaluationError| EvalWorkerError::setup("environment", error);
            let builder = || RolloutWorkerBuilder::new(known.clone()).kernels(kernels);
            let env = builder().evaluation_envs(&described, seed).map_err(|error| match error {
                SetupError::Env { source, .. } => in_env(source.into()),
                error => EvalWorkerError::setup("environment", error),
            })?;
            let policies = builder().acting_policies(&described, env.as_ref(), seed);
            let (policies, mapping, observation_fn) =
                policies.map_err(|error| EvalWorkerError::setup("policy", error))?;
            let evaluator = Evaluator::of_policies(env, policies, mapping, options.clone()).map_err(in_env)?;
            Ok(evaluator.with_observation_fn(observation_fn))
        });
        let config = rollout.shared_policy_config();
        let callbacks = rollout.callbacks.iter().map(|name| registry.callbacks(name).cloned());
        let callbacks = callbacks.collect::<Result<Vec<_>, _>>().map_err(|error| unknown("callbacks", &error))?;
        let makers = makers.with_options(options).with_callbacks(move || {
            let mut list = CallbackList::new();
            callbacks.iter().try_for_each(|make| make(&config).map(|made| list.push(made)))?;
            Ok((list, WorkerInfo { config: config.clone(), ..WorkerInfo::default() }))
        });
        let Some(init) = &evaluation.init else { return Ok(makers) };
        let first = registry.init_fn(&init.name).map_err(|error| unknown("init function", &error))?.clone();
        let arguments = init.arguments.clone();
        Ok(makers.with_init(move || first(&arguments)))
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;

    use super::*;
    use crate::{
        env::RowsRef,
        evaluation::EvaluationRequest,
        ids::{AgentId, WeightsVersion},
        weights::Weights,
    };

    /// Cars and lights have different spaces, so each kind has a policy.
    #[test]
    fn policies_of_a_run_with_several_agents_act_together() {
        let mut run = RunConfig::new("MultiAgentTrafficGrid-v0").seed(3);
        run.evaluation.num_envs = 2;
        let registry = Registry::builtin();
        let mut evaluator = EvalMakers::of_run(&run, &registry, Kernels::PORTABLE).unwrap().evaluator().unwrap();
        let mut evaluate = |weights: Option<&Weights>| {
            weights.into_iter().for_each(|weights| evaluator.set_weights(weights).unwrap());
            evaluator.begin(EvaluationRequest::of_episodes(NonZeroU32::MIN, 1_000)).unwrap();
            evaluator.advance(u32::MAX).unwrap().unwrap()
        };
        let first = evaluate(None);
        assert_eq!((first.episodes.len(), first.weights_version), (1, WeightsVersion(0)));
        let learning = RolloutWorkerBuilder::new(registry.clone()).learning_parts(&run.seed(4)).unwrap().policies;
        assert_eq!(learning.keys().map(PolicyId::as_str).collect::<Vec<_>>(), ["car", "light"]);
        let weights = learning.iter().map(|(id, policy)| (id, policy.weights()));
        let weights = Weights::of_run(WeightsVersion(5), weights).unwrap();
        let second = evaluate(Some(&weights));
        assert_eq!((second.episodes.len(), second.weights_version), (1, WeightsVersion(5)));
        assert_ne!(first.episodes, second.episodes);
        assert_eq!(evaluate(None), second);
    }

    /// The policy gets the same observations as in sampling.
    #[test]
    fn observation_function_of_a_run_rewrites_what_its_policy_sees() {
        let registry = Registry::builtin().with_observation_fn("upside_down", |obs, _| {
            let agents: Vec<AgentId> = obs.iter().map(|(agent, _)| agent.clone()).collect();
            for agent in agents {
                let turned: Vec<f32> = obs.row_of(&agent).unwrap_or_default().iter().map(|x: &f32| -x).collect();
                obs.set(&agent, RowsRef::F32(&turned));
            }
            Ok(())
        });
        let evaluate = |run: &RunConfig| {
            let mut evaluator = EvalMakers::of_run(run, &registry, Kernels::PORTABLE).unwrap().evaluator().unwrap();
            evaluator.begin(EvaluationRequest::of_episodes(NonZeroU32::MIN, 500)).unwrap();
            evaluator.advance(u32::MAX).unwrap().unwrap().episodes
        };
        let mut run = RunConfig::new("CartPole-v1").seed(3);
        let plain = evaluate(&run);
        run.rollout.observation_fn = Some("upside_down".into());
        assert_ne!(evaluate(&run), plain);
    }
}
