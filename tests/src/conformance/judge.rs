//! Compares answers with the cases' expectations.

use serde_json::{Map, Value};

/// Columns in which only the pattern of equal values matters, since the operations choose ids themselves.
const ID_COLUMNS: [&str; 2] = ["eps_id", "unroll_id"];
/// Objects that must not have more entries than expected.
const EXACT: [&str; 3] = ["columns", "policy_batches", "policies"];

/// Compares one answer with its case.
///
/// # Errors
/// The first difference, with its path.
pub fn judge(case: &Value, answer: &Value) -> Result<(), String> {
    let expect = &case["expect"];
    if let Some(kind) = expect.get("err") {
        let same = answer.get("err") == Some(kind);
        return if same { Ok(()) } else { Err(format!("expected error {kind}, got {}", short(answer))) };
    }
    let got = answer.get("ok").ok_or_else(|| format!("expected a result, got {}", short(answer)))?;
    let (mut expected, mut got) = (expect["ok"].clone(), got.clone());
    if matches!(case["op"].as_str(), Some("sampler.run" | "views.build")) {
        for value in [&mut expected, &mut got] {
            let mut names = Default::default();
            rename_ids(value, &mut names);
        }
    }
    if let Some(n) = case["compare_prefix"].as_u64() {
        for value in [&mut expected, &mut got] {
            keep_prefix(value, n as usize);
        }
    }
    let tolerance = case["tol"].as_f64().unwrap_or(1e-9);
    let any_dtype = case["any_dtype"].as_bool().unwrap_or(false);
    Judge { tolerance, any_dtype }.compare(&expected, &got, tolerance, "ok", "")
}

