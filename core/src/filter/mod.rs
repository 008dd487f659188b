//! Filters that normalise observations with running statistics.
