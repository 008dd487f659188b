//! Environments: what all have to keep, their pictures, and those that clients drive.

mod external;
mod laws;
mod pictures;
