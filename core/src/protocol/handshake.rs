//! The handshake of a session: a peer sends `Hello`, the hub answers `Welcome` or `Refused`.

use core::fmt;

use super::{
    Message, PROTOCOL_MAX, PROTOCOL_MIN, RefusalCode, Role, Token, TokenId, TokenTable,
    message::{Hello, Refused},
};
use crate::{hash::Hash128, prelude::*};

/// Most bytes of each text in a `Hello`.
pub const MAX_TEXT_BYTES: usize = 64;

/// The identity that a peer claims in its `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The role that it asks for.
    pub role: Role,
    /// The token of that role.
    pub token: Token,
    /// The session to resume.
    pub resume: Option<[u8; 16]>,
    /// Hash of a fixed rollout, computed by this very program; required of workers only.
    pub core_fingerprint: [u8; 16],
    /// `native`, `browser`, …
    pub kind: String,
    /// Name for display.
    pub name: String,
    /// The device that it runs on.
    pub device: String,
    /// Its service among those of its role.
    pub service: PeerService,
    /// Whether it gets weights from a relay: the hub sends their hashes.
    pub by_relay: bool,
}

/// A peer that the hub accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The protocol version negotiated for the session.
    pub protocol: u16,
    /// Its role.
    pub role: Role,
    /// The token that it authenticated with.
    pub token: TokenId,
    /// Its child process number, if the hub started it.
    pub child: Option<u32>,
    /// The session that it asks to resume.
    pub resume: Option<[u8; 16]>,
    /// `native`, `browser`, …; printable, like the next two.
    pub kind: String,
    /// Name for display.
    pub name: String,
    /// The device that it runs on.
    pub device: String,
    /// Its service.
    pub service: PeerService,
    /// Whether it gets weights from a relay.
    pub by_relay: bool,
}

/// The capability bit of a peer that gets weights from a relay.
const BY_RELAY: u64 = 4;

/// The service of a peer among those of its role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerService {
    /// The usual one of its role: a worker takes part in runs.
    #[default]
    Runs,
    /// The worker evaluates under its name, and takes no part in runs.
    Evaluates,
    /// The worker sends requests to evaluation workers, and takes no part in runs.
    Asks,
}

impl PeerService {
    /// Returns its capability bits in a `Hello`.
    #[must_use]
    pub const fn capabilities(self) -> u64 {
        match self {
            Self::Runs => 0,
            Self::Evaluates => 1,
            Self::Asks => 2,
        }
    }

    /// Decodes a peer's capability bits. Bits unknown to this version are ignored.
    const fn of(role: Role, capabilities: u64) -> Self {
        match (role, capabilities & 3) {
            (Role::Worker, 1) => Self::Evaluates,
            (Role::Worker, 2) => Self::Asks,
            _ => Self::Runs,
        }
    }
}

impl Identity {
    /// Returns the identity of a peer that resumes no session and does not prove that it computes what the hub computes.
    #[must_use]
    pub fn new(role: Role, token: Token, kind: &str, name: &str, device: &str) -> Self {
        let (kind, name, device) = (kind.into(), name.into(), device.into());
        let service = PeerService::Runs;
        Self { role, token, resume: None, core_fingerprint: [0; 16], kind, name, device, service, by_relay: false }
    }

    /// Returns the first message to the hub.
    #[must_use]
    pub fn hello(&self) -> Message {
        Message::Hello(Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            role: self.role.to_wire(),
            token: self.token,
            capabilities: self.service.capabilities() | if self.by_relay { BY_RELAY } else { 0 },
            resume_id: self.resume.unwrap_or_default(),
            core_fingerprint: self.core_fingerprint,
            kind: self.kind.clone(),
            name: self.name.clone(),
            device: self.device.clone(),
        })
    }
}

