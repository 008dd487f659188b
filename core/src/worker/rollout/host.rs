//! Facts about the machine.

use super::RolloutWorker;
use crate::{prelude::*, worker::RolloutError};

impl RolloutWorker {
    /// Returns the name of the machine.
    ///
    /// # Errors
    /// [`RolloutError::UnknownHost`] if no shell provides it.
    #[doc(alias = "get_host")]
    pub fn hostname(&self) -> Result<String, RolloutError> {
        let name = self.parts.host.as_ref().and_then(|host| host.hostname());
        name.ok_or(RolloutError::UnknownHost("hostname"))
    }

    /// Returns the address of the machine in the network.
    ///
    /// # Errors
    /// As [`hostname`](Self::hostname).
    #[doc(alias = "get_node_ip")]
    pub fn node_ip(&self) -> Result<String, RolloutError> {
        let ip = self.parts.host.as_ref().and_then(|host| host.node_ip());
        ip.ok_or(RolloutError::UnknownHost("node_ip"))
    }

    /// Returns a free port of the machine.
    ///
    /// # Errors
    /// As [`hostname`](Self::hostname).
    pub fn find_free_port(&self) -> Result<u16, RolloutError> {
        let port = self.parts.host.as_ref().and_then(|host| host.free_port());
        port.ok_or(RolloutError::UnknownHost("find_free_port"))
    }
}
