//! Effects of the mouse, fingers and keys on the shown part of a chart. Places are fractions of its width.

/// A drag shorter than this is a click.
const SHORTEST_DRAG: f64 = 0.01;
/// A key or a notch of a wheel changes the width by this factor.
const ZOOM: f64 = 0.8;
/// A key pans by this part of the width.
const PAN: f64 = 0.25;

/// A part of a chart, in fractions of the width that is shown now.
pub(crate) type ViewWindow = (f64, f64);

/// Pointers that are down on a chart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gesture {
    pointers: Vec<Pointer>,
    selects: bool,
}

#[derive(Clone, Debug)]
struct Pointer {
    id: i32,
    from: f64,
    at: f64,
}

impl Gesture {
    /// Adds a pointer that goes down. If it `selects`, it marks a part to zoom into; otherwise it drags the curve
    /// along.
    pub(crate) fn down(&mut self, id: i32, at: f64, selects: bool) {
        self.selects = selects && self.pointers.is_empty();
        self.pointers.retain(|pointer| pointer.id != id);
        // A third finger changes nothing.
        if self.pointers.len() < 2 {
            self.pointers.push(Pointer { id, from: at, at });
        }
    }

    /// Moves a pointer. Returns the part to show now: the values under the pointers stay under them.
    pub(crate) fn moved(&mut self, id: i32, at: f64) -> Option<ViewWindow> {
        let before = self.pointers.clone();
        let pointer = self.pointers.iter_mut().find(|pointer| pointer.id == id)?;
        pointer.at = at;
        if self.selects {
            return None;
        }
        match (&before[..], &self.pointers[..]) {
            ([old], [new]) => Some((old.at - new.at, 1.0 + old.at - new.at)),
            ([old_a, old_b], [a, b]) if (a.at - b.at).abs() > SHORTEST_DRAG => {
                let factor = (old_b.at - old_a.at) / (b.at - a.at);
                let low = old_a.at - a.at * factor;
                // Fingers that have passed each other do not mirror the chart.
                (factor > 0.0).then_some((low, low + factor))
            }
            _ => None,
        }
    }

    /// Removes a pointer that goes up. Returns the part that it has selected.
    pub(crate) fn up(&mut self, id: i32) -> Option<ViewWindow> {
        let selected = self.selected().filter(|(low, high)| high - low > SHORTEST_DRAG);
        self.cancel(id);
        selected
    }

    /// Removes a pointer that the browser has taken away, for example to scroll.
    pub(crate) fn cancel(&mut self, id: i32) {
        self.pointers.retain(|pointer| pointer.id != id);
    }

    /// Returns the part that is being selected.
    pub(crate) fn selected(&self) -> Option<ViewWindow> {
        match &self.pointers[..] {
            [Pointer { from, at, .. }] if self.selects => {
                let (from, at) = (from.clamp(0.0, 1.0), at.clamp(0.0, 1.0));
                Some((from.min(at), from.max(at)))
            }
            _ => None,
        }
    }
}

/// Zooms around a place, by a number of notches; negative ones zoom out.
fn zoom(at: f64, notches: f64) -> ViewWindow {
    let factor = ZOOM.powf(notches);
    (at - at * factor, at + (1.0 - at) * factor)
}

/// Returns the part to show after a turn of the wheel; `None` if it turns sideways.
pub(crate) fn wheel(at: f64, delta_y: f64) -> Option<ViewWindow> {
    (delta_y != 0.0).then(|| zoom(at, -delta_y.signum()))
}

/// Returns the part to show after a key, which zooms around the place `at`; `None` for keys without a meaning here,
/// among them `0`.
pub(crate) fn key(key: &str, is_shift: bool, at: f64) -> Option<ViewWindow> {
    match (key, is_shift) {
        ("+" | "=", _) => Some(zoom(at, 2.0)),
        ("-" | "_", _) => Some(zoom(at, -2.0)),
        ("ArrowLeft", true) => Some((-PAN, 1.0 - PAN)),
        ("ArrowRight", true) => Some((PAN, 1.0 + PAN)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(part: Option<ViewWindow>, wanted: ViewWindow) -> bool {
        part.is_some_and(|part| (part.0 - wanted.0).abs() < 1e-9 && (part.1 - wanted.1).abs() < 1e-9)
    }

    #[test]
    fn mouse_selects_a_part_in_either_direction_and_a_click_selects_nothing() {
        let mut gesture = Gesture::default();
        gesture.down(1, 0.6, true);
        assert_eq!(gesture.moved(1, 0.2), None);
        assert_eq!(gesture.selected(), Some((0.2, 0.6)));
        assert_eq!(gesture.up(1), Some((0.2, 0.6)));
        gesture.down(1, 0.6, true);
        assert_eq!((gesture.up(1), gesture.selected()), (None, None));
    }

    #[test]
    fn one_finger_pans_and_a_cancelled_one_is_forgotten() {
        let mut gesture = Gesture::default();
        gesture.down(1, 0.5, false);
        assert!(is_near(gesture.moved(1, 0.4), (0.1, 1.1)));
        assert!(is_near(gesture.moved(1, 0.3), (0.1, 1.1)), "each step counts from the one before");
        gesture.cancel(1);
        assert_eq!(gesture.moved(1, 0.2), None);
        assert_eq!(gesture.up(1), None);
    }

    #[test]
    fn two_finger_zoom_keeps_the_values_under_the_fingers() {
        let mut gesture = Gesture::default();
        gesture.down(1, 0.4, false);
        gesture.down(2, 0.6, false);
        let (low, high) = gesture.moved(2, 0.8).expect("a part");
        let shown_at = |place: f64| low + place * (high - low);
        assert!((shown_at(0.4) - 0.4).abs() < 1e-9 && (shown_at(0.8) - 0.6).abs() < 1e-9);
        assert_eq!(gesture.moved(2, 0.1), None, "they have passed each other");
    }

    #[test]
    fn zooming_keeps_its_place_and_keys_zoom_and_pan() {
        let (low, high) = zoom(0.25, 1.0);
        assert!((low - 0.05).abs() < 1e-9 && (high - 0.85).abs() < 1e-9);
        assert_eq!(wheel(0.25, -3.0), Some(zoom(0.25, 1.0)));
        assert_eq!([wheel(0.25, 0.0), wheel(0.25, -0.0)], [None, None], "it turns sideways");
        assert!(key("-", false, 0.5).is_some_and(|(low, high)| low < 0.0 && high > 1.0));
        assert_eq!(key("ArrowRight", true, 0.5), Some((0.25, 1.25)));
        assert_eq!(key("ArrowRight", false, 0.5), None);
    }
}
