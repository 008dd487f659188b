//! A small world as a table: numbered states, and what each action may lead to.

use super::pictures::World;
use crate::{env::Frame, prelude::*};

/// What an action in a state may lead to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The state after the step.
    pub state: u16,
    /// The state after the step is terminal.
    pub terminated: bool,
    /// Reward of the step.
    pub reward: f64,
}

/// A finite Markov decision process: Gymnasium's `P`, its initial states, and what the states look like.
///
/// Every action in every state has equally many outcomes, whose probabilities depend on their place only: one, or as
/// many as there are ways to slip.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "P")]
pub struct Mdp {
    num_states: u32,
    num_actions: u32,
    /// Where episodes begin, each with the same probability. Never empty.
    starts: Vec<u16>,
    /// Probability of each place among the outcomes. Never empty.
    probabilities: Vec<f64>,
    /// By state, action, place.
    outcomes: Vec<Outcome>,
    /// Has the states.
    world: World,
}

impl Mdp {
    /// Asks `outcome` for every state, action and place among the outcomes.
    ///
    /// The callers, all in this module, lead to no other states and name at least one start and one probability.
    pub(super) fn tabulate(
        world: World,
        num_states: u16,
        num_actions: u32,
        starts: Vec<u16>,
        probabilities: &[f64],
        mut outcome: impl FnMut(u16, u32, usize) -> Outcome,
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

    /// Number of states; they are `0..num_states`.
    #[must_use]
    pub fn num_states(&self) -> u32 {
        self.num_states
    }

    /// Number of actions; they are `0..num_actions`.
    #[must_use]
    pub fn num_actions(&self) -> u32 {
        self.num_actions
    }

    /// Where episodes begin, each with the same probability.
    #[must_use]
    #[doc(alias = "initial_state_distrib")]
    pub fn starts(&self) -> &[u16] {
        &self.starts
    }

    /// Probability and outcome of everything that an action in a state may lead to; nothing if there is no such
    /// state or action. Equal outcomes may appear more than once.
    pub fn outcomes(&self, state: u16, action: u32) -> impl Iterator<Item = (f64, Outcome)> {
        let known = u32::from(state) < self.num_states && action < self.num_actions;
        let first = if known { self.first_outcome(state, action) } else { self.outcomes.len() };
        self.probabilities.iter().copied().zip(self.outcomes.iter().skip(first).copied())
    }

    /// Draws a state, and returns false if there is no such state.
    pub fn render(&self, state: u16, frame: &mut Frame) -> bool {
        let known = u32::from(state) < self.num_states;
        if known {
            self.world.draw(state, frame);
        }
        known
    }

    /// True if actions have several outcomes.
    pub(super) fn is_random(&self) -> bool {
        self.probabilities.len() > 1
    }

    /// The place that a number in [0, 1) chooses.
    pub(super) fn place(&self, uniform: f64) -> usize {
        // Counted instead of searched: no branch to mispredict.
        let (mut sum, mut place) = (0.0, 0);
        for probability in &self.probabilities {
            sum += probability;
            place += usize::from(sum <= uniform);
        }
        // Gymnasium's choice too if the sum is rounded to less than 1.
        if place < self.probabilities.len() { place } else { 0 }
    }

    /// The outcome at a place; state, action and place exist.
    pub(super) fn outcome(&self, state: u16, action: u32, place: usize) -> Outcome {
        self.outcomes[self.first_outcome(state, action) + place]
    }

    fn first_outcome(&self, state: u16, action: u32) -> usize {
        (usize::from(state) * self.num_actions as usize + action as usize) * self.probabilities.len()
    }
}
