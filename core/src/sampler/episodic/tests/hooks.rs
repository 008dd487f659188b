//! The order in which user code is called, and what it may change.

use std::sync::{Arc as StdArc, Mutex};

use super::*;
use crate::{
    batch::MultiAgentBatch,
    callbacks::{CallbackError, Callbacks, EpisodeHook, TrajectoryHook},
};

#[derive(Clone, Default)]
struct Notes(StdArc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: String) -> Result<(), CallbackError> {
        self.0.lock().unwrap().push(note);
        Ok(())
    }

    fn take(&self) -> Vec<String> {
        core::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Callbacks for Notes {
    fn on_episode_created(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.add(format!("created {}", hook.episode.number()))
    }
    fn on_episode_start(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        hook.episode.custom_metrics.insert("number".into(), f64::from(hook.episode.number()));
        self.add(format!("start {}", hook.episode.number()))
    }
    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.add(format!("step {} {}", hook.episode.length(), hook.episode.total_reward()))
    }
    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>) -> Result<(), CallbackError> {
        hook.episode.custom_metrics.insert("ended".into(), 1.0);
        let fault = fault.map_or_else(|| "well".into(), EnvError::to_string);
        self.add(format!("end {} {fault}", hook.episode.number()))
    }
    fn on_postprocess_trajectory(&mut self, hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        let others: Vec<String> = hook.others.iter().map(|other| other.agent.to_string()).collect();
        assert!(hook.trajectory.column("advantages").is_some());
        assert!(hook.others.iter().all(|other| other.trajectory.column("advantages").is_none()));
        let marked = vec![hook.agent == &agent(0); hook.trajectory.len()];
        let column = crate::column::ColumnData::scalars(marked);
        hook.trajectory.insert("marked", column).unwrap();
        self.add(format!("trajectory of {} next to [{}]", hook.agent, others.join(", ")))
    }
}

#[test]
fn hooks_come_in_their_order() {
    let (notes, mut bench) = (Notes::default(), Bench::new(Player::new()));
    bench.callbacks.push(Box::new(notes.clone()));
    let mut sampler = sampler(options(1, 3), scripted(1, counter(2)));
    bench.single(&mut sampler);
    let expected = [
        "created 0",
        "start 0",
        "step 1 100",
        "step 2 200",
        "trajectory of 0 next to []",
        "end 0 well",
        "created 1",
        "start 1",
        "step 1 100",
        "trajectory of 0 next to []",
    ];
    assert_eq!(notes.take(), expected);
    let metrics = sampler.metrics();
    assert_eq!(metrics[0].custom_metrics, [("ended".into(), 1.0), ("number".into(), 0.0)].into());
}

#[test]
fn trajectories_come_by_agent_with_those_of_the_others() {
    let (notes, mut bench) = (Notes::default(), Bench::pair());
    bench.callbacks.push(Box::new(notes.clone()));
    let mut sampler = sampler(SamplerOptions { single_agent: false, ..options(1, 10) }, scripted(1, crowd(3)));
    let batch = bench.data(&mut sampler).unwrap().as_multi_agent();
    let trajectories: Vec<String> = notes.take().into_iter().filter(|note| note.starts_with("trajectory")).collect();
    let expected =
        ["trajectory of 0 next to [1, 2]", "trajectory of 1 next to [0, 2]", "trajectory of 2 next to [0, 1]"];
    assert_eq!(trajectories, expected);
    let marked = batch.policy_batch(&PolicyId::new("p0")).unwrap().get(ColumnKey::<bool>::new("marked")).unwrap();
    assert_eq!(marked, [[true; 10], [false; 10]].concat());
}

#[test]
fn a_fault_is_reported_before_the_next_episode_begins() {
    let (notes, mut bench) = (Notes::default(), Bench::new(Player::new()));
    bench.callbacks.push(Box::new(notes.clone()));
    let envs = scripted(1, || {
        |t: u32, _: &AgentRows, turn: &mut Turn| {
            see(turn, 0, 0);
            if t == 2 { Err(EnvError::Failed("injected".into())) } else { Ok(()) }
        }
    });
    let mut sampler = sampler(options(1, 4), envs.with_restarts(true));
    for _ in 0..3 {
        bench.with(|host| sampler.step(host)).unwrap();
    }
    let expected =
        ["created 0", "start 0", "step 1 0", "end 0 the environment failed: injected", "created 1", "start 1"];
    assert_eq!(notes.take(), expected);
}

