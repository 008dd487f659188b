//! Finds the innermost invalid value of a setting.

use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::{
    super::RunConfigError,
    setting::{Field, Kind, shown},
};
use crate::{
    config::{hint, plain},
    prelude::*,
    space::Space,
};

/// Checks a value against a kind.
///
/// # Errors
/// The innermost value that is not allowed.
pub(super) fn check(kind: &Kind, path: &str, value: &Value) -> Result<(), RunConfigError> {
    if kind.allows(value) {
        return Ok(());
    }
    check_within(kind, path, value)?;
    Err(RunConfigError::range(path, shown(value), kind.words().unwrap_or_else(|| "null".into())))
}

/// Checks the parts of a value that has the form of its kind.
fn check_within(kind: &Kind, path: &str, value: &Value) -> Result<(), RunConfigError> {
    let item = |index: usize| format!("{path}[{index}]");
    match (*kind, value) {
        (Kind::OneOf(kinds), _) => {
            // Other kinds than the only one with the value's form do not explain what is wrong in it.
            let mut fitting = kinds.iter().filter(|kind| has_form(kind, value));
            let (Some(kind), None) = (fitting.next(), fitting.next()) else { return Ok(()) };
            check(kind, path, value)
        }
        (Kind::List(kind), Value::Array(list)) => {
            list.iter().enumerate().try_for_each(|(index, value)| check(kind, &item(index), value))
        }
        (Kind::Tuple(kinds, _), Value::Array(list)) if list.len() == kinds.len() => {
            let mut parts = kinds.iter().zip(list).enumerate();
            parts.try_for_each(|(index, (kind, value))| check(kind, &item(index), value))
        }
        (Kind::Map(kind), Value::Object(map)) => {
            map.iter().try_for_each(|(name, value)| check(kind, &format!("{path}.{name}"), value))
        }
        (Kind::Fields(fields), Value::Object(object)) => check_fields(path, object, fields),
        (Kind::Tagged(tag, forms), Value::Object(object)) => {
            let names: Vec<&str> = forms.iter().map(|(name, _)| *name).collect();
            let Some(chosen) = object.get(tag) else { return Err(missing(path, tag, &names.join(" or "))) };
            match forms.iter().find(|(name, _)| chosen == name) {
                Some((_, fields)) => check_fields(path, &without(object, tag), fields),
                None => Err(RunConfigError::range(format!("{path}.{tag}"), shown(chosen), names.join(" or "))),
            }
        }
        (Kind::Space, Value::Object(_)) => match Space::deserialize(value) {
            Ok(_) => Ok(()),
            Err(error) => Err(RunConfigError::malformed(path, plain(&error))),
        },
        _ => Ok(()),
    }
}

fn check_fields(path: &str, object: &Map<String, Value>, fields: &[Field]) -> Result<(), RunConfigError> {
    for (name, value) in object {
        let path = format!("{path}.{name}");
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            let hint = hint(name, fields.iter().map(|field| field.name));
            return Err(RunConfigError::Unknown { path, hint });
        };
        check(&Kind::OneOf(field.kinds), &path, value)?;
    }
    let is_missing = |field: &&Field| field.is_required && !object.contains_key(field.name);
    fields
        .iter()
        .find(is_missing)
        .map_or(Ok(()), |field| Err(missing(path, field.name, &Kind::OneOf(field.kinds).words().unwrap_or_default())))
}

fn missing(path: &str, name: &str, allowed: &str) -> RunConfigError {
    RunConfigError::malformed(&format!("{path}.{name}"), format!("it is missing; it must be {allowed}"))
}

fn without(object: &Map<String, Value>, name: &str) -> Map<String, Value> {
    let mut rest = object.clone();
    rest.remove(name);
    rest
}

/// Returns whether a kind's values have parts and the form of this value: a list or an object.
fn has_form(kind: &Kind, value: &Value) -> bool {
    match kind {
        Kind::List(_) | Kind::Tuple(..) => value.is_array(),
        Kind::Map(_) | Kind::Fields(_) | Kind::Tagged(..) | Kind::Space => value.is_object(),
        _ => false,
    }
}
