//! Two links that hang from a joint.

use wasm_bindgen::JsValue;

use super::pen::{Pen, crisp};

/// Height of the line that the tip must pass, above the joint that stays where it is. Links have a length of 1.
const LINE: f64 = 1.0;
/// Half of what is seen of the height.
const HALF_HEIGHT: f64 = 2.25;

/// One moment of an Acrobot: places seen from the joint that stays where it is, to the right and up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Acrobot {
    elbow: (f64, f64),
    tip: (f64, f64),
}

impl Acrobot {
    /// Of cosine and sine of the first link's angle from hanging down, of the second's from the first, and both
    /// velocities.
    pub(super) fn of(obs: &[f32]) -> Option<Self> {
        let &[cos1, sin1, cos2, sin2, _, _] = obs else { return None };
        let [cos1, sin1, cos2, sin2] = [cos1, sin1, cos2, sin2].map(f64::from);
        let elbow = (sin1, -cos1);
        let tip = (elbow.0 + sin1 * cos2 + cos1 * sin2, elbow.1 - (cos1 * cos2 - sin1 * sin2));
        (tip.0.is_finite() && tip.1.is_finite()).then_some(Self { elbow, tip })
    }

    pub(super) fn caption(self) -> String {
        format!("height of the tip {:+.2}", self.tip.1)
    }

    pub(super) fn draw(self, pen: &Pen<'_>, (width, height): (f64, f64)) -> Result<(), JsValue> {
        let scale = height / (2.0 * HALF_HEIGHT);
        let place = |(x, y): (f64, f64)| (width / 2.0 + x * scale, height / 2.0 - y * scale);
        let is_there = self.tip.1 > LINE;
        let line = crisp(place((0.0, LINE)).1);
        pen.line(if is_there { "--good" } else { "--line-strong" }, 1.5, [(0.0, line), (width, line)]);

        let joint = place((0.0, 0.0));
        let (elbow, tip) = (place(self.elbow), place(self.tip));
        pen.line("--ink", 8.0, [joint, elbow]);
        pen.line(if is_there { "--good" } else { "--accent" }, 8.0, [elbow, tip]);
        for joint in [joint, elbow] {
            pen.disc("--surface", joint, 2.5)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_where_their_angles_say() {
        let of = |cos1, sin1, cos2, sin2| Acrobot::of(&[cos1, sin1, cos2, sin2, 9.0, 9.0]).expect("an Acrobot");
        let hanging = of(1.0, 0.0, 1.0, 0.0);
        assert_eq!(hanging, Acrobot { elbow: (0.0, -1.0), tip: (0.0, -2.0) });
        assert_eq!(hanging.caption(), "height of the tip -2.00");
        // A quarter to the right, then a quarter further: the second link stands upright.
        assert_eq!(of(0.0, 1.0, 0.0, 1.0), Acrobot { elbow: (1.0, 0.0), tip: (1.0, 1.0) });
    }
}
