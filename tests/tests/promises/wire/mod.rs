//! Bytes that cross a border: they stay the same, and hostile ones do no harm.

mod golden;
mod hostile_bytes;
mod view_requirements;
