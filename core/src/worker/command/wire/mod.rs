//! Encodes commands, answers and errors with postcard, from forms whose decoded size is bounded by that of their bytes.
//!
//! Variants are numbered by their order, and fields have no numbers: new content comes last, in a new variant.

mod evaluation;
mod forms;
mod metrics;
mod wire_form;

pub(super) use {
    forms::{Json, Wire, WireForm},
    wire_form::{first, wire_form},
};

use serde::{Deserialize, Serialize};

use super::{CommandError, CommandErrorKind, WorkerAnswer, WorkerCommand};
use crate::{
    evaluation::Evaluation,
    ids::CallId,
    prelude::*,
    protocol::{Kind, Message, message},
};

/// Encodes a form.
pub(super) fn write(form: &impl Serialize) -> Result<Vec<u8>, CommandError> {
    // Memory grows as needed, and all lengths are known.
    postcard::to_allocvec(form).map_err(|why| match why {
        postcard::Error::SerdeSerCustom => {
            CommandError::new(CommandErrorKind::TooLarge, "a list in it is longer than any that can be sent")
        }
        why => CommandError::malformed("it has no form as bytes", why),
    })
}

/// Decodes a form, and rejects trailing bytes.
pub(super) fn read<'a, F: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<F, CommandError> {
    match postcard::take_from_bytes(bytes) {
        Ok((form, [])) => Ok(form),
        Ok((_, rest)) => Err(CommandError::malformed(what, format_args!("{} bytes follow it", rest.len()))),
        Err(why) => Err(CommandError::malformed(what, why)),
    }
}

fn too_large(what: &str, bytes: usize, most: usize) -> CommandError {
    CommandError::new(
        CommandErrorKind::TooLarge,
        format!("{what} of {bytes} bytes is larger than the {most} that can be sent"),
    )
}

/// Numbers of the commands Stop and Evaluate.
const FOR_OTHERS: [u8; 2] = [28, 35];

pub(super) fn is_for_others(body: &[u8]) -> bool {
    body.first().is_some_and(|number| FOR_OTHERS.contains(number))
}

/// Returns the largest content of a message of this kind.
const fn content_cap(kind: Kind) -> usize {
    kind.body_cap() as usize - 32
}

impl WorkerCommand {
    /// Encodes the command.
    ///
    /// # Errors
    /// [`CommandErrorKind::TooLarge`] above the message limit.
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let bytes = self.write_form()?;
        let most = content_cap(Kind::Call);
        if bytes.len() > most { Err(too_large("a command", bytes.len(), most)) } else { Ok(bytes) }
    }

    /// Decodes an untrusted command.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        Self::read_form("a command", bytes)
    }

    /// Encodes a call with the command. The same bytes can be sent to many workers, with an id for each.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn message(&self, call: CallId) -> Result<Message, CommandError> {
        Ok(Message::Call(message::Call { call: call.0, body: self.encode()? }))
    }
}

impl WorkerAnswer {
    /// Encodes the answer.
    ///
    /// # Errors
    /// [`CommandErrorKind::TooLarge`] above the message limit. Metrics are truncated to fit, and what is missing is counted,
    /// since the worker has already dropped it. Pictures of an evaluation are truncated, too, and marked as such.
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        self.encode_within(content_cap(Kind::CallResult))
    }

    /// Encodes the answer in at most this many bytes.
    pub(in super::super) fn encode_within(&self, most: usize) -> Result<Vec<u8>, CommandError> {
        let bytes = self.write_form()?;
        if bytes.len() <= most {
            return Ok(bytes);
        }
        match self {
            Self::Metrics(metrics) if metrics.can_be_cut() => {
                Self::Metrics(Box::new(metrics.later_half())).encode_within(most)
            }
            Self::Evaluated(outcome) => match &**outcome {
                Ok(found @ Evaluation { frames: Some(frames), .. }) if !frames.is_empty() => {
                    let frames = frames.first_within(frames.rgb().len() / 2);
                    Self::Evaluated(Box::new(Ok(Evaluation { frames, ..found.clone() }))).encode_within(most)
                }
                Ok(_) | Err(_) => Err(too_large("an evaluation", bytes.len(), most)),
            },
            _ => Err(too_large("an answer", bytes.len(), most)),
        }
    }

    /// Decodes an untrusted answer.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        Self::read_form("an answer", bytes)
    }

    /// Encodes the result of a call. An answer that cannot be sent becomes an error.
    #[must_use]
    pub fn message(call: CallId, result: &Result<Self, CommandError>) -> Message {
        let encoded = result.as_ref().map_err(Clone::clone).and_then(Self::encode);
        let (ok, body) = match encoded {
            Ok(body) => (true, body),
            Err(error) => (false, error.encode()),
        };
        Message::CallResult(message::CallResult { call: call.0, ok, body })
    }

    /// Decodes the result of a call from an untrusted message.
    ///
    /// # Errors
    /// The worker's error, or [`CommandErrorKind::Malformed`].
    pub fn read(result: &message::CallResult) -> Result<Self, CommandError> {
        if result.ok { Self::decode(&result.body) } else { Err(CommandError::decode(&result.body)) }
    }
}

impl CommandError {
    /// Encodes the error.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // A number and a text can always be encoded.
        write(self).unwrap_or_default()
    }

    /// Decodes an untrusted error; bytes that do not decode become an error that says so.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let error = read::<Self>("the worker's error", bytes);
        error.map_or_else(|error| error, |error| Self::new(error.kind, error.message))
    }
}
