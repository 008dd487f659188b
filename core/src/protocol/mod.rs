//! The protocol between the hub, workers and dashboards: meaning only, no sockets.

pub mod message;
