//! Pseudonyms for the names in a bundle.
//!
//! A pseudonym is the rank of the name among all names: `n000041`. The order of names stays, because the engine breaks ties by
//! it. Numbers, truth values and the labels of Kubernetes, Karpenter and the provider stay as they are.

mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use karpenter_core::schedule::Cancel;
use serde::Serialize;
use serde_json::Value;

use super::read::Content;
use super::rows::Line;
use super::settings::Redaction;
use super::{Bundle, write};
use walk::{Role, Walk};

fn covers(redaction: Redaction, role: Role) -> bool {
    match role {
        Role::Name | Role::Key => redaction != Redaction::None,
        Role::Shared => redaction == Redaction::All,
    }
}

/// The pseudonyms of a redacted bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Key {
    pub names: BTreeMap<String, String>,
    /// Pseudonyms by key of a label or taint.
    pub keys: BTreeMap<String, String>,
}

/// Replaces names by pseudonyms, and decides on the result: `cancel` ends its decisions early.
///
/// # Errors
/// Fails if the bundle has a recording, or if a line cannot be read back, which does not happen to a bundle of this version.
pub fn redact(
    bundle: &Bundle,
    redaction: Redaction,
    cancel: Option<&Cancel>,
) -> io::Result<(Bundle, Key)> {
    if redaction == Redaction::None {
        return Ok((bundle.clone(), Key::default()));
    }
    if !bundle.recording.is_empty() {
        return Err(io::Error::other("a recording cannot be redacted"));
    }
    let mut found = (BTreeSet::new(), BTreeSet::new());
    lines(bundle, |value| {
        let mut collect = |role: Role, name: &str| {
            let names = match role {
                Role::Key => &mut found.1,
                Role::Name | Role::Shared => &mut found.0,
            };
            if covers(redaction, role) && !names.contains(name) {
                names.insert(name.to_owned());
            }
            None
        };
        Walk::new(bundle.snapshot.config(), &mut collect).line(value);
        Ok(())
    })?;
    let key = Key {
        names: pseudonyms(found.0, "n"),
        keys: pseudonyms(found.1, "redacted.invalid/k"),
    };
    let mut content = Content::new(
        karpenter_core::cluster::Cluster::new(bundle.snapshot.config().clone()),
        super::Settings::at(bundle.at()),
    );
    lines(bundle, |value| {
        let mut replace = |role: Role, name: &str| {
            let names = match role {
                Role::Key => &key.keys,
                Role::Name | Role::Shared => &key.names,
            };
            covers(redaction, role)
                .then(|| names.get(name).cloned())
                .flatten()
        };
        Walk::new(bundle.snapshot.config(), &mut replace).line(value);
        let line: Line = serde_json::from_value(value.take())?;
        content
            .add(line)
            .map_err(|(field, problem)| io::Error::other(format!("{field}: {problem}")))
    })?;
    content.flush();
    let cluster = content.cluster.with_epoch(bundle.snapshot.epoch());
    let mut redacted = Bundle::new(
        &bundle.provider,
        &bundle.engine,
        cluster.snapshot(),
        content.settings,
    );
    redacted.redaction = redaction;
    Ok((redacted.decided(cancel), key))
}

/// Calls `see` with each line of a bundle but the decisions, as a value.
fn lines(bundle: &Bundle, mut see: impl FnMut(&mut Value) -> io::Result<()>) -> io::Result<()> {
    write::lines(bundle, &mut |line: Line| match line {
        Line::Decisions(_) => Ok(()),
        line => see(&mut serde_json::to_value(&line)?),
    })
}

/// Returns the rank of each name, with as many digits as the largest needs.
fn pseudonyms(names: BTreeSet<String>, prefix: &str) -> BTreeMap<String, String> {
    let digits = names.len().to_string().len().max(6);
    let ranks = names.into_iter().enumerate();
    ranks
        .map(|(rank, name)| (name, format!("{prefix}{rank:0digits$}")))
        .collect()
}
