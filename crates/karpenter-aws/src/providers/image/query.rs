//! Translation of AMI selector terms into DescribeImages queries.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::Filter;
use karpenter_core::requirements::{Requirement, Requirements};

use super::Parameter;
use crate::api::{Alias, AmiSelectorTerm};
use crate::sdk::terms::{filter, tag_filters};

/// One DescribeImages query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageQuery {
    /// Filters of the query; all must match.
    pub filters: Vec<Filter>,
    /// Account IDs, `self` or `amazon`; empty for all owners whose AMIs are visible.
    pub owners: Vec<String>,
    /// Requirements by AMI ID, where more is known about an AMI than its architecture.
    pub known: BTreeMap<String, Vec<Requirements>>,
}

impl ImageQuery {
    /// Creates the query of AMIs by ID; `None` without IDs.
    pub(super) fn of_ids<'a>(ids: impl IntoIterator<Item = &'a str>) -> Option<ImageQuery> {
        let ids: BTreeSet<&str> = ids.into_iter().collect();
        (!ids.is_empty()).then(|| ImageQuery {
            filters: vec![filter("image-id", ids)],
            ..ImageQuery::default()
        })
    }

    /// Creates the query of an alias from the values of its parameters, with the variants of each AMI.
    ///
    /// Returns `None` if none of the parameters exists.
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
        let query = ImageQuery::of_ids(known.keys().map(String::as_str))?;
        Some(ImageQuery { known, ..query })
    }

    /// Returns the sets of requirements for an AMI of this architecture (in Kubernetes' terms).
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

/// Returns the queries of a node class without an alias: one for all AMIs selected by ID, one for each other term.
///
/// `parameter` returns the AMI ID that an SSM parameter holds; terms whose parameter has none are left out.
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
    let by_id = ImageQuery::of_ids(ids.iter().map(String::as_str));
    by_id.into_iter().chain(queries).collect()
}

/// The API does not distinguish empty from absent.
fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn of_term(term: &AmiSelectorTerm) -> ImageQuery {
    let owners = match (set(&term.owner), set(&term.name)) {
        (Some(owner), _) => vec![owner.to_owned()],
        // A name alone would also match public AMIs of other accounts.
        (None, Some(_)) => vec!["self".to_owned(), "amazon".to_owned()],
        (None, None) => Vec::new(),
    };
    let name = set(&term.name).map(|name| filter("name", [name]));
    let tags = term.tags.as_ref().map(tag_filters).unwrap_or_default();
    ImageQuery {
        filters: name.into_iter().chain(tags).collect(),
        owners,
        known: BTreeMap::new(),
    }
}

/// Returns the version of Bottlerocket that a node class boots, as far as it is visible: `latest`, `v1.46.0`, or
/// `None`.
///
/// `images` are the IDs and names of the resolved AMIs.
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

/// Returns the version in an AMI name such as `bottlerocket-aws-k8s-1.33-x86_64-v1.46.0-431fe75a`.
fn version_in(name: &str) -> Option<&str> {
    name.split('-')
        .find(|token| token.starts_with('v') && token.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::image::Variant;

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
    fn only_names_restrict_the_owner_by_default() {
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

    /// Conformance: AWS-api-29
    #[test]
    fn tags_of_one_term_are_anded_and_terms_are_ored() {
        let both = queries(&[tags(&[("a", "1"), ("b", "2"), ("c", "*")])], |_| None);
        assert_eq!(
            both[0].filters,
            [
                filter("tag:a", ["1"]),
                filter("tag:b", ["2"]),
                filter("tag-key", ["c"])
            ]
        );
        let either = queries(&[tags(&[("a", "1")]), tags(&[("b", "2")])], |_| None);
        assert_eq!(either.len(), 2);
    }

    /// Conformance: AWS-ami-07
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
                filters: vec![filter("image-id", ["ami-1", "ami-2", "ami-3"])],
                ..ImageQuery::default()
            }]
        );
        assert_eq!(queries(&[parameter("/missing")], |_| None), []);
    }

    /// Conformance: AWS-ami-06
    #[test]
    fn one_image_may_serve_several_variants() {
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

    /// Conformance: AWS-userdata-15
    #[test]
    fn the_version_of_bottlerocket_is_in_the_alias_the_parameter_or_the_name() {
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
