//! Facts about the machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};

use rollmesh_core::worker::HostFacts;

/// The machine that this program runs on.
///
/// ```
/// use rollmesh::NativeHost;
/// use rollmesh_core::worker::HostFacts as _;
///
/// println!("{:?} at {:?}", NativeHost.hostname(), NativeHost.node_ip());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeHost;

impl HostFacts for NativeHost {
    fn hostname(&self) -> Option<String> {
        Some(gethostname::gethostname().to_string_lossy().into_owned()).filter(|name| !name.is_empty())
    }

    /// Returns the source address of packets to the internet, or the loopback address without a route. Nothing is sent.
    fn node_ip(&self) -> Option<String> {
        // Documentation addresses (RFC 5737 and 3849): they are routed like any other and not in use.
        let ways: [(IpAddr, IpAddr); 2] = [
            (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
        ];
        let address = ways.into_iter().find_map(|(from, to)| address_towards(from, to));
        Some(address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_string())
    }

    /// Returns a port that was free a moment ago: another process may take it, so be ready to retry.
    fn free_port(&self) -> Option<u16> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        Some(listener.local_addr().ok()?.port())
    }
}

/// Returns the source address of packets to this address. Connecting a datagram socket only looks up the route.
fn address_towards(from: IpAddr, to: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((from, 0)).ok()?;
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_name_an_address_and_free_ports() {
        assert!(NativeHost.hostname().is_some_and(|name| !name.is_empty()));
        let ip: IpAddr = NativeHost.node_ip().unwrap().parse().unwrap();
        // It is an address of this machine: one can listen there.
        assert!(TcpListener::bind((ip, 0)).is_ok());
        let port = NativeHost.free_port().unwrap();
        assert!(port > 0);
    }

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(address_towards(Ipv4Addr::UNSPECIFIED.into(), local), Some(local));
    }
}
