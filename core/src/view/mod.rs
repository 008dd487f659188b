//! Views of trajectories: which rows of which columns a model sees at a step, and sequences for recurrent ones.
