//! Patterns with `*` and `?`, as in EC2's filters and IAM's policies.

/// Returns whether `text` matches `pattern`: `*` is any run of characters, `?` any character, `\` escapes the next
/// character.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['*', '?', '\\']) {
        return pattern == text;
    }
    let pattern = tokens(pattern);
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to resume after the last `*`, and how much of the text it has matched.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(Token::Many) => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(Token::One) => {
                p += 1;
                t += 1;
            }
            Some(Token::Char(c)) if *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((resume, swallowed)) => {
                    star = Some((resume, swallowed + 1));
                    p = resume;
                    t = swallowed + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..]
        .iter()
        .all(|token| matches!(token, Token::Many))
}

enum Token {
    Many,
    One,
    Char(char),
}

fn tokens(pattern: &str) -> Vec<Token> {
    let mut chars = pattern.chars();
    let mut out = Vec::new();
    while let Some(c) = chars.next() {
        out.push(match c {
            '*' => Token::Many,
            '?' => Token::One,
            '\\' => Token::Char(chars.next().unwrap_or('\\')),
            c => Token::Char(c),
        });
    }
    out
}
