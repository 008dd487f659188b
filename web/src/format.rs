//! Formats numbers and durations for display.

/// Formats digits in groups of three: `24,576`.
#[must_use]
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with a noun: `1 slot`, `2,048 slots`.
#[must_use]
pub(crate) fn number_of(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats three or four significant digits with a unit: `950`, `9,300`, `12.4k`, `1.25M`, `10G`. NaN is a dash.
#[must_use]
pub(crate) fn short(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if !value.is_finite() => "–".into(),
        0.0 => "0".into(),
        _ if magnitude >= 999.5e6 => format!("{}G", trimmed(value / 1e9, 2)),
        _ if magnitude >= 999_500.0 => format!("{}M", trimmed(value / 1e6, 2)),
        _ if magnitude >= 9_999.5 => format!("{}k", trimmed(value / 1e3, 1)),
        _ if value >= 999.5 => count(value.round() as u64),
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 1.0 => trimmed(value, 2),
        _ if magnitude >= 0.000_95 => trimmed(value, 4),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a value at an axis: all values in the thousands have the same form.
#[must_use]
pub(crate) fn tick(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 1e9 => format!("{}G", trimmed(value / 1e9, 2)),
        magnitude if magnitude >= 1e6 => format!("{}M", trimmed(value / 1e6, 2)),
        magnitude if magnitude >= 1e3 => format!("{}k", trimmed(value / 1e3, 2)),
        _ => short(value),
    }
}

/// Formats one decimal, for returns and lengths of episodes. NaN is a dash.
#[must_use]
pub(crate) fn mean(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "–".into() }
}

/// Formats a duration as `0:07`, `12:34` or `1:02:03`.
#[must_use]
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        let all = [0, 7, 999, 1_000, 24_576, 1_234_567].map(count);
        assert_eq!(all, ["0", "7", "999", "1,000", "24,576", "1,234,567"]);
    }

    #[test]
    fn one_thing_is_singular() {
        let all = [0, 1, 2_048].map(|number| number_of(number, "slot"));
        assert_eq!(all, ["0 slots", "1 slot", "2,048 slots"]);
    }

    #[test]
    fn short_numbers_keep_their_magnitude() {
        let all = [0.0, 0.000_012, 0.0123, -0.5, 42.0, 475.4, 9_999.0, 12_430.0, 999_900.0, 2.5e6, 1e10].map(short);
        assert_eq!(all, ["0", "1.2e-5", "0.0123", "-0.5", "42", "475", "9,999", "12.4k", "1M", "2.5M", "10G"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(short), ["–", "–"]);
    }

    #[test]
    fn ticks_of_one_axis_read_alike() {
        let all = [0.0, 500.0, 9_000.0, 10_000.0, 2_500.0, -20_000.0, 1.5e6, 2e9, 0.02].map(tick);
        assert_eq!(all, ["0", "500", "9k", "10k", "2.5k", "-20k", "1.5M", "2G", "0.02"]);
    }

    #[test]
    fn durations_show_hours_only_when_there_are_some() {
        assert_eq!([0, 7_999, 754_000, 3_723_000].map(duration), ["0:00", "0:07", "12:34", "1:02:03"]);
    }
}
