//! One requirement: the values it admits for one label key.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use karpenter_api::v1::{NodeSelectorRequirementWithMinValues as ApiRequirement, Operator};

/// Why a requirement in an object is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequirement {
    /// The operator is not one of the API.
    #[error("key `{key}` has an unsupported operator `{operator}`")]
    UnknownOperator {
        /// The label key.
        key: String,
        /// The operator in the object.
        operator: String,
    },
    /// `Gt`, `Lt`, `Gte` or `Lte` without exactly one integer.
    #[error("key `{key}` with operator {operator} needs exactly one integer value")]
    NotOneInteger {
        /// The label key.
        key: String,
        /// The operator.
        operator: Operator,
    },
}

/// The label values that a requirement admits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Values {
    /// Exactly these.
    Only(BTreeSet<Arc<str>>),
    /// All values within the bounds, if there are any, except the excluded ones.
    ///
    /// INVARIANT: `gte <= lte` and `lte >= 0`: a label value cannot start with a minus. The exclusions lie within the bounds.
    AllBut {
        excluded: BTreeSet<Arc<str>>,
        gte: Option<i64>,
        lte: Option<i64>,
    },
}

/// The set of values that one label key may have.
///
/// Upstream has one empty set, `DoesNotExist`. Here a contradiction (`In [a]` and `In [b]`) is [never](Self::is_never) satisfied,
/// whereas `DoesNotExist` is satisfied by the absence of the label.
///
/// ```
/// use karpenter_core::requirements::{Operator, Requirement};
///
/// let cores = |operator, value: &str| Requirement::new("example.com/cores", operator, [value]);
/// let some = cores(Operator::Gt, "1").intersection(&cores(Operator::Lt, "9"));
/// assert_eq!(some.to_string(), "example.com/cores Exists >=2 <=8");
/// assert!(some.has("8") && !some.has("9") && !some.has("many"));
/// assert_eq!(some.any().as_deref(), Some("2"));
///
/// // Nothing satisfies both of these, not even the absence of the label.
/// let never = cores(Operator::In, "4").intersection(&cores(Operator::In, "16"));
/// assert!(never.is_never());
/// assert!(!never.has_intersection(&Requirement::new("example.com/cores", Operator::DoesNotExist, [""; 0])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: Arc<str>,
    values: Values,
    /// Whether a node without the label satisfies the requirement.
    absent: bool,
    min_values: Option<u32>,
}

impl Requirement {
    /// Creates the requirement of an operator and its values. Bounds without exactly one integer and an unknown operator admit
    /// nothing.
    pub fn new<V: Into<Arc<str>>>(
        key: &str,
        operator: Operator,
        values: impl IntoIterator<Item = V>,
    ) -> Requirement {
        let key: Arc<str> = key.into();
        let values: BTreeSet<Arc<str>> = values.into_iter().map(Into::into).collect();
        let bound = || {
            if values.len() == 1 {
                values.iter().find_map(|value| integer(value))
            } else {
                None
            }
        };
        match operator {
            Operator::In => Requirement {
                key,
                values: Values::Only(values),
                absent: false,
                min_values: None,
            },
            // Without values it admits any value, as upstream.
            Operator::NotIn => {
                let absent = !values.is_empty();
                Requirement {
                    key,
                    values: Values::AllBut {
                        excluded: values,
                        gte: None,
                        lte: None,
                    },
                    absent,
                    min_values: None,
                }
            }
            Operator::Exists => Requirement::bounded(key, BTreeSet::new(), None, None),
            Operator::DoesNotExist => Requirement {
                key,
                values: Values::Only(BTreeSet::new()),
                absent: true,
                min_values: None,
            },
            // Nothing is greater than the greatest integer.
            Operator::Gt => match bound().and_then(|bound| bound.checked_add(1)) {
                Some(gte) => Requirement::bounded(key, BTreeSet::new(), Some(gte), None),
                None => Requirement::never(key),
            },
            Operator::Gte => match bound() {
                Some(gte) => Requirement::bounded(key, BTreeSet::new(), Some(gte), None),
                None => Requirement::never(key),
            },
            Operator::Lt => match bound().and_then(|bound| bound.checked_sub(1)) {
                Some(lte) => Requirement::bounded(key, BTreeSet::new(), None, Some(lte)),
                None => Requirement::never(key),
            },
            Operator::Lte => match bound() {
                Some(lte) => Requirement::bounded(key, BTreeSet::new(), None, Some(lte)),
                None => Requirement::never(key),
            },
            Operator::Other(_) => Requirement::never(key),
        }
    }

