//! `kubectl karpenter convert`: converts documents of any generation to v1.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context as _;
use karpenter_legacy::alpha::ProjectionSettings;
use karpenter_legacy::conversion::Kind;
use karpenter_legacy::finding::{Finding, Severity, Subject};
use karpenter_legacy::v1alpha1::AWSNodeTemplate;
use karpenter_legacy::v1alpha5::{Machine, Provisioner};
use karpenter_legacy::{alpha, beta};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{output, stream};

/// The ConfigMap with the settings of releases before v0.33.
const SETTINGS: &str = "karpenter-global-settings";

/// Convert Karpenter resources of any generation to v1.
///
/// Documents of other kinds are printed unchanged. Fields without an equivalent are reported on stderr, with the fix.
/// The settings of the ConfigMap karpenter-global-settings are used if it is one of the documents.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file with YAML documents, or `-` for standard input. May be repeated.
    #[arg(short, long = "filename", required = true)]
    filename: Vec<PathBuf>,
    /// Exit with code 1 if a conversion is lossy.
    #[arg(long)]
    check: bool,
    /// Instance profile for AWSNodeTemplates without one (the setting aws.defaultInstanceProfile).
    #[arg(long, value_name = "NAME")]
    default_instance_profile: Option<String>,
    /// A tag for the EC2NodeClasses (an entry of the setting aws.tags). May be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = key_value)]
    tags: Vec<(String, String)>,
    /// Set the label karpenter.sh/provisioner-name on nodes, for pods with this node selector.
    #[arg(long)]
    provisioner_label: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Converts the documents; returns the exit code.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut stream = String::new();
    for path in &args.filename {
        let text = read(path)?;
        if !stream.is_empty() && !text.starts_with("---") {
            if !stream.ends_with('\n') {
                stream.push('\n');
            }
            stream.push_str("---\n");
        }
        stream.push_str(&text);
    }
    let (output, findings) = convert(&stream, args)?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")?;
    for finding in &findings {
        eprintln!("{}", output::escaped(&finding.to_string()));
    }
    let worst = findings.iter().map(|finding| finding.severity).max();
    Ok(match worst {
        Some(Severity::Error) => ExitCode::FAILURE,
        Some(Severity::Loss) if args.check => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn read(path: &PathBuf) -> anyhow::Result<String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        return Ok(text);
    }
    fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// A document, by how it is converted.
enum Part {
    /// Any other document.
    Other,
    /// A Provisioner, by its name.
    Provisioner(String),
    Template(String),
    Machine(Box<Machine>),
    /// The index among the documents of a kind with v1beta1.
    Beta(usize),
    /// A `List`; its items.
    List(Vec<(Value, Part)>),
}

/// The objects that are converted together.
#[derive(Default)]
struct Objects {
    provisioners: Vec<Provisioner>,
    templates: Vec<AWSNodeTemplate>,
    betas: Vec<Value>,
    findings: Vec<Finding>,
}

/// The result of the conversion.
struct Outcome {
    projection: alpha::Projection,
    betas: Vec<Vec<Value>>,
    findings: Vec<Finding>,
}

fn convert(stream: &str, args: &Args) -> anyhow::Result<(String, Vec<Finding>)> {
    let mut objects = Objects::default();
    let mut settings = ProjectionSettings {
        default_instance_profile: args.default_instance_profile.clone(),
        tags: args.tags.iter().cloned().collect(),
        provisioner_label: args.provisioner_label,
        ..ProjectionSettings::default()
    };
    let documents = stream::documents(stream);
    let mut parts = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let value = stream::read(document.text)
            .with_context(|| format!("document {} is not YAML", index + 1))?;
        let Some(value) = value else {
            parts.push(Part::Other);
            continue;
        };
        settings_of(&value, &mut settings, args, &mut objects.findings);
        parts.push(objects.part(&value));
        if matches!(parts.last(), Some(Part::Other)) {
            objects.mentions(&value, args);
        }
    }
    let upgraded = beta::upgrade_all(&objects.betas)?;
    let projection = alpha::project(&objects.provisioners, &objects.templates, &settings);
    let mut findings = projection.findings.clone();
    findings.extend(upgraded.findings);
    findings.append(&mut objects.findings);
    let mut outcome = Outcome {
        projection,
        betas: upgraded.documents,
        findings,
    };

    let mut output = String::new();
    for (document, part) in documents.iter().zip(&parts) {
        output.push_str(document.marker);
        match outcome.replacement(part, &objects)? {
            None => output.push_str(document.text),
            Some(texts) => {
                if !document.marker.is_empty() && !document.marker.ends_with('\n') {
                    output.push('\n');
                }
                output.push_str(&texts.join("---\n"));
            }
        }
    }
    Ok((output, outcome.findings))
}

