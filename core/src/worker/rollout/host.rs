//! What is known of the machine.

use super::RolloutWorker;
use crate::{prelude::*, worker::RolloutError};

impl RolloutWorker {
    /// Name of the machine.
    ///
    /// # Errors
    /// [`RolloutError::UnknownHost`] where no shell has said.
    #[doc(alias = "get_host")]
    pub fn hostname(&self) -> Result<String, RolloutError> {
        let name = self.parts.host.as_ref().and_then(|host| host.hostname());
        name.ok_or(RolloutError::UnknownHost("hostname"))
    }

    /// Address of the machine in the network.
    ///
    /// # Errors
    /// As [`hostname`](Self::hostname).
    #[doc(alias = "get_node_ip")]
    pub fn node_ip(&self) -> Result<String, RolloutError> {
        let ip = self.parts.host.as_ref().and_then(|host| host.node_ip());
        ip.ok_or(RolloutError::UnknownHost("node_ip"))
    }

    /// A port of the machine on which nobody listens yet.
    ///
    /// # Errors
    /// As [`hostname`](Self::hostname).
    pub fn find_free_port(&self) -> Result<u16, RolloutError> {
        let port = self.parts.host.as_ref().and_then(|host| host.free_port());
        port.ok_or(RolloutError::UnknownHost("find_free_port"))
    }
}
