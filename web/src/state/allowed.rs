//! Checks values against their JSON Schema, with the wording of the hub.
//!
//! Using the validator of runs instead would make the page's Wasm module half as large again.

use serde_json::Value;

use super::form::{is_group, shown};

/// Maximum number of characters of a value in an error.
const MAX_SHOWN: usize = 64;
/// Maximum number of choices that an error lists in full.
const MAX_CHOICES: usize = 6;
/// Number of choices that an error lists otherwise.
const MAX_SIMILAR: usize = 3;

/// Checks a setting's value.
///
/// # Errors
/// The error names the setting's path, its value and the allowed values.
pub(super) fn check(path: &str, kinds: &[Value], value: &Value) -> Result<(), String> {
    if kinds.iter().any(|kind| allows(kind, value)) {
        return Ok(());
    }
    if matches!(kinds, [Value::Bool(false)]) {
        return Err(format!("{path}: there is no such setting"));
    }
    // If exactly one kind has the value's form, the error is about the part of the value that this kind rejects.
    let mut within = kinds.iter().filter_map(|kind| parts(kind, value));
    if let (Some(parts), None) = (within.next(), within.next()) {
        for (name, kind, part) in parts {
            let one = std::slice::from_ref(kind);
            check(&format!("{path}{name}"), kind["anyOf"].as_array().map_or(one, Vec::as_slice), part)?;
        }
    }
    let found: String = value.to_string().chars().take(MAX_SHOWN).collect();
    let allowed: Vec<String> = kinds.iter().filter_map(|kind| closest(kind, value).or_else(|| words(kind))).collect();
    Err(format!("{path} is {found}; it must be {}", allowed.join(" or ")))
}

/// Returns a few of a kind's many choices, first those with the value's initial letter; `None` for a kind with few
/// choices.
fn closest(kind: &Value, value: &Value) -> Option<String> {
    let choices = kind["enum"].as_array().filter(|choices| choices.len() > MAX_CHOICES)?;
    let initial = |text: &str| text.chars().next().map(|letter| letter.to_ascii_lowercase());
    let wanted = initial(&shown(value));
    let (mut words, others): (Vec<String>, Vec<String>) =
        choices.iter().map(shown).partition(|word| initial(word) == wanted);
    words.extend(others);
    words.truncate(MAX_SIMILAR);
    Some(format!("{}, … ({} choices)", words.join(" or "), choices.len()))
}

/// Returns the items or fields of a value with their names and schemas; `None` if the value is not of the kind's form.
/// Fields with one allowed value distinguish forms of objects.
fn parts<'a>(kind: &'a Value, value: &'a Value) -> Option<Vec<(String, &'a Value, &'a Value)>> {
    match (kind["type"].as_str()?, value) {
        ("array", Value::Array(list)) => {
            let kind_at = |index: usize| kind["prefixItems"].get(index).unwrap_or_else(|| &kind["items"]);
            Some(list.iter().enumerate().map(|(at, item)| (format!("[{at}]"), kind_at(at), item)).collect())
        }
        ("object", Value::Object(object)) if !is_group(kind) => {
            let mut fields = kind["properties"].as_object().into_iter().flatten();
            let is_of_form = fields.all(|(name, kind)| match kind["enum"].as_array().map(Vec::as_slice) {
                Some([word]) => value[name] == *word,
                _ => true,
            });
            let kind_of = |name: &String| kind["properties"].get(name).unwrap_or_else(|| &kind["additionalProperties"]);
            let parts = object.iter().map(|(name, value)| (format!(".{name}"), kind_of(name), value));
            is_of_form.then(|| parts.collect())
        }
        _ => None,
    }
}

/// Returns whether a value of the kind's form has the required number of items or all required fields.
fn is_complete(kind: &Value, value: &Value) -> bool {
    let has = |name: &Value| name.as_str().is_some_and(|name| value.get(name).is_some());
    kind["required"].as_array().is_none_or(|names| names.iter().all(has))
        && kind["prefixItems"].as_array().map(Vec::len).is_none_or(|len| value.as_array().map(Vec::len) == Some(len))
}

/// Returns whether a kind allows a value. Keywords that a run's schema does not use are ignored: the hub validates
/// again.
fn allows(kind: &Value, value: &Value) -> bool {
    if let Some(kinds) = kind["anyOf"].as_array() {
        return kinds.iter().any(|kind| allows(kind, value));
    }
    if let Some(words) = kind["enum"].as_array() {
        return words.contains(value);
    }
    if *kind == Value::Bool(false) {
        return false;
    }
    match kind["type"].as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => {
            value.as_str().is_some_and(|text| beginning(kind).is_none_or(|beginning| text.starts_with(&beginning)))
        }
        Some("object") if is_group(kind) => value.is_object(),
        Some("object" | "array") => parts(kind, value)
            .is_some_and(|parts| is_complete(kind, value) && parts.iter().all(|(_, kind, part)| allows(kind, part))),
        Some("integer") => (value.is_u64() || value.is_i64()) && is_within(kind, value),
        Some("number") => is_within(kind, value),
        _ => true,
    }
}

/// Returns the prefix that texts of a kind must have; a run's schema has no other patterns.
fn beginning(kind: &Value) -> Option<String> {
    Some(kind["pattern"].as_str()?.trim_start_matches('^').replace('\\', ""))
}

fn is_within(kind: &Value, value: &Value) -> bool {
    let bound = |name: &str| kind[name].as_f64();
    value.as_f64().is_some_and(|number| {
        bound("minimum").is_none_or(|least| number >= least)
            && bound("exclusiveMinimum").is_none_or(|below| number > below)
            && bound("maximum").is_none_or(|most| number <= most)
            && bound("exclusiveMaximum").is_none_or(|above| number < above)
    })
}

