//! Matrix games of two players.

use super::{AgentRows, Turn, discrete_action, over, pictures};
use crate::{
    column::DType,
    env::{EnvError, EnvSpaces, Frame, MultiAgentEnv, Rng, RowsRef},
    ids::AgentId,
    prelude::*,
    space::Space,
};

const PLAYERS: [AgentId; 2] = [AgentId::Index(0), AgentId::Index(1)];

fn spaces(agent: &AgentId, observations: u32, actions: u32) -> Option<EnvSpaces> {
    PLAYERS.contains(agent).then_some(EnvSpaces {
        observation: Space::Discrete { n: observations },
        observation_type: DType::I64,
        action: Space::Discrete { n: actions },
        action_type: DType::I64,
    })
}

/// Returns the moves of both players.
fn moves(actions: &AgentRows, n: u32) -> Result<[i64; 2], EnvError> {
    Ok([discrete_action(actions, &PLAYERS[0], n, 0)?, discrete_action(actions, &PLAYERS[1], n, 1)?])
}

/// Returns the winner of a round of rock, paper, scissors: each move beats the one before it.
pub(super) fn winner(moves: [i64; 2]) -> Option<usize> {
    [None, Some(0), Some(1)][(moves[0] - moves[1]).rem_euclid(3) as usize]
}

/// Rock (0), paper (1), scissors (2), [`ROUNDS`](Self::ROUNDS) times. The winner of a round gets 1, the loser -1.
///
/// A player observes the other's last move, 3 before the first one. Moves are simultaneous.
#[derive(Clone, Debug, Default)]
#[doc(alias = "RockPaperScissors-v0")]
pub struct RockPaperScissors {
    /// Rounds left.
    left: u32,
    /// The moves of the rounds of this episode.
    rounds: Vec<[i64; 2]>,
}

impl RockPaperScissors {
    /// Rounds of an episode.
    pub const ROUNDS: u32 = 10;
}

impl MultiAgentEnv for RockPaperScissors {
    fn agents(&self) -> Vec<AgentId> {
        PLAYERS.to_vec()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        spaces(agent, 4, 3)
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.left = Self::ROUNDS;
        self.rounds.clear();
        self.rounds.reserve_exact(Self::ROUNDS as usize);
        PLAYERS.iter().for_each(|player| turn.observe(player, RowsRef::I64(&[3])));
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if self.left == 0 {
            return Err(over());
        }
        let moves = moves(actions, 3)?;
        self.left -= 1;
        self.rounds.push(moves);
        let reward = match winner(moves) {
            None => 0.0,
            Some(0) => 1.0,
            Some(_) => -1.0,
        };
        for (player, (reward, seen)) in PLAYERS.iter().zip([(reward, moves[1]), (-reward, moves[0])]) {
            turn.observe(player, RowsRef::I64(&[seen]));
            turn.reward(player, reward);
        }
        if self.left == 0 {
            turn.terminate_all();
        }
        Ok(())
    }

