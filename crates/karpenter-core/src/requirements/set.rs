//! Requirements on several label keys, and their compatibility.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelectorTerm;
use karpenter_api::v1::NodeSelectorRequirementWithMinValues as ApiRequirement;

use super::requirement::{InvalidRequirement, Requirement};
use crate::spelling;

/// The canonical names of labels and their values, for aliases such as `beta.kubernetes.io/arch`.
pub trait LabelNames {
    /// Returns the canonical key of a key that may be an alias.
    fn canonical_key<'a>(&'a self, key: &'a str) -> &'a str;

    /// Returns the canonical value of a value of a canonical key.
    fn canonical_value<'a>(&'a self, _key: &str, value: &'a str) -> &'a str {
        value
    }
}

/// Label names without aliases.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unaliased;

impl LabelNames for Unaliased {
    fn canonical_key<'a>(&'a self, key: &'a str) -> &'a str {
        key
    }
}

/// The keys that may be required of a side that does not define them.
#[derive(Debug, Clone, Copy)]
pub enum AllowUndefined<'a> {
    /// None: the side is a node whose labels are all known.
    Nothing,
    /// These keys, which a planned node will define once it is launched.
    Keys(&'a BTreeSet<String>),
}

impl AllowUndefined<'_> {
    fn contains(self, key: &str) -> bool {
        match self {
            AllowUndefined::Nothing => false,
            AllowUndefined::Keys(keys) => keys.contains(key),
        }
    }
}

/// A key on which two sets of requirements are incompatible.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// The key is required, but the other side does not define it.
    Undefined {
        /// The label key.
        key: String,
        /// A known key with a similar name.
        hint: Option<String>,
    },
    /// Both sides define the key, and no value satisfies both.
    Disjoint {
        /// The incoming requirement.
        incoming: Requirement,
        /// The existing requirement.
        existing: Requirement,
    },
    /// A name of a NodePool is required that no NodePool has.
    UnknownNodePool {
        /// The incoming requirement.
        incoming: Requirement,
        /// The existing requirement.
        existing: Requirement,
        /// A NodePool with a similar name.
        similar: Option<String>,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Undefined { key, hint } => {
                write!(f, "label \"{key}\" does not have known values")?;
                hint.iter()
                    .try_for_each(|hint| write!(f, " (typo of \"{hint}\"?)"))
            }
            Conflict::Disjoint { incoming, existing } => {
                write!(f, "key {}, {incoming} not in {existing}", incoming.key())?;
                // DIFFERS: upstream has no hint for values.
                incoming
                    .meant()
                    .map_or(Ok(()), |meant| write!(f, " (typo of \"{meant}\"?)"))
            }
            Conflict::UnknownNodePool {
                incoming,
                existing,
                similar,
            } => {
                let names: Vec<&str> = incoming.values().collect();
                let names = names.join("\", \"");
                let key = incoming.key();
                write!(
                    f,
                    "key {key}, {incoming} not in {existing} (nodepool \"{names}\" not found"
                )?;
                match similar {
                    Some(similar) => write!(f, ", typo of \"{similar}\"?)"),
                    None => f.write_str(")"),
                }
            }
        }
    }
}

/// Why two sets of requirements are incompatible: one conflict per key, ordered by key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Incompatible {
    /// The conflicts; never empty.
    pub conflicts: Vec<Conflict>,
}

/// Requirements by label key, at most one per key.
///
/// Copies share their data: a provider's catalogue repeats the same few requirements for a thousand instance types and their
/// offerings.
///
/// ```
/// use karpenter_core::requirements::{AllowUndefined, Operator, Requirement, Requirements};
///
/// let node: Requirements = [("team", "red"), ("topology.kubernetes.io/zone", "a")].into_iter().collect();
/// let requires = |key, operator, values: &[&str]| -> Requirements {
///     [Requirement::new(key, operator, values.iter().copied())].into_iter().collect()
/// };
/// let fits = |wanted: &Requirements| node.compatible(wanted, AllowUndefined::Nothing);
/// assert!(fits(&requires("team", Operator::In, &["red", "blue"])).is_ok());
/// // An absent label satisfies requirements that admit its absence.
/// assert!(fits(&requires("gpu", Operator::DoesNotExist, &[])).is_ok());
/// let refused = fits(&requires("zone", Operator::In, &["a"])).map_err(|why| why.to_string());
/// assert_eq!(refused, Err(r#"label "zone" does not have known values (typo of "topology.kubernetes.io/zone"?)"#.to_owned()));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Requirements {
    by_key: Arc<BTreeMap<Arc<str>, Arc<Requirement>>>,
}

impl Requirements {
    /// Creates an empty set, which admits all nodes.
    pub fn new() -> Requirements {
        Requirements::default()
    }

