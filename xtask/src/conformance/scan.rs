//! Finds tags in sources and in prose.

const TAG: &str = "/// Conformance:";

/// A tag of a test that covers a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub id: String,
    pub test: String,
    /// The position of the tag.
    pub line: usize,
}

/// Returns the tags of a source, and problems of invalid tags, as `line: problem`.
///
/// A tag is a doc line in the documentation and attributes of one function, of which one attribute must make it a test.
pub(super) fn tags(source: &str) -> (Vec<Tag>, Vec<String>) {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let (mut tags, mut problems) = (Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let Some(ids) = line.strip_prefix(TAG) else {
            continue;
        };
        let number = index + 1;
        let Some(function) = function_below(&lines, index) else {
            problems.push(format!("{number}: the tag does not belong to a function"));
            continue;
        };
        if !is_test(&lines, index, function.0) {
            problems.push(format!("{number}: `{}` is not a test", function.1));
            continue;
        }
        for id in ids.split(',').map(str::trim) {
            tags.push(Tag {
                id: id.to_owned(),
                test: function.1.to_owned(),
                line: number,
            });
        }
    }
    (tags, problems)
}

/// Returns the line and name of the function that the documentation at `index` belongs to.
fn function_below<'a>(lines: &[&'a str], index: usize) -> Option<(usize, &'a str)> {
    let mut depth = 0_usize;
    for (number, line) in lines.iter().enumerate().skip(index + 1) {
        // An attribute may span several lines.
        if depth > 0 || line.starts_with("#[") {
            depth = (depth + line.matches('[').count()).saturating_sub(line.matches(']').count());
            continue;
        }
        if line.starts_with("//") {
            continue;
        }
        let mut words = line
            .split_whitespace()
            .skip_while(|word| ["pub", "pub(crate)", "async", "const"].contains(word));
        return match (words.next(), words.next()) {
            (Some("fn"), Some(rest)) => {
                Some((number, rest.split(['(', '<']).next().unwrap_or(rest)))
            }
            _ => None,
        };
    }
    None
}

/// Whether one of the attributes around the tag makes the function a test: `#[test]`, `#[tokio::test(…)]`.
fn is_test(lines: &[&str], tag: usize, function: usize) -> bool {
    let belongs =
        |line: &&&str| line.starts_with("///") || line.starts_with("#[") || line.starts_with("//");
    let above = lines[..tag].iter().rev().take_while(belongs);
    let below = lines[tag..function].iter();
    above
        .chain(below)
        .filter_map(|line| line.strip_prefix("#["))
        .any(|attribute| {
            let path = attribute.split(['(', ']']).next().unwrap_or(attribute);
            path.rsplit("::").next() == Some("test")
        })
}

/// Returns the tags of a text, with their line numbers: ids of these catalogues in brackets, several separated by commas.
pub(super) fn difference_tags(text: &str, catalogues: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for bracket in line
            .split('[')
            .skip(1)
            .filter_map(|rest| rest.split_once(']'))
            .map(|(inside, _)| inside)
        {
            for id in bracket.split(',').map(str::trim) {
                if catalogues.iter().any(|catalogue| {
                    id.strip_prefix(catalogue)
                        .is_some_and(|rest| rest.starts_with('-'))
                }) {
                    found.push((index + 1, id.to_owned()));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(source: &str) -> (Vec<String>, Vec<String>) {
        let (tags, problems) = tags(&source.replace("TAG", "Conformance"));
        (
            tags.into_iter()
                .map(|tag| format!("{} {}", tag.id, tag.test))
                .collect(),
            problems,
        )
    }

    #[test]
    fn a_tag_belongs_to_the_test_below_it() {
        let source = "
            /// Words.
            /// TAG: XYZ-1, XYZ-2
            /// More words.
            #[tokio::test(
                start_paused = true,
            )]
            #[expect(clippy::x, reason = \"y\")]
            // A comment.
            async fn one() {}

            proptest! {
                #[test]
                /// TAG: XYZ-3
                fn two(a in 0..3) {}
            }";
        assert_eq!(
            scanned(source),
            (
                vec!["XYZ-1 one".into(), "XYZ-2 one".into(), "XYZ-3 two".into()],
                vec![]
            )
        );
    }

    #[test]
    fn a_tag_elsewhere_is_a_problem() {
        assert_eq!(
            scanned("/// TAG: XYZ-1\nstruct A;").1,
            ["1: the tag does not belong to a function"]
        );
        assert_eq!(
            scanned("#[test]\nfn a() {}\n/// TAG: XYZ-1\nfn b() {}").1,
            ["3: `b` is not a test"]
        );
        assert_eq!(
            scanned("/// TAG: XYZ-1\n#[cfg(test)]\nfn b() {}").1,
            ["1: `b` is not a test"]
        );
    }

    #[test]
    fn only_ids_of_catalogues_are_tags_of_a_text() {
        let text = "a [link](x) [XYZ-1, XYZ-2]\n[not] [XYZ] [XYZA-1] b [XYZ-aws-03]";
        let expected =
            [(1, "XYZ-1"), (1, "XYZ-2"), (2, "XYZ-aws-03")].map(|(line, id)| (line, id.to_owned()));
        assert_eq!(difference_tags(text, &["XYZ"]), expected);
    }
}
