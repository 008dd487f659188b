use super::*;
use crate::{
    column::DType,
    env::{BaseEnv as _, EnvActions, EnvSpaces, EnvUpdates, RowsRef},
    protocol::message::{AbandonEpisode, EndEpisode, StartEpisode},
    space::Space,
};

const TIMEOUT: Micros = Micros::from_secs(2);

fn spaces() -> EnvSpaces {
    EnvSpaces {
        observation: Space::Discrete { n: 10 },
        observation_type: DType::U8,
        action: Space::Discrete { n: 2 },
        action_type: DType::U8,
    }
}

/// A few lanes, and clients without sockets.
struct Table {
    episodes: ExternalEpisodes,
    clients: Vec<EpisodeDriver>,
    now: Micros,
}

fn table(lanes: usize, clients: u32) -> Table {
    let agents = Arc::new(AgentTable::new([(AgentId::SINGLE, spaces())]).unwrap());
    let episodes = ExternalEpisodes::new(lanes, agents.agents().to_vec()).unwrap();
    let client = |client| EpisodeDriver::new(client, agents.clone(), TIMEOUT);
    Table { episodes, clients: (0..clients).map(client).collect(), now: Micros(0) }
}

impl Table {
    fn say(&mut self, client: usize, message: Message) -> Vec<Message> {
        let mut answers = Vec::new();
        self.clients[client].handle(message, self.now, &mut self.episodes, &mut answers);
        answers
    }

    fn poll(&mut self, client: usize) -> Vec<Message> {
        let mut answers = Vec::new();
        self.clients[client].poll(self.now, &mut self.episodes, &mut answers);
        answers
    }

    /// Lets the sampler process what is ready and answer every observation with action 1; returns the number of turns.
    fn sample(&mut self) -> usize {
        let mut updates = EnvUpdates::new();
        self.episodes.poll(&mut updates).unwrap();
        let act = |entry: &crate::env::EnvUpdate| {
            let actions = AgentRows::single(RowsRef::U8(&[1]));
            (!entry.turn.is_over() && entry.fault.is_none()).then_some(EnvActions { env: entry.env, actions })
        };
        self.episodes.send_actions(&updates.entries().iter().filter_map(act).collect::<Vec<_>>()).unwrap();
        updates.entries().len()
    }
}

fn start(episode: u32) -> Message {
    Message::StartEpisode(StartEpisode { episode, training: true })
}

fn ask(episode: u32, obs: u8) -> Message {
    Message::GetAction(GetAction { episode, observations: vec![0, 0, obs] })
}

fn log(episode: u32, obs: u8) -> Message {
    Message::LogAction(LogAction { episode, observations: vec![0, 0, obs], actions: vec![0, 0, 1] })
}

fn returns(episode: u32, reward: f64) -> Message {
    let returns = [&[0, 0][..], &reward.to_le_bytes(), &[0]].concat();
    Message::LogReturns(LogReturns { episode, returns, infos: Vec::new() })
}

fn end(episode: u32) -> Message {
    Message::EndEpisode(EndEpisode { episode, truncated: false, observations: vec![0, 0, 9] })
}

fn done(episode: u32, about: Kind) -> Message {
    reply(episode, about, Ok(()))
}

