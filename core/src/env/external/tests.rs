use proptest::prelude::*;

use super::*;
use crate::{
    column::{DType, RowShape},
    env::{
        BaseEnv as _, EnvActions, EnvUpdate, EnvUpdates, Reset, RowsRef,
        multi_agent::{AgentRows, Outcome, Turn},
    },
    space::Space,
};

fn spaces() -> EnvSpaces {
    EnvSpaces {
        observation: Space::Discrete { n: 100 },
        observation_type: DType::I64,
        action: Space::Discrete { n: 10 },
        action_type: DType::I64,
    }
}

fn agent(index: u32) -> AgentId {
    AgentId::Index(index)
}

fn row(value: i64) -> AgentRows {
    AgentRows::single(RowsRef::I64(&[value]))
}

fn rows(values: &[(u32, i64)]) -> AgentRows {
    let mut rows = AgentRows::new();
    values.iter().for_each(|(index, value)| rows.set(&agent(*index), RowsRef::I64(&[*value])));
    rows
}

fn reward(reward: f64) -> Outcome {
    Outcome { reward, ..Outcome::default() }
}

/// Episodes, and a sampler that answers 1 and records what it gets.
struct Bench {
    episodes: ExternalEpisodes,
    updates: EnvUpdates,
    served: Vec<String>,
}

impl Bench {
    fn new(lanes: usize, agents: u32) -> Self {
        let agents = (0..agents).map(|index| (agent(index), spaces()));
        Self { episodes: ExternalEpisodes::new(lanes, agents).unwrap(), updates: EnvUpdates::new(), served: Vec::new() }
    }

    /// Polls, and answers.
    fn serve(&mut self) -> Vec<String> {
        self.poll();
        self.answer();
        core::mem::take(&mut self.served)
    }

    fn poll(&mut self) {
        self.updates.clear();
        self.episodes.poll(&mut self.updates).unwrap();
        for entry in self.updates.entries() {
            let (turn, mut text) = (&entry.turn, format!("{}:", entry.env));
            for (agent, obs) in turn.obs().iter() {
                let RowsRef::I64(&[obs]) = obs else { panic!("not one int64") };
                text += &format!(" {agent} sees {obs}");
            }
            for (agent, Outcome { reward, terminated, truncated }) in turn.outcomes() {
                let end = if terminated { " terminated" } else { "" };
                text += &format!(" {agent} gets {reward}{end}{}", if truncated { " truncated" } else { "" });
            }
            for (agent, action) in entry.off_policy_actions.iter() {
                text += &format!(" {agent} did {action:?}");
            }
            for (all, what) in [(turn.all_terminated(), " terminated"), (turn.all_truncated(), " truncated")] {
                text += if all { what } else { "" };
            }
            text += if entry.fault.is_some() { " fault" } else { "" };
            self.served.push(text);
        }
    }

    fn answer(&mut self) {
        let goes_on = |entry: &&EnvUpdate| !entry.turn.is_over() && entry.fault.is_none();
        let answers = self.updates.entries().iter().filter(goes_on).map(|entry| {
            let acting = entry.turn.obs().iter().filter(|(agent, _)| !entry.turn.outcome(agent).is_done());
            let mut actions = AgentRows::new();
            acting.for_each(|(agent, _)| actions.set(agent, RowsRef::I64(&[1])));
            EnvActions { env: entry.env, actions }
        });
        let answers: Vec<_> = answers.collect();
        self.episodes.send_actions(&answers).unwrap();
    }

    fn ask(&mut self, id: u64, obs: i64) -> Result<(), ExternalError> {
        self.episodes.request_actions(id, &row(obs))
    }

    fn taken(&mut self, id: u64) -> Result<Option<AgentRows>, ExternalError> {
        let mut actions = AgentRows::new();
        Ok(self.episodes.take_actions(id, &mut actions)?.then_some(actions))
    }
}

