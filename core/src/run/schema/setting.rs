//! Defines a setting: its path, its values, its help.

use core::ops::{Bound, RangeBounds as _};

use serde_json::{Value, json};

use crate::prelude::*;

/// A setting as users and programs see it. Validation and JSON Schema both use its [`kinds`](Self::kinds).
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The names of the enclosing objects and its own, separated by dots.
    pub path: &'static str,
    /// The allowed kinds of its value.
    pub kinds: &'static [Kind],
    /// Its effect, in one line, with its unit.
    pub help: &'static str,
    /// Whether it belongs to one machine and is not read from the wire.
    pub is_host: bool,
    /// Why a run over leases must leave it at its default; `None` if it need not.
    pub fixed: Option<&'static str>,
}

/// A kind of values of a setting.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Not set.
    Null,
    /// `true` or `false`.
    Flag,
    /// Any text.
    Text,
    /// A whole number in this range.
    Whole {
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// A finite number between these bounds.
    Number(Bound<f64>, Bound<f64>),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of values of a kind.
    List(&'static Self),
    /// A value of one of these kinds.
    OneOf(&'static [Self]),
    /// An object with names of the user's.
    Object,
    /// An object with its own settings, which follow in the table.
    Group,
    /// A group with exactly one of its settings.
    Variant,
}

impl Kind {
    /// A whole number of at least 0 that fits into 32 bits.
    pub const COUNT: Self = Self::Whole { min: 0, max: u32::MAX as u64 };
    /// A whole number of at least 1 that fits into 32 bits.
    pub const AT_LEAST_1: Self = Self::Whole { min: 1, max: u32::MAX as u64 };
    /// Any whole number.
    pub const WHOLE: Self = Self::Whole { min: 0, max: u64::MAX };
    /// Any finite number.
    pub const FINITE: Self = Self::Number(Bound::Unbounded, Bound::Unbounded);
    /// A finite number above 0.
    pub const POSITIVE: Self = Self::Number(Bound::Excluded(0.0), Bound::Unbounded);
    /// A finite number of at least 0.
    pub const NOT_NEGATIVE: Self = Self::Number(Bound::Included(0.0), Bound::Unbounded);
    /// A number from 0 to 1.
    pub const FRACTION: Self = Self::Number(Bound::Included(0.0), Bound::Included(1.0));

    fn allows(&self, value: &Value) -> bool {
        match *self {
            Self::Null => value.is_null(),
            Self::Flag => value.is_boolean(),
            Self::Text => value.is_string(),
            Self::Whole { min, max } => value.as_u64().is_some_and(|number| (min..=max).contains(&number)),
            Self::Number(low, high) => {
                value.as_f64().is_some_and(|number| number.is_finite() && (low, high).contains(&number))
            }
            Self::Choice(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Self::List(kind) => value.as_array().is_some_and(|list| list.iter().all(|value| kind.allows(value))),
            Self::OneOf(kinds) => kinds.iter().any(|kind| kind.allows(value)),
            Self::Object | Self::Group => value.is_object(),
            Self::Variant => value.as_object().is_some_and(|object| object.len() == 1),
        }
    }

    pub(super) fn schema(&self) -> Value {
        match *self {
            Self::Null => json!({ "type": "null" }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Text => json!({ "type": "string" }),
            Self::Whole { min, max: u64::MAX } => json!({ "type": "integer", "minimum": min }),
            Self::Whole { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Self::Number(low, high) => {
                let mut schema = json!({ "type": "number" });
                for (bound, included, excluded) in
                    [(low, "minimum", "exclusiveMinimum"), (high, "maximum", "exclusiveMaximum")]
                {
                    match bound {
                        Bound::Included(bound) => schema[included] = json!(bound),
                        Bound::Excluded(bound) => schema[excluded] = json!(bound),
                        Bound::Unbounded => {}
                    }
                }
                schema
            }
            Self::Choice(words) => json!({ "enum": words }),
            Self::List(kind) => json!({ "type": "array", "items": kind.schema() }),
            Self::OneOf([kind]) => kind.schema(),
            Self::OneOf(kinds) => json!({ "anyOf": kinds.iter().map(Self::schema).collect::<Vec<_>>() }),
            Self::Object => json!({ "type": "object" }),
            Self::Group => json!({ "type": "object", "additionalProperties": false, "properties": {} }),
            Self::Variant => {
                let mut schema = Self::Group.schema();
                (schema["minProperties"], schema["maxProperties"]) = (json!(1), json!(1));
                schema
            }
        }
    }

    /// Returns the allowed values, for an error; `None` for kinds that need no mention.
    fn words(&self) -> Option<String> {
        Some(match *self {
            Self::Null => return None,
            Self::Flag => "true or false".into(),
            Self::Text => "a text".into(),
            Self::Whole { min: 0, max: u64::MAX } => "a whole number of at least 0".into(),
            Self::Whole { min, max: u64::MAX } => format!("at least {min}"),
            Self::Whole { min: 0, max } => format!("at most {max}"),
            Self::Whole { min, max } => format!("from {min} to {max}"),
            Self::Number(Bound::Included(low), Bound::Included(high)) => format!("from {low} to {high}"),
            Self::Number(low, high) => match (bound("at least", "above", low), bound("at most", "below", high)) {
                (Some(low), Some(high)) => format!("{low} and {high}"),
                (low, high) => low.or(high).unwrap_or_else(|| "a finite number".into()),
            },
            Self::Choice(words) => words.join(" or "),
            Self::List(kind) => format!("a list, each {}", kind.words()?),
            Self::OneOf(kinds) => kinds.iter().filter_map(Self::words).collect::<Vec<_>>().join(" or "),
            Self::Object | Self::Group => "an object".into(),
            Self::Variant => "an object with one setting".into(),
        })
    }
}

fn bound(included: &str, excluded: &str, bound: Bound<f64>) -> Option<String> {
    match bound {
        Bound::Included(number) => Some(format!("{included} {number}")),
        Bound::Excluded(number) => Some(format!("{excluded} {number}")),
        Bound::Unbounded => None,
    }
}

impl Setting {
    /// Creates a setting of a run that any process may set.
    #[must_use]
    pub const fn new(path: &'static str, kinds: &'static [Kind], help: &'static str) -> Self {
        Self { path, kinds, help, is_host: false, fixed: None }
    }

    pub(super) const fn host(self) -> Self {
        Self { is_host: true, ..self }
    }

    pub(super) const fn fixed(self, reason: &'static str) -> Self {
        Self { fixed: Some(reason), ..self }
    }

    /// Returns whether one of its kinds allows the value.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        Kind::OneOf(self.kinds).allows(value)
    }

    /// Returns the allowed values, for an error.
    #[must_use]
    pub fn allowed(&self) -> String {
        Kind::OneOf(self.kinds).words().unwrap_or_default()
    }

    /// Returns its JSON Schema with this default.
    #[must_use]
    pub fn schema(&self, default: Value) -> Value {
        let mut schema = Kind::OneOf(self.kinds).schema();
        schema["description"] = json!(self.help);
        if self.is_host {
            schema["x-host"] = json!(true);
        }
        if let Some(reason) = self.fixed {
            schema["x-fixed"] = json!(reason);
        }
        if !matches!(self.kinds, [Kind::Group]) {
            schema["default"] = default;
        }
        schema
    }
}

/// Formats a value for an error: numbers without the `.0` of JSON.
#[must_use]
pub fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or(f64::NAN).to_string(),
        other => other.to_string().chars().take(64).collect(),
    }
}
