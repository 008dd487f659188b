//! The check for environments with several agents.

use super::{CheckError, probe::check_space, rows};
use crate::{
    env::{
        BaseEnv as _, EnvActions, EnvContext, EnvError, EnvMaker, EnvStart, EnvUpdates, InProcess, MultiAgentSpec,
        SubEnv,
        multi_agent::{AgentRows, Turn},
        put_rows,
    },
    ids::{AgentId, HomeIndex, SlotId},
    prelude::*,
    rng::{Purpose, Streams},
};

/// Steps of every environment.
const STEPS: u32 = 300;

/// Checks an environment with several agents, which act at random: that all agents have valid spaces, that observations are
/// in them and rewards are finite, that a reset returns only observations, that no agent observes after its end, that a step
/// after the episode's end is rejected, that the same random numbers and actions give the same bits, and that environments
/// do not depend on each other.
///
/// The last observation of a terminated agent may be out of the bounds of a box. A panic of the environment is not caught.
///
/// # Errors
/// The first [`CheckError`] found.
pub fn check_multi_agent_env(spec: &MultiAgentSpec, seed: u64) -> Result<(), CheckError> {
    check_agents(spec)?;
    let mut probes =
        [AgentProbe::new(spec, 2, seed)?, AgentProbe::new(spec, 2, seed)?, AgentProbe::new(spec, 1, seed)?];
    let compare = |[first, second, alone]: &[AgentProbe; 3], during| {
        let step = first.step;
        if let Some(agent) = first.turns.iter().zip(&second.turns).find_map(|(one, other)| difference(one, other)) {
            return Err(CheckError::AgentNotDeterministic { during, agent, step });
        }
        let coupled = first.turns.iter().zip(&alone.turns).any(|(one, other)| difference(one, other).is_some());
        if coupled { Err(CheckError::Coupled { lane: 0, step }) } else { Ok(()) }
    };
    probes.iter_mut().try_for_each(AgentProbe::begin)?;
    compare(&probes, "a reset")?;
    for _ in 0..STEPS {
        probes.iter_mut().try_for_each(AgentProbe::step)?;
        compare(&probes, "a step")?;
        probes.iter_mut().try_for_each(AgentProbe::reset_ended)?;
        compare(&probes, "a reset")?;
    }
    Ok(())
}

fn context(vector_index: u32) -> EnvContext {
    EnvContext::new(HomeIndex { worker_index: 1, vector_index })
}

/// Checks the agents known beforehand, and their spaces.
fn check_agents(spec: &MultiAgentSpec) -> Result<(), CheckError> {
    let failed = |source| CheckError::Failed { during: "making", step: 0, source };
    let env = spec.make(&context(0)).map_err(failed)?;
    let agents = env.agents();
    if !agents.is_sorted_by(|one, next| one < next) {
        return Err(CheckError::UnorderedAgents);
    }
    for agent in &agents {
        let unknown = || failed(EnvError::UnknownAgent { env: 0, agent: agent.clone() });
        let spaces = env.spaces(agent).ok_or_else(unknown)?;
        check_space("observation", &spaces.observation, spaces.observation_type)?;
        check_space("action", &spaces.action, spaces.action_type)?;
    }
    Ok(())
}

/// Several environments whose agents act at random: the same for the same seed, slot, episode and step.
struct AgentProbe {
    envs: InProcess,
    updates: EnvUpdates,
    /// The latest turn of each environment.
    turns: Vec<Turn>,
    /// Episode and step of each.
    moments: Vec<(u32, u32)>,
    max_episode_steps: u32,
    seed: u64,
    step: u32,
}

impl AgentProbe {
    fn new(spec: &MultiAgentSpec, num_envs: u32, seed: u64) -> Result<Self, CheckError> {
        let start = |slot| EnvStart { slot: SlotId(slot), episode: 0, context: context(slot) };
        let envs = InProcess::new(EnvMaker::multi_agent(spec), (0..num_envs).map(start).collect(), seed);
        Ok(Self {
            envs: envs.map_err(|source| CheckError::Failed { during: "making", step: 0, source })?,
            updates: EnvUpdates::new(),
            turns: vec![Turn::new(); num_envs as usize],
            moments: vec![(0, 0); num_envs as usize],
            max_episode_steps: spec.max_episode_steps.unwrap_or(u32::MAX),
            seed,
            step: 0,
        })
    }

    fn failed(&self, during: &'static str) -> impl Fn(EnvError) -> CheckError + use<> {
        let step = self.step;
        move |source| CheckError::Failed { during, step, source }
    }