/// Returns a description of the allowed values, in the wording of the validator of runs; `None` for kinds that need no
/// mention.
fn words(kind: &Value) -> Option<String> {
    if let Some(kinds) = kind["anyOf"].as_array() {
        return Some(kinds.iter().filter_map(words).collect::<Vec<_>>().join(" or "));
    }
    if let Some(choices) = kind["enum"].as_array() {
        return Some(choices.iter().map(shown).collect::<Vec<_>>().join(" or "));
    }
    Some(match kind["type"].as_str()? {
        "null" => return None,
        "boolean" => "true or false".into(),
        "string" => beginning(kind).map_or_else(|| "a text".into(), |beginning| format!("a text like {beginning}…")),
        "array" if kind["prefixItems"].is_array() => shown(&kind["description"]),
        "array" => words(&kind["items"]).map_or_else(|| "a list".into(), |each| format!("a list, each {each}")),
        "integer" => range(kind, true).unwrap_or_else(|| "a whole number of at least 0".into()),
        "number" => range(kind, false).unwrap_or_else(|| "a finite number".into()),
        _ if kind["required"].get(0).is_some() => {
            let names: Vec<String> = kind["required"].as_array().into_iter().flatten().map(shown).collect();
            format!("an object with {}", names.join(", "))
        }
        _ if kind["maxProperties"] == 1 => "an object with one setting".into(),
        _ => "an object".into(),
    })
}

/// Returns a description of the allowed range; the minimum 0 of whole numbers is left out.
fn range(kind: &Value, is_whole: bool) -> Option<String> {
    let bound = |name: &str| kind[name].as_f64();
    let least = bound("minimum").filter(|least| !is_whole || *least != 0.0);
    if let (Some(least), Some(most)) = (least, bound("maximum")) {
        return Some(format!("from {least} to {most}"));
    }
    let with = |word: &str, bound: Option<f64>| bound.map(|bound| format!("{word} {bound}"));
    let low = with("at least", least).or_else(|| with("above", bound("exclusiveMinimum")));
    let high = with("at most", bound("maximum")).or_else(|| with("below", bound("exclusiveMaximum")));
    match (low, high) {
        (Some(low), Some(high)) => Some(format!("{low} and {high}")),
        (low, high) => low.or(high),
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::run::schema::settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_allowed_as_the_validator_of_runs_allows_them() {
        let values = json!([
            null, true, -1, 0, 1, 7, 64, 65, 65_537, 0.0, 0.5, 1.0, 1e300, "", "auto", "synchronous", "many", [], [8],
            [8, 2_000], ["a"], {}, { "deadline": {} }, [[16, 3]], [[16, 3, 1]], [[16, [3, 0], 1]], { "a": { "policy": 3 } },
            { "a": { "policy": "net" } }, { "trunk": [{ "layer": "gru", "cells": 8 }] }, { "trunk": [{ "layer": "gru" }] },
            { "trunk": [{ "cells": 8 }] }, { "trunk": [{ "layer": "dense", "outputs": 8, "width": 3 }] }, { "a": -1 }
        ]);
        for setting in settings() {
            let schema = setting.schema(Value::Null);
            let allowed = setting.allowed();
            for value in values.as_array().expect("a list") {
                // Only the validator checks the settings inside a group.
                let is_allowed =
                    setting.allows(value) || value.is_object() && schema.to_string().contains("\"properties\":{}");
                assert_eq!(allows(&schema, value), is_allowed, "{} {value}", setting.path);
            }
            assert_eq!(words(&schema).unwrap_or_default(), allowed, "{}", setting.path);
        }
    }

    #[test]
    fn errors_name_path_value_and_what_is_allowed() {
        let error = |schema: Value, value: Value| check("a", &[schema], &value).expect_err("it is not allowed");
        let whole = json!({ "type": "integer", "minimum": 1, "maximum": 64 });
        assert_eq!(error(whole.clone(), json!(65)), "a is 65; it must be from 1 to 64");
        let list = json!({ "anyOf": [{ "type": "null" }, { "enum": ["auto"] }, { "type": "array", "items": whole }] });
        assert_eq!(error(list, json!([0])), "a is [0]; it must be auto or a list, each from 1 to 64");
        let filters = settings().find(|setting| setting.path == "model_config.conv_filters").expect("a setting");
        let kinds = filters.schema(Value::Null)["anyOf"].as_array().cloned().expect("a list");
        let error_of = |value: Value| check("a", &kinds, &value).expect_err("it is not allowed");
        let form = "[filters, kernel, stride], such as [16, 3, 1]";
        assert_eq!(error_of(json!([[16, 3, 1], [16, 3]])), format!("a[1] is [16,3]; it must be {form}"));
        assert_eq!(error_of(json!([[16, [3, 0], 1]])), "a[0][1][1] is 0; it must be from 1 to 1024");
        let games = ["Acrobot", "Breakout", "CartPole", "CliffWalking", "Freeway", "Pendulum", "Pong"];
        assert_eq!(
            error(json!({ "enum": games }), json!("penduleum")),
            "a is \"penduleum\"; it must be Pendulum or Pong or Acrobot, … (7 choices)"
        );
        let few = error(json!({ "enum": games[1..] }), json!("x"));
        assert!(few.ends_with("Pendulum or Pong") && few.contains("CartPole"), "{few}");
    }
}