#[test]
fn turn_and_its_answer_reach_each_other() {
    let mut bench = Bench::new(1, 1);
    assert_eq!(bench.episodes.start_episode(7, true), Ok(0));
    bench.ask(7, 3).unwrap();
    assert!(bench.taken(7).unwrap().is_none());
    assert_eq!(bench.serve(), ["0: 0 sees 3"]);
    assert_eq!(bench.taken(7).unwrap().unwrap().row_of::<i64>(&AgentId::SINGLE), Some(&[1][..]));
    bench.episodes.log_returns(7, &AgentId::SINGLE, reward(0.5), None).unwrap();
    bench.episodes.log_returns(7, &AgentId::SINGLE, reward(1.0), None).unwrap();
    bench.episodes.log_actions(7, &row(4), &row(9)).unwrap();
    assert_eq!(bench.serve(), ["0: 0 sees 4 0 gets 1.5 0 did I64([9])"]);
    bench.episodes.end_episode(7, &row(5), true).unwrap();
    assert_eq!(bench.serve(), ["0: 0 sees 5 truncated"]);
    assert!(bench.serve().is_empty());
}

#[test]
fn silent_agents_wait_for_their_returns() {
    let mut bench = Bench::new(1, 3);
    bench.episodes.start_episode(1, true).unwrap();
    bench.episodes.request_actions(1, &rows(&[(0, 1), (1, 1)])).unwrap();
    bench.serve();
    bench.taken(1).unwrap();
    for index in 0..3 {
        bench.episodes.log_returns(1, &agent(index), reward(f64::from(index) + 1.0), None).unwrap();
    }
    let end = Outcome { terminated: true, ..reward(0.25) };
    bench.episodes.log_returns(1, &agent(1), end, Some(b"bye")).unwrap();
    bench.episodes.request_actions(1, &rows(&[(0, 2)])).unwrap();
    assert_eq!(bench.serve(), ["0: 0 sees 2 0 gets 1"]);
    bench.taken(1).unwrap();
    // The last observation of the agent whose end was logged before.
    bench.episodes.log_returns(1, &agent(1), reward(0.5), None).unwrap();
    bench.episodes.request_actions(1, &rows(&[(1, 3)])).unwrap();
    bench.poll();
    assert_eq!(core::mem::take(&mut bench.served), ["0: 1 sees 3 1 gets 2.75 terminated"]);
    assert_eq!(bench.updates.entries()[0].turn.info_of(&agent(1)), Some(&b"bye"[..]));
    bench.answer();
    assert!(bench.taken(1).unwrap().unwrap().is_empty(), "no agent acts");
    let again = bench.episodes.request_actions(1, &rows(&[(1, 3)]));
    assert_eq!(again, Err(ExternalError::AgentDone { id: 1, agent: agent(1) }));
    bench.episodes.end_episode(1, &AgentRows::new(), false).unwrap();
    assert_eq!(bench.serve(), ["0: 2 gets 3 terminated"]);
}

