//! Bytes that cross a border: they stay the same, and hostile ones do no harm.

mod golden;
mod golden_dashboards;
mod hostile_bytes;
mod samples;
mod view_requirements;
