//! Runs `filter.*`: running statistics and filters by name.

use std::collections::BTreeMap;

use rollmesh_core::{
    column::RowShape,
    filter::{Filter, FilterError, FilterFloat, MeanStdConfig, MeanStdFilter, RunningStat, synchronize},
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    values::{JsonElement, Nested, bad, float, integer, list, nest, text},
};

pub(super) fn answer(name: &str, input: &Value) -> Answer {
    let steps = input["ops"].as_array().ok_or_else(|| bad("a list of steps"))?;
    match name {
        "ops" => {
            let mut filters = BTreeMap::new();
            steps.iter().map(|step| filter_step(&mut filters, step)).collect()
        }
        "running_stat" => {
            let mut stats = BTreeMap::new();
            steps.iter().map(|step| stat_step(&mut stats, step)).collect()
        }
        _ => Err(Fault::UnknownOperation),
    }
}

fn stat_step(stats: &mut BTreeMap<String, RunningStat>, step: &Value) -> Answer {
    let name = text(&step["s"])?;
    if step["op"] == "new" {
        stats.insert(name.into(), RunningStat::new(shape(&step["shape"])?).map_err(fault)?);
        return Ok(Value::Null);
    }
    let other = step["other"].as_str().and_then(|other| stats.get(other).cloned());
    let stat = stats.get_mut(name).ok_or_else(|| bad("the name of a statistic"))?;
    match text(&step["op"])? {
        "push" => {
            let row = Nested::<f64>::read(&step["x"])?;
            if row.dims != stat.shape().dims() {
                return Err(Fault::ShapeMismatch);
            }
            stat.push(&row.values).map_err(fault)?;
        }
        "merge" => stat.merge(&other.ok_or_else(|| bad("another statistic"))?).map_err(fault)?,
        "stats" => return Ok(stat_json(stat)),
        _ => return Err(Fault::UnknownOperation),
    }
    Ok(Value::Null)
}

fn filter_step(filters: &mut BTreeMap<String, Filter>, step: &Value) -> Answer {
    match text(&step["op"])? {
        "new" => {
            let on = |flag: &str| step[flag].as_bool().unwrap_or(true);
            let clip = if step["clip"].is_null() { None } else { Some(float(&step["clip"])?) };
            let config = MeanStdConfig { demean: on("demean"), destd: on("destd"), clip };
            let filter = MeanStdFilter::new(shape(&step["shape"])?, config).map_err(fault)?;
            filters.insert(text(&step["f"])?.into(), Filter::MeanStdFilter(filter));
        }
        "call" => {
            let filter = named(filters, &step["f"])?;
            return match text(&step["dtype"])? {
                "f32" => call::<f32>(filter, step),
                "f64" => call::<f64>(filter, step),
                _ => Err(bad("a dtype of floats")),
            };
        }
        "stats" => {
            let filter = named(filters, &step["f"])?.mean_std().ok_or_else(|| bad("a filter with statistics"))?;
            let buffer = filter.buffer();
            return Ok(json!({
                "running": stat_json(filter.running()),
                "buffer": {"n": buffer.n(), "mean": nest(buffer.shape().dims(), &mut buffer.mean().iter().copied())},
            }));
        }
        "reset_buffer" => named(filters, &step["f"])?.reset_buffer(),
        "apply_changes" => {
            let other = named(filters, &step["other"])?.clone();
            let with_buffer = step["with_buffer"].as_bool().unwrap_or(false);
            named(filters, &step["f"])?.apply_changes(&other, with_buffer).map_err(fault)?;
        }
        "sync" => {
            let other = named(filters, &step["other"])?.clone();
            named(filters, &step["f"])?.sync(&other).map_err(fault)?;
        }
        "synchronize" => {
            let names = list(&step["workers"], |name| text(name).map(str::to_string))?;
            let mut driver = named(filters, &step["driver"])?.clone();
            let mut workers =
                names.iter().map(|name| named(filters, &json!(name)).cloned()).collect::<Result<Vec<_>, _>>()?;
            synchronize(&mut driver, &mut workers.iter_mut().collect::<Vec<_>>()).map_err(fault)?;
            filters.insert(text(&step["driver"])?.into(), driver);
            filters.extend(names.into_iter().zip(workers));
        }
        _ => return Err(Fault::UnknownOperation),
    }
    Ok(Value::Null)
}

fn named<'a>(filters: &'a mut BTreeMap<String, Filter>, name: &Value) -> Result<&'a mut Filter, Fault> {
    filters.get_mut(text(name)?).ok_or_else(|| bad("the name of a filter"))
}

fn call<T: FilterFloat + JsonElement>(filter: &mut Filter, step: &Value) -> Answer {
    let Nested { dims, mut values } = Nested::<T>::read(&step["x"])?;
    filter.call(&dims, &mut values, step["update"].as_bool().unwrap_or(true)).map_err(fault)?;
    Ok(nest(&dims, &mut values.into_iter()))
}

fn shape(value: &Value) -> Result<RowShape, Fault> {
    RowShape::new(&list(value, integer)?).map_err(|_| Fault::ShapeMismatch)
}

fn stat_json(stat: &RunningStat) -> Value {
    let shape = stat.shape();
    let dims = shape.dims();
    json!({
        "n": stat.n(),
        "mean": nest(dims, &mut stat.mean().iter().copied()),
        "var": nest(dims, &mut stat.var()),
        "std": nest(dims, &mut stat.std()),
    })
}

fn fault(error: FilterError) -> Fault {
    match error {
        FilterError::ShapeMismatch { .. } => Fault::ShapeMismatch,
        _ => Fault::InvalidArgument,
    }
}
