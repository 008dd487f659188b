//! Environments around environments.