#[test]
fn drivers_that_log_run_ahead_as_far_as_the_queue_is_long() {
    let mut bench = Bench::new(1, 1);
    let mut turns = 0;
    let full = loop {
        let id = turns as u64 / 3;
        let said = match turns % 3 {
            0 => bench.episodes.start_episode(id, true).and_then(|_| bench.episodes.log_actions(id, &row(0), &row(2))),
            1 => bench.episodes.log_actions(id, &row(1), &row(2)),
            _ => bench.episodes.end_episode(id, &row(2), false),
        };
        match said {
            Ok(()) => turns += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((turns, full), (64, ExternalError::QueueFull { id: 21, turns: 64 }));
    assert_eq!(bench.serve(), ["0: 0 sees 0 0 did I64([2])"]);
    bench.episodes.log_actions(21, &row(1), &row(2)).unwrap();
    let served: Vec<_> = (0..64).flat_map(|_| bench.serve()).collect();
    assert_eq!(
        (served.len(), served[1].as_str(), served[2].as_str()),
        (64, "0: 0 sees 2 terminated", "0: 0 sees 0 0 did I64([2])")
    );
}

#[test]
fn new_episodes_take_the_lowest_lane() {
    let mut bench = Bench::new(3, 1);
    let lanes: Vec<_> = [50, 40, 30].map(|id| bench.episodes.start_episode(id, true).unwrap()).to_vec();
    assert_eq!(lanes, [0, 1, 2]);
    assert_eq!(bench.episodes.start_episode(9, true), Err(ExternalError::TooManyEpisodes(3)));
    assert_eq!(bench.episodes.start_episode(40, true), Err(ExternalError::DuplicateEpisode(40)));
    bench.ask(50, 1).unwrap();
    bench.ask(40, 1).unwrap();
    bench.serve();
    bench.taken(40).unwrap();
    bench.episodes.end_episode(40, &row(2), false).unwrap();
    bench.episodes.abandon(50).unwrap();
    // The sampler has not processed it yet, which does not matter.
    assert_eq!(bench.episodes.start_episode(60, true), Ok(0));
    assert_eq!(bench.episodes.start_episode(40, true), Ok(1));
    assert_eq!(bench.episodes.open_episodes().collect::<Vec<_>>(), [(30, 2), (40, 1), (60, 0)]);
    bench.ask(60, 8).unwrap();
    assert_eq!(bench.serve(), ["0: fault", "1: 0 sees 2 terminated"]);
    assert!(bench.taken(60).unwrap().is_none(), "the answer to another episode is not its own");
    assert_eq!(bench.serve(), ["0: 0 sees 8"]);
    assert!(bench.taken(60).unwrap().is_some());
}

#[test]
fn answer_for_an_abandoned_episode_is_dropped() {
    let mut bench = Bench::new(1, 1);
    bench.episodes.start_episode(1, true).unwrap();
    bench.ask(1, 1).unwrap();
    bench.poll();
    bench.episodes.abandon(1).unwrap();
    bench.episodes.start_episode(2, true).unwrap();
    bench.ask(2, 2).unwrap();
    bench.answer();
    assert!(bench.taken(2).unwrap().is_none());
    assert_eq!(bench.taken(1).unwrap_err(), ExternalError::FinishedEpisode(1));
}

#[test]
fn a_reset_loses_the_episode_that_the_sampler_is_in() {
    let mut bench = Bench::new(1, 1);
    bench.episodes.start_episode(1, true).unwrap();
    bench.episodes.log_actions(1, &row(1), &row(1)).unwrap();
    bench.episodes.log_actions(1, &row(2), &row(1)).unwrap();
    // Nothing of it was read, so nothing is lost.
    assert_eq!(bench.episodes.try_reset(0, &mut Turn::new()), Ok(Reset::Unsupported));
    bench.poll();
    assert_eq!(bench.episodes.try_reset(0, &mut Turn::new()), Ok(Reset::Unsupported));
    assert_eq!(bench.ask(1, 3), Err(ExternalError::LostEpisode(1)));
    assert_eq!(bench.episodes.start_episode(2, true), Ok(0));
    assert_eq!(bench.ask(1, 3), Err(ExternalError::LostEpisode(1)));
    bench.ask(2, 4).unwrap();
    bench.served.clear();
    assert_eq!(bench.serve(), ["0: 0 sees 4"]);
    bench.episodes.abandon(2).unwrap();
    assert_eq!(bench.ask(1, 3), Err(ExternalError::UnknownEpisode(1)), "that is too long ago");
}

#[test]
fn an_episode_that_ended_before_a_reset_is_not_the_next_one() {
    let mut bench = Bench::new(1, 1);
    for id in [1, 2] {
        bench.episodes.start_episode(id, true).unwrap();
        bench.episodes.log_actions(id, &row(1), &row(1)).unwrap();
        bench.episodes.end_episode(id, &row(2), false).unwrap();
    }
    bench.poll();
    bench.episodes.try_restart(0).unwrap();
    bench.served.clear();
    assert_eq!(bench.serve(), ["0: 0 sees 1 0 did I64([1])"]);
    assert_eq!(bench.serve(), ["0: 0 sees 2 terminated"]);
    assert!(bench.serve().is_empty());
}

#[test]
fn episodes_without_observations_are_never_reported() {
    let mut bench = Bench::new(1, 1);
    for id in 0..100 {
        bench.episodes.start_episode(id, true).unwrap();
        if id % 2 == 0 {
            bench.episodes.end_episode(id, &row(1), false).unwrap();
        } else {
            bench.episodes.abandon(id).unwrap();
        }
    }
    assert!(bench.serve().is_empty());
}

#[test]
fn episode_without_training_says_so_in_its_infos() {
    let mut bench = Bench::new(1, 2);
    bench.episodes.start_episode(1, false).unwrap();
    bench.episodes.request_actions(1, &rows(&[(0, 1), (1, 1)])).unwrap();
    bench.poll();
    let served =
        |bench: &Bench| [0, 1].map(|index| bench.updates.entries()[0].turn.info_of(&agent(index)).map(<[u8]>::to_vec));
    let no = Some(br#"{"training_enabled": false}"#.to_vec());
    assert_eq!(served(&bench), [no.clone(), no.clone()]);
    bench.answer();
    bench.taken(1).unwrap();
    bench.episodes.end_episode(1, &rows(&[(0, 1)]), false).unwrap();
    bench.poll();
    assert_eq!(served(&bench), [no.clone(), no], "also an agent that observes nothing at the end");
}

#[test]
fn mistakes_of_drivers_change_nothing() {
    let mut bench = Bench::new(1, 2);
    assert_eq!(bench.ask(1, 1), Err(ExternalError::UnknownEpisode(1)));
    bench.episodes.start_episode(1, true).unwrap();
    let says = |result: Result<(), ExternalError>, text: &str| assert_eq!(result.unwrap_err().to_string(), text);
    let log = |bench: &mut Bench, obs: &[(u32, i64)], did: &[(u32, i64)]| {
        bench.episodes.log_actions(1, &rows(obs), &rows(did))
    };
    let gets = |bench: &mut Bench, index, amount| bench.episodes.log_returns(1, &agent(index), reward(amount), None);
    says(gets(&mut bench, 0, 1.0), "episode 1: returns come after the first observation");
    says(bench.ask(1, 100), "episode 1, agent 0: the observation [100] is not in Discrete(100)");
    let float = AgentRows::single(RowsRef::F32(&[0.0]));
    says(
        bench.episodes.request_actions(1, &float),
        "episode 1, agent 0: the observation is a row of float32, not of int64",
    );
    says(bench.episodes.request_actions(1, &AgentRows::new()), "episode 1: at least one agent must observe something");
    says(bench.episodes.request_actions(1, &rows(&[(2, 1)])), "episode 1: there is no agent 2");
    says(log(&mut bench, &[(0, 1)], &[]), "episode 1, agent 0: its action is missing");
    says(log(&mut bench, &[(0, 1)], &[(0, 10)]), "episode 1, agent 0: its action [10] is not in Discrete(10)");
    let other = "episode 1, agent 1: it cannot act, it has no observation to act on";
    says(log(&mut bench, &[(0, 1)], &[(0, 1), (1, 1)]), other);
    says(
        bench.episodes.log_actions(1, &row(1), &float),
        "episode 1, agent 0: its action is a row of float32, not of int64",
    );
    assert_eq!(bench.taken(1).unwrap_err(), ExternalError::NothingAsked(1));
    assert!(bench.serve().is_empty());

    bench.ask(1, 1).unwrap();
    says(bench.ask(1, 2), "episode 1 waits for actions: take them first");
    assert_eq!(bench.episodes.end_episode(1, &row(1), false), Err(ExternalError::AwaitsActions(1)));
    assert_eq!(bench.serve(), ["0: 0 sees 1"]);
    assert_eq!(bench.ask(1, 2), Err(ExternalError::AwaitsActions(1)), "the answer has not been taken");
    bench.taken(1).unwrap();
    for (amount, text) in
        [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (1e39, "1000000000000000000000000000000000000000")]
    {
        says(gets(&mut bench, 0, amount), &format!("episode 1, agent 0: the reward is {text}"));
    }
    gets(&mut bench, 1, 2e38).unwrap();
    bench.ask(1, 5).unwrap();
    assert!(matches!(gets(&mut bench, 1, 2e38), Err(ExternalError::BadReward { .. })), "together with what is owed");
    assert_eq!(bench.serve(), ["0: 0 sees 5"]);
    bench.taken(1).unwrap();
    gets(&mut bench, 0, 4.0).unwrap();
    assert!(bench.episodes.end_episode(1, &row(-1), false).is_err());
    bench.ask(1, 6).unwrap();
    assert_eq!(bench.serve(), ["0: 0 sees 6 0 gets 4"], "it continues");
}

#[test]
fn terminal_observations_may_lie_beyond_the_bounds_of_a_box() {
    let unit = EnvSpaces {
        observation: Space::uniform(DType::F32, RowShape::vector(1), -1.0, 1.0),
        observation_type: DType::F32,
        action: Space::uniform(DType::F32, RowShape::vector(1), -1.0, 1.0),
        action_type: DType::F32,
    };
    let mut episodes = ExternalEpisodes::new(1, [(AgentId::SINGLE, unit)]).unwrap();
    let row = |value: f32| AgentRows::single(RowsRef::F32(&[value]));
    episodes.start_episode(1, true).unwrap();
    assert!(episodes.request_actions(1, &row(2.0)).is_err());
    episodes.request_actions(1, &row(0.5)).unwrap();
    episodes.poll(&mut EnvUpdates::new()).unwrap();
    // So may actions of a policy, since they are not clipped here.
    let mut answer = [EnvActions { env: 0, actions: row(f32::NAN) }];
    assert!(matches!(episodes.send_actions(&answer), Err(EnvError::InvalidAction { lane: 0, .. })));
    answer[0].actions = row(3.0);
    episodes.send_actions(&answer).unwrap();
    let mut actions = AgentRows::new();
    assert!(episodes.take_actions(1, &mut actions).unwrap());
    assert!(episodes.log_actions(1, &row(0.0), &row(3.0)).is_err(), "actions of drivers are checked");
    assert!(episodes.end_episode(1, &row(2.0), true).is_err());
    episodes.end_episode(1, &row(2.0), false).unwrap();
}

#[test]
fn answers_are_checked_before_any_is_taken() {
    let mut bench = Bench::new(2, 1);
    for id in 0..2 {
        bench.episodes.start_episode(id, true).unwrap();
        bench.ask(id, 1).unwrap();
    }
    bench.poll();
    let answer = |env, action| EnvActions { env, actions: row(action) };
    for (answers, text) in [
        (vec![answer(0, 1)], "environment 0: an environment has no entry in the answer"),
        (vec![answer(0, 1), answer(0, 1)], "environment 0: answers come once, in the order of the environments"),
        (vec![answer(0, 1), answer(2, 1)], "there is no lane 2, the environment has 2"),
        (vec![answer(0, 1), answer(1, 10)], "lane 1: action [10] is not in the action space"),
        (
            vec![answer(0, 1), EnvActions { env: 1, actions: AgentRows::new() }],
            "environment 1, agent 0: its action is missing",
        ),
    ] {
        assert_eq!(bench.episodes.send_actions(&answers).unwrap_err().to_string(), text);
        assert!(bench.taken(0).unwrap().is_none());
    }
    bench.answer();
    let late = bench.episodes.send_actions(&[answer(0, 1)]).unwrap_err();
    assert_eq!(late.to_string(), "environment 0: it waits for no actions: poll first");
}

#[test]
fn stop_notifies_every_episode() {
    let mut bench = Bench::new(1, 1);
    bench.episodes.start_episode(1, true).unwrap();
    bench.ask(1, 1).unwrap();
    bench.episodes.stop().unwrap();
    bench.episodes.stop().unwrap();
    assert_eq!(bench.taken(1).unwrap_err(), ExternalError::Stopped);
    assert_eq!(bench.episodes.start_episode(2, true), Err(ExternalError::Stopped));
    assert_eq!(bench.episodes.poll(&mut EnvUpdates::new()), Err(EnvError::Stopped));
    assert_eq!(bench.episodes.send_actions(&[]), Err(EnvError::Stopped));
    assert_eq!(bench.episodes.try_reset(0, &mut Turn::new()), Err(EnvError::Stopped));
}

#[test]
fn external_episodes_refuse_invalid_spaces_and_lanes() {
    let broken = EnvSpaces { action: Space::Discrete { n: 0 }, ..spaces() };
    assert!(ExternalEpisodes::new(1, [(AgentId::SINGLE, broken)]).is_err());
    assert!(ExternalEpisodes::new(1, []).is_err());
    for lanes in [0, 70_000] {
        let error = ExternalEpisodes::new(lanes, [(AgentId::SINGLE, spaces())]).unwrap_err();
        let text = format!("external episodes need an agent, and 1 to 65536 lanes, not 1 agents and {lanes} lanes");
        assert_eq!(error, EnvError::Failed(text));
    }
}

proptest! {
    /// For any sequence of calls nothing breaks, turns arrive in order, and every request is answered once.
    #[test]
    fn random_drivers_are_served(ops in prop::collection::vec((0u8..10, 0u64..4, -1i64..4, 0u32..3), 0..300)) {
        let mut bench = Bench::new(2, 2);
        let mut asked = BTreeSet::new();
        for (op, id, value, index) in ops {
            let (obs, all) = (rows(&[(index, value)]), rows(&[(0, value), (1, value)]));
            let episodes = &mut bench.episodes;
            match op {
                0 => drop(episodes.start_episode(id, value > 0)),
                1 | 2 => {
                    if episodes.request_actions(id, if op == 1 { &obs } else { &all }).is_ok() {
                        prop_assert!(asked.insert(id));
                    }
                }
                3 => drop(episodes.log_actions(id, &obs, &obs)),
                4 => drop(episodes.log_actions(id, &all, &all)),
                5 => {
                    let outcome = Outcome { reward: value as f64, terminated: value == 3, truncated: value == 2 };
                    drop(episodes.log_returns(id, &agent(index), outcome, Some(b"info")));
                }
                6 => {
                    if episodes.end_episode(id, &obs, value == 1).is_ok() {
                        prop_assert!(!asked.contains(&id));
                    }
                }
                7 => {
                    drop(episodes.abandon(id));
                    asked.remove(&id);
                }
                8 => if let Ok(Some(_)) = bench.taken(id) {
                    prop_assert!(asked.remove(&id));
                },
                _ if value < 0 => {
                    let lane = index as usize;
                    let lost = episodes.open_episodes().find(|(_, at)| *at == lane).map(|(id, _)| id);
                    drop(episodes.try_reset(lane, &mut Turn::new()));
                    if let Some(id) = lost.filter(|id| bench.episodes.lane_of(*id).is_err()) {
                        asked.remove(&id);
                    }
                }
                _ => drop(bench.serve()),
            }
        }
        // Nothing is left once all turns are processed.
        for _ in 0..=ExternalEpisodes::MAX_QUEUED_TURNS {
            bench.serve();
        }
        prop_assert!(bench.serve().is_empty());
        for id in asked {
            prop_assert!(bench.taken(id).unwrap().is_some());
        }
    }
}
