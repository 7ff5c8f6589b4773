//! Converts Provisioners and AWSNodeTemplates into NodePools and EC2NodeClasses.
//!
//! [`project`] is a pure function of objects and settings to objects and findings. `kubectl karpenter convert` prints the
//! result, the compatibility controller applies it to a cluster. An object that cannot be converted is left out, with an error
//! that contains the fix; other objects are not affected.
//!
//! 1. Every AWSNodeTemplate becomes an EC2NodeClass of the same name.
//! 2. Every Provisioner becomes a NodePool of the same name. The kubelet settings move to the NodeClass, so that a template
//!    used with different settings becomes several NodeClasses ([`ClassNames`] determines their names).
//! 3. Settings of AWS inside a Provisioner become a separate EC2NodeClass.
//!
//! The manifests that users showed us are of this generation; upstream has no way from it to v1 in one step.

mod machine;
mod node_class;
mod node_pool;
mod selector;
pub(crate) mod volume;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::v1::{NodeClassReference, NodePool};
use karpenter_aws::api::{EC2NodeClass, EC2NodeClassSpec};
use serde_json::{Map, Value};

pub use machine::node_claim;
pub use selector::{MAX_TERMS, SelectorError, Term, Terms, expand};

use crate::finding::{Finding, Notebook, Severity, Subject};
use crate::names;
use crate::v1alpha1::{AWSNodeTemplate, AWSNodeTemplateSpec};
use crate::v1alpha5::{Provisioner, ProvisionerSpec};

/// The names of NodeClasses that cannot have the name of their template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassNames {
    /// The name of the Provisioner, only where needed. For documents, which are converted once.
    #[default]
    Readable,
    /// A digest of the content, so that adding and deleting Provisioners does not rename NodeClasses. For a cluster, where
    /// another name replaces nodes.
    Stable,
}

/// The handling of a reference to an AWSNodeTemplate that is not among the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingTemplate {
    /// The template exists elsewhere and becomes a NodeClass of its name.
    #[default]
    Assume,
    /// The template does not exist: an error.
    Refuse,
}

/// Settings outside of the objects.
#[derive(Clone, Debug, Default)]
pub struct ProjectionSettings {
    /// The setting `aws.defaultInstanceProfile`.
    pub default_instance_profile: Option<String>,
    /// The setting `aws.tags`.
    pub tags: BTreeMap<String, String>,
    /// Whether nodes get the label `karpenter.sh/provisioner-name`, by which existing pods may select.
    pub provisioner_label: bool,
    /// The names of NodeClasses.
    pub class_names: ClassNames,
    pub missing_template: MissingTemplate,
}

/// The result of converting legacy objects.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    /// NodePools, each with its Provisioner, by name.
    pub node_pools: Vec<(Subject, NodePool)>,
    /// EC2NodeClasses, each with its AWSNodeTemplate or Provisioner, by name.
    pub node_classes: Vec<(Subject, EC2NodeClass)>,
    /// The findings about all objects.
    pub findings: Vec<Finding>,
}

impl Projection {
    /// Returns the findings about one object.
    pub fn about<'a>(&'a self, subject: &'a Subject) -> impl Iterator<Item = &'a Finding> {
        self.findings
            .iter()
            .filter(move |finding| finding.subject == *subject)
    }

    /// Returns whether an object could not be converted.
    #[must_use]
    pub fn failed(&self, subject: &Subject) -> bool {
        self.about(subject)
            .any(|finding| finding.severity == Severity::Error)
    }
}

/// Returns the subject of findings about a Provisioner.
#[must_use]
pub fn provisioner(name: &str) -> Subject {
    Subject::new(Provisioner::KIND, name)
}

/// Returns the subject of findings about an AWSNodeTemplate.
#[must_use]
pub fn template(name: &str) -> Subject {
    Subject::new(AWSNodeTemplate::KIND, name)
}

/// The kubelet settings of an EC2NodeClass.
type Kubelet = Option<Map<String, Value>>;

struct ProvisionerConversion<'a> {
    object: &'a Provisioner,
    notes: Notebook,
    pool: NodePool,
    kubelet: Kubelet,
    source: Source,
}

/// The location of a Provisioner's settings of AWS.
enum Source {
    Template(String),
    Inline(Box<EC2NodeClassSpec>),
    Unknown,
}

