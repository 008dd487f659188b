//! Defines a setting: its path, its values, its help.

use core::ops::{Bound, RangeBounds as _};

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::{super::RunConfigError, fault};
use crate::{prelude::*, space::Space};

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
    /// The reason why a run over leases must leave it at its default; `None` if it need not.
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
    /// A list with one value of each of these kinds, and its form for errors.
    Tuple(&'static [Self], &'static str),
    /// A value of one of these kinds.
    OneOf(&'static [Self]),
    /// An object with names of the user's and any values.
    Object,
    /// An object with names of the user's and values of a kind.
    Map(&'static Self),
    /// An object with these fields and no others.
    Fields(&'static [Field]),
    /// An object with the fields of the form that its field of this name chooses.
    Tagged(&'static str, &'static [(&'static str, &'static [Field])]),
    /// A space of observations or actions.
    Space,
    /// An object with its own settings, which follow in the table.
    Group,
    /// A group with exactly one of its settings.
    Variant,
}

/// A field of an object within a setting.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The allowed kinds of its value.
    pub kinds: &'static [Kind],
    /// Whether the object must have it.
    pub is_required: bool,
}

impl Field {
    /// Creates a field that may be absent.
    pub(super) const fn new(name: &'static str, kinds: &'static [Kind]) -> Self {
        Self { name, kinds, is_required: false }
    }

    /// Creates a field that the object must have.
    pub(super) const fn required(name: &'static str, kinds: &'static [Kind]) -> Self {
        Self { name, kinds, is_required: true }
    }
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

    pub(super) fn allows(&self, value: &Value) -> bool {
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
            Self::Tuple(kinds, _) => value.as_array().is_some_and(|list| {
                list.len() == kinds.len() && kinds.iter().zip(list).all(|(kind, value)| kind.allows(value))
            }),
            Self::OneOf(kinds) => kinds.iter().any(|kind| kind.allows(value)),
            Self::Object | Self::Group => value.is_object(),
            Self::Map(kind) => value.as_object().is_some_and(|map| map.values().all(|value| kind.allows(value))),
            Self::Fields(fields) => value.as_object().is_some_and(|object| has_fields(object, fields, None)),
            Self::Tagged(tag, forms) => {
                let form = || forms.iter().find(|(name, _)| value.get(tag).is_some_and(|value| value == name));
                value.as_object().zip(form()).is_some_and(|(object, (_, fields))| has_fields(object, fields, Some(tag)))
            }
            Self::Space => Space::deserialize(value).is_ok(),
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
            Self::Tuple(kinds, form) => json!({
                "type": "array",
                "description": form,
                "prefixItems": kinds.iter().map(Self::schema).collect::<Vec<_>>(),
                "minItems": kinds.len(),
                "maxItems": kinds.len(),
            }),
            Self::OneOf([kind]) => kind.schema(),
            Self::OneOf(kinds) => json!({ "anyOf": kinds.iter().map(Self::schema).collect::<Vec<_>>() }),
            Self::Object | Self::Space => json!({ "type": "object" }),
            Self::Map(kind) => json!({ "type": "object", "additionalProperties": kind.schema() }),
            Self::Fields(fields) => fields_schema(fields, None),
            Self::Tagged(tag, forms) => {
                let form = |(name, fields): &(&str, &[Field])| fields_schema(fields, Some((tag, name)));
                json!({ "anyOf": forms.iter().map(form).collect::<Vec<_>>() })
            }
            Self::Group => json!({ "type": "object", "additionalProperties": false, "properties": {} }),
            Self::Variant => {
                let mut schema = Self::Group.schema();
                (schema["minProperties"], schema["maxProperties"]) = (json!(1), json!(1));
                schema
            }
        }
    }

    /// Returns the allowed values, for an error; `None` for kinds that need no mention.
    pub(super) fn words(&self) -> Option<String> {
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
            Self::Tuple(_, form) => form.into(),
            Self::OneOf(kinds) => kinds.iter().filter_map(Self::words).collect::<Vec<_>>().join(" or "),
            Self::Object | Self::Group | Self::Map(_) | Self::Fields(_) | Self::Tagged(..) => "an object".into(),
            Self::Space => "a space, such as {\"type\": \"discrete\", \"n\": 2}".into(),
            Self::Variant => "an object with one setting".into(),
        })
    }
}

/// Returns whether an object has these fields and no others, apart from its tag.
fn has_fields(object: &Map<String, Value>, fields: &[Field], tag: Option<&str>) -> bool {
    let is_allowed = |(name, value): (&String, &Value)| {
        let field = fields.iter().find(|field| field.name == name);
        tag == Some(name) || field.is_some_and(|field| Kind::OneOf(field.kinds).allows(value))
    };
    let has = |field: &Field| !field.is_required || object.contains_key(field.name);
    object.iter().all(is_allowed) && fields.iter().all(has)
}

fn fields_schema(fields: &[Field], tag: Option<(&str, &str)>) -> Value {
    let of_field = |field: &Field| (field.name.to_owned(), Kind::OneOf(field.kinds).schema());
    let of_tag = tag.map(|(tag, form)| (tag.to_owned(), json!({ "enum": [form] })));
    let properties: Map<String, Value> = of_tag.into_iter().chain(fields.iter().map(of_field)).collect_ordered();
    let required = fields.iter().filter(|field| field.is_required).map(|field| field.name);
    let required: Vec<&str> = tag.iter().map(|(tag, _)| *tag).chain(required).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
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

    /// Checks a value, whose path is given for the error.
    ///
    /// # Errors
    /// [`RunConfigError`] for the innermost value that is not allowed: its path, the value, and what is allowed.
    pub fn check(&self, path: &str, value: &Value) -> Result<(), RunConfigError> {
        fault::check(&Kind::OneOf(self.kinds), path, value)
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