#[test]
fn observations_go_through_the_function_first() {
    let mut bench = Bench::new(Player::new());
    bench.observation_fn = Some(Arc::new(|obs, hook| {
        let seen = obs.row_of::<i64>(&AgentId::SINGLE).unwrap()[0];
        obs.set(&AgentId::SINGLE, RowsRef::I64(&[seen, 10 * i64::from(hook.episode.length())]));
        Ok(())
    }));
    let batch = bench.single(&mut sampler(options(1, 3), scripted(1, counter(9))));
    assert_eq!(batch.data(ColumnKey::<i64>::new("obs")).unwrap().shape(), RowShape::vector(2));
    assert_eq!(ints(&batch, "obs"), [0, 0, 1, 10, 2, 20]);
    assert_eq!(ints(&batch, "new_obs"), [1, 10, 2, 20, 3, 30]);
}

/// Adds a batch of one row at the end of each episode.
struct Dreamer;

impl Callbacks for Dreamer {
    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, _: Option<&EnvError>) -> Result<(), CallbackError> {
        hook.episode.add_extra_batch(MultiAgentBatch::new(BTreeMap::new(), 1));
        Ok(())
    }
}

#[test]
fn extra_batches_are_handed_over_once() {
    let mut bench = Bench::new(Player::new());
    bench.callbacks.push(Box::new(Dreamer));
    let mut sampler = sampler(options(1, 4), scripted(1, counter(2)));
    while sampler.held_env_steps() < 4 {
        bench.with(|host| sampler.step(host)).unwrap();
    }
    assert_eq!(sampler.extra_batches().len(), 2);
    assert!(sampler.extra_batches().is_empty());
    bench.single(&mut sampler);
    // With the two episodes that have ended.
    assert_eq!(bench.data(&mut sampler).unwrap().env_steps(), 4 + 2);
    assert!(sampler.extra_batches().is_empty());
}

/// A league: replaces the policy when an episode ends, while other episodes are in progress.
struct League;

impl Callbacks for League {
    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, _: Option<&EnvError>) -> Result<(), CallbackError> {
        let (old, new) = (PolicyId::new("old"), PolicyId::new("new"));
        if hook.policies.contains(&old) {
            hook.policies.remove(&old).unwrap();
            let policy: Box<dyn Policy> = Box::new(Player::new());
            hook.policies.insert(new, PolicyEntry::new("player", policy)).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_hook_may_exchange_the_policies() {
    let mut bench = Bench::new(Player::new());
    let policy: Box<dyn Policy> = Box::new(Player::new());
    bench.policies = PolicyMap::new();
    bench.policies.insert(PolicyId::new("old"), PolicyEntry::new("player", policy)).unwrap();
    bench.callbacks.push(Box::new(League));
    let exchanged = StdArc::new(core::sync::atomic::AtomicBool::new(false));
    let known = exchanged.clone();
    bench.mapping = Arc::new(move |_, episode, _, _| {
        let late = episode.number() > 0 || episode.length() > 0;
        known.fetch_or(late, core::sync::atomic::Ordering::Relaxed);
        PolicyId::new(if late { "new" } else { "old" })
    });
    // The episodes of the first environment are shorter.
    let made = core::sync::atomic::AtomicU32::new(0);
    let envs = scripted(2, move || counter(3 + 4 * made.fetch_add(1, core::sync::atomic::Ordering::Relaxed))());
    let mut sampler = sampler(complete(2), envs);
    for steps in [3, 3, 7, 3] {
        let batch = bench.data(&mut sampler).unwrap().as_multi_agent();
        assert_eq!(batch.agent_steps(), steps);
    }
    assert!(exchanged.load(core::sync::atomic::Ordering::Relaxed));
}