/// Accepts or refuses a peer; `now` is the hub's clock in seconds since 1970.
///
/// The version is checked first, because other fields of a `Hello` may have another meaning in other versions; then the
/// token, so that an unauthenticated peer learns nothing else.
///
/// # Errors
/// The [`Refused`] to send before closing. It is the same for every invalid token.
pub fn check_hello(
    hello: &Hello,
    tokens: &TokenTable,
    now: u64,
    core_fingerprint: [u8; 16],
) -> Result<Accepted, Refused> {
    let protocol = common_version(hello)?;
    let (token, grant) = tokens.find(&hello.token, now).ok_or_else(no_token)?;
    let role = Role::try_from(hello.role).ok().filter(|&role| grant.role.may_act_as(role)).ok_or_else(no_token)?;
    if role == Role::Worker && hello.core_fingerprint != core_fingerprint {
        return Err(refusal(
            RefusalCode::Fingerprint,
            format!(
                "core fingerprints differ: {} here, {} there; run the same version of rollmesh on both sides",
                Hash128(core_fingerprint),
                Hash128(hello.core_fingerprint)
            ),
        ));
    }
    for (field, text) in [("kind", &hello.kind), ("name", &hello.name), ("device", &hello.device)] {
        if !is_printable(text) {
            let reason = format!("'{field}' must have at most {MAX_TEXT_BYTES} printable ASCII characters");
            return Err(refusal(RefusalCode::Malformed, reason));
        }
    }
    Ok(Accepted {
        protocol,
        role,
        token,
        child: grant.child,
        resume: Some(hello.resume_id).filter(|id| *id != [0; 16]),
        kind: hello.kind.clone(),
        name: hello.name.clone(),
        device: hello.device.clone(),
        service: PeerService::of(role, hello.capabilities),
        by_relay: hello.capabilities & BY_RELAY != 0,
    })
}

/// Returns the refusal of a first message that is missing or no `Hello`.
#[must_use]
pub fn malformed(error: impl fmt::Display) -> Refused {
    refusal(RefusalCode::Malformed, error.to_string())
}

/// Returns the refusal of a hub that has reached a limit.
#[must_use]
pub fn busy(reason: &str) -> Refused {
    refusal(RefusalCode::Busy, reason.into())
}

/// Returns the refusal of a token, whatever is wrong with it.
#[must_use]
pub fn no_token() -> Refused {
    refusal(RefusalCode::Token, "the token is not valid for this role".into())
}

/// Returns the refusal of an evaluation worker whose name another worker has.
#[must_use]
pub fn name_taken(name: &str) -> Refused {
    refusal(RefusalCode::NameTaken, format!("the name '{name}' is taken"))
}