/// Converts all legacy objects of a cluster or of a stream of documents.
#[must_use]
pub fn project(
    provisioners: &[Provisioner],
    templates: &[AWSNodeTemplate],
    settings: &ProjectionSettings,
) -> Projection {
    let mut projection = Projection::default();
    let mut specs: BTreeMap<&str, (&AWSNodeTemplate, Option<EC2NodeClassSpec>)> = BTreeMap::new();
    for old in templates {
        let mut notes = Notebook::new(AWSNodeTemplate::KIND, old.name());
        let spec = node_class::spec(&old.spec, settings, "spec", &mut notes);
        specs.insert(old.name(), (old, spec));
        projection.findings.append(&mut notes.findings);
    }
    let mut conversions: Vec<ProvisionerConversion<'_>> = provisioners
        .iter()
        .map(|p| convert_provisioner(p, settings))
        .collect();
    conversions.sort_by(|a, b| a.object.name().cmp(b.object.name()));
    for conversion in &mut conversions {
        check_template(conversion, &specs, settings);
    }

    let mut taken: BTreeSet<String> = specs.keys().map(|name| (*name).to_owned()).collect();
    let mut classes = Classes::default();
    for (name, (old, spec)) in &specs {
        let Some(spec) = spec else { continue };
        let users: Vec<&ProvisionerConversion<'_>> = conversions
            .iter()
            .filter(|d| matches!(&d.source, Source::Template(t) if t == name) && !d.notes.failed())
            .collect();
        let alone = users
            .first()
            .filter(|first| users.iter().all(|user| user.kubelet == first.kubelet))
            .filter(|_| settings.class_names == ClassNames::Readable)
            .map(|first| first.kubelet.clone());
        let own = alone.clone().unwrap_or_default();
        let from = template(name);
        let mut put = |called: String, kubelet: Kubelet| {
            let mut spec = spec.clone();
            spec.kubelet = kubelet;
            let metadata = metadata(&old.metadata, &called);
            classes.all.insert(called, (from.clone(), metadata, spec));
        };
        put((*name).to_owned(), own.clone());
        for user in users {
            let called = match &user.kubelet {
                kubelet if *kubelet == own => (*name).to_owned(),
                kubelet => {
                    let known = classes.named.get(&((*name).to_owned(), text(kubelet)));
                    known.cloned().unwrap_or_else(|| {
                        let wanted = match settings.class_names {
                            ClassNames::Readable => format!("{name}-{}", user.object.name()),
                            ClassNames::Stable => {
                                format!("{name}-kubelet-{:08x}", digest(&text(kubelet)))
                            }
                        };
                        let called = unique(wanted, &mut taken);
                        put(called.clone(), kubelet.clone());
                        called
                    })
                }
            };
            let key = ((*name).to_owned(), text(&user.kubelet));
            classes.named.insert(key, called.clone());
            classes.of.insert(user.object.name().to_owned(), called);
        }
    }
    for mut conversion in conversions {
        let name = conversion.object.name();
        let class = match conversion.source {
            Source::Inline(mut spec) if !conversion.notes.failed() => {
                let wanted = match settings.class_names {
                    ClassNames::Readable if !taken.contains(name) => name.to_owned(),
                    _ => format!("{name}-provider"),
                };
                let called = unique(wanted, &mut taken);
                spec.kubelet = conversion.kubelet;
                let metadata = ObjectMeta {
                    name: Some(called.clone()),
                    ..ObjectMeta::default()
                };
                let entry = (provisioner(name), metadata, *spec);
                classes.all.insert(called.clone(), entry);
                called
            }
            Source::Template(template) => {
                let assumed = !specs.contains_key(template.as_str());
                if assumed && conversion.kubelet.is_some() && !conversion.notes.failed() {
                    conversion.notes.loss(
                        "spec.kubeletConfiguration",
                        format!("belongs to the EC2NodeClass `{template}`, which is not among the documents"),
                        "convert the AWSNodeTemplate together with the Provisioner, or copy it to spec.kubelet there",
                    );
                }
                classes.of.get(name).cloned().unwrap_or(template)
            }
            Source::Inline(_) | Source::Unknown => String::new(),
        };
        if !conversion.notes.failed() {
            conversion.pool.spec.template.spec.node_class_ref = NodeClassReference {
                group: EC2NodeClass::GROUP.to_owned(),
                kind: EC2NodeClass::KIND.to_owned(),
                name: class,
            };
            projection
                .node_pools
                .push((provisioner(name), conversion.pool));
        }
        projection.findings.append(&mut conversion.notes.findings);
    }
    for (from, metadata, spec) in classes.all.into_values() {
        let class = EC2NodeClass {
            metadata,
            spec,
            status: Default::default(),
        };
        projection.node_classes.push((from, class));
    }
    projection
}

