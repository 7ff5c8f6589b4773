//! The JSON of requirements, as bundles and catalogues have it.
//!
//! An object with the values that are admitted (`in`), or those that are not (`notIn`) with bounds, and whether a node without the
//! label satisfies it: more than the operators of the API can say, because intersections are requirements too.

use std::collections::BTreeSet;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::requirement::{Requirement, Values};
use super::set::Requirements;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    key: String,
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    only: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_in: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gte: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lte: Option<i64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    absent: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_values: Option<u32>,
}

impl Serialize for Requirement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (values, absent) = self.parts();
        let list = |values: &BTreeSet<std::sync::Arc<str>>| {
            Some(values.iter().map(|value| value.to_string()).collect())
        };
        let (only, not_in, gte, lte) = match values {
            Values::Only(values) => (list(values), None, None, None),
            Values::AllBut { excluded, gte, lte } => (None, list(excluded), *gte, *lte),
        };
        let written = Written {
            key: self.key().to_owned(),
            only,
            not_in: not_in.filter(|values: &BTreeSet<String>| !values.is_empty()),
            gte,
            lte,
            absent,
            min_values: self.min_values(),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Requirement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let shared = |values: BTreeSet<String>| values.into_iter().map(Into::into).collect();
        let values = match written.only {
            Some(_) if written.not_in.is_some() || written.gte.or(written.lte).is_some() => {
                let key = written.key;
                return Err(D::Error::custom(format!(
                    "invalid requirement on `{key}`: `in` excludes `notIn`, `gte` and `lte`"
                )));
            }
            Some(values) => Values::Only(shared(values)),
            None => Values::AllBut {
                excluded: written.not_in.map(shared).unwrap_or_default(),
                gte: written.gte,
                lte: written.lte,
            },
        };
        let requirement = Requirement::of_parts(&written.key, values, written.absent)
            .with_min_values(written.min_values);
        Ok(requirement)
    }
}

impl Serialize for Requirements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Requirements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<Requirement>::deserialize(deserializer)?;
        let keys: BTreeSet<&str> = list.iter().map(Requirement::key).collect();
        if keys.len() < list.len() {
            return Err(D::Error::custom("invalid requirements: a key occurs twice"));
        }
        Ok(list.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::requirements::Operator;

    fn requirement() -> impl Strategy<Value = Requirement> {
        let operator = prop::sample::select(vec![
            Operator::In,
            Operator::NotIn,
            Operator::Exists,
            Operator::DoesNotExist,
            Operator::Gt,
            Operator::Lte,
        ]);
        let value = prop::sample::select(vec!["a", "b", "3", "7"]);
        let one = (operator, prop::collection::vec(value, 0..3))
            .prop_map(|(operator, values)| Requirement::new("key", operator, values));
        (one.clone(), one, prop::option::of(0_u32..3))
            .prop_map(|(a, b, min)| a.intersection(&b).with_min_values(min))
    }

    proptest! {
        #[test]
        fn every_intersection_is_read_back_as_it_was(requirement in requirement()) {
            let written = serde_json::to_string(&requirement).unwrap();
            let read: Requirement = serde_json::from_str(&written).unwrap();
            prop_assert_eq!(read, requirement, "{}", written);
        }
    }

    #[test]
    fn contradictory_bounds_are_never_satisfied() {
        let read: Requirement =
            serde_json::from_value(json!({ "key": "k", "gte": 5, "lte": 3 })).unwrap();
        assert!(read.is_never());
    }

    #[test]
    fn a_requirement_with_both_forms_or_an_unknown_field_is_refused() {
        for written in [
            json!({ "key": "k", "in": ["a"], "notIn": ["b"] }),
            json!({ "key": "k", "in": ["a"], "gte": 1 }),
            json!({ "key": "k", "values": ["a"] }),
            json!({ "in": ["a"] }),
        ] {
            assert!(
                serde_json::from_value::<Requirement>(written.clone()).is_err(),
                "{written}"
            );
        }
        let twice = json!([{ "key": "k", "in": ["a"] }, { "key": "k", "in": ["b"] }]);
        assert!(serde_json::from_value::<Requirements>(twice).is_err());
    }
}
