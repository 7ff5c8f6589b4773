//! Colors: eks-node-viewer's three, for good, fair and bad; none with `NO_COLOR`.

use std::fmt::Write as _;
use std::str::FromStr;

use super::view::{Line, Look};

/// A color in hexadecimal digits: `#04B575`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rgb(u8, u8, u8);

/// The colors of good, fair and bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    good: Rgb,
    fair: Rgb,
    bad: Rgb,
}

impl FromStr for Style {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be three colors, as #04B575,#FFFF00,#FF0000".to_owned();
        let color = |text: &str| {
            let digits = text
                .trim()
                .strip_prefix('#')
                .filter(|it| it.len() == 6 && it.is_ascii())?;
            let part = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
            Some(Rgb(part(0)?, part(2)?, part(4)?))
        };
        let colors: Option<Vec<Rgb>> = text.split(',').map(color).collect();
        match colors.as_deref() {
            Some(&[good, fair, bad]) => Ok(Self { good, fair, bad }),
            _ => Err(wrong()),
        }
    }
}

/// Writes lines for a terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Painter {
    /// `None`: without colors.
    style: Option<Style>,
    /// Whether the selected line is marked.
    marks: bool,
}

impl Painter {
    pub(super) fn of_screen(style: Style) -> Self {
        Self {
            style: Some(style).filter(|_| colored()),
            marks: true,
        }
    }

    /// For standard output, which may be no terminal.
    pub(super) fn of_output(style: Style, is_terminal: bool) -> Self {
        Self {
            style: Some(style).filter(|_| is_terminal && colored()),
            marks: false,
        }
    }

    /// Returns a line as text with control sequences.
    pub(super) fn paint(&self, line: &Line) -> String {
        let mut text = String::new();
        for (part, look) in line {
            let rgb = |Rgb(r, g, b): Rgb| format!("38;2;{r};{g};{b}");
            let code = match (look, &self.style) {
                (Look::Selected, _) if self.marks => "7".to_owned(),
                (_, None) | (Look::Plain | Look::Selected, _) => String::new(),
                (Look::Dim, _) => "2".to_owned(),
                (Look::Good, Some(style)) => rgb(style.good),
                (Look::Ok, Some(style)) => rgb(style.fair),
                (Look::Bad, Some(style)) => rgb(style.bad),
            };
            if code.is_empty() {
                text.push_str(part);
            } else {
                let _ = write!(text, "\u{1b}[{code}m{part}\u{1b}[0m");
            }
        }
        text
    }
}

fn colored() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_colors_are_a_style_and_nothing_else_is() {
        let style: Style = "#04B575,#FFFF00,#FF0000".parse().unwrap();
        assert_eq!(style.good, Rgb(4, 0xb5, 0x75));
        for invalid in [
            "",
            "#04B575",
            "red,green,blue",
            "#04B575,#FFFF00,#FF00",
            "#ä4B57,#FFFF00,#FF0000",
        ] {
            assert!(invalid.parse::<Style>().is_err(), "{invalid}");
        }
        let line = vec![("a".to_owned(), Look::Good), ("b".to_owned(), Look::Plain)];
        let painter = |style, marks| Painter { style, marks };
        assert_eq!(painter(None, false).paint(&line), "ab");
        assert_eq!(
            painter(Some(style), false).paint(&line),
            "\u{1b}[38;2;4;181;117ma\u{1b}[0mb"
        );
    }
}