/// Renames ids by first appearance.
fn rename_ids(value: &mut Value, names: &mut [Vec<String>; 2]) {
    match value {
        Value::Object(entries) => {
            for (key, entry) in entries {
                let column = ID_COLUMNS.iter().position(|id| id == key);
                match (column, entry.get_mut("data").and_then(Value::as_array_mut)) {
                    (Some(column), Some(data)) => {
                        for id in data {
                            let (name, known) = (id.to_string(), &mut names[column]);
                            let place = known.iter().position(|n| *n == name).unwrap_or_else(|| {
                                known.push(name);
                                known.len() - 1
                            });
                            *id = place.into();
                        }
                    }
                    _ => rename_ids(entry, names),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename_ids(item, names)),
        _ => {}
    }
}

fn keep_prefix(value: &mut Value, n: usize) {
    let Some(entries) = value.as_object_mut() else { return };
    for (key, entry) in entries {
        if let (Some(list), true) = (entry.as_array_mut(), key != "initial_obs") {
            list.truncate(n);
        }
    }
}

struct Judge {
    tolerance: f64,
    any_dtype: bool,
}

impl Judge {
    fn compare(&self, expected: &Value, got: &Value, tolerance: f64, path: &str, parent: &str) -> Result<(), String> {
        match (expected, got) {
            (Value::Object(expected), Value::Object(got)) => self.objects(expected, got, path, parent),
            (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
                let mut pairs = expected.iter().zip(got).enumerate();
                pairs.try_for_each(|(i, (e, g))| self.compare(e, g, tolerance, &format!("{path}[{i}]"), ""))
            }
            _ => match (number(expected), number(got)) {
                (Some(e), Some(g)) if close(e, g, tolerance) => Ok(()),
                _ if expected == got => Ok(()),
                _ => Err(format!("{path}: expected {}, got {}", short(expected), short(got))),
            },
        }
    }

    fn objects(
        &self,
        expected: &Map<String, Value>,
        got: &Map<String, Value>,
        path: &str,
        parent: &str,
    ) -> Result<(), String> {
        let column_type = expected.get("dtype").filter(|_| expected.contains_key("data")).and_then(Value::as_str);
        for (key, value) in expected {
            if key == "dtype" && column_type.is_some() && self.any_dtype {
                continue;
            }
            let Some(other) = got.get(key) else {
                if value.is_null() {
                    continue;
                }
                return Err(format!("{path}.{key}: missing"));
            };
            let tolerance = match (column_type, key.as_str()) {
                (Some(_), "data") if self.any_dtype && holds_floats(other) => self.tolerance,
                (Some("f32"), "data") => self.tolerance.max(1e-6),
                (Some("f64"), "data") | (None, _) => self.tolerance,
                (Some(_), _) => 0.0,
            };
            self.compare(value, other, tolerance, &format!("{path}.{key}"), key)?;
        }
        let exact = EXACT.contains(&parent) || path == "ok.columns";
        if let Some(extra) = got.keys().find(|key| exact && !expected.contains_key(*key)) {
            return Err(format!("{path}: unexpected entry {extra}"));
        }
        if expected.contains_key("columns") {
            let set = |flag: &&str| {
                got.get(*flag).is_some_and(|value| *value != Value::Bool(false) && !value.is_null())
                    && !expected.contains_key(*flag)
            };
            if let Some(flag) = ["zero_padded", "time_major", "seq_lens"].iter().find(|flag| set(flag)) {
                return Err(format!("{path}.{flag}: must be absent"));
            }
        }
        Ok(())
    }
}

fn holds_floats(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(Value::is_f64))
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn close(expected: f64, got: f64, tolerance: f64) -> bool {
    if expected.is_nan() || got.is_nan() {
        return expected.is_nan() && got.is_nan();
    }
    if expected.is_infinite() || got.is_infinite() {
        return expected == got;
    }
    (expected - got).abs() <= tolerance * expected.abs().max(1.0)
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.len() < 120 { text } else { text.chars().take(117).chain("...".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verdict(expect: Value, answer: Value) -> Result<(), String> {
        judge(&json!({"op": "x.y", "expect": expect}), &answer)
    }

    #[test]
    fn numbers_may_differ_by_the_tolerance_only() {
        assert!(verdict(json!({"ok": [1.0, "NaN"]}), json!({"ok": [1.000_000_000_1, "NaN"]})).is_ok());
        assert!(verdict(json!({"ok": 1.0}), json!({"ok": 1.001})).is_err());
        assert!(verdict(json!({"ok": "Infinity"}), json!({"ok": 1.0})).is_err());
    }

    #[test]
    fn integers_of_columns_are_exact() {
        let column = |x: Value| json!({"ok": {"columns": {"a": {"dtype": "i64", "shape": [1], "data": [x]}}}});
        assert!(verdict(column(json!(3)), column(json!(3))).is_ok());
        assert!(verdict(column(json!(3)), column(json!(3.000_000_000_01))).is_err());
    }

    #[test]
    fn more_columns_than_expected_are_an_error() {
        let column = json!({"dtype": "i64", "shape": [0], "data": []});
        let one = json!({"ok": {"columns": {"a": column}}});
        let two = json!({"ok": {"columns": {"a": column, "b": column}}});
        assert!(verdict(one.clone(), two).is_err());
        assert!(verdict(one.clone(), json!({"ok": {"columns": {}}})).is_err());
        assert!(verdict(one, json!({"ok": {"columns": {"a": column}, "zero_padded": true}})).is_err());
    }

    #[test]
    fn errors_must_be_of_the_kind() {
        assert!(verdict(json!({"err": "missing_column"}), json!({"err": "missing_column"})).is_ok());
        assert!(verdict(json!({"err": "missing_column"}), json!({"err": "bad_case"})).is_err());
        assert!(verdict(json!({"ok": null}), json!({"err": "bad_case"})).is_err());
    }

    #[test]
    fn ids_are_compared_up_to_renaming() {
        let case = |expect: [i64; 3]| {
            let column = json!({"dtype": "i64", "shape": [3], "data": expect});
            json!({"op": "views.build", "expect": {"ok": {"columns": {"unroll_id": column}}}})
        };
        let answer =
            |data: [i64; 3]| json!({"ok": {"columns": {"unroll_id": {"dtype": "i64", "shape": [3], "data": data}}}});
        assert!(judge(&case([0, 0, 1]), &answer([7, 7, 5])).is_ok());
        assert!(judge(&case([0, 0, 1]), &answer([7, 5, 5])).is_err());
    }
}
