//! What conversion has to say about an object: values that name the field and the way out, rendered at the edge.

use std::fmt;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; the object means the same as before.
    Note,
    /// Something has no equivalent, or means something else than before.
    Loss,
    /// The object cannot be converted.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Loss => "lossy",
            Self::Error => "error",
        })
    }
}

/// The object a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Subject {
    /// The object of this kind and name.
    #[must_use]
    pub fn new(kind: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// Something to say about a field of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The object.
    pub subject: Subject,
    /// The field, as a path from the object's root: `spec.launchTemplate`.
    pub field: String,
    /// What is the matter.
    pub problem: String,
    /// What to do about it; empty where nothing needs to be done.
    pub way_out: String,
}

impl Finding {
    /// The finding without its subject and severity, for the message of a condition on that very object.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}", self.field, self.problem);
        if !self.way_out.is_empty() {
            text.push_str("; ");
            text.push_str(&self.way_out);
        }
        text
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.severity, self.subject, self.text())
    }
}

/// Gathers the findings about one object.
#[derive(Debug)]
pub(crate) struct Notebook {
    subject: Subject,
    pub(crate) findings: Vec<Finding>,
}

impl Notebook {
    pub(crate) fn new(kind: &str, name: &str) -> Self {
        Self {
            subject: Subject::new(kind, name),
            findings: Vec::new(),
        }
    }

    fn add(&mut self, severity: Severity, field: &str, problem: String, way_out: &str) {
        self.findings.push(Finding {
            severity,
            subject: self.subject.clone(),
            field: field.to_owned(),
            problem,
            way_out: way_out.to_owned(),
        });
    }

    pub(crate) fn note(&mut self, field: &str, problem: impl Into<String>, way_out: &str) {
        self.add(Severity::Note, field, problem.into(), way_out);
    }

    pub(crate) fn loss(&mut self, field: &str, problem: impl Into<String>, way_out: &str) {
        self.add(Severity::Loss, field, problem.into(), way_out);
    }

    pub(crate) fn error(&mut self, field: &str, problem: impl Into<String>, way_out: &str) {
        self.add(Severity::Error, field, problem.into(), way_out);
    }

    pub(crate) fn failed(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }
}
