//! Findings of conversion about an object: values with the field and the fix, rendered at the edge.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// A note; the object means the same as before.
    Note,
    /// A field has no equivalent, or changes its meaning.
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
    pub kind: String,
    pub name: String,
}

impl Subject {
    /// Creates the subject for the object of this kind and name.
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

/// A finding about a field of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    pub severity: Severity,
    pub subject: Subject,
    /// The field, as a path from the object's root: `spec.launchTemplate`.
    pub field: String,
    pub problem: String,
    /// The fix for the user; empty if none is needed.
    pub remedy: String,
}

impl Finding {
    /// Returns the finding without its subject and severity, for the message of a condition of the object.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}", self.field, self.problem);
        if !self.remedy.is_empty() {
            text.push_str("; ");
            text.push_str(&self.remedy);
        }
        text
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.severity, self.subject, self.text())
    }
}

/// Collects the findings about one object.
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

    fn add(&mut self, severity: Severity, field: &str, problem: String, remedy: &str) {
        self.findings.push(Finding {
            severity,
            subject: self.subject.clone(),
            field: field.to_owned(),
            problem,
            remedy: remedy.to_owned(),
        });
    }

    pub(crate) fn note(&mut self, field: &str, problem: impl Into<String>, remedy: &str) {
        self.add(Severity::Note, field, problem.into(), remedy);
    }

    pub(crate) fn loss(&mut self, field: &str, problem: impl Into<String>, remedy: &str) {
        self.add(Severity::Loss, field, problem.into(), remedy);
    }

    pub(crate) fn error(&mut self, field: &str, problem: impl Into<String>, remedy: &str) {
        self.add(Severity::Error, field, problem.into(), remedy);
    }

    pub(crate) fn failed(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }
}
