//! Distributions of actions: sampling, log-probability, entropy, divergence.
