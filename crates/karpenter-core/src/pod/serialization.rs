//! How fields of a pod are written.

/// Whether a field of a pod need not be written.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes a name that is shared with other pods.
pub(super) mod node_name {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        name: &Option<Arc<str>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        name.as_deref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<str>>, D::Error> {
        let name: Option<String> = Deserialize::deserialize(deserializer)?;
        Ok(name.map(Into::into))
    }
}
