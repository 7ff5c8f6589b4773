//! From selector terms to the questions asked of EC2.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_core::requirements::{Requirement, Requirements};

use super::Parameter;
use crate::api::{Alias, AmiSelectorTerm};

/// A filter of a describe call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The filter's name, such as `image-id` or `tag:Name`.
    pub name: String,
    /// Any of these.
    pub values: Vec<String>,
}

impl Filter {
    /// A filter with one value.
    #[must_use]
    pub fn one(name: impl Into<String>, value: impl Into<String>) -> Filter {
        Filter {
            name: name.into(),
            values: vec![value.into()],
        }
    }

    /// The filter of one tag; `*` admits every value.
    #[must_use]
    pub fn tag(key: &str, value: &str) -> Filter {
        if value == "*" {
            Filter::one("tag-key", key)
        } else {
            Filter::one(format!("tag:{key}"), value)
        }
    }
}

/// One describe call for images.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageQuery {
    /// All must hold.
    pub filters: Vec<Filter>,
    /// Accounts, or `self` and `amazon`; empty for all that share with us.
    pub owners: Vec<String>,
    /// Image id to the kinds of machines it is meant for, where more is known than the image's architecture.
    pub known: BTreeMap<String, Vec<Requirements>>,
}

impl ImageQuery {
    fn of_ids(ids: impl IntoIterator<Item = String>) -> Option<ImageQuery> {
        let ids: BTreeSet<String> = ids.into_iter().collect();
        (!ids.is_empty()).then(|| ImageQuery {
            filters: vec![Filter {
                name: "image-id".to_owned(),
                values: ids.into_iter().collect(),
            }],
            ..ImageQuery::default()
        })
    }

    /// The query of an alias whose parameters have been read: which images, and for which machines.
    ///
    /// `None` if not one of them exists.
    #[must_use]
    pub fn of_parameters<'a>(
        found: impl IntoIterator<Item = (&'a Parameter, String)>,
    ) -> Option<ImageQuery> {
        let mut known: BTreeMap<String, Vec<Requirements>> = BTreeMap::new();
        for (parameter, image) in found {
            known.entry(image).or_default().extend(
                parameter
                    .variants
                    .iter()
                    .map(|variant| variant.requirements()),
            );
        }
        let query = ImageQuery::of_ids(known.keys().cloned())?;
        Some(ImageQuery { known, ..query })
    }

    /// The kinds of machines an image of this architecture (in Kubernetes' names) is meant for.
    #[must_use]
    pub fn requirements(&self, image: &str, architecture: &str) -> Vec<Requirements> {
        let unknown = || vec![Requirements::new()];
        let mut sets = self.known.get(image).cloned().unwrap_or_else(unknown);
        for set in &mut sets {
            set.add(Requirement::equal("kubernetes.io/arch", architecture));
        }
        sets
    }
}

/// The queries of a node class without an alias: one for all images known by id, one for each other term.
///
/// `parameter` gives the image id a parameter holds; what gives none is left out.
// UPSTREAM: DefaultProvider.DescribeImageQueries
#[must_use]
pub fn queries<'a>(
    terms: impl IntoIterator<Item = &'a AmiSelectorTerm>,
    parameter: impl Fn(&str) -> Option<String>,
) -> Vec<ImageQuery> {
    let mut ids = BTreeSet::new();
    let mut queries = Vec::new();
    for term in terms {
        if let Some(id) = set(&term.id) {
            ids.insert(id.to_owned());
        } else if let Some(name) = set(&term.ssm_parameter) {
            ids.extend(parameter(name).filter(|value| value.starts_with("ami-")));
        } else {
            queries.push(of_term(term));
        }
    }
    ImageQuery::of_ids(ids).into_iter().chain(queries).collect()
}

/// The API does not tell empty from absent.
fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn of_term(term: &AmiSelectorTerm) -> ImageQuery {
    let owners = match (set(&term.owner), set(&term.name)) {
        (Some(owner), _) => vec![owner.to_owned()],
        // By name alone, anybody's public image could be meant.
        (None, Some(_)) => vec!["self".to_owned(), "amazon".to_owned()],
        (None, None) => Vec::new(),
    };
    let name = set(&term.name).map(|name| Filter::one("name", name));
    let tags = term.tags.iter().flatten();
    let tags = tags.map(|(key, value)| Filter::tag(key, value));
    ImageQuery {
        filters: name.into_iter().chain(tags).collect(),
        owners,
        known: BTreeMap::new(),
    }
}

/// The version of Bottlerocket a node class means, as far as it shows: `latest`, `v1.46.0`, or `None`.
///
/// `images` are the resolved ones, id and name.
// UPSTREAM: pkg/providers/amifamily/bottlerocket.go resolveAMIVersion
#[must_use]
pub fn bottlerocket_version<'a>(
    alias: Option<&'a Alias>,
    terms: &'a [AmiSelectorTerm],
    images: &[(&'a str, &'a str)],
) -> Option<&'a str> {
    if let Some(alias) = alias {
        return Some(&alias.version);
    }
    let named = terms
        .iter()
        .find_map(|term| version_in(term.name.as_deref()?));
    let by_id = || {
        terms.iter().find_map(|term| {
            let id = term.id.as_deref()?;
            let (_, name) = images.iter().find(|(image, _)| *image == id)?;
            version_in(name)
        })
    };
    named
        .or_else(by_id)
        .or_else(|| images.iter().find_map(|(_, name)| version_in(name)))
}

