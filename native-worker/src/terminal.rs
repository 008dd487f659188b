//! Text from files and peers, made safe for terminals.

/// Replaces control characters, which a terminal would execute, by spaces. The text stays on its line.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Replaces control characters as [`printable`] does, except line feeds and tabs.
pub(crate) fn printable_lines(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_spaces() {
        let text = "\u{1b}[2Ja\tb\r\nc\u{9b}";
        assert_eq!(printable(text), " [2Ja b  c ");
        assert_eq!(printable_lines(text), " [2Ja\tb \nc ");
    }
}