    /// Parses a requirement of an object; checks the operator, and that bounds are integers.
    pub fn parse(
        key: &str,
        operator: &str,
        values: &[String],
    ) -> Result<Requirement, InvalidRequirement> {
        let operator = Operator::from(operator);
        if let Operator::Other(operator) = operator {
            let key = key.to_owned();
            return Err(InvalidRequirement::UnknownOperator { key, operator });
        }
        if operator.is_bound() && (values.len() != 1 || integer(&values[0]).is_none()) {
            return Err(InvalidRequirement::NotOneInteger {
                key: key.to_owned(),
                operator,
            });
        }
        Ok(Requirement::new(
            key,
            operator,
            values.iter().map(String::as_str),
        ))
    }

    /// Parses a requirement of a NodePool, a NodeClaim or a NodeOverlay, with its minValues.
    pub fn from_api(requirement: &ApiRequirement) -> Result<Requirement, InvalidRequirement> {
        let min_values = requirement
            .min_values
            .and_then(|least| u32::try_from(least).ok());
        Ok(Requirement::parse(
            &requirement.key,
            requirement.operator.as_str(),
            &requirement.values,
        )?
        .with_min_values(min_values))
    }

    /// Creates the requirement that the label has this value.
    pub fn equal(key: &str, value: &str) -> Requirement {
        Requirement::new(key, Operator::In, [value])
    }

    /// Creates the requirement that the label has any value.
    pub fn exists(key: &str) -> Requirement {
        Requirement::new(key, Operator::Exists, [""; 0])
    }

    /// Returns the same requirement with this minValues.
    #[must_use]
    pub fn with_min_values(mut self, min_values: Option<u32>) -> Requirement {
        self.min_values = min_values;
        self
    }

    /// Returns the same requirement on another key, with each listed value renamed.
    pub(super) fn renamed(&self, key: &str, rename: impl Fn(&str) -> Arc<str>) -> Requirement {
        let rename =
            |values: &BTreeSet<Arc<str>>| values.iter().map(|value| rename(value)).collect();
        let values = match &self.values {
            Values::Only(values) => Values::Only(rename(values)),
            Values::AllBut { excluded, gte, lte } => Values::AllBut {
                excluded: rename(excluded),
                gte: *gte,
                lte: *lte,
            },
        };
        Requirement {
            key: key.into(),
            values,
            absent: self.absent,
            min_values: self.min_values,
        }
    }

    /// Returns the values, and whether a node without the label satisfies the requirement.
    pub(super) fn parts(&self) -> (&Values, bool) {
        (&self.values, self.absent)
    }

    /// Creates a requirement from its parts; contradictory bounds admit nothing.
    pub(super) fn of_parts(key: &str, values: Values, absent: bool) -> Requirement {
        let requirement = match values {
            Values::Only(values) => Requirement::new(key, Operator::In, values),
            Values::AllBut { excluded, gte, lte } => {
                Requirement::bounded(key.into(), excluded, gte, lte)
            }
        };
        Requirement {
            absent,
            ..requirement
        }
    }

    fn never(key: Arc<str>) -> Requirement {
        Requirement {
            key,
            values: Values::Only(BTreeSet::new()),
            absent: false,
            min_values: None,
        }
    }

    fn bounded(
        key: Arc<str>,
        mut excluded: BTreeSet<Arc<str>>,
        gte: Option<i64>,
        lte: Option<i64>,
    ) -> Requirement {
        if lte.is_some_and(|lte| lte < gte.unwrap_or(0).max(0)) {
            return Requirement::never(key);
        }
        excluded.retain(|value| within(value, gte, lte));
        Requirement {
            key,
            values: Values::AllBut { excluded, gte, lte },
            absent: false,
            min_values: None,
        }
    }

    /// Returns the label key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the label key as a shared string.
    pub fn shared_key(&self) -> &Arc<str> {
        &self.key
    }

    /// Returns minValues: the smallest number of distinct values over the instance types.
    pub fn min_values(&self) -> Option<u32> {
        self.min_values
    }

