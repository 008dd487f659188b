//! Traffic lights: green for one axis, for the other, or for neither.

use super::streets::Heading;

/// The light of a junction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Light {
    /// Whether the horizontal axis (east and west) has green, or is about to get it.
    across: bool,
    /// Whether all directions have red for a step, so that the junction clears.
    clearing: bool,
    /// Steps since the last switch.
    pub(super) since: u32,
}

impl Light {
    pub(super) const fn new(across: bool) -> Self {
        Self { across, clearing: false, since: 0 }
    }

    pub(super) const fn is_green(self, heading: Heading) -> bool {
        !self.clearing && heading.is_vertical() != self.across
    }

    /// Advances by a step, at whose end the light may be switched, except while it clears.
    pub(super) fn step(&mut self, switch: bool) {
        self.since = self.since.saturating_add(1);
        if self.clearing {
            self.clearing = false;
        } else if switch {
            (self.across, self.clearing, self.since) = (!self.across, true, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_takes_a_step_of_red_for_all() {
        let mut light = Light::new(false);
        let seen = |light: Light| Heading::ALL.map(|heading| light.is_green(heading));
        assert_eq!(seen(light), [true, false, true, false]);
        light.step(true);
        assert_eq!((seen(light), light.since), ([false; 4], 0));
        light.step(true);
        assert_eq!((seen(light), light.since), ([false, true, false, true], 1));
        light.step(false);
        assert_eq!((seen(light), light.since), ([false, true, false, true], 2));
    }
}
