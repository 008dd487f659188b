//! Runs `actions.*`: clip, unsquash, normalise.

use rollmesh_core::{
    action,
    column::{DType, RowShape},
    space::{BoxSpace, Point, PointError, Space},
};
use serde_json::Value;

use super::{
    Answer, Fault,
    values::{JsonElement, bad, dtype, floats, integer, list, text},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    let space = space(&args["space"])?;
    let transform: fn(&Space, &mut Point) -> Result<(), PointError> = match name {
        "clip" => action::clip,
        "unsquash" => action::unsquash,
        "normalize" => action::normalize,
        _ => return Err(Fault::UnknownOperation),
    };
    let action = &input["action"];
    let scalar = !action.is_array();
    let components = if scalar { Value::from(vec![action.clone()]) } else { action.clone() };
    let mut point = point(&space, &components)?;
    transform(&space, &mut point).map_err(|_| Fault::ShapeMismatch)?;
    let mut components = json(&point)?;
    Ok(if scalar { components.pop().unwrap_or_default() } else { components.into() })
}

fn space(value: &Value) -> Result<Space, Fault> {
    if value["type"] == "discrete" {
        return Space::discrete(integer(&value["n"])?).map_err(|_| Fault::InvalidArgument);
    }
    let dtype = dtype(text(&value["dtype"])?)?;
    // Bounds are exact in the element type.
    let round = |x: f64| if dtype == DType::F32 { f64::from(x as f32) } else { x };
    let bounds = |value| Ok(floats(value)?.into_iter().map(round).collect::<Vec<_>>());
    let (low, high) = (bounds(&value["low"])?, bounds(&value["high"])?);
    let space = BoxSpace::new(dtype, RowShape::vector(low.len() as u32), low, high);
    Ok(Space::Box(space.map_err(|_| Fault::InvalidArgument)?))
}

fn point(space: &Space, components: &Value) -> Result<Point, Fault> {
    let Space::Box(space) = space else { return Ok(Point::I64(list(components, JsonElement::read)?)) };
    Ok(match space.dtype() {
        DType::F32 => Point::F32(list(components, JsonElement::read)?),
        DType::F64 => Point::F64(list(components, JsonElement::read)?),
        DType::I32 => Point::I32(list(components, JsonElement::read)?),
        DType::I64 => Point::I64(list(components, JsonElement::read)?),
        DType::U8 => Point::U8(list(components, JsonElement::read)?),
        _ => return Err(bad("numbers")),
    })
}

fn json(point: &Point) -> Result<Vec<Value>, Fault> {
    fn write<T: JsonElement>(values: &[T]) -> Vec<Value> {
        values.iter().map(|value| value.write()).collect()
    }
    Ok(match point {
        Point::F32(values) => write(values),
        Point::F64(values) => write(values),
        Point::I32(values) => write(values),
        Point::I64(values) => write(values),
        Point::U8(values) => write(values),
        _ => return Err(bad("numbers")),
    })
}