/// Reads the settings of the ConfigMap; flags take precedence.
fn settings_of(
    value: &Value,
    settings: &mut ProjectionSettings,
    args: &Args,
    findings: &mut Vec<Finding>,
) {
    if value["kind"] != "ConfigMap" || value["metadata"]["name"] != SETTINGS {
        return;
    }
    let data = &value["data"];
    if let Some(profile) = data["aws.defaultInstanceProfile"].as_str()
        && args.default_instance_profile.is_none()
        && !profile.is_empty()
    {
        settings.default_instance_profile = Some(profile.to_owned());
    }
    if let Some(text) = data["aws.tags"].as_str().filter(|text| !text.is_empty()) {
        match serde_json::from_str::<BTreeMap<String, String>>(text) {
            Ok(mut tags) => {
                tags.extend(args.tags.iter().cloned());
                settings.tags = tags;
            }
            Err(error) => findings.push(Finding {
                severity: Severity::Error,
                subject: Subject::new("ConfigMap", SETTINGS),
                field: "data.aws.tags".to_owned(),
                problem: format!("is not a JSON object of strings: {error}"),
                remedy: "fix it, or pass --tag".to_owned(),
            }),
        }
    }
    findings.push(Finding {
        severity: Severity::Note,
        subject: Subject::new("ConfigMap", SETTINGS),
        field: "data".to_owned(),
        problem: "is no longer read by Karpenter; aws.defaultInstanceProfile and aws.tags are written into the EC2NodeClasses"
            .to_owned(),
        remedy: "pass the other settings as flags or environment variables of the controller".to_owned(),
    });
}

impl Objects {
    fn part(&mut self, value: &Value) -> Part {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&value["apiVersion"]), text(&value["kind"]));
        let name = text(&value["metadata"]["name"]);
        match (api_version.as_str(), kind.as_str()) {
            ("karpenter.sh/v1alpha5", "Provisioner") => match self.decode(value, &kind, &name) {
                Some(object) => {
                    self.provisioners.push(object);
                    Part::Provisioner(name)
                }
                None => Part::Other,
            },
            ("karpenter.k8s.aws/v1alpha1", "AWSNodeTemplate") => {
                match self.decode(value, &kind, &name) {
                    Some(object) => {
                        self.templates.push(object);
                        Part::Template(name)
                    }
                    None => Part::Other,
                }
            }
            ("karpenter.sh/v1alpha5", "Machine") => match self.decode(value, &kind, &name) {
                Some(object) => Part::Machine(Box::new(object)),
                None => Part::Other,
            },
            (_, "List") => {
                let items = value["items"].as_array().into_iter().flatten();
                let parts: Vec<(Value, Part)> =
                    items.map(|item| (item.clone(), self.part(item))).collect();
                match parts.iter().all(|(_, part)| matches!(part, Part::Other)) {
                    true => Part::Other,
                    false => Part::List(parts),
                }
            }
            _ if Kind::of(value).is_some() => {
                self.betas.push(value.clone());
                Part::Beta(self.betas.len() - 1)
            }
            _ => Part::Other,
        }
    }

    /// Decodes an object; a document that does not match its kind is printed unchanged, with an error.
    fn decode<T: DeserializeOwned>(&mut self, value: &Value, kind: &str, name: &str) -> Option<T> {
        match serde_json::from_value(value.clone()) {
            Ok(object) => Some(object),
            Err(error) => {
                self.findings.push(Finding {
                    severity: Severity::Error,
                    subject: Subject::new(kind, name),
                    field: "spec".to_owned(),
                    problem: format!("cannot be decoded: {error}"),
                    remedy: "compare it with the output of `kubectl explain`".to_owned(),
                });
                None
            }
        }
    }

    /// Reports labels and annotations of older generations in workloads, which are not converted.
    fn mentions(&mut self, value: &Value, args: &Args) {
        let text = value.to_string();
        let mut report = |severity, name: &str, problem: &str, remedy: &str| {
            self.findings.push(Finding {
                severity,
                subject: Subject::new(
                    value["kind"].as_str().unwrap_or_default(),
                    value["metadata"]["name"].as_str().unwrap_or_default(),
                ),
                field: name.to_owned(),
                problem: problem.to_owned(),
                remedy: remedy.to_owned(),
            });
        };
        let of_alpha = !self.provisioners.is_empty();
        let provisioner_name = "karpenter.sh/provisioner-name";
        if text.contains(provisioner_name) && !args.provisioner_label {
            let severity = if of_alpha {
                Severity::Loss
            } else {
                Severity::Note
            };
            report(
                severity,
                provisioner_name,
                "no node of a converted NodePool has this label",
                "use karpenter.sh/nodepool instead, or convert with --provisioner-label",
            );
        }
        for annotation in [
            "karpenter.sh/do-not-evict",
            "karpenter.sh/do-not-consolidate",
        ] {
            if text.contains(annotation) {
                report(
                    Severity::Note,
                    annotation,
                    "is still honored here, but not by Karpenter in Go since v1.0",
                    "use karpenter.sh/do-not-disrupt instead",
                );
            }
        }
    }
}

