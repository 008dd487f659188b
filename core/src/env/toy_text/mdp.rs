//! Tabular Markov decision processes: numbered states, and the possible outcomes of each action.

use super::pictures::World;
use crate::{env::Frame, prelude::*};

/// A possible outcome of an action in a state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOutcome {
    /// The state after the step.
    pub state: u16,
    /// The state after the step is terminal.
    pub terminated: bool,
    /// Reward of the step.
    pub reward: f64,
}

/// A finite Markov decision process: Gymnasium's `P`, its initial states, and their pictures.
///
/// Every action in every state has the same number of outcomes, whose probabilities depend on their index only: one outcome,
/// or one per way to slip.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "P")]
pub struct Mdp {
    num_states: u32,
    num_actions: u32,
    /// Initial states of episodes, each with the same probability. Never empty.
    starts: Vec<u16>,
    /// Probability of each outcome by index. Never empty.
    probabilities: Vec<f64>,
    /// By state, action, index.
    outcomes: Vec<TableOutcome>,
    /// Draws the states.
    world: World,
}

impl Mdp {
    /// Calls `outcome` for every state, action and index of an outcome.
    ///
    /// The callers, all in this module, return only existing states and pass at least one start and one probability.
    pub(super) fn tabulate(
        world: World,
        num_states: u16,
        num_actions: u32,
        starts: Vec<u16>,
        probabilities: &[f64],
        mut outcome: impl FnMut(u16, u32, usize) -> TableOutcome,
    ) -> Self {
        let mut outcomes = Vec::with_capacity(usize::from(num_states) * num_actions as usize * probabilities.len());
        for state in 0..num_states {
            for action in 0..num_actions {
                outcomes.extend((0..probabilities.len()).map(|place| outcome(state, action, place)));
            }
        }
        let probabilities = probabilities.to_vec();
        Self { num_states: u32::from(num_states), num_actions, starts, probabilities, outcomes, world }
    }

    /// Returns the number of states, which are `0..num_states`.
    #[must_use]
    pub fn num_states(&self) -> u32 {
        self.num_states
    }

    /// Returns the number of actions, which are `0..num_actions`.
    #[must_use]
    pub fn num_actions(&self) -> u32 {
        self.num_actions
    }

    /// Returns the initial states of episodes, each with the same probability.
    #[must_use]
    #[doc(alias = "initial_state_distrib")]
    pub fn starts(&self) -> &[u16] {
        &self.starts
    }

    /// Returns probability and outcome of everything that an action in a state may lead to; empty if there is no such state
    /// or action. Equal outcomes may occur more than once.
    pub fn outcomes(&self, state: u16, action: u32) -> impl Iterator<Item = (f64, TableOutcome)> {
        let known = u32::from(state) < self.num_states && action < self.num_actions;
        let first = if known { self.first_outcome(state, action) } else { self.outcomes.len() };
        self.probabilities.iter().copied().zip(self.outcomes.iter().skip(first).copied())
    }

    /// Renders a state; returns false if there is no such state.
    pub fn render(&self, state: u16, frame: &mut Frame) -> bool {
        let known = u32::from(state) < self.num_states;
        if known {
            self.world.draw(state, frame);
        }
        known
    }

    /// Returns true if actions have several outcomes.
    pub(super) fn is_random(&self) -> bool {
        self.probabilities.len() > 1
    }

    /// Returns the index of the outcome that a number in [0, 1) selects.
    pub(super) fn place(&self, uniform: f64) -> usize {
        // Counts instead of searching: no branch to mispredict.
        let (mut sum, mut place) = (0.0, 0);
        for probability in &self.probabilities {
            sum += probability;
            place += usize::from(sum <= uniform);
        }
        // Gymnasium's choice, too, if the sum is rounded to less than 1.
        if place < self.probabilities.len() { place } else { 0 }
    }

    /// Returns the outcome at an index; state, action and index must exist.
    pub(super) fn outcome(&self, state: u16, action: u32, place: usize) -> TableOutcome {
        self.outcomes[self.first_outcome(state, action) + place]
    }

    fn first_outcome(&self, state: u16, action: u32) -> usize {
        (usize::from(state) * self.num_actions as usize + action as usize) * self.probabilities.len()
    }
}
