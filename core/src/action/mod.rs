//! Actions between policy and environment: clipping, unsquashing, normalising.
