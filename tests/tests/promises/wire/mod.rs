//! Bytes of messages and files: their format is stable, and malicious ones do no harm.

mod golden;
mod golden_dashboards;
mod hostile_bytes;
mod samples;
mod view_requirements;
