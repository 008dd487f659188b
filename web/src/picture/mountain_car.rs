//! A car in a valley.

use wasm_bindgen::JsValue;

use super::pen::Pen;

/// Positions at the left and the right edge.
const LEFT: f64 = -1.2;
const RIGHT: f64 = 0.6;
/// Position of the flag.
const GOAL: f64 = 0.5;

/// One moment of a MountainCar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MountainCar {
    position: f64,
    velocity: f64,
}

impl MountainCar {
    /// Of position and velocity.
    pub(super) fn of(obs: &[f32]) -> Option<Self> {
        let &[position, velocity] = obs else { return None };
        let is_finite = position.is_finite() && velocity.is_finite();
        is_finite.then_some(Self { position: position.into(), velocity: velocity.into() })
    }

    pub(super) fn caption(self) -> String {
        format!("position {:+.2}   velocity {:+.3}", self.position, self.velocity)
    }

    pub(super) fn draw(self, pen: &Pen<'_>, (width, height): (f64, f64)) -> Result<(), JsValue> {
        let place = |position: f64| {
            let x = (position - LEFT) / (RIGHT - LEFT) * width;
            // From the bottom of the valley to the top of the hills.
            (x, height * (0.57 - 0.27 * hill(position)))
        };
        let steps = 64;
        let slope = (0..=steps).map(|step| place(LEFT + (RIGHT - LEFT) * f64::from(step) / f64::from(steps)));
        pen.area("--line", slope.clone().chain([(width, height), (0.0, height)]));
        pen.line("--line-strong", 1.5, slope);
        draw_flag(pen, place(GOAL));

        let color = if self.position >= GOAL { "--good" } else { "--accent" };
        let (ahead, behind) = (place(self.position + 0.02), place(self.position - 0.02));
        let angle = (ahead.1 - behind.1).atan2(ahead.0 - behind.0);
        draw_car(pen, color, place(self.position), angle)
    }
}

/// Height of the slope, from -1 to 1.
fn hill(position: f64) -> f64 {
    (3.0 * position).sin()
}

fn draw_flag(pen: &Pen<'_>, (x, ground): (f64, f64)) {
    let top = ground - 34.0;
    pen.area("--good", [(x, top), (x + 15.0, top + 6.0), (x, top + 12.0)]);
    pen.line("--ink", 2.0, [(x, ground), (x, top)]);
}

/// A car on its wheels at a point of the ground, turned as the ground is.
fn draw_car(pen: &Pen<'_>, color: &str, (x, y): (f64, f64), angle: f64) -> Result<(), JsValue> {
    let (along, up) = ((angle.cos(), angle.sin()), (angle.sin(), -angle.cos()));
    let at = |a: f64, b: f64| (x + a * along.0 + b * up.0, y + a * along.1 + b * up.1);
    let body =
        [(-15.0, 5.0), (15.0, 5.0), (15.0, 10.0), (8.0, 11.0), (4.0, 16.0), (-7.0, 16.0), (-11.0, 11.0), (-15.0, 10.0)];
    pen.area(color, body.map(|(a, b)| at(a, b)));
    pen.line(color, 3.0, body.into_iter().chain([body[0]]).map(|(a, b)| at(a, b)));
    for wheel in [-8.5, 8.5] {
        pen.disc("--ink", at(wheel, 4.5), 4.5)?;
        pen.disc("--surface", at(wheel, 4.5), 1.5)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_and_velocity_are_seen() {
        let picture = MountainCar::of(&[-0.5, 0.125]).expect("a MountainCar");
        assert_eq!(picture, MountainCar { position: -0.5, velocity: 0.125 });
        assert_eq!(picture.caption(), "position -0.50   velocity +0.125");
    }

    #[test]
    fn the_valley_is_between_two_hills() {
        let bottom = -std::f64::consts::FRAC_PI_6;
        assert_eq!(hill(bottom), -1.0);
        assert!(hill(LEFT) > 0.4 && hill(GOAL) > 0.99);
    }
}
