//! Games of two players that are tables.

use super::{AgentRows, Turn, discrete_action, over};
use crate::{
    column::DType,
    env::{
        EnvError, EnvSpaces, Frame, MultiAgentEnv, Rng, RowsRef,
        render::{
            Canvas, Point,
            palette::{BLUE, INK, LINE, ORANGE, PAPER},
        },
    },
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

/// The moves of both players.
fn moves(actions: &AgentRows, n: u32) -> Result<[i64; 2], EnvError> {
    Ok([discrete_action(actions, &PLAYERS[0], n, 0)?, discrete_action(actions, &PLAYERS[1], n, 1)?])
}

/// Rock (0), paper (1), scissors (2), [`ROUNDS`](Self::ROUNDS) times. Who wins a round gets 1, who loses it -1.
///
/// A player sees the other's last move, 3 before the first one. Moves are made at the same time.
#[derive(Clone, Debug, Default)]
#[doc(alias = "RockPaperScissors-v0")]
pub struct RockPaperScissors {
    /// Rounds left.
    left: u32,
    /// Of the last round; none before the first one.
    moves: Option<[i64; 2]>,
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
        (self.left, self.moves) = (Self::ROUNDS, None);
        PLAYERS.iter().for_each(|player| turn.observe(player, RowsRef::I64(&[3])));
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if self.left == 0 {
            return Err(over());
        }
        let moves = moves(actions, 3)?;
        self.left -= 1;
        self.moves = Some(moves);
        // Each move beats the one before it.
        let reward = [0.0, 1.0, -1.0][(moves[0] - moves[1]).rem_euclid(3) as usize];
        for (player, (reward, seen)) in PLAYERS.iter().zip([(reward, moves[1]), (-reward, moves[0])]) {
            turn.observe(player, RowsRef::I64(&[seen]));
            turn.reward(player, reward);
        }
        if self.left == 0 {
            turn.terminate_all();
        }
        Ok(())
    }

    /// The moves of the last round side by side: a stone, a sheet, a pair of blades.
    fn render(&self, frame: &mut Frame) -> bool {
        let mut canvas = Canvas::new(frame, [160, 80], PAPER).with_cells(80.0);
        canvas.rectangle([0.995, 0.1], [1.005, 0.9], LINE);
        for (x, action) in [0.5, 1.5].into_iter().zip(self.moves.into_iter().flatten()) {
            match action {
                0 => canvas.circle([x, 0.5], 0.25, INK),
                1 => canvas.rectangle([x - 0.2, 0.2], [x + 0.2, 0.8], BLUE),
                _ => [-0.2, 0.2].iter().for_each(|d| canvas.line([x - d, 0.25], [x + d, 0.75], 0.08, ORANGE)),
            }
        }
        true
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

/// The cooperative game with which QMIX was shown to find what sums of values cannot (Rashid et al.: "QMIX: monotonic
/// value function factorisation for deep multi-agent reinforcement learning", 2018).
///
/// In the first step player 0 chooses the table of the second: action 0 one that pays 7 whatever is done, action 1 one
/// that pays 8 if both choose 1, 0 if both choose 0, and else 1. Both players get what is paid, and both see where they
/// are: 0 at first, then 1 or 2.
#[derive(Clone, Debug, Default)]
#[doc(alias = "TwoStepGame-v0")]
pub struct TwoStepGame {
    place: Place,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    First,
    Safe,
    Risky,
    #[default]
    Over,
}

impl TwoStepGame {
    /// Both players see a place.
    fn observe(turn: &mut Turn, place: Place) {
        PLAYERS.iter().for_each(|player| turn.observe(player, RowsRef::I64(&[place as i64])));
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
        self.place = Place::First;
        Self::observe(turn, self.place);
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if self.place == Place::Over {
            return Err(over());
        }
        let moves = moves(actions, 2)?;
        let (next, paid) = match (self.place, moves) {
            (Place::First, [0, _]) => (Place::Safe, 0.0),
            (Place::First, _) => (Place::Risky, 0.0),
            (Place::Safe, _) => (Place::Over, 7.0),
            (_, [0, 0]) => (Place::Over, 0.0),
            (_, [1, 1]) => (Place::Over, 8.0),
            _ => (Place::Over, 1.0),
        };
        if next == Place::Over {
            // The last observation is that of where the players have been.
            Self::observe(turn, self.place);
            turn.terminate_all();
        } else {
            Self::observe(turn, next);
        }
        self.place = next;
        PLAYERS.iter().for_each(|player| turn.reward(player, paid));
        Ok(())
    }

    /// The first place, and the two to which it leads; the one where the players are is filled.
    fn render(&self, frame: &mut Frame) -> bool {
        const PLACES: [(Place, Point); 3] =
            [(Place::First, [0.5, 1.0]), (Place::Safe, [1.5, 0.5]), (Place::Risky, [1.5, 1.5])];
        let mut canvas = Canvas::new(frame, [120, 120], PAPER).with_cells(60.0);
        for (place, at) in PLACES {
            canvas.line(PLACES[0].1, at, 0.04, LINE);
            canvas.circle(at, 0.3, if place == self.place { ORANGE } else { LINE });
        }
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

    /// Observation and reward of both players after each step, and whether it was the last.
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