    /// Requires each label to have exactly its value. Used for node selectors and node labels.
    pub fn from_labels<'a, S: AsRef<str> + ?Sized + 'a>(
        labels: impl IntoIterator<Item = (&'a S, &'a S)>,
        names: &dyn LabelNames,
    ) -> Requirements {
        labels
            .into_iter()
            .map(|(key, value)| Requirement::equal(key.as_ref(), value.as_ref()).canonical(names))
            .collect()
    }

    /// Parses all expressions of a node selector term. Fields are not requirements on labels and are left out.
    pub fn from_node_selector_term(
        term: &NodeSelectorTerm,
        names: &dyn LabelNames,
    ) -> Result<Requirements, InvalidRequirement> {
        let expressions = term.match_expressions.iter().flatten();
        expressions
            .map(|expression| {
                let values = expression.values.as_deref().unwrap_or_default();
                Ok(
                    Requirement::parse(&expression.key, &expression.operator, values)?
                        .canonical(names),
                )
            })
            .collect()
    }

    /// Parses the requirements of a NodePool, a NodeClaim or a NodeOverlay.
    pub fn from_api(
        requirements: &[ApiRequirement],
        names: &dyn LabelNames,
    ) -> Result<Requirements, InvalidRequirement> {
        requirements
            .iter()
            .map(|requirement| Ok(Requirement::from_api(requirement)?.canonical(names)))
            .collect()
    }

    /// Adds a requirement: if the key has one already, it becomes the intersection of both.
    pub fn add(&mut self, requirement: Requirement) {
        let by_key = Arc::make_mut(&mut self.by_key);
        match by_key.get_mut(requirement.key()) {
            Some(present) => *present = Arc::new(present.intersection(&requirement)),
            None => {
                by_key.insert(Arc::clone(requirement.shared_key()), Arc::new(requirement));
            }
        }
    }

    /// Adds all requirements of the other.
    pub fn add_all(&mut self, other: &Requirements) {
        other
            .iter()
            .for_each(|requirement| self.add(requirement.clone()));
    }

    /// Returns the requirement on a key, if there is one.
    pub fn get(&self, key: &str) -> Option<&Requirement> {
        self.by_key.get(key).map(|requirement| &**requirement)
    }

