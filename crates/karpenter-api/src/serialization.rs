//! Serialization of fields: open enumerations and absent values.

use serde::{Deserialize, Deserializer};

/// Defines an enumeration of strings that keeps unknown strings, so that a typing error becomes a validation error of that
/// object instead of an object that cannot be deserialized.
macro_rules! open_enum {
    (
        $(#[$doc:meta])*
        $name:ident { $( $(#[$variant_doc:meta])* $variant:ident ),+ $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_doc])* $variant, )+
            /// An unknown value.
            Other(String),
        }

        impl $name {
            /// Every known value.
            pub const KNOWN: &'static [Self] = &[$( Self::$variant ),+];

            /// Returns the value as in the API.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => stringify!($variant), )+
                    Self::Other(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( stringify!($variant) => Self::$variant, )+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(<std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?.as_ref().into())
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$( stringify!($variant) ),+] })
            }
        }
    };
}

pub(crate) use open_enum;

/// Deserializes an empty string as absent: upstream writes both for an unknown value.
pub(crate) fn none_if_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

/// Deserializes `null` as an absent list or map, as the API server's pruning does.
pub(crate) fn default_if_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
