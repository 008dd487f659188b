//! Runs `data.*`: files of batches.

use std::{fs, path::Path};

use rollmesh_data::{
    PickleError,
    json::{JsonError, JsonLines, RecordError},
    limits::JsonLimits,
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    ma::any_json,
    values::{bad, batch_fault, text},
};

/// Runs a case. Paths in the cases are relative to `folder`.
pub(super) fn answer(name: &str, args: &Value, folder: &Path) -> Answer {
    match name {
        "read_json" => read_json(args, folder),
        _ => Err(Fault::UnknownOperation),
    }
}

fn read_json(args: &Value, folder: &Path) -> Answer {
    let file = fs::read(folder.join(text(&args["file"])?)).map_err(|error| bad(&error.to_string()))?;
    let strict = args["strict"].as_bool().ok_or_else(|| bad("strict"))?;
    let make = if strict { JsonLines::strict } else { JsonLines::lenient };
    let mut lines = make(JsonLimits::default());
    let mut batches = Vec::new();
    for line in file.split(|byte| *byte == b'\n') {
        batches.extend(lines.read(line).map_err(fault)?.as_ref().map(any_json));
    }
    lines.finish().map_err(fault)?;
    Ok(json!({"batches": batches, "corrupt_lines": lines.corrupt_lines()}))
}

fn fault(error: JsonError) -> Fault {
    match error {
        JsonError::TooMany { .. } => Fault::TooManyErrors,
        JsonError::NoData(_) => Fault::NoData,
        JsonError::Line { source, .. } => match source {
            RecordError::UnknownType(_) => Fault::UnknownType,
            RecordError::Pickle { source: PickleError::Forbidden(_), .. } => Fault::ForbiddenPickle,
            RecordError::Ragged { .. } | RecordError::Pickle { source: PickleError::Ragged, .. } => {
                Fault::ShapeMismatch
            }
            RecordError::Batch(error) => batch_fault(error),
            _ => Fault::CorruptData,
        },
        _ => Fault::CorruptData,
    }
}