    /// Returns the listed values, ordered: the admitted ones of a requirement that lists them, else the excluded ones.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &str> {
        let (Values::Only(values)
        | Values::AllBut {
            excluded: values, ..
        }) = &self.values;
        values.iter().map(|value| &**value)
    }

    /// Returns the one value that the requirement admits, if there is exactly one.
    pub fn single(&self) -> Option<&str> {
        match &self.values {
            Values::Only(values) if values.len() == 1 => values.first().map(|value| &**value),
            _ => None,
        }
    }

    /// Reports whether the listed values are the excluded ones: the requirement admits infinitely many values or a range.
    pub fn is_complement(&self) -> bool {
        matches!(self.values, Values::AllBut { .. })
    }

    /// Returns the smallest integer admitted, if there is such a bound.
    pub fn gte(&self) -> Option<i64> {
        match self.values {
            Values::Only(_) => None,
            Values::AllBut { gte, .. } => gte,
        }
    }

    /// Returns the largest integer admitted, if there is such a bound.
    pub fn lte(&self) -> Option<i64> {
        match self.values {
            Values::Only(_) => None,
            Values::AllBut { lte, .. } => lte,
        }
    }

    /// Returns the operator that describes the requirement, as upstream names it: bounds show as `Exists` or `NotIn`, and a
    /// contradiction as `DoesNotExist`.
    pub fn operator(&self) -> Operator {
        match &self.values {
            Values::Only(values) if values.is_empty() => Operator::DoesNotExist,
            Values::Only(_) => Operator::In,
            Values::AllBut { excluded, .. } if excluded.is_empty() => Operator::Exists,
            Values::AllBut { .. } => Operator::NotIn,
        }
    }

    /// Reports whether nothing satisfies the requirement, not even the absence of the label.
    pub fn is_never(&self) -> bool {
        !self.absent && self.operator() == Operator::DoesNotExist
    }

    /// Reports whether a node without the label satisfies the requirement.
    pub fn allows_absent(&self) -> bool {
        self.absent
    }

    /// Reports whether a label with this value satisfies the requirement.
    pub fn has(&self, value: &str) -> bool {
        match &self.values {
            Values::Only(values) => values.contains(value),
            Values::AllBut { excluded, gte, lte } => {
                !excluded.contains(value) && within(value, *gte, *lte)
            }
        }
    }

    /// Returns the number of values that satisfy the requirement, with `i64::MAX` for infinity.
    pub fn len(&self) -> i64 {
        match &self.values {
            Values::Only(values) => values.len() as i64,
            Values::AllBut { excluded, .. } => i64::MAX - excluded.len() as i64,
        }
    }

    /// Reports whether no value satisfies the requirement. The absence of the label may.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the smallest value that satisfies the requirement: the first of the listed ones, else the smallest integer. `None`
    /// where only the absence of the label, or nothing, satisfies it.
    // DIFFERS: upstream picks one at random, ignores exclusions and panics on some bounds.
    pub fn any(&self) -> Option<String> {
        match &self.values {
            Values::Only(values) => values.first().map(|value| value.to_string()),
            Values::AllBut { excluded, gte, lte } => {
                let first = gte.unwrap_or(0).max(0);
                let last = lte.unwrap_or(i64::MAX);
                let plain = (first..=last)
                    .map(|n| n.to_string())
                    .find(|value| !excluded.contains(value.as_str()));
                // All integers of a narrow range are excluded: 03 is an integer too, and another value than 3.
                plain.or_else(|| {
                    (1..)
                        .map(|zeros| format!("{}{first}", "0".repeat(zeros)))
                        .find(|v| !excluded.contains(v.as_str()))
                })
            }
        }
    }

    /// Returns the requirement that is satisfied where both are. The key is that of `self`; the larger minValues holds.
    #[must_use]
    pub fn intersection(&self, other: &Requirement) -> Requirement {
        let key = Arc::clone(&self.key);
        let absent = self.absent && other.absent;
        let min_values = self.min_values.max(other.min_values);
        let only = |values: BTreeSet<Arc<str>>| Requirement {
            key: Arc::clone(&key),
            values: Values::Only(values),
            absent,
            min_values,
        };
        match (&self.values, &other.values) {
            (Values::Only(values), _) => only(
                values
                    .iter()
                    .filter(|value| other.has(value))
                    .cloned()
                    .collect(),
            ),
            (_, Values::Only(values)) => only(
                values
                    .iter()
                    .filter(|value| self.has(value))
                    .cloned()
                    .collect(),
            ),
            (Values::AllBut { excluded: a, .. }, Values::AllBut { excluded: b, .. }) => {
                let gte = self.gte().max(other.gte());
                let lte = [self.lte(), other.lte()].into_iter().flatten().min();
                let excluded = a.union(b).cloned().collect();
                Requirement {
                    absent,
                    min_values,
                    ..Requirement::bounded(key, excluded, gte, lte)
                }
            }
        }
    }

    /// Reports whether anything satisfies both requirements: a value, or the absence of the label.
    pub fn has_intersection(&self, other: &Requirement) -> bool {
        if self.absent && other.absent {
            return true;
        }
        match (&self.values, &other.values) {
            (Values::Only(values), _) => values.iter().any(|value| other.has(value)),
            (_, Values::Only(values)) => values.iter().any(|value| self.has(value)),
            // Exclusions never empty a range: an integer can be written with leading zeros.
            (Values::AllBut { .. }, Values::AllBut { .. }) => {
                let gte = self.gte().max(other.gte()).unwrap_or(0).max(0);
                [self.lte(), other.lte()]
                    .into_iter()
                    .flatten()
                    .all(|lte| gte <= lte)
            }
        }
    }

    /// Returns the API entries for this requirement; parsed and intersected, they give it again.
    ///
    /// Bounds are `Gte` and `Lte`; exclusions stay as `NotIn` beside them. A requirement that cannot be satisfied is written as a
    /// contradiction.
    // DIFFERS: upstream writes bounds alone and loses the exclusions.
    pub fn to_node_selector_requirements(&self) -> Vec<ApiRequirement> {
        let entry = |operator: Operator, values: Vec<String>| ApiRequirement {
            key: self.key.to_string(),
            operator,
            values,
            min_values: self.min_values.map(i64::from),
        };
        match &self.values {
            Values::Only(values) if !values.is_empty() => vec![entry(
                Operator::In,
                values.iter().map(|v| v.to_string()).collect(),
            )],
            Values::Only(_) if self.absent => vec![entry(Operator::DoesNotExist, vec![])],
            Values::Only(_) => vec![
                entry(Operator::Exists, vec![]),
                entry(Operator::DoesNotExist, vec![]),
            ],
            Values::AllBut { excluded, gte, lte } => {
                let mut entries = Vec::new();
                entries.extend(gte.map(|gte| entry(Operator::Gte, vec![gte.to_string()])));
                entries.extend(lte.map(|lte| entry(Operator::Lte, vec![lte.to_string()])));
                if entries.is_empty() && !self.absent {
                    entries.push(entry(Operator::Exists, vec![]));
                }
                if !excluded.is_empty() {
                    entries.push(entry(
                        Operator::NotIn,
                        excluded.iter().map(|v| v.to_string()).collect(),
                    ));
                }
                entries
            }
        }
    }
}