    fn begin(&mut self) -> Result<(), CheckError> {
        self.poll("a reset")
    }

    fn poll(&mut self, during: &'static str) -> Result<(), CheckError> {
        self.updates.clear();
        self.envs.poll(&mut self.updates).map_err(self.failed(during))?;
        for entry in self.updates.entries_mut() {
            core::mem::swap(&mut entry.turn, &mut self.turns[entry.env]);
        }
        Ok(())
    }

    /// Returns random actions for the agents that act next.
    fn actions(&self, env: usize) -> AgentRows {
        let (turn, (episode, t)) = (&self.turns[env], self.moments[env]);
        let streams = Streams::new(self.seed, Purpose::Action);
        let mut actions = AgentRows::new();
        for (number, (agent, _)) in
            turn.obs().iter().enumerate().filter(|(_, (agent, _))| !turn.outcome(agent).is_done())
        {
            // Observing agents were found to have spaces.
            let Some(spaces) = self.envs.spaces(agent) else { continue };
            let row = actions.row_mut(agent, spaces.action_type, spaces.action.shape().elements());
            let mut rng = streams.at(SlotId(env as u32), episode, t, number as u16);
            rows::sample(&spaces.action, &mut rng, row).unwrap_or_default();
        }
        actions
    }

    fn step(&mut self) -> Result<(), CheckError> {
        let actions: Vec<_> = (0..self.turns.len()).map(|env| EnvActions { env, actions: self.actions(env) }).collect();
        self.envs.send_actions(&actions).map_err(self.failed("a step"))?;
        self.poll("a step")?;
        self.moments.iter_mut().for_each(|(_, t)| *t += 1);
        self.step += 1;
        Ok(())
    }

    /// Begins the next episode of environments whose episode has ended or reached its time limit.
    fn reset_ended(&mut self) -> Result<(), CheckError> {
        for env in 0..self.turns.len() {
            let (episode, t) = self.moments[env];
            if self.turns[env].is_over() {
                self.check_end(env)?;
            } else if t < self.max_episode_steps {
                continue;
            }
            self.moments[env] = (episode + 1, 0);
            self.turns[env].clear();
            self.envs.try_reset(env, &mut self.turns[env]).map_err(self.failed("a reset"))?;
        }
        Ok(())
    }

    /// Checks that a step after the end is rejected.
    fn check_end(&mut self, env: usize) -> Result<(), CheckError> {
        let mut rng = Streams::new(self.seed, Purpose::Audit).at(SlotId(env as u32), 0, self.step, 0);
        let step = self.step;
        let goes_on = self.envs.sub_environments().into_iter().nth(env).is_some_and(|sub| match sub {
            SubEnv::MultiAgent(env) => env.step(&AgentRows::new(), &mut rng, &mut Turn::new()).is_ok(),
            SubEnv::Lane { .. } | SubEnv::Base(_) => false,
        });
        if goes_on { Err(CheckError::GoesOn { step }) } else { Ok(()) }
    }
}

