//! Decimal numbers as written, compared exactly: no binary floating point takes part.

use std::fmt;

/// A decimal number in its shortest form: `-0.50` and `-.5` are the same value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Number {
    negative: bool,
    /// Digits before the point, without leading zeros.
    whole: String,
    /// Digits after the point, without trailing zeros.
    fraction: String,
}

impl Number {
    /// Reads a text that is one number and nothing else, white space around it aside.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut numbers = scan(text);
        match (numbers.next(), numbers.next()) {
            (Some((span, number)), None) if span == (0..text.len()) => Some(number),
            _ => None,
        }
    }

    /// The first number in a text.
    #[must_use]
    pub fn first_in(text: &str) -> Option<Self> {
        scan(text).next().map(|(_, number)| number)
    }

    /// The last number in a text.
    #[must_use]
    pub fn last_in(text: &str) -> Option<Self> {
        scan(text).last().map(|(_, number)| number)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let whole = if self.whole.is_empty() { "0" } else { &self.whole };
        match self.fraction.is_empty() {
            true => write!(f, "{sign}{whole}"),
            false => write!(f, "{sign}{whole}.{}", self.fraction),
        }
    }
}

/// Every number of a text in order, with its byte range. ASCII digits, one decimal point followed by a digit, commas
/// between groups of three digits, and a sign unless it stands after something that it could be subtracted from.
fn scan(text: &str) -> impl Iterator<Item = (std::ops::Range<usize>, Number)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let point_first = bytes[at] == b'.' && is_digit(bytes, at + 1) && (at == 0 || !is_digit(bytes, at - 1));
            if !bytes[at].is_ascii_digit() && !point_first {
                at += 1;
                continue;
            }
            let start = at;
            let mut whole = String::new();
            loop {
                if is_digit(bytes, at) {
                    whole.push(char::from(bytes[at]));
                    at += 1;
                } else if separates_thousands(bytes, start, at) {
                    at += 1;
                } else {
                    break;
                }
            }
            let mut fraction = String::new();
            if bytes.get(at) == Some(&b'.') && is_digit(bytes, at + 1) {
                at += 1;
                while is_digit(bytes, at) {
                    fraction.push(char::from(bytes[at]));
                    at += 1;
                }
            }
            let signed = start > 0 && matches!(bytes[start - 1], b'-' | b'+') && is_sign(&bytes[..start - 1]);
            let whole = whole.trim_start_matches('0').to_owned();
            let fraction = fraction.trim_end_matches('0').to_owned();
            let is_zero = whole.is_empty() && fraction.is_empty();
            let negative = signed && bytes[start - 1] == b'-' && !is_zero;
            let first = if signed { start - 1 } else { start };
            return Some((first..at, Number { negative, whole, fraction }));
        }
        None
    })
}

fn is_digit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(u8::is_ascii_digit)
}

/// A comma with one to three digits (or whole groups) before it and exactly three after it.
fn separates_thousands(bytes: &[u8], start: usize, at: usize) -> bool {
    let before = bytes[start..at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let leads = (1..=3).contains(&before) && (before == 3 || before == at - start);
    bytes.get(at) == Some(&b',')
        && leads
        && (1..=3).all(|offset| is_digit(bytes, at + offset))
        && !is_digit(bytes, at + 4)
}

/// Whether a `-` after `before` is a sign: not after a digit or a closing bracket (spaces aside), nor inside a word.
fn is_sign(before: &[u8]) -> bool {
    let inside_a_word = before.last().is_some_and(u8::is_ascii_alphabetic);
    let operand = before.iter().rfind(|byte| **byte != b' ');
    !inside_a_word && !operand.is_some_and(|byte| byte.is_ascii_digit() || b")]}".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_equal_however_they_are_written() {
        for (a, b) in [("7", "07.00"), ("-0.50", "-.5"), ("0", "-0"), ("1,234,567", "1234567"), ("+3", "3")] {
            assert_eq!(Number::parse(a).unwrap(), Number::parse(b).unwrap(), "{a} and {b}");
        }
        for (a, b) in [("7", "70"), ("5", "-5"), ("0.1", "0.10000000000000001"), ("1.5", "15")] {
            assert_ne!(Number::parse(a).unwrap(), Number::parse(b).unwrap(), "{a} and {b}");
        }
    }

    #[test]
    fn only_a_whole_number_parses() {
        for text in ["", "seven", "7 apples", "3 4", "1.2.3", "5-3", "-"] {
            assert_eq!(Number::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_minus_is_a_sign_only_where_nothing_is_subtracted_from() {
        let last = |text| Number::last_in(text).map(|number| number.to_string());
        assert_eq!(last("5-3").as_deref(), Some("3"));
        assert_eq!(last("(2)-3").as_deref(), Some("3"));
        assert_eq!(last("2 - 3").as_deref(), Some("3"));
        assert_eq!(last("is -3").as_deref(), Some("-3"));
        assert_eq!(last("=-3").as_deref(), Some("-3"));
        assert_eq!(last("4*-3").as_deref(), Some("-3"));
        assert_eq!(last("no number"), None);
    }

    #[test]
    fn commas_join_thousands_and_separate_lists() {
        let all = |text: &str| scan(text).map(|(_, number)| number.to_string()).collect::<Vec<_>>();
        assert_eq!(all("1,234 and 12,345.60"), ["1234", "12345.6"]);
        assert_eq!(all("1,2,3"), ["1", "2", "3"]);
        assert_eq!(all("1,2345"), ["1", "2345"]);
        assert_eq!(all("costs 3. Then 4"), ["3", "4"]);
    }
}