/// Returns whether a peer's text may be shown and logged: it is short, and has no character that could change how other text
/// looks.
fn is_printable(text: &str) -> bool {
    text.len() <= MAX_TEXT_BYTES && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Converts a text to one that may be shown and logged: its first [`MAX_TEXT_BYTES`] characters, with `?` for those that are not
/// printable ASCII.
#[must_use]
pub fn shortened(text: &str) -> String {
    let chars = text.chars().take(MAX_TEXT_BYTES);
    chars.map(|char| if (' '..='~').contains(&char) { char } else { '?' }).collect()
}

fn common_version(hello: &Hello) -> Result<u16, Refused> {
    let newest = hello.protocol_max.min(PROTOCOL_MAX);
    if hello.protocol_min <= newest && PROTOCOL_MIN <= newest {
        return Ok(newest);
    }
    let reason = format!(
        "protocol versions {PROTOCOL_MIN} to {PROTOCOL_MAX} here, {} to {} there; update the older side",
        hello.protocol_min, hello.protocol_max
    );
    Err(refusal(RefusalCode::ProtocolVersion, reason))
}

fn refusal(code: RefusalCode, reason: String) -> Refused {
    Refused { code: code.to_wire(), reason }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{TokenGrant, TokenHash},
        *,
    };

    const FINGERPRINT: [u8; 16] = [0xaa; 16];

    fn identity(role: Role) -> Identity {
        let token = Token::new([role.to_wire(); 32]);
        Identity { core_fingerprint: FINGERPRINT, ..Identity::new(role, token, "native", "worker-1", "cpu") }
    }

    fn hello(identity: &Identity) -> Hello {
        let Message::Hello(hello) = identity.hello() else { unreachable!("hello() says Hello") };
        hello
    }

    fn check(hello: &Hello) -> Result<Accepted, (RefusalCode, String)> {
        let mut tokens = TokenTable::new();
        for &role in Role::ALL {
            let child = (role == Role::Worker).then_some(7);
            let grant = TokenGrant { role, child, expires: (role == Role::Client).then_some(10) };
            tokens.insert(TokenHash::of(&Token::new([role.to_wire(); 32])), grant);
        }
        check_hello(hello, &tokens, 10, FINGERPRINT)
            .map_err(|refused| (RefusalCode::try_from(refused.code).unwrap(), refused.reason))
    }

    #[test]
    fn a_proper_hello_is_accepted() {
        let mut worker = identity(Role::Worker);
        worker.resume = Some([3; 16]);
        let accepted = check(&hello(&worker)).unwrap();
        assert_eq!((accepted.protocol, accepted.role, accepted.child), (1, Role::Worker, Some(7)));
        assert_eq!((accepted.resume, &*accepted.name), (Some([3; 16]), "worker-1"));
        assert_eq!(check(&hello(&identity(Role::Viewer))).unwrap().resume, None);
    }

    #[test]
    fn only_an_operator_may_take_another_role_that_of_a_viewer() {
        for &role in Role::ALL {
            for &asked in Role::ALL {
                let mut hello = hello(&identity(role));
                hello.role = asked.to_wire();
                let accepted = check(&hello).map(|accepted| accepted.role);
                if role == Role::Client {
                    assert!(accepted.is_err(), "its token has run out");
                } else if role == asked || (role, asked) == (Role::Operator, Role::Viewer) {
                    assert_eq!(accepted, Ok(asked));
                } else {
                    assert_eq!(accepted.unwrap_err().0, RefusalCode::Token, "{role:?} as {asked:?}");
                }
            }
        }
    }

    #[test]
    fn both_version_ranges_are_named() {
        let mut hello = hello(&identity(Role::Worker));
        (hello.protocol_min, hello.protocol_max) = (2, 9);
        let reason = "protocol versions 1 to 1 here, 2 to 9 there; update the older side";
        assert_eq!(check(&hello).unwrap_err(), (RefusalCode::ProtocolVersion, reason.into()));
        (hello.protocol_min, hello.protocol_max) = (0, 0);
        assert_eq!(check(&hello).unwrap_err().0, RefusalCode::ProtocolVersion);
        (hello.protocol_min, hello.protocol_max) = (0, 9);
        assert_eq!(check(&hello).unwrap().protocol, 1);
    }

    #[test]
    fn both_fingerprints_are_named_and_only_workers_need_one() {
        let mut worker = identity(Role::Worker);
        worker.core_fingerprint = [0x0b; 16];
        let reason = format!(
            "core fingerprints differ: {} here, {} there; run the same version of rollmesh on both sides",
            "aa".repeat(16),
            "0b".repeat(16)
        );
        assert_eq!(check(&hello(&worker)).unwrap_err(), (RefusalCode::Fingerprint, reason));
        let mut viewer = identity(Role::Viewer);
        viewer.core_fingerprint = [0; 16];
        assert!(check(&hello(&viewer)).is_ok());
    }

    #[test]
    fn every_failure_of_a_token_reads_the_same() {
        let mut unknown = hello(&identity(Role::Worker));
        unknown.token = Token::new([0x55; 32]);
        let mut other_role = hello(&identity(Role::Viewer));
        other_role.role = Role::Operator.to_wire();
        let mut no_role = hello(&identity(Role::Viewer));
        no_role.role = 0xff;
        let over = hello(&identity(Role::Client));
        for hello in [unknown, other_role, no_role, over] {
            let reason = "the token is not valid for this role".into();
            assert_eq!(check(&hello).unwrap_err(), (RefusalCode::Token, reason));
        }
    }

    #[test]
    fn texts_are_short_and_printable() {
        for bad in ["a\nb", "\u{202e}evil", &"x".repeat(65), "tab\t", "\u{7f}"] {
            let mut identity = identity(Role::Viewer);
            identity.name = bad.into();
            let (code, reason) = check(&hello(&identity)).unwrap_err();
            assert_eq!(code, RefusalCode::Malformed);
            assert_eq!(reason, "'name' must have at most 64 printable ASCII characters");
        }
    }

    #[test]
    fn shortened_texts_are_acceptable() {
        assert_eq!(shortened("node-7"), "node-7");
        let text = shortened(&"é\n".repeat(60));
        assert_eq!(text, "?".repeat(64));
        assert!(is_printable(&text));
    }
}