/// Parses a label value as an integer.
fn integer(value: &str) -> Option<i64> {
    value.parse().ok()
}

fn within(value: &str, gte: Option<i64>, lte: Option<i64>) -> bool {
    if gte.is_none() && lte.is_none() {
        return true;
    }
    integer(value).is_some_and(|n| gte.is_none_or(|gte| gte <= n) && lte.is_none_or(|lte| n <= lte))
}

impl fmt::Display for Requirement {
    /// Writes upstream's text form: `key In [a b]`, at most five values, then bounds and minValues.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        let operator = self.operator();
        write!(f, "{} {operator}", self.key)?;
        if matches!(operator, Operator::In | Operator::NotIn) {
            for (index, value) in self.values().take(SHOWN).enumerate() {
                write!(f, "{}{value}", if index == 0 { " [" } else { " " })?;
            }
            if self.values().len() > SHOWN {
                write!(f, " and {} others", self.values().len() - SHOWN)?;
            }
            f.write_str("]")?;
        }
        if let Some(gte) = self.gte() {
            write!(f, " >={gte}")?;
        }
        if let Some(lte) = self.lte() {
            write!(f, " <={lte}")?;
        }
        match self.min_values {
            Some(min_values) => write!(f, " minValues {min_values}"),
            None => Ok(()),
        }
    }
}
