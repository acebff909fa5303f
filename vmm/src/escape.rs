//! Text of others, made harmless for a terminal.
//!
//! A client, a guest, the author of a machine file and whoever listens at a control socket can put
//! control sequences into texts that this program prints. All that it prints itself passes through
//! here: its messages, its results and its log. Output of programs and guests that it passes on
//! stays as it is.

use std::borrow::Cow;

/// Returns whether a terminal may act on a character instead of showing it.
fn is_harmful(character: char) -> bool {
    // The others set the direction of the text after them, or end a line.
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a text with escapes for all characters that a terminal may act on, and that `is_kept`
/// does not keep. An escape such as `\u001b` means the same within a string of JSON.
fn replace(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_replaced = |character| is_harmful(character) && !is_kept(character);
    if !text.contains(is_replaced) {
        return Cow::Borrowed(text);
    }

    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' if is_replaced('\n') => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' if is_replaced('\t') => escaped.push_str("\\t"),
            character if is_replaced(character) => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            character => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Returns a text in one line with escapes for line ends, tabs and control characters.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replace(text, |_| false)
}

/// Replaces a text by that of [`one_line`].
pub fn put_in_one_line(text: &mut String) {
    if let Cow::Owned(escaped) = one_line(text) {
        *text = escaped;
    }
}

/// Returns a text with escapes for control characters. Line ends and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(text, |character| matches!(character, '\n' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_escaped_and_other_text_is_borrowed() {
        assert!(matches!(one_line("io0 │ ä 1.5 µs"), Cow::Borrowed("io0 │ ä 1.5 µs")));
        assert!(matches!(lines("one\n\ttwo"), Cow::Borrowed("one\n\ttwo")));
        assert_eq!(one_line("a\x1b[2J\x07\r\n\tb"), "a\\u001b[2J\\u0007\\r\\n\\tb");
        assert_eq!(lines("a\x1b[2J\r\n\tb"), "a\\u001b[2J\\r\n\tb");
        assert_eq!(one_line("\u{9b}2J\x7f\u{202e}abc"), "\\u009b2J\\u007f\\u202eabc");
    }

    #[test]
    fn escapes_keep_the_meaning_of_json() {
        let value = serde_json::json!({ "name": "a\u{9b}2J\x7f\u{202e}\n\x1b" });
        let text = value.to_string();
        let escaped = lines(&text);
        assert_ne!(escaped, text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
