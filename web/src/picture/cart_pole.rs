//! A cart and its pole.

use wasm_bindgen::JsValue;

use super::pen::{Pen, crisp};

/// Half of what is seen of the track.
const HALF_TRACK: f64 = 2.6;
/// The position at which an episode ends, on either side.
const TRACK_LIMIT: f64 = 2.4;
/// The angle at which an episode ends, in radians: 12°.
const ANGLE_LIMIT: f64 = 0.209_439_51;

/// One moment of a CartPole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CartPole {
    /// Position of the cart.
    x: f64,
    /// Angle of the pole from upright in radians, clockwise.
    angle: f64,
}

impl CartPole {
    /// Of position, velocity, angle and angular velocity, or of position and angle.
    pub(super) fn of(obs: &[f32]) -> Option<Self> {
        let (&[x, _, angle, _] | &[x, angle]) = obs else { return None };
        (x.is_finite() && angle.is_finite()).then_some(Self { x: x.into(), angle: angle.into() })
    }

    pub(super) fn caption(self) -> String {
        format!("x {:+.2}   angle {:+.1}°", self.x, self.angle.to_degrees())
    }

    pub(super) fn draw(self, pen: &Pen<'_>, (width, height): (f64, f64), done: bool) -> Result<(), JsValue> {
        let scale = width / (2.0 * HALF_TRACK);
        let ground = height * 0.82;
        let x = width / 2.0 + self.x * scale;
        let (cart_width, cart_height) = ((0.5 * scale).max(28.0), (0.28 * scale).max(16.0));
        let pole = (height * 0.62).min(1.3 * scale);
        let foot = (x, ground - cart_height);
        let head = (x + self.angle.sin() * pole, foot.1 - self.angle.cos() * pole);

        draw_track(pen, width, ground, scale);
        pen.block("--ink", (x - cart_width / 2.0, foot.1), (cart_width, cart_height))?;
        pen.line(if done || self.is_near_the_end() { "--warn" } else { "--accent" }, 7.0, [foot, head]);
        pen.disc("--surface", foot, 2.5)
    }

    fn is_near_the_end(self) -> bool {
        (self.angle.abs() / ANGLE_LIMIT).max(self.x.abs() / TRACK_LIMIT) > 0.8
    }
}

fn draw_track(pen: &Pen<'_>, width: f64, ground: f64, scale: f64) {
    pen.line("--line-strong", 1.0, [(0.0, crisp(ground)), (width, crisp(ground))]);
    // Where an episode ends.
    for end in [-TRACK_LIMIT, TRACK_LIMIT] {
        let x = crisp(width / 2.0 + end * scale);
        pen.line("--line-strong", 1.0, [(x, ground - 10.0), (x, ground + 10.0)]);
    }
    let middle = crisp(width / 2.0);
    pen.line("--line-strong", 1.0, [(middle, ground), (middle, ground + 6.0)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_and_angle_are_seen() {
        let picture = CartPole::of(&[0.5, 9.0, -0.1, 9.0]).expect("a CartPole");
        assert_eq!(picture, CartPole { x: 0.5, angle: f64::from(-0.1_f32) });
        assert_eq!(picture.caption(), "x +0.50   angle -5.7°");
    }

    #[test]
    fn the_pole_warns_before_an_episode_ends() {
        let at = |x, angle| CartPole { x, angle }.is_near_the_end();
        assert_eq!([at(0.0, 0.1), at(0.0, -0.2), at(-2.0, 0.0), at(1.8, 0.0)], [false, true, true, false]);
    }
}