/// Returns the code and the text of the only answer.
fn fault(answers: &[Message]) -> (EpisodeCode, &str) {
    match answers {
        [Message::EpisodeReply(reply)] => (EpisodeCode::try_from(reply.code).unwrap(), &reply.reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_episode_from_beginning_to_end() {
    let mut table = table(1, 1);
    assert_eq!(table.say(0, start(300)), [done(300, Kind::StartEpisode)]);
    assert_eq!(table.say(0, ask(300, 3)), []);
    assert_eq!(table.poll(0), [], "no client has answered yet");
    assert_eq!(table.sample(), 1);
    assert_eq!(table.poll(0), [Message::Actions(Actions { episode: 300, actions: vec![0, 0, 1] })]);
    assert_eq!(table.say(0, returns(300, 1.0)), []);
    assert_eq!(table.say(0, end(300)), [done(300, Kind::EndEpisode)]);
    let again = table.say(0, end(300));
    assert_eq!(fault(&again), (EpisodeCode::NotOpen, "there is no episode 300: start it first"));
    assert_eq!(table.say(0, start(300)), [done(300, Kind::StartEpisode)], "the number is free again");
}

#[test]
fn an_episode_waits_for_a_lane() {
    let mut table = table(1, 2);
    table.say(0, start(1));
    assert_eq!(table.say(1, start(1)), [], "there is one lane");
    assert_eq!(fault(&table.say(1, ask(1, 0))).0, EpisodeCode::NotOpen);
    assert_eq!(fault(&table.say(1, start(1))).0, EpisodeCode::AlreadyOpen);
    assert_eq!(table.poll(1), []);
    table.say(0, end(1));
    assert_eq!(table.poll(1), [done(1, Kind::StartEpisode)]);
    table.say(0, start(2));
    let abandon = Message::AbandonEpisode(AbandonEpisode { episode: 2 });
    assert_eq!(table.say(0, abandon), [done(2, Kind::AbandonEpisode)], "also while it waits");
    table.say(1, end(1));
    assert_eq!(table.poll(0), []);
    assert_eq!(table.episodes.open_episodes().len(), 0);
}

#[test]
fn turns_beyond_the_sampler_buffer_wait_in_order() {
    let mut table = table(1, 1);
    table.say(0, start(1));
    let mut said = 0;
    let mut accepted = 0;
    while !table.clients[0].is_full() {
        accepted += table.say(0, log(1, 5)).len();
        table.say(0, returns(1, 1.0));
        said += 1;
    }
    // Of each queued pair only the first message can be handled.
    assert_eq!((accepted, said), (ExternalEpisodes::MAX_QUEUED_TURNS, ExternalEpisodes::MAX_QUEUED_TURNS + 128));
    assert_eq!(table.say(0, end(1)), []);
    let (mut turns, mut answers) = (0, Vec::new());
    while table.episodes.open_episodes().len() > 0 || table.clients[0].kept > 0 {
        turns += table.sample();
        answers.extend(table.poll(0));
    }
    while table.sample() > 0 {
        turns += 1;
    }
    assert_eq!(turns, said + 1);
    assert_eq!(answers.len(), said - accepted + 1);
    assert_eq!(answers.last(), Some(&done(1, Kind::EndEpisode)));
    assert_eq!((table.clients[0].kept, table.clients[0].kept_bytes), (0, 0));
}

#[test]
fn mistakes_are_named_and_the_episode_continues() {
    let mut table = table(1, 1);
    table.say(0, start(1));
    let cases = [
        (returns(1, 1.0), EpisodeCode::OutOfTurn, "episode 1: returns come after the first observation"),
        (ask(1, 10), EpisodeCode::BadObservation, "episode 1, agent 0: the observation [10] is not in Discrete(10)"),
        (
            Message::GetAction(GetAction { episode: 1, observations: vec![1, 0, 1] }),
            EpisodeCode::BadRows,
            "there is no agent number 1, the last one is 0",
        ),
        (
            Message::GetAction(GetAction { episode: 1, observations: vec![] }),
            EpisodeCode::BadRows,
            "episode 1: at least one agent must observe something",
        ),
        (
            Message::LogAction(LogAction { episode: 1, observations: vec![0, 0, 1], actions: vec![0, 0, 2] }),
            EpisodeCode::BadAction,
            "episode 1, agent 0: its action [2] is not in Discrete(2)",
        ),
    ];
    for (message, code, reason) in cases {
        assert_eq!(fault(&table.say(0, message)), (code, reason));
    }
    assert_eq!(table.say(0, ask(1, 3)), []);
    let twice = table.say(0, ask(1, 3));
    assert_eq!(fault(&twice), (EpisodeCode::OutOfTurn, "episode 1 waits for actions: take them first"));
    table.sample();
    assert_eq!(table.poll(0).len(), 1);
    assert_eq!(fault(&table.say(0, returns(1, f64::MAX))).0, EpisodeCode::BadRows);
    assert_eq!(table.say(0, end(1)), [done(1, Kind::EndEpisode)]);
}

#[test]
fn an_episode_that_the_sampler_gives_up_is_lost_once() {
    let mut table = table(1, 1);
    table.say(0, start(1));
    table.say(0, ask(1, 3));
    let mut updates = EnvUpdates::new();
    table.episodes.poll(&mut updates).unwrap();
    table.episodes.try_restart(0).unwrap();
    assert_eq!(fault(&table.poll(0)).0, EpisodeCode::Lost);
    assert_eq!(fault(&table.say(0, end(1))).0, EpisodeCode::NotOpen);
    table.episodes.stop().unwrap();
    assert_eq!(fault(&table.say(0, start(2))), (EpisodeCode::Stopped, "the environment was stopped"));
}

#[test]
fn a_client_that_leaves_abandons_its_own_episodes() {
    let mut table = table(3, 2);
    for (client, episode) in [(0, 1), (0, 2), (1, 1)] {
        table.say(client, start(episode));
        table.say(client, ask(episode, 1));
    }
    table.say(0, start(3));
    let Table { episodes, clients, .. } = &mut table;
    assert_eq!(clients[0].leave(episodes), 2, "the third one never began");
    assert_eq!(episodes.open_episodes().map(|(_, lane)| lane).collect::<Vec<_>>(), [2]);
    assert_eq!(clients[0].leave(episodes), 0);
}

#[test]
fn a_client_has_no_more_episodes_than_it_may() {
    let mut table = table(1, 1);
    let most = EpisodeDriver::MAX_EPISODES as u32;
    (0..most).for_each(|episode| _ = table.say(0, start(episode)));
    assert_eq!(fault(&table.say(0, start(most))).0, EpisodeCode::TooMany);
}

#[test]
fn returns_of_several_agents_are_logged_together_or_not_at_all() {
    let two = (0..2).map(|index| (AgentId::Index(index), spaces()));
    let agents = Arc::new(AgentTable::new(two).unwrap());
    let episodes = ExternalEpisodes::new(1, agents.agents().to_vec()).unwrap();
    let clients = vec![EpisodeDriver::new(0, agents.clone(), TIMEOUT)];
    let mut table = Table { episodes, clients, now: Micros(0) };
    table.say(0, start(1));
    table.say(0, Message::LogAction(LogAction { episode: 1, observations: vec![0, 0, 1], actions: vec![0, 0, 1] }));
    let mut gets = |rewards: [f64; 2]| {
        let returns =
            (0u8..).zip(rewards).flat_map(|(agent, reward)| [&[agent, 0][..], &reward.to_le_bytes(), &[0]].concat());
        let returns = returns.collect();
        table.say(0, Message::LogReturns(LogReturns { episode: 1, returns, infos: Vec::new() }))
    };
    // Finite as 64-bit float, but not as the column's 32-bit one.
    assert_eq!(fault(&gets([1.0, 1e39])).0, EpisodeCode::BadRows);
    assert_eq!(gets([2.0, 3.0]), []);
    table.say(0, end(1));
    table.sample();
    let mut updates = EnvUpdates::new();
    table.episodes.poll(&mut updates).unwrap();
    let turn = &updates.entries()[0].turn;
    assert_eq!([0, 1].map(|index| turn.outcome(&AgentId::Index(index)).reward), [2.0, 3.0]);
}

#[test]
fn driver_that_is_silent_for_too_long_loses_the_episode() {
    let mut table = table(1, 2);
    table.say(0, start(1));
    table.say(1, start(1));
    let at = |table: &mut Table, micros| {
        table.now = Micros(micros);
        [table.poll(0), table.poll(1)]
    };
    assert_eq!(table.clients[0].deadline(), Some(TIMEOUT));
    at(&mut table, 1_500_000);
    table.say(0, ask(1, 3));
    assert_eq!(table.clients[0].deadline(), None, "it is the sampler's turn");
    assert_eq!(at(&mut table, 60_000_000), [[], []]);
    table.sample();
    assert_eq!(at(&mut table, 100_000_000)[0].len(), 1);
    assert_eq!(table.clients[0].deadline(), Some(Micros(102_000_000)));
    assert_eq!(at(&mut table, 101_999_999), [[], []]);
    let [silent, other] = at(&mut table, 102_000_000);
    let reason = "episode 1 was given up: nothing was said of it for 2 s; start another one";
    assert_eq!(fault(&silent), (EpisodeCode::TimedOut, reason));
    assert_eq!(other, [done(1, Kind::StartEpisode)], "its lane is free");
    assert_eq!((table.clients[0].deadline(), table.clients[0].open()), (None, 0));
    assert_eq!(fault(&table.say(0, end(1))).0, EpisodeCode::NotOpen);
    let mut updates = EnvUpdates::new();
    table.episodes.poll(&mut updates).unwrap();
    assert!(updates.entries()[0].fault.is_some(), "it counts as a faulty one");
}

#[test]
fn driver_whose_messages_are_not_read_is_not_silent() {
    let mut table = table(2, 1);
    table.say(0, start(1));
    table.say(0, start(2));
    while !table.clients[0].is_full() {
        table.say(0, log(1, 5));
    }
    table.now = Micros::from_secs(60);
    assert_eq!(table.poll(0), []);
    while table.clients[0].is_full() {
        table.sample();
        table.poll(0);
    }
    table.now = table.now + Micros::from_secs(1);
    assert!(table.poll(0).iter().all(|answer| *answer == done(1, Kind::LogAction)));
    assert_eq!(table.say(0, log(2, 1)), [done(2, Kind::LogAction)]);
}

#[test]
fn lanes_are_granted_to_waiting_clients_round_robin() {
    let mut table = table(1, 3);
    table.say(0, start(0));
    // Client 0 requests a hundred more episodes, the others one each.
    (1..=100).for_each(|episode| _ = table.say(0, start(episode)));
    table.say(1, start(0));
    table.say(2, start(0));
    // Client 0 is first in the queue, for one episode.
    let order = [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (0, 3)];
    for (at, (client, episode)) in order.into_iter().enumerate() {
        assert_eq!(table.clients[client].open(), 1, "{at}");
        table.say(client, end(episode));
        // The order of polling does not matter.
        (0..3).rev().for_each(|client| _ = table.poll(client));
        (0..3).for_each(|client| _ = table.poll(client));
    }
    // Clients that disconnect or no longer wait do not block the queue.
    table.say(1, start(5));
    table.say(2, start(5));
    let Table { episodes, clients, .. } = &mut table;
    clients[0].leave(episodes);
    table.say(1, Message::AbandonEpisode(AbandonEpisode { episode: 5 }));
    assert_eq!(table.poll(2), [done(5, Kind::StartEpisode)]);
}