    /// Returns the requirement on a key, or `Exists` if there is none, which is how an undefined well-known label is treated.
    pub fn get_or_exists(&self, key: &str) -> Cow<'_, Requirement> {
        self.get(key)
            .map_or_else(|| Cow::Owned(Requirement::exists(key)), Cow::Borrowed)
    }

    /// Reports whether there is a requirement on the key.
    pub fn contains(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    /// Removes and returns the requirement on a key.
    pub fn remove(&mut self, key: &str) -> Option<Requirement> {
        if !self.by_key.contains_key(key) {
            return None;
        }
        let removed = Arc::make_mut(&mut self.by_key).remove(key);
        removed.map(Arc::unwrap_or_clone)
    }

    /// Replaces the requirement on the key of `requirement`.
    pub fn replace(&mut self, requirement: Requirement) {
        self.replace_shared(Arc::new(requirement));
    }

    /// Replaces the requirement on the key of `requirement`, without copying it.
    pub fn replace_shared(&mut self, requirement: Arc<Requirement>) {
        let key = Arc::clone(requirement.shared_key());
        Arc::make_mut(&mut self.by_key).insert(key, requirement);
    }

    /// Iterates over the keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.by_key.keys().map(|key| &**key)
    }

    /// Iterates over the requirements, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &Requirement> {
        self.by_key.values().map(|requirement| &**requirement)
    }

    /// Returns the number of keys with a requirement.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Reports whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Reports whether any requirement has minValues.
    pub fn has_min_values(&self) -> bool {
        self.iter()
            .any(|requirement| requirement.min_values().is_some())
    }

    /// Checks that the incoming requirements are compatible with these, for all keys of the incoming ones.
    ///
    /// A key without a requirement here is compatible if the incoming requirement admits its absence or `undefined` contains the key.
    /// The check is asymmetric: keys that only these requirements have are ignored.
    pub fn compatible(
        &self,
        incoming: &Requirements,
        undefined: AllowUndefined<'_>,
    ) -> Result<(), Incompatible> {
        let conflicts: Vec<Conflict> = incoming
            .iter()
            .filter_map(|requirement| match self.get(requirement.key()) {
                Some(existing) => disjoint(requirement, existing),
                // DIFFERS: a contradiction is never met; upstream treats it as the absence of the label.
                None if requirement.is_never() => {
                    disjoint(requirement, &Requirement::exists(requirement.key()))
                }
                None if undefined.contains(requirement.key()) || requirement.allows_absent() => {
                    None
                }
                None => {
                    let hint = self.hint(requirement.key(), undefined).map(str::to_owned);
                    Some(Conflict::Undefined {
                        key: requirement.key().to_owned(),
                        hint,
                    })
                }
            })
            .collect();
        if conflicts.is_empty() {
            Ok(())
        } else {
            Err(Incompatible { conflicts })
        }
    }

    /// Reports whether [`compatible`](Self::compatible) succeeds, without building the conflicts.
    pub fn is_compatible(&self, incoming: &Requirements, undefined: AllowUndefined<'_>) -> bool {
        incoming
            .iter()
            .all(|requirement| match self.get(requirement.key()) {
                Some(existing) => requirement.has_intersection(existing),
                None => {
                    !requirement.is_never()
                        && (undefined.contains(requirement.key()) || requirement.allows_absent())
                }
            })
    }

    /// Checks that the requirements on keys that both sides define are compatible.
    pub fn intersects(&self, incoming: &Requirements) -> Result<(), Incompatible> {
        let conflicts: Vec<Conflict> = incoming
            .iter()
            .filter_map(|requirement| disjoint(requirement, self.get(requirement.key())?))
            .collect();
        if conflicts.is_empty() {
            Ok(())
        } else {
            Err(Incompatible { conflicts })
        }
    }

    /// Returns a known key similar to an unknown one: it contains the unknown key, ends with its last part, or differs in two
    /// letters at most.
    fn hint<'a>(&'a self, key: &str, undefined: AllowUndefined<'a>) -> Option<&'a str> {
        let suffix = key.rsplit_once('/').map_or(key, |(_, suffix)| suffix);
        let meant =
            |known: &&str| !suffix.is_empty() && (known.contains(key) || known.ends_with(suffix));
        let undefined = || match undefined {
            AllowUndefined::Nothing => None,
            AllowUndefined::Keys(keys) => Some(keys.iter().map(String::as_str)),
        };
        let known = || undefined().into_iter().flatten().chain(self.keys());
        // DIFFERS: upstream has no hint for a key with a wrong letter.
        known()
            .find(meant)
            .or_else(|| spelling::nearest(key, known()))
    }

    /// Returns a label for each key for which `choose` returns true: the smallest value that satisfies the requirement, if any.
    pub fn labels(&self, choose: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        self.iter()
            .filter(|requirement| choose(requirement.key()))
            .filter_map(|requirement| Some((requirement.key().to_owned(), requirement.any()?)))
            .collect()
    }

    /// Returns the API entries for these requirements, ordered by key.
    pub fn to_node_selector_requirements(&self) -> Vec<ApiRequirement> {
        self.iter()
            .flat_map(Requirement::to_node_selector_requirements)
            .collect()
    }

    /// Returns the text form without the keys for which `hide` returns true.
    pub fn display(&self, hide: impl Fn(&str) -> bool) -> String {
        let shown: Vec<String> = self
            .iter()
            .filter(|r| !hide(r.key()))
            .map(ToString::to_string)
            .collect();
        shown.join(", ")
    }
}

impl Requirement {
    /// Returns the same requirement with the canonical names of its key and values.
    #[must_use]
    pub fn canonical(self, names: &dyn LabelNames) -> Requirement {
        let key = names.canonical_key(self.key());
        self.renamed(key, |value| names.canonical_value(key, value).into())
    }

    /// Returns what the only values were meant to be, if all of them are misspelt: `amd64` for the architecture `amd46`.
    pub fn meant(&self) -> Option<&'static str> {
        let values = (!self.is_complement()).then(|| self.values())?;
        let meant: Option<Vec<&str>> = values
            .map(|value| spelling::meant_value(self.key(), value))
            .collect();
        meant?.first().copied()
    }
}

fn disjoint(incoming: &Requirement, existing: &Requirement) -> Option<Conflict> {
    (!incoming.has_intersection(existing)).then(|| Conflict::Disjoint {
        incoming: incoming.clone(),
        existing: existing.clone(),
    })
}

/// Requires each label to have exactly its value.
impl<'a> FromIterator<(&'a str, &'a str)> for Requirements {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(labels: T) -> Self {
        let labels = labels.into_iter();
        labels
            .map(|(key, value)| Requirement::equal(key, value))
            .collect()
    }
}

impl FromIterator<Requirement> for Requirements {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Requirements {
        let mut all = Requirements::new();
        requirements
            .into_iter()
            .for_each(|requirement| all.add(requirement));
        all
    }
}

impl fmt::Display for Requirements {
    /// Writes upstream's text form, ordered by key and joined by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display(|_| false))
    }
}
