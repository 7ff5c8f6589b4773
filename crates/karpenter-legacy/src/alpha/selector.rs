//! Converts selector maps of v1alpha1 into lists of terms.
//!
//! All entries of a map are ANDed, and a value with commas matches any of its parts; terms are ORed. So a map becomes the
//! product of its alternatives:
//!
//! 1. With ids (`aws-ids`, `aws::ids`) there is one term for each id, and other entries are ignored.
//! 2. Else one term for each combination of an alternative of every tag, a name (`aws::name`) and an owner (`aws::owners`).
//!
//! Names and owners are special in the selector of images only. Terms come in the order of keys, then of alternatives.
//! DIFFERS: upstream's converter leaves commas in the values of tags, which later releases no longer split.

use std::collections::BTreeMap;

/// The most terms that v1 allows.
pub const MAX_TERMS: usize = 30;

const IDS: [&str; 2] = ["aws-ids", "aws::ids"];
const NAME: &str = "aws::name";
const OWNERS: &str = "aws::owners";

/// One term. Its fields are ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Term {
    pub id: Option<String>,
    /// The name; of images only.
    pub name: Option<String>,
    /// The owner; of images only.
    pub owner: Option<String>,
    pub tags: BTreeMap<String, String>,
}

/// The terms of a selector and its ignored keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub terms: Vec<Term>,
    /// Keys that are ignored because of ids.
    pub ignored: Vec<String>,
}

/// The error of a selector that cannot be converted into terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// v1 allows fewer terms.
    #[error("the comma lists expand to {0} terms; v1 allows {MAX_TERMS}")]
    TooMany(usize),
    /// An entry without a value.
    #[error("the value of `{0}` is empty")]
    EmptyValue(String),
    /// Images cannot be selected by their owner alone.
    #[error("owners select nothing without names or tags")]
    OwnersAlone,
}

impl SelectorError {
    /// Returns the fix for the user.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::TooMany(_) => {
                "select by one tag that all of them share, or split the object into several"
            }
            Self::EmptyValue(_) => "use `*` for any value, or remove the entry",
            Self::OwnersAlone => "add `aws::name` or a tag",
        }
    }
}

