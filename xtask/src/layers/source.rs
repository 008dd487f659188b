//! Rust source reduced to the code that is shipped: comments, literals and tests become blanks, so that
//! a plain text search finds code only. Line breaks stay where they are.

/// The shipped code of a source file.
pub(super) struct Code {
    pub(super) text: String,
    /// Modules declared for tests only: `#[cfg(test)] mod NAME;`.
    pub(super) test_modules: Vec<String>,
}

pub(super) fn shipped_code(source: &str) -> Code {
    without_tests(without_comments_and_literals(source))
}

/// Returns the line, from 1, of a byte offset.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    1 + text[..offset].bytes().filter(|byte| *byte == b'\n').count()
}

fn without_comments_and_literals(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let after_word = code.ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' if !after_word => raw_string(rest),
            // A byte string is a `b` and a string.
            '\'' => char_literal(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            blank(&mut code, &rest[..skipped]);
            rest = &rest[skipped..];
        }
    }
    code
}

fn blank(code: &mut String, text: &str) {
    code.extend(text.chars().map(|char| if char == '\n' { '\n' } else { ' ' }));
}

/// Returns the length of the block comment at the start of `rest`; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, char) in rest.char_indices().skip(1) {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of the raw string at the start of `rest`, or 0 if this `r` starts something else.
fn raw_string(rest: &str) -> usize {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = 1 + hashes;
    if !rest[body..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[body + 1..].find(&end).map_or(rest.len(), |at| body + 1 + at + end.len())
}

/// Returns the length of the character literal at the start of `rest`, or 0 if this quote starts a lifetime.
fn char_literal(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => chars.find(|(_, char)| *char == '\'').map_or(0, |(at, _)| at + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

fn without_tests(mut text: String) -> Code {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let mut test_modules = Vec::new();
    while let Some(start) = text.find(ATTRIBUTE) {
        let end = start + item_length(&text[start..]);
        let item = &text[start + ATTRIBUTE.len()..end];
        let declared =
            item.trim().trim_start_matches("pub ").strip_prefix("mod ").and_then(|item| item.strip_suffix(';'));
        test_modules.extend(declared.map(|name| name.trim().to_owned()));
        let mut blanks = String::new();
        blank(&mut blanks, &text[start..end]);
        text.replace_range(start..end, &blanks);
    }
    Code { text, test_modules }
}

/// Returns the length of the item at the start of `text`, attributes included: to its semicolon or closing brace.
fn item_length(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, char) in text.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        shipped_code(source).text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(words("a // std::b\n/* c /* d */ e */ f"), ["a", "f"]);
        assert_eq!(words(r##"a("x \" y") b(r#"z " z"#) c"##), ["a(", ")", "b(", ")", "c"]);
        assert_eq!(words("fn a<'x>(b: &'x str) { c('\\''); d('\"'); e }").last().unwrap(), "}");
        assert!(words("f('\"'); g").contains(&"g".to_owned()));
        assert_eq!(words("for r in rows {}"), ["for", "r", "in", "rows", "{}"]);
    }

    #[test]
    fn tests_are_no_shipped_code() {
        let code = shipped_code("a\n#[cfg(test)]\nmod tests {\n fn b() { c }\n}\nd\n#[cfg(test)]\nmod laws;\ne\n");
        assert_eq!(code.text.split_whitespace().collect::<Vec<_>>(), ["a", "d", "e"]);
        assert_eq!(code.test_modules, ["laws"]);
        assert_eq!(line_at(&code.text, code.text.find('e').unwrap()), 9);
    }

    #[test]
    fn blanks_keep_lines_apart() {
        let source = "a\n\"two\nlines\"\nb";
        let code = shipped_code(source).text;
        assert_eq!(line_at(&code, code.find('b').unwrap()), 4);
    }
}
