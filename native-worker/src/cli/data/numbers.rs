//! Formatting numbers for users.

use rollmesh_data::survey::Spread;

use crate::runs::ReadMetrics;

/// Formats a spread like `500 (from 500 to 500)`, or `-` without values.
pub(super) fn said(spread: &Spread) -> String {
    match spread.count {
        0 => "-".into(),
        _ => format!("{} (from {} to {})", short(spread.mean), short(spread.min), short(spread.max)),
    }
}

/// Formats a number with few digits.
pub(in crate::cli) fn short(number: f64) -> String {
    let size = number.abs();
    if number.fract() == 0.0 && size < 1e15 {
        format!("{number}")
    } else if (1e-3..1e6).contains(&size) {
        format!("{number:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{number:.3e}")
    }
}

/// Returns a line for each report of reading.
pub(in crate::cli) fn about_reading(read: &ReadMetrics) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (name, episodes, means) in read.estimates() {
        let means: Vec<String> = means.iter().map(|(name, mean)| format!("{name} {}", short(*mean))).collect();
        lines.push(format!("estimate {name}: {} (means of {episodes} episodes)", means.join(", ")));
    }
    if read.blackholed_env_steps > 0 {
        lines.push(format!("simulated       {} env steps, of which none is in the samples", read.blackholed_env_steps));
    }
    if read.corrupt_lines > 0 {
        lines.push(format!("passed over     {} lines that are no batches", read.corrupt_lines));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [500.0, 0.5, 1234.56789, 1e-9, 2.5e17].map(short),
            ["500", "0.5", "1234.5679", "1.000e-9", "2.500e17"]
        );
    }

    #[test]
    fn spreads_are_said_if_there_is_anything() {
        let mut spread = Spread::default();
        assert_eq!(said(&spread), "-");
        [1.0, 3.0].into_iter().for_each(|number| spread.add(number));
        assert_eq!(said(&spread), "2 (from 1 to 3)");
    }
}