impl Outcome {
    /// Returns the YAML documents that replace a document; `None` if it stays unchanged.
    fn replacement(
        &mut self,
        part: &Part,
        objects: &Objects,
    ) -> anyhow::Result<Option<Vec<String>>> {
        if let Part::List(items) = part {
            let mut list = Vec::new();
            for (item, part) in items {
                match self.objects(part, objects)? {
                    Some(objects) => list.extend(objects),
                    None => list.push(item.clone()),
                }
            }
            let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": list });
            return Ok(Some(vec![yaml(&list)?]));
        }
        let Some(objects) = self.objects(part, objects)? else {
            return Ok(None);
        };
        objects.iter().map(yaml).collect::<Result<_, _>>().map(Some)
    }

    fn objects(&mut self, part: &Part, objects: &Objects) -> anyhow::Result<Option<Vec<Value>>> {
        let of = |subject: &Subject| -> anyhow::Result<Vec<Value>> {
            let mut all = Vec::new();
            for (from, class) in &self.projection.node_classes {
                if from == subject {
                    all.push(value(class)?);
                }
            }
            for (from, pool) in &self.projection.node_pools {
                if from == subject {
                    all.push(value(pool)?);
                }
            }
            Ok(all)
        };
        Ok(match part {
            Part::Other | Part::List(_) => None,
            Part::Provisioner(name) => Some(of(&alpha::provisioner(name))?),
            Part::Template(name) => Some(of(&alpha::template(name))?),
            Part::Machine(machine) => {
                let (claim, findings) = alpha::node_claim(machine);
                self.findings.extend(findings);
                Some(vec![value(&claim)?])
            }
            Part::Beta(index) => {
                let new = &self.betas[*index];
                let same = new.len() == 1 && new[0] == objects.betas[*index];
                (!same).then(|| new.clone())
            }
        }
        // A document that cannot be converted stays unchanged.
        .filter(|objects| !objects.is_empty()))
    }
}

fn value(object: &impl Serialize) -> anyhow::Result<Value> {
    serde_json::to_value(object).context("cannot serialize an object")
}

/// Serializes an object as YAML, with the keys in the usual order of manifests.
fn yaml(object: &Value) -> anyhow::Result<String> {
    const FIRST: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];
    let mut ordered: Vec<(&str, &Value)> = Vec::new();
    if let Value::Object(map) = object {
        ordered.extend(FIRST.iter().filter_map(|key| Some((*key, map.get(*key)?))));
        ordered.extend(
            map.iter()
                .filter(|(key, _)| !FIRST.contains(&key.as_str()))
                .map(|(key, value)| (key.as_str(), value)),
        );
    }
    let options =
        serde_saphyr::ser_options! { prefer_block_scalars: true, compact_list_indent: false };
    let mut text = String::new();
    for (key, value) in ordered {
        let entry = BTreeMap::from([(key, value)]);
        text.push_str(&serde_saphyr::to_string_with_options(
            &entry,
            options.clone(),
        )?);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}
