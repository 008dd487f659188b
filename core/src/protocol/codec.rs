//! [`Message`]: one variant per kind, to bytes and back.

use super::{Kind, UnknownValue, header, message::*};
use crate::prelude::*;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is no whole header.
    #[error("a frame of {bytes} bytes is shorter than its header")]
    Short {
        /// Length of the frame.
        bytes: usize,
    },
    /// Something else than a rollmesh peer is speaking.
    #[error("a frame starts with {0:?}, not with \"RM\": this is no rollmesh peer")]
    Magic([u8; 2]),
    /// The header has another layout.
    #[error("header version {0} is not {expected}: update the older side", expected = header::HEADER_VERSION)]
    HeaderVersion(u8),
    /// The kind is not known.
    #[error(transparent)]
    UnknownKind(#[from] UnknownValue),
    /// The body is larger than its kind allows.
    #[error("{kind:?} of {bytes} bytes is larger than the {cap} allowed", cap = kind.body_cap())]
    TooLarge {
        /// Kind of the message.
        kind: Kind,
        /// Length of the body.
        bytes: usize,
    },
    /// The body is not what its kind says.
    #[error("the body of {kind:?} does not decode")]
    Body {
        /// Kind of the message.
        kind: Kind,
    },
    /// The body goes on after its end.
    #[error("{kind:?} is followed by {bytes} bytes that do not belong to it")]
    TrailingBytes {
        /// Kind of the message.
        kind: Kind,
        /// How many.
        bytes: usize,
    },
}

/// Writes down once which body belongs to which kind.
macro_rules! messages {
    ($($kind:ident($body:ty),)+) => {
        /// A message with its body. Nothing in it is trusted; see [`convert`](super::convert).
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, clippy::large_enum_variant)] // Variants are documented at `Kind`; messages are handled one by one.
        pub enum Message {
            $($kind($body),)+
        }

        impl Message {
            /// What the message is.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)+ }
            }

            fn write_body(&self, frame: Vec<u8>) -> postcard::Result<Vec<u8>> {
                match self { $(Self::$kind(body) => postcard::to_extend(body, frame),)+ }
            }

            fn read_body(kind: Kind, body: &[u8]) -> postcard::Result<(Self, &[u8])> {
                match kind {
                    $(Kind::$kind => postcard::take_from_bytes(body).map(|(body, rest)| (Self::$kind(body), rest)),)+
                }
            }
        }
    };
}

messages! {
    Hello(Hello),
    Welcome(Welcome),
    Refused(Refused),
    Goodbye(Goodbye),
    Chunk(Chunk),
    Credit(Credit),
    RunStart(RunStart),
    RunEnd(RunEnd),
    WeightsUpdate(WeightsUpdate),
    LeaseGrant(LeaseGrant),
    Revoke(Revoke),
    LeaseRefused(LeaseRefused),
    Progress(Progress),
    FragmentUpload(FragmentUpload),
    RunStatus(RunStatus),
    Iteration(Iteration),
    WorkerRow(WorkerRow),
    WorkerGone(WorkerGone),
    EnvTrace(EnvTrace),
    Notice(Notice),
    Pause(Request),
    Resume(Request),
    Stop(Request),
    AddWorker(Request),
    RemoveWorker(RemoveWorker),
    StartRun(StartRun),
    Watch(Watch),
    WorkerTokenRequest(Request),
    Reply(Reply),
    WorkerToken(WorkerToken),
    Spaces(Spaces),
    StartEpisode(StartEpisode),
    GetAction(GetAction),
    LogAction(LogAction),
    LogReturns(LogReturns),
    EndEpisode(EndEpisode),
    AbandonEpisode(AbandonEpisode),
    Actions(Actions),
    EpisodeReply(EpisodeReply),
}

impl Message {
    /// Header and body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // postcard fails on sequences of unknown length alone, and no body has one.
        self.write_body(header::write(self.kind()).to_vec()).expect("lengths within bodies are known")
    }

    /// Reads a whole message. Memory grows with the bytes that are there, not with what they claim.
    ///
    /// # Errors
    /// [`DecodeError`] names what is wrong; no bytes panic.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, body) = header::read(bytes)?;
        if body.len() > kind.body_cap() as usize {
            return Err(DecodeError::TooLarge { kind, bytes: body.len() });
        }
        match Self::read_body(kind, body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(DecodeError::TrailingBytes { kind, bytes: rest.len() }),
            Err(_) => Err(DecodeError::Body { kind }),
        }
    }
}