/// Expands a selector into terms; `images` is whether names and owners are special.
///
/// # Errors
/// Returns an error if it has no terms that v1 allows.
pub fn expand(selector: &BTreeMap<String, String>, images: bool) -> Result<Terms, SelectorError> {
    let is_id = |key: &str| IDS.contains(&key);
    let mut ids = Vec::new();
    for (_, value) in selector.iter().filter(|(key, _)| is_id(key)) {
        ids.extend(parts(value).map(str::to_owned));
    }
    if !ids.is_empty() {
        if ids.len() > MAX_TERMS {
            return Err(SelectorError::TooMany(ids.len()));
        }
        let by_id = |id| Term {
            id: Some(id),
            ..Term::default()
        };
        return Ok(Terms {
            terms: ids.into_iter().map(by_id).collect(),
            ignored: selector.keys().filter(|k| !is_id(k)).cloned().collect(),
        });
    }
    let alternatives = selector
        .iter()
        .map(|(key, value)| {
            let values: Vec<&str> = parts(value).collect();
            match values.is_empty() {
                true => Err(SelectorError::EmptyValue(key.clone())),
                false => Ok((key.as_str(), values)),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let special = |key: &str| images && (key == NAME || key == OWNERS);
    if images && !selector.is_empty() && selector.keys().all(|key| key == OWNERS) {
        return Err(SelectorError::OwnersAlone);
    }
    let count = alternatives
        .iter()
        .fold(1_usize, |n, (_, values)| n.saturating_mul(values.len()));
    if count > MAX_TERMS {
        return Err(SelectorError::TooMany(count));
    }
    // Tags vary slowest, then names, then owners.
    let (tags, mut rest): (Vec<_>, Vec<_>) =
        alternatives.into_iter().partition(|(key, _)| !special(key));
    rest.sort_by_key(|(key, _)| *key != NAME);
    let mut terms = vec![Term::default()];
    for (key, values) in tags.into_iter().chain(rest) {
        let with = |term: &Term, value: &str| {
            let (mut term, value) = (term.clone(), value.to_owned());
            match key {
                NAME if images => term.name = Some(value),
                OWNERS if images => term.owner = Some(value),
                _ => {
                    term.tags.insert(key.to_owned(), value);
                }
            }
            term
        };
        terms = terms
            .iter()
            .flat_map(|term| values.iter().map(move |value| with(term, value)))
            .collect();
    }
    if selector.is_empty() {
        terms.clear();
    }
    Ok(Terms {
        terms,
        ignored: Vec::new(),
    })
}

fn parts(value: &str) -> impl Iterator<Item = &str> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn text(term: &Term) -> String {
        let optional = |key: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{key}={value}"))
        };
        let tags = term.tags.iter().map(|(k, v)| format!("{k}:{v}"));
        let all = [
            optional("id", &term.id),
            optional("name", &term.name),
            optional("owner", &term.owner),
        ];
        all.into_iter()
            .flatten()
            .chain(tags)
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn expanded(entries: &[(&str, &str)]) -> Vec<String> {
        let terms = expand(&map(entries), true).unwrap().terms;
        terms.iter().map(text).collect()
    }

    /// Conformance: AWS-legacy-02
    #[test]
    fn ids_are_a_term_each() {
        let wanted = ["id=subnet-1", "id=subnet-2"];
        assert_eq!(expanded(&[("aws::ids", "subnet-1, subnet-2")]), wanted);
        assert_eq!(expanded(&[("aws-ids", " subnet-1,subnet-2,")]), wanted);
    }

    /// Conformance: AWS-legacy-02
    #[test]
    fn names_and_owners_multiply() {
        assert_eq!(
            expanded(&[("aws::name", "a,b"), ("aws::owners", "123,amazon")]),
            [
                "name=a owner=123",
                "name=a owner=amazon",
                "name=b owner=123",
                "name=b owner=amazon"
            ]
        );
    }

    /// Conformance: AWS-legacy-02
    #[test]
    fn tags_with_commas_multiply() {
        assert_eq!(
            expanded(&[("env", "x,y"), ("team", "t")]),
            ["env:x team:t", "env:y team:t"]
        );
        assert_eq!(expanded(&[("Name", "*")]), ["Name:*"]);
    }

    #[test]
    fn a_tag_with_the_key_of_a_name_is_a_tag_outside_of_images() {
        let terms = expand(&map(&[("aws::name", "a")]), false).unwrap().terms;
        assert_eq!(text(&terms[0]), "aws::name:a");
    }

    #[test]
    fn other_keys_are_ignored_next_to_ids() {
        let terms = expand(&map(&[("aws-ids", "sg-1"), ("env", "x")]), false).unwrap();
        assert_eq!(terms.ignored, ["env"]);
        assert_eq!(terms.terms.len(), 1);
    }

    #[test]
    fn selectors_that_v1_does_not_allow_are_rejected() {
        let thirty = "a,b,c,d,e";
        let six = "1,2,3,4,5,6";
        assert_eq!(expanded(&[("x", thirty), ("y", six)]).len(), 30);
        let seven = format!("{six},7");
        assert_eq!(
            expand(&map(&[("x", thirty), ("y", &seven)]), false),
            Err(SelectorError::TooMany(35))
        );
        let huge = "a,".repeat(70_000);
        let entries: Vec<(String, String)> =
            (0..9).map(|n| (n.to_string(), huge.clone())).collect();
        assert!(matches!(
            expand(&entries.into_iter().collect(), false),
            Err(SelectorError::TooMany(_))
        ));
        assert_eq!(
            expand(&map(&[("aws-ids", &"i,".repeat(31))]), false),
            Err(SelectorError::TooMany(31))
        );
        assert_eq!(
            expand(&map(&[("env", " , ")]), false),
            Err(SelectorError::EmptyValue("env".into()))
        );
        assert_eq!(
            expand(&map(&[("aws::owners", "self")]), true),
            Err(SelectorError::OwnersAlone)
        );
        assert_eq!(expand(&map(&[]), true).unwrap().terms, []);
    }
}