/// The NodeClasses during the conversion.
#[derive(Default)]
struct Classes {
    all: BTreeMap<String, (Subject, ObjectMeta, EC2NodeClassSpec)>,
    /// Names by template and kubelet.
    named: BTreeMap<(String, String), String>,
    of: BTreeMap<String, String>,
}

fn convert_provisioner<'a>(
    object: &'a Provisioner,
    settings: &ProjectionSettings,
) -> ProvisionerConversion<'a> {
    let name = object.name();
    let mut notes = Notebook::new(Provisioner::KIND, name);
    let spec = node_pool::spec(name, &object.spec, settings, &mut notes);
    let kubelet = node_pool::kubelet(
        object.spec.kubelet_configuration.as_ref(),
        "spec.kubeletConfiguration",
        &mut notes,
    );
    let source = source(&object.spec, settings, &mut notes);
    let pool = NodePool {
        metadata: metadata(&object.metadata, name),
        spec,
        status: Default::default(),
    };
    ProvisionerConversion {
        object,
        notes,
        pool,
        kubelet,
        source,
    }
}

fn source(spec: &ProvisionerSpec, settings: &ProjectionSettings, notes: &mut Notebook) -> Source {
    match (&spec.provider, &spec.provider_ref) {
        (Some(_), Some(_)) => {
            notes.error(
                "spec.provider",
                "excludes providerRef",
                "remove one of them",
            );
            Source::Unknown
        }
        (None, None) => {
            notes.error(
                "spec.providerRef",
                "is missing",
                "name an AWSNodeTemplate in it",
            );
            Source::Unknown
        }
        (None, Some(reference)) => {
            let group = reference.api_version.as_deref().unwrap_or_default();
            let group = group.split_once('/').map_or(group, |(group, _)| group);
            let kind = reference.kind.as_deref().unwrap_or_default();
            let known = ["", AWSNodeTemplate::GROUP].contains(&group)
                && ["", AWSNodeTemplate::KIND].contains(&kind);
            if !known {
                notes.error(
                    "spec.providerRef",
                    format!("refers to a {kind} of `{group}`"),
                    "refer to an AWSNodeTemplate of karpenter.k8s.aws",
                );
            }
            Source::Template(reference.name.clone())
        }
        (Some(provider), None) => {
            match serde_json::from_value::<AWSNodeTemplateSpec>(provider.clone()) {
                Ok(provider) => node_class::spec(&provider, settings, "spec.provider", notes)
                    .map_or(Source::Unknown, |spec| Source::Inline(Box::new(spec))),
                Err(error) => {
                    notes.error(
                        "spec.provider",
                        format!("cannot be read: {error}"),
                        "move it to an AWSNodeTemplate",
                    );
                    Source::Unknown
                }
            }
        }
    }
}

fn check_template(
    conversion: &mut ProvisionerConversion<'_>,
    specs: &BTreeMap<&str, (&AWSNodeTemplate, Option<EC2NodeClassSpec>)>,
    settings: &ProjectionSettings,
) {
    let Source::Template(name) = &conversion.source else {
        return;
    };
    match specs.get(name.as_str()) {
        Some((_, Some(_))) => {}
        Some((_, None)) => conversion.notes.error(
            "spec.providerRef",
            format!("the AWSNodeTemplate `{name}` cannot be converted"),
            "see there",
        ),
        None if settings.missing_template == MissingTemplate::Refuse => conversion.notes.error(
            "spec.providerRef",
            format!("there is no AWSNodeTemplate `{name}`"),
            "create it, or refer to another",
        ),
        None => conversion.notes.note(
            "spec.providerRef",
            format!("the AWSNodeTemplate `{name}` is not among the documents; an EC2NodeClass of that name is assumed"),
            "",
        ),
    }
}

/// Copies labels and annotations of the user to metadata with another name.
fn metadata(old: &ObjectMeta, name: &str) -> ObjectMeta {
    let mut annotations = old.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| {
        key != names::LAST_APPLIED && !names::OWN_ANNOTATIONS.contains(&key.as_str())
    });
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: old.labels.clone(),
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    }
}

fn unique(wanted: String, taken: &mut BTreeSet<String>) -> String {
    let mut name = wanted.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{wanted}-{number}");
        number += 1;
    }
    name
}

/// Formats the settings as JSON with sorted keys.
fn text(kubelet: &Kubelet) -> String {
    let sorted = |map: &Map<String, Value>| {
        let sorted: BTreeMap<&String, &Value> = map.iter().collect();
        serde_json::to_string(&sorted).unwrap_or_default()
    };
    kubelet.as_ref().map(sorted).unwrap_or_default()
}

/// Returns the FNV-1a hash, which suffices for a name and is the same on every platform.
fn digest(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests;