    fn render(&self, frame: &mut Frame) -> bool {
        pictures::draw_rock_paper_scissors(&self.rounds, Self::ROUNDS, frame);
        true
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

/// The cooperative game that shows what QMIX can represent and sums of values cannot (Rashid et al.: "QMIX: monotonic value
/// function factorisation for deep multi-agent reinforcement learning", 2018).
///
/// In the first step player 0 chooses the table of the second: action 0 one with a payoff of 7 for all moves, action 1 one
/// with a payoff of 8 if both choose 1, 0 if both choose 0, and else 1. Both players get the payoff, and both observe the
/// state: 0 at first, then 1 or 2.
#[derive(Clone, Debug, Default)]
#[doc(alias = "TwoStepGame-v0")]
pub struct TwoStepGame {
    /// Whether an episode is in progress.
    is_on: bool,
    /// The table that the first step of the episode chose.
    table: Option<usize>,
    /// The moves chosen there.
    moves: Option<[usize; 2]>,
}

/// Payoffs of the tables, by the moves of player 0 and of player 1.
const PAYOFFS: [[[u8; 2]; 2]; 2] = [[[7, 7], [7, 7]], [[0, 1], [1, 8]]];

impl TwoStepGame {
    /// Shows the state to both players.
    fn observe(&self, turn: &mut Turn) {
        let place = self.table.map_or(0, |table| table as i64 + 1);
        PLAYERS.iter().for_each(|player| turn.observe(player, RowsRef::I64(&[place])));
    }
}

impl MultiAgentEnv for TwoStepGame {
    fn agents(&self) -> Vec<AgentId> {
        PLAYERS.to_vec()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        spaces(agent, 3, 2)
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        *self = Self { is_on: true, ..Self::default() };
        self.observe(turn);
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if !self.is_on {
            return Err(over());
        }
        let moves = moves(actions, 2)?.map(|action| action as usize);
        let mut paid = 0;
        if let Some(table) = self.table {
            paid = PAYOFFS[table][moves[0]][moves[1]];
            self.moves = Some(moves);
            self.is_on = false;
            turn.terminate_all();
        } else {
            self.table = Some(moves[0]);
        }
        // The last observation is that of the state before.
        self.observe(turn);
        PLAYERS.iter().for_each(|player| turn.reward(player, f64::from(paid)));
        Ok(())
    }

    fn render(&self, frame: &mut Frame) -> bool {
        pictures::draw_two_step_game(PAYOFFS, self.table, self.moves, frame);
        true
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    /// Returns observation and reward of both players after each step, and whether it was the last.
    fn play(env: &mut dyn MultiAgentEnv, moves: &[[i64; 2]]) -> Vec<([i64; 2], [f64; 2], bool)> {
        let mut rng = Streams::new(1, Purpose::EnvStep).at(SlotId(0), 0, 0, 0);
        let mut turn = Turn::new();
        env.reset(&mut rng, &mut turn).unwrap();
        let step = |moves: &[i64; 2]| {
            let mut actions = AgentRows::new();
            PLAYERS.iter().zip(moves).for_each(|(player, action)| actions.set(player, RowsRef::I64(&[*action])));
            turn.clear();
            env.step(&actions, &mut rng, &mut turn).unwrap();
            let seen = PLAYERS.each_ref().map(|player| turn.obs().row_of::<i64>(player).unwrap()[0]);
            (seen, PLAYERS.each_ref().map(|player| turn.outcome(player).reward), turn.all_terminated())
        };
        moves.iter().map(step).collect()
    }

    #[test]
    fn paper_beats_rock_and_so_on() {
        let mut env = RockPaperScissors::default();
        let moves: Vec<[i64; 2]> = (0..10).map(|i| [i % 3, i / 3 % 3]).collect();
        let rounds = play(&mut env, &moves);
        let rewards: Vec<f64> = rounds.iter().map(|(_, rewards, _)| rewards[0]).collect();
        assert_eq!(rewards, [0.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0, 0.0]);
        for ((seen, rewards, _), moves) in rounds.iter().zip(&moves) {
            assert!(rewards[0] == -rewards[1] && *seen == [moves[1], moves[0]]);
        }
        assert!(rounds.iter().map(|(_, _, over)| *over).eq((0..10).map(|round| round == 9)));
    }

    #[test]
    fn the_second_step_pays_by_the_first() {
        let mut env = TwoStepGame::default();
        for (first, place, payoffs) in [(0, 1, [[7.0, 7.0], [7.0, 7.0]]), (1, 2, [[0.0, 1.0], [1.0, 8.0]])] {
            for (moves, paid) in [[0, 0], [0, 1], [1, 0], [1, 1]].into_iter().zip(payoffs.into_iter().flatten()) {
                let steps = play(&mut env, &[[first, moves[0]], moves]);
                assert_eq!(steps, [([place; 2], [0.0; 2], false), ([place; 2], [paid; 2], true)]);
            }
        }
    }

    #[test]
    fn only_moves_of_the_game_are_taken_and_none_after_its_end() {
        let mut rng = Streams::new(1, Purpose::EnvStep).at(SlotId(0), 0, 0, 0);
        for env in [&mut RockPaperScissors::default() as &mut dyn MultiAgentEnv, &mut TwoStepGame::default()] {
            assert_eq!(env.step(&AgentRows::new(), &mut rng, &mut Turn::new()), Err(over()));
            env.reset(&mut rng, &mut Turn::new()).unwrap();
            let mut actions = AgentRows::new();
            PLAYERS.iter().for_each(|player| actions.set(player, RowsRef::I64(&[3])));
            let error = env.step(&actions, &mut rng, &mut Turn::new()).unwrap_err();
            assert!(matches!(&error, EnvError::InvalidAction { action, .. } if action == "[3] of agent 0"), "{error}");
        }
    }
}
