//! Commands, answers and errors as bytes: postcard of forms that hold nothing which takes much more memory than bytes.
//!
//! The forms' variants are numbered by their order, and fields have none: what is new comes last, in a new variant.

mod answer;
mod command;
mod evaluation;
mod metrics;
mod parts;

use serde::{Deserialize, Serialize};

use super::{CommandError, CommandErrorKind, WorkerAnswer, WorkerCommand};
use crate::{
    evaluation::Evaluation,
    ids::CallId,
    prelude::*,
    protocol::{Kind, Message, message},
};

/// The most JSON of one body, of all its texts together: values take much more memory than their text.
const MAX_JSON_BYTES: usize = 2 << 20;
/// The most policies that a body speaks of.
const MAX_POLICIES: usize = 4_096;

#[derive(Serialize, Deserialize)]
struct ErrorForm<'a> {
    kind: CommandErrorKind,
    message: &'a str,
}

/// Writes a form.
fn write(form: &impl Serialize) -> Result<Vec<u8>, CommandError> {
    // Memory grows, and all lengths are known.
    postcard::to_allocvec(form).map_err(|why| match why {
        postcard::Error::SerdeSerCustom => {
            CommandError::new(CommandErrorKind::TooLarge, "a list in it is longer than any that can be sent")
        }
        why => CommandError::malformed("it has no form as bytes", why),
    })
}

/// Reads a form, and nothing behind it.
fn read<'a, F: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<F, CommandError> {
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

/// Numbers of commands: Stop and Evaluate.
const FOR_OTHERS: [u8; 2] = [28, 35];

pub(super) fn is_for_others(body: &[u8]) -> bool {
    body.first().is_some_and(|number| FOR_OTHERS.contains(number))
}

/// What the largest body of a message leaves for its content.
const fn content_cap(kind: Kind) -> usize {
    kind.body_cap() as usize - 32
}

impl WorkerCommand {
    /// As bytes.
    ///
    /// # Errors
    /// [`CommandErrorKind::TooLarge`] for what no worker would take.
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let bytes = command::write(self)?;
        let most = content_cap(Kind::Call);
        if bytes.len() > most { Err(too_large("a command", bytes.len(), most)) } else { Ok(bytes) }
    }

    /// From bytes, which may come from anybody.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        command::read(bytes)
    }

    /// As a message that asks for it. The same bytes can be sent to many, with an id for each.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn message(&self, call: CallId) -> Result<Message, CommandError> {
        Ok(Message::Call(message::Call { call: call.0, body: self.encode()? }))
    }
}

impl WorkerAnswer {
    /// As bytes.
    ///
    /// # Errors
    /// [`CommandErrorKind::TooLarge`] for what no hub would take. Metrics are cut so that it takes them, and what is missing is
    /// counted: the worker has forgotten them when it answers. So are the pictures of an evaluation, which say so.
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let bytes = answer::write(self)?;
        let most = content_cap(Kind::CallResult);
        if bytes.len() <= most {
            return Ok(bytes);
        }
        match self {
            Self::Metrics(metrics) if metrics.can_be_cut() => Self::Metrics(Box::new(metrics.later_half())).encode(),
            Self::Evaluated(outcome) => match &**outcome {
                Ok(found @ Evaluation { frames: Some(frames), .. }) if !frames.is_empty() => {
                    let frames = frames.first_within(frames.rgb().len() / 2);
                    Self::Evaluated(Box::new(Ok(Evaluation { frames, ..found.clone() }))).encode()
                }
                Ok(_) | Err(_) => Err(too_large("an evaluation", bytes.len(), most)),
            },
            _ => Err(too_large("an answer", bytes.len(), most)),
        }
    }

    /// From bytes, which may come from anybody.
    ///
    /// # Errors
    /// [`CommandErrorKind::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        answer::read(bytes)
    }

    /// The message with what a call has brought. An answer that cannot be sent becomes an error that says so.
    #[must_use]
    pub fn message(call: CallId, result: &Result<Self, CommandError>) -> Message {
        let encoded = result.as_ref().map_err(Clone::clone).and_then(Self::encode);
        let (ok, body) = match encoded {
            Ok(body) => (true, body),
            Err(error) => (false, error.encode()),
        };
        Message::CallResult(message::CallResult { call: call.0, ok, body })
    }

    /// What a call has brought, from a message that may come from anybody.
    ///
    /// # Errors
    /// The worker's, or [`CommandErrorKind::Malformed`].
    pub fn read(result: &message::CallResult) -> Result<Self, CommandError> {
        if result.ok { Self::decode(&result.body) } else { Err(CommandError::decode(&result.body)) }
    }
}

impl CommandError {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // A number and a text have always a form.
        write(&ErrorForm { kind: self.kind, message: &self.message }).unwrap_or_default()
    }

    /// From bytes, which may come from anybody: if they are no error, that is the error.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        match read::<ErrorForm<'_>>("the worker's error", bytes) {
            Ok(form) => Self::new(form.kind, form.message),
            Err(error) => error,
        }
    }
}
