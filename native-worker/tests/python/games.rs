//! Games in the form of PettingZoo's, whose agents act simultaneously or sequentially.

use rollmesh_core::{
    env::{
        MultiAgentEnv, Rng, RowsRef, check_multi_agent_env,
        multi_agent::{AgentRows, Turn},
    },
    ids::{AgentId, SlotId},
    rng::{Purpose, Streams},
    space::Space,
};

use super::{context, lab, matrix::Run, registry};

fn game(name: &str, config: &str) -> Box<dyn MultiAgentEnv> {
    registry().multi_agent(name).unwrap().make(&context(config)).unwrap()
}

fn rng(episode: u32) -> Rng {
    Streams::new(1, Purpose::Reset).at(SlotId(0), episode, 0, 0)
}

/// A turn's outcome for an agent: its name, its reward, and whether it was terminated and truncated.
type AgentOutcome = (String, f64, bool, bool);

/// Returns the agents that observe, and the turn's outcomes of agents.
fn outcomes_of(turn: &Turn) -> (Vec<String>, Vec<AgentOutcome>) {
    let outcome = |(agent, outcome): (&AgentId, rollmesh_core::env::multi_agent::Outcome)| {
        (agent.to_string(), outcome.reward, outcome.terminated, outcome.truncated)
    };
    (turn.obs().iter().map(|(agent, _)| agent.to_string()).collect(), turn.outcomes().map(outcome).collect())
}

#[test]
fn games_keep_the_rules_of_environments_with_several_agents() {
    for name in ["pettingzoo:lab:at_once", "pettingzoo:lab:in_turn"] {
        check_multi_agent_env(&registry().multi_agent(name).unwrap(), 3)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn agents_that_act_simultaneously_may_leave_before_the_others() {
    let mut env = game("pettingzoo:lab:at_once", r#"{"rounds": 4}"#);
    let [guesser, hider, watcher] = ["guesser", "hider", "watcher"].map(AgentId::name);
    assert_eq!(env.agents(), [guesser.clone(), hider.clone(), watcher.clone()]);
    assert_eq!(env.spaces(&guesser).unwrap().observation, Space::Discrete { n: 4 });
    let (mut turn, mut actions) = (Turn::new(), AgentRows::new());
    env.reset(&mut rng(0), &mut turn).unwrap();
    for t in 1..=4 {
        actions.clear();
        actions.set(&guesser, RowsRef::I64(&[t % 3]));
        actions.set(&hider, RowsRef::I64(&[1]));
        if t <= 3 {
            actions.set(&watcher, RowsRef::F32(&[0.5]));
        }
        turn.clear();
        env.step(&actions, &mut rng(0), &mut turn).unwrap();
        // The space's value -1 is 0 here.
        assert_eq!(turn.obs().row_of::<i64>(&hider), Some(&[t % 3 + 1][..]));
        let (_, outcomes) = outcomes_of(&turn);
        let point = f64::from(t % 3 == 1);
        let mut wanted = vec![
            ("guesser".to_owned(), point, false, t == 4),
            ("hider".to_owned(), -point, false, t == 4),
            ("watcher".to_owned(), 0.5, t == 3, false),
        ];
        wanted.truncate(if t == 4 { 2 } else { 3 });
        assert_eq!((outcomes, turn.all_truncated(), turn.all_terminated()), (wanted, t == 4, false), "step {t}");
    }
    let error = env.step(&actions, &mut rng(0), &mut turn).unwrap_err();
    assert!(error.to_string().contains("the episode is over"), "{error}");
}

#[test]
fn agents_that_act_sequentially_receive_rewards_for_actions_of_others() {
    let mut env = game("pettingzoo:lab:in_turn", "{}");
    let (mut turn, mut actions) = (Turn::new(), AgentRows::new());
    env.reset(&mut rng(0), &mut turn).unwrap();
    let mut acted = Vec::new();
    while !turn.is_over() {
        let (observing, outcomes) = outcomes_of(&turn);
        let ended = |agent: &String| outcomes.iter().any(|(other, _, terminated, _)| other == agent && *terminated);
        let next: Vec<_> = observing.into_iter().filter(|agent| !ended(agent)).collect();
        assert_eq!(next.len(), 1, "{next:?}");
        acted.push(next[0].clone());
        actions.clear();
        actions.set(&AgentId::name(&next[0]), RowsRef::I64(&[1]));
        turn.clear();
        env.step(&actions, &mut rng(0), &mut turn).unwrap();
    }
    // Cleo is out once she has passed ten; the player who reaches twenty wins against the other one.
    assert_eq!(acted[..3], ["ada", "bob", "cleo"]);
    let winner = acted.last().unwrap();
    let (observing, mut outcomes) = outcomes_of(&turn);
    outcomes.sort_by(|one, other| other.1.total_cmp(&one.1));
    assert_eq!(outcomes.iter().map(|outcome| outcome.1).collect::<Vec<_>>(), [1.0, -1.0]);
    assert!(outcomes[0].0 == *winner && outcomes.iter().all(|outcome| outcome.2), "{outcomes:?}");
    assert_eq!(observing.len(), 2);
}

#[test]
fn game_that_is_not_there_is_unavailable() {
    let error = |name: &str| {
        let made = registry().multi_agent(name).unwrap().make(&context("{}"));
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(error("pettingzoo:os.path").contains("write it as pettingzoo:classic/tictactoe_v3"));
    assert!(error("pettingzoo:classic/no_such_game_v0").contains("cannot be made on this machine"));
    assert!(error("pettingzoo:lab:Faulty").contains("takes") || error("pettingzoo:lab:Faulty").contains("missing"));
    assert!(error("pettingzoo:subprocess:Popen").contains("may not run on this machine"));
    let config = r#"{"vectorize": "native", "observation_dtype": "float32"}"#;
    let vector = registry().multi_agent("pettingzoo:lab:at_once").unwrap().make(&context(config)).err().unwrap();
    assert!(vector.to_string().contains("remove observation_dtype and vectorize from env_config"), "{vector}");
}

#[tokio::test]
async fn games_train_with_the_same_weights_for_any_workers_and_whichever_dies() {
    for env in ["pettingzoo:lab:at_once", "pettingzoo:lab:in_turn"] {
        let directory = tempfile::tempdir().unwrap();
        Run { env, more: &["--max-env-steps", "3200"], python_path: &lab(), slots: 8 }.check(directory.path()).await;
    }
}
