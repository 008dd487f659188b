//! Decimation of points for an equal picture: per pixel column the first, the lowest, the highest and the last.

/// A point in data space. A `y` that is not finite interrupts the line.
pub(crate) type Point = (f64, f64);

/// Thins out `points` (ascending in x) between `low` and `high` to at most four per column, in their order.
///
/// The line covers the same pixels as one through all points: no peak is lost, however narrow.
#[must_use]
pub(crate) fn decimate(points: impl IntoIterator<Item = Point>, (low, high): (f64, f64), columns: u32) -> Vec<Point> {
    let per_value = f64::from(columns.max(1)) / (high - low).max(f64::MIN_POSITIVE);
    let mut kept = Vec::new();
    let mut column: Option<Column> = None;
    for (index, point) in points.into_iter().enumerate() {
        let place = ((point.0 - low) * per_value).floor();
        match &mut column {
            Some(current) if current.place == place => current.add(index, point),
            _ => {
                if let Some(done) = column.replace(Column::new(place, index, point)) {
                    done.flush(&mut kept);
                }
            }
        }
    }
    if let Some(done) = column {
        done.flush(&mut kept);
    }
    kept
}

struct Column {
    place: f64,
    first: (usize, Point),
    lowest: (usize, Point),
    highest: (usize, Point),
    last: (usize, Point),
}

impl Column {
    fn new(place: f64, index: usize, point: Point) -> Self {
        let entry = (index, point);
        Self { place, first: entry, lowest: entry, highest: entry, last: entry }
    }

    fn add(&mut self, index: usize, point: Point) {
        let entry = (index, point);
        // Any number replaces a NaN, so that a gap cannot hide a peak.
        if point.1 < self.lowest.1.1 || self.lowest.1.1.is_nan() {
            self.lowest = entry;
        }
        if point.1 > self.highest.1.1 || self.highest.1.1.is_nan() {
            self.highest = entry;
        }
        self.last = entry;
    }

    fn flush(self, kept: &mut Vec<Point>) {
        let mut entries = [self.first, self.lowest, self.highest, self.last];
        entries.sort_by_key(|(index, _)| *index);
        let mut before = None;
        for (index, point) in entries {
            if before.replace(index) != Some(index) {
                kept.push(point);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_stay_as_they_are() {
        let points = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)];
        assert_eq!(decimate(points, (0.0, 2.0), 100), points);
        assert_eq!(decimate([], (0.0, 2.0), 100), []);
    }

    #[test]
    fn many_points_become_few_and_peaks_survive() {
        let mut points: Vec<Point> = (0..100_000).map(|x| (f64::from(x), f64::from(x % 7))).collect();
        points[54_321].1 = 1_000.0;
        points[12_345].1 = -1_000.0;
        let kept = decimate(points.iter().copied(), (0.0, 99_999.0), 300);
        assert!(kept.len() <= 4 * 301);
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        assert!(kept.contains(&(54_321.0, 1_000.0)));
        assert!(kept.contains(&(12_345.0, -1_000.0)));
        assert_eq!((kept[0], kept[kept.len() - 1]), (points[0], points[99_999]));
    }

    #[test]
    fn a_gap_hides_no_peak() {
        let kept = decimate([(0.0, f64::NAN), (0.1, 9.0), (0.2, f64::NAN), (0.3, 1.0)], (0.0, 1.0), 1);
        assert!(kept.contains(&(0.1, 9.0)) && kept.contains(&(0.3, 1.0)));
        assert!(kept[0].1.is_nan());
    }

    #[test]
    fn an_empty_range_does_not_divide_by_zero() {
        assert_eq!(decimate([(5.0, 1.0), (5.0, 2.0)], (5.0, 5.0), 10), [(5.0, 1.0), (5.0, 2.0)]);
    }
}
