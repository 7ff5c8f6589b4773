//! Access to a request's typed parameters by name.

use serde_json::Value;

use super::error::AwsError;

/// A view of a structure of parameters. Members of another type count as absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Params<'a>(pub(crate) &'a Value);

impl<'a> Params<'a> {
    pub(crate) fn text(self, name: &str) -> Option<&'a str> {
        self.0.get(name)?.as_str()
    }

    pub(crate) fn flag(self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    pub(crate) fn int(self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_i64()
    }

    /// Returns the structure `name`; empty if absent.
    pub(crate) fn inner(self, name: &str) -> Params<'a> {
        Params(self.0.get(name).unwrap_or(&Value::Null))
    }

    /// Refuses parameters outside of `known`: the stand-in must not answer as if the call did not have them.
    pub(crate) fn only(self, known: &[&str]) -> Result<(), AwsError> {
        let mut names = self
            .0
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name);
        match names.find(|name| *name != "DryRun" && !known.contains(&name.as_str())) {
            Some(name) => Err(AwsError::unsupported(name)),
            None => Ok(()),
        }
    }

    pub(crate) fn has(self, name: &str) -> bool {
        self.0.get(name).is_some_and(|v| !v.is_null())
    }

    /// Iterates over the elements of the list `name`.
    pub(crate) fn list(self, name: &str) -> impl Iterator<Item = Params<'a>> + use<'a> {
        self.0
            .get(name)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(Params)
    }

    /// Returns the elements of the list of strings `name`.
    pub(crate) fn texts(self, name: &str) -> Vec<&'a str> {
        self.list(name).filter_map(|v| v.0.as_str()).collect()
    }
}