/// The part of an image name such as `bottlerocket-aws-k8s-1.33-x86_64-v1.46.0-431fe75a` that is a version.
fn version_in(name: &str) -> Option<&str> {
    name.split('-')
        .find(|token| token.starts_with('v') && token.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Variant;

    fn named(name: &str) -> AmiSelectorTerm {
        AmiSelectorTerm {
            name: Some(name.to_owned()),
            ..AmiSelectorTerm::default()
        }
    }

    fn tags(pairs: &[(&str, &str)]) -> AmiSelectorTerm {
        AmiSelectorTerm {
            tags: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..AmiSelectorTerm::default()
        }
    }

    /// Conformance: AWS-ami-02
    #[test]
    fn only_names_restrict_the_owner_unasked() {
        let owned = AmiSelectorTerm {
            owner: Some("123456789012".to_owned()),
            ..tags(&[("team", "a")])
        };
        let terms = [named("my-*"), tags(&[("team", "a")]), owned];
        let owners: Vec<Vec<String>> = queries(&terms, |_| None)
            .into_iter()
            .map(|query| query.owners)
            .collect();
        assert_eq!(
            owners,
            [
                vec!["self".to_owned(), "amazon".to_owned()],
                vec![],
                vec!["123456789012".to_owned()]
            ]
        );
    }

    #[test]
    fn tags_of_one_term_all_hold_and_terms_are_alternatives() {
        let filter = |key: &str, value: &str| Filter::one(format!("tag:{key}"), value);
        let both = queries(&[tags(&[("a", "1"), ("b", "2"), ("c", "*")])], |_| None);
        assert_eq!(
            both[0].filters,
            [
                filter("a", "1"),
                filter("b", "2"),
                Filter::one("tag-key", "c")
            ]
        );
        let either = queries(&[tags(&[("a", "1")]), tags(&[("b", "2")])], |_| None);
        assert_eq!(either.len(), 2);
    }

    #[test]
    fn ids_and_parameters_share_a_query_and_bad_parameters_are_left_out() {
        let id = |id: &str| AmiSelectorTerm {
            id: Some(id.to_owned()),
            ..AmiSelectorTerm::default()
        };
        let parameter = |name: &str| AmiSelectorTerm {
            ssm_parameter: Some(name.to_owned()),
            ..AmiSelectorTerm::default()
        };
        let terms = [
            id("ami-2"),
            parameter("/a"),
            parameter("/missing"),
            parameter("/odd"),
            id("ami-1"),
        ];
        let found = queries(&terms, |name| match name {
            "/a" => Some("ami-3".to_owned()),
            "/odd" => Some("nothing like an image".to_owned()),
            _ => None,
        });
        assert_eq!(
            found,
            [ImageQuery {
                filters: vec![Filter {
                    name: "image-id".to_owned(),
                    values: vec!["ami-1".to_owned(), "ami-2".to_owned(), "ami-3".to_owned()],
                }],
                ..ImageQuery::default()
            }]
        );
        assert_eq!(queries(&[parameter("/missing")], |_| None), []);
    }

    #[test]
    fn one_image_may_serve_several_kinds_of_machines() {
        let parameter = Parameter {
            name: "/gpu".to_owned(),
            variants: vec![Variant::Neuron, Variant::Nvidia],
        };
        let query = ImageQuery::of_parameters([(&parameter, "ami-1".to_owned())]).unwrap();
        let sets: Vec<String> = query
            .requirements("ami-1", "amd64")
            .iter()
            .map(|set| set.display(|_| false))
            .collect();
        insta::assert_debug_snapshot!(sets, @r#"
        [
            "karpenter.k8s.aws/instance-accelerator-count Exists, kubernetes.io/arch In [amd64]",
            "karpenter.k8s.aws/instance-gpu-count Exists, kubernetes.io/arch In [amd64]",
        ]
        "#);
        assert_eq!(query.requirements("ami-2", "arm64").len(), 1);
        assert_eq!(ImageQuery::of_parameters([]), None);
    }

    #[test]
    fn the_version_of_bottlerocket_is_looked_for_where_it_may_stand() {
        let name = "bottlerocket-aws-k8s-1.33-x86_64-v1.46.0-431fe75a";
        let images = [
            ("ami-1", "bottlerocket-aws-k8s-1.30-arm64-v2.0.1-def456"),
            ("ami-2", "bottlerocket-aws-k8s-1.33-x86_64-v1.47.0-abc123"),
        ];
        let alias = Alias::parse("bottlerocket@v1.45.0").unwrap();
        let id = AmiSelectorTerm {
            id: Some("ami-2".to_owned()),
            ..AmiSelectorTerm::default()
        };
        assert_eq!(
            bottlerocket_version(Some(&alias), &[], &images),
            Some("v1.45.0")
        );
        assert_eq!(
            bottlerocket_version(None, &[named(name)], &images),
            Some("v1.46.0")
        );
        assert_eq!(bottlerocket_version(None, &[id], &images), Some("v1.47.0"));
        assert_eq!(
            bottlerocket_version(None, &[tags(&[("a", "b")])], &images),
            Some("v2.0.1")
        );
        assert_eq!(bottlerocket_version(None, &[named("mine")], &[]), None);
    }
}
