//! The core's errors as JavaScript errors, with details for programs.

use std::{cell::RefCell, fmt::Display};

use js_sys::{Array, Function, Object, Reflect};
use rollmesh_core::{
    batch::{BatchError, codec::CodecError},
    column::ColumnError,
    env::EnvError,
    policy::PolicyError,
    protocol::{FailureKind, FragmentFailure, printable},
    run::RunConfigError,
    sampler::SampleError,
    weights::WeightsFileError,
    worker::{RolloutError, SetupError},
};
use wasm_bindgen::prelude::*;

use crate::{columns::set, envs};

/// The number of leading characters of an exception that are searched for in a failure's text.
const MATCHED_CHARS: usize = 256;

thread_local! {
    /// The class of the errors, whose constructor takes a kind, a message and details.
    static CLASS: RefCell<Option<Function>> = const { RefCell::new(None) };
}

/// Sets the class whose instances are thrown from now on: its constructor takes a kind, a message, and an object with
/// `environment`, `episode`, `step`, `field` and `cause`, as far as they are known. Without one, plain errors are thrown.
#[wasm_bindgen(js_name = useErrorClass)]
pub fn use_error_class(class: Function) {
    CLASS.set(Some(class));
}

/// An error to be thrown in JavaScript.
#[derive(Debug, Default)]
pub struct Failure {
    kind: &'static str,
    message: String,
    environment: Option<u32>,
    episode: Option<u32>,
    step: Option<u32>,
    field: Option<String>,
    cause: Option<JsValue>,
}

impl Failure {
    pub(crate) fn new(kind: &'static str, message: impl Display) -> Self {
        Self { kind, message: message.to_string(), ..Self::default() }
    }

    /// Creates an error for invalid settings or arguments.
    pub(crate) fn config(message: impl Display) -> Self {
        Self::new("config", message)
    }

    /// Creates an error for invalid actions.
    pub(crate) fn actions(reason: impl Display) -> Self {
        Self { field: Some("action".into()), ..Self::new("environment", format!("actions: {reason}")) }
    }

    /// Converts an environment's error and adds the episode and step, if they are known.
    pub(crate) fn at(environment: u32, moment: Option<(u32, u32)>, source: EnvError) -> Self {
        let failure = Self::from(source);
        let place = moment.map_or_else(String::new, |(episode, step)| format!(", episode {episode}, step {step}"));
        Self {
            message: format!("environment {environment}{place}: {}", failure.message),
            environment: Some(environment),
            episode: moment.map(|(episode, _)| episode),
            step: moment.map(|(_, step)| step),
            ..failure
        }
    }
}

impl From<(FragmentFailure, String)> for Failure {
    /// Converts a failure that has ended a run, with a message for the user.
    fn from((failure, message): (FragmentFailure, String)) -> Self {
        let kind = match failure.kind {
            FailureKind::Policy => "policy",
            FailureKind::Callback | FailureKind::Fragment => "sample",
            _ => "environment",
        };
        // The core's text of the exception is escaped and truncated.
        let begin = |thrown: &str| printable(thrown).chars().take(MATCHED_CHARS).collect::<String>();
        let thrown = envs::thrown_with(|thrown| failure.message().contains(&begin(thrown)));
        Self {
            environment: failure.slot.map(|slot| slot.0),
            episode: failure.slot.map(|_| failure.episode),
            step: failure.slot.map(|_| failure.t),
            field: thrown.as_ref().and_then(|thrown| thrown.field.clone()),
            cause: thrown.map(|thrown| thrown.cause),
            ..Self::new(kind, message)
        }
    }
}

impl From<Failure> for JsValue {
    fn from(failure: Failure) -> Self {
        let details = Object::new();
        let numbers = [("environment", failure.environment), ("episode", failure.episode), ("step", failure.step)];
        for (name, number) in numbers {
            number.into_iter().for_each(|number| set(&details, name, &number.into()));
        }
        failure.field.into_iter().for_each(|field| set(&details, "field", &field.into()));
        failure.cause.into_iter().for_each(|cause| set(&details, "cause", &cause));
        let plain = || Self::from(js_sys::Error::new(&failure.message));
        CLASS.with_borrow(|class| match class {
            Some(class) => {
                let arguments = Array::of3(&failure.kind.into(), &(&failure.message).into(), &details);
                Reflect::construct(class, &arguments).unwrap_or_else(|_| plain())
            }
            None => plain(),
        })
    }
}

impl From<EnvError> for Failure {
    fn from(error: EnvError) -> Self {
        if let EnvError::InLane { lane, source } = error {
            return Self::at(lane as u32, None, *source);
        }
        let (environment, field) = match &error {
            EnvError::NotFinite { what, lane, .. } => (Some(*lane), Some(*what)),
            EnvError::BadObservation { env, .. } => (Some(*env), Some("observation")),
            EnvError::BadReward { env, .. } => (Some(*env), Some("reward")),
            EnvError::BadAction { env, .. } => (Some(*env), Some("action")),
            EnvError::InvalidAction { lane, .. } => (Some(*lane), Some("action")),
            EnvError::GivenUp { env, .. } | EnvError::OutOfTurn { env, .. } => (Some(*env), None),
            _ => (None, None),
        };
        let thrown = match &error {
            EnvError::Failed(message) => envs::thrown_with(|thrown| thrown == message),
            _ => None,
        };
        Self {
            environment: environment.map(|index| index as u32),
            field: thrown.as_ref().and_then(|thrown| thrown.field.clone()).or_else(|| field.map(Into::into)),
            cause: thrown.map(|thrown| thrown.cause),
            ..Self::new("environment", error)
        }
    }
}

impl From<SampleError> for Failure {
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::Env(source) => source.into(),
            SampleError::EnvAt { slot, episode, t, source } => Self::at(slot.0, Some((episode, t)), source),
            SampleError::Policy { .. }
            | SampleError::PolicyMap(_)
            | SampleError::UnknownPolicy { .. }
            | SampleError::Weights(_) => Self::new("policy", error),
            SampleError::Batch(_) => Self::new("batch", error),
            error => Self::new("sample", error),
        }
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Env { env, source } | SetupError::InvalidEnv { env, source } => Self::at(env, None, source),
            SetupError::Sample(error) => error.into(),
            error => Self::config(error),
        }
    }
}

impl From<RolloutError> for Failure {
    fn from(error: RolloutError) -> Self {
        match error {
            RolloutError::Setup(error) => error.into(),
            RolloutError::Sample(error) => error.into(),
            RolloutError::Policy { .. } | RolloutError::PolicyMap(_) => Self::new("policy", error),
            RolloutError::Batch(_) => Self::new("batch", error),
            error => Self::new("worker", error),
        }
    }
}

/// Implements the conversion of error types that have one kind each.
macro_rules! of_kind {
    ($($error:ty: $kind:literal),+ $(,)?) => {
        $(
            impl From<$error> for Failure {
                fn from(error: $error) -> Self {
                    Self::new($kind, error)
                }
            }
        )+
    };
}

of_kind!(
    BatchError: "batch",
    CodecError: "batch",
    ColumnError: "batch",
    PolicyError: "policy",
    WeightsFileError: "policy",
    RunConfigError: "config",
    serde_json::Error: "config",
);