/// Returns the first agent for which two turns differ, or `all` for what concerns all agents.
fn difference(one: &Turn, other: &Turn) -> Option<String> {
    let said = |turn: &Turn| {
        let mut said: BTreeMap<AgentId, _> = BTreeMap::new();
        for (agent, row) in turn.obs().iter() {
            let mut bytes = Vec::new();
            put_rows(&mut bytes, row);
            said.insert(agent.clone(), (Some((row.dtype().name(), bytes)), None));
        }
        for (agent, outcome) in turn.outcomes() {
            let outcome = (outcome.reward.to_bits(), outcome.terminated, outcome.truncated);
            said.entry(agent.clone()).or_insert((None, None)).1 = Some(outcome);
        }
        said
    };
    let (one_said, other_said) = (said(one), said(other));
    let differs = |agent: &&AgentId| one_said.get(agent) != other_said.get(agent);
    let ends = |turn: &Turn| (turn.all_terminated(), turn.all_truncated());
    let agent = one_said.keys().chain(other_said.keys()).find(differs).map(|agent| agent.to_string());
    agent.or_else(|| (ends(one) != ends(other)).then(|| "all".into()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;
    use crate::{
        column::DType,
        env::{EnvRegistry, EnvSpaces, MultiAgentEnv, Rng, RowsRef},
        space::Space,
    };

    #[test]
    fn all_that_is_built_in_keeps_the_rules() {
        for spec in EnvRegistry::builtin().iter_multi_agent() {
            for seed in 0..2 {
                assert_eq!(check_multi_agent_env(spec, seed), Ok(()), "{}", spec.name);
            }
        }
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        Unordered,
        NoSpaces,
        BadSpace,
        Outside,
        NanReward,
        AfterItsEnd,
        GoesOn,
        Random,
        Coupled,
        EndsAtReset,
    }

    static LEAK: AtomicU32 = AtomicU32::new(0);

    /// Two agents; the second one ends after two steps, and the episode after four. At most one fault.
    struct Pair {
        t: i64,
        fault: Fault,
        leak: Arc<AtomicU32>,
    }

    impl MultiAgentEnv for Pair {
        fn agents(&self) -> Vec<AgentId> {
            let order = if self.fault == Fault::Unordered { [1, 0] } else { [0, 1] };
            order.map(AgentId::Index).to_vec()
        }

        fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
            let known = if self.fault == Fault::NoSpaces { 1 } else { 2 };
            (*agent < AgentId::Index(known)).then(|| EnvSpaces {
                observation: Space::Discrete { n: if self.fault == Fault::Outside { 3 } else { 1000 } },
                observation_type: DType::I64,
                action: Space::Discrete { n: if self.fault == Fault::BadSpace { 0 } else { 2 } },
                action_type: DType::I64,
            })
        }

        fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
            self.t = 0;
            (0..2).for_each(|index| turn.observe(&AgentId::Index(index), RowsRef::I64(&[0])));
            if self.fault == Fault::EndsAtReset {
                turn.truncate_all();
            }
            Ok(())
        }

        fn step(&mut self, _: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
            if self.t == 4 && self.fault != Fault::GoesOn {
                return Err(EnvError::Failed("over".into()));
            }
            self.t += 1;
            let [first, second] = [0, 1].map(AgentId::Index);
            let leak = match self.fault {
                Fault::Random => LEAK.fetch_add(1, SeqCst) % 900,
                Fault::Coupled => self.leak.fetch_add(1, SeqCst) % 900,
                _ => 0,
            };
            turn.observe(&first, RowsRef::I64(&[self.t + i64::from(leak)]));
            turn.reward(&first, if self.fault == Fault::NanReward { f64::NAN } else { 1.0 });
            if self.t <= 2 || self.fault == Fault::AfterItsEnd {
                turn.observe(&second, RowsRef::I64(&[self.t]));
            }
            if self.t == 2 {
                turn.terminate(&second);
            }
            if self.t == 4 {
                turn.terminate_all();
            }
            Ok(())
        }

        fn as_any(&mut self) -> &mut dyn core::any::Any {
            self
        }
    }

    fn check(fault: Fault) -> Result<(), CheckError> {
        let count = AtomicU32::new(0);
        let leaks: [Arc<AtomicU32>; 4] = Default::default();
        // The first instance is for inspection; of the others two, two and one form a process.
        let spec = MultiAgentSpec::new("Pair", move |_| {
            let leak = leaks[count.fetch_add(1, SeqCst).div_ceil(2).min(3) as usize].clone();
            Ok(Box::new(Pair { t: 0, fault, leak }))
        });
        check_multi_agent_env(&spec, 1)
    }

    #[test]
    fn every_fault_is_found() {
        assert_eq!(check(Fault::None), Ok(()));
        assert_eq!(check(Fault::Unordered), Err(CheckError::UnorderedAgents));
        let unknown = EnvError::UnknownAgent { env: 0, agent: AgentId::Index(1) };
        assert_eq!(check(Fault::NoSpaces), Err(CheckError::Failed { during: "making", step: 0, source: unknown }));
        assert!(matches!(check(Fault::BadSpace), Err(CheckError::BadSpace { what: "action", .. })));
        assert_eq!(check(Fault::GoesOn), Err(CheckError::GoesOn { step: 4 }));
        let random = CheckError::AgentNotDeterministic { during: "a step", agent: "0".into(), step: 1 };
        assert_eq!(check(Fault::Random), Err(random));
        assert_eq!(check(Fault::Coupled), Err(CheckError::Coupled { lane: 0, step: 2 }));
        for (fault, said) in [
            (
                Fault::Outside,
                "step 2, during a step: environment 0, agent 0: the observation [3] is not in Discrete(3)",
            ),
            (Fault::NanReward, "step 0, during a step: environment 0, agent 0: the reward is NaN"),
            (
                Fault::AfterItsEnd,
                "step 2, during a step: environment 0, agent 1: the observation comes after the agent's end",
            ),
        ] {
            assert_eq!(check(fault).unwrap_err().to_string(), said);
        }
        assert!(check(Fault::EndsAtReset).unwrap_err().to_string().starts_with("step 0, during a reset"));
    }
}
