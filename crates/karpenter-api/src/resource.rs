//! The root types: `apiVersion`, `kind`, `metadata`, `spec`, `status`, and what kube-core needs to know about them.

/// Defines a root type with its serde and [`kube_core::Resource`] implementations.
///
/// `apiVersion` and `kind` are constants of the type: written always, ignored on reading. A status equal to its default
/// is not written, like an absent one.
macro_rules! resource {
    (
        $(#[$doc:meta])*
        $kind:ident { group: $group:expr, version: $version:expr, plural: $plural:expr, scope: $scope:ty, spec: $spec:ty, status: $status:ty }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        pub struct $kind {
            /// Standard object metadata.
            #[serde(default)]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What the user asks for.
            pub spec: $spec,
            /// What Karpenter has observed.
            #[serde(default)]
            pub status: $status,
        }

        impl $kind {
            /// The API group of the resource.
            pub const GROUP: &'static str = $group;
            /// The API version of the resource.
            pub const VERSION: &'static str = $version;
            /// The kind of the resource.
            pub const KIND: &'static str = stringify!($kind);
            /// The plural name of the resource, as in URLs.
            pub const PLURAL: &'static str = $plural;

            /// An object with this name and specification.
            pub fn new(name: &str, spec: $spec) -> Self {
                let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
                Self { metadata, spec, status: Default::default() }
            }

            /// The object's name; empty while it has none.
            pub fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }

            /// The object's uid; empty while it has none.
            pub fn uid(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let with_status = self.status != <$status>::default();
                let mut object = serializer.serialize_struct(stringify!($kind), 4 + usize::from(with_status))?;
                object.serialize_field("apiVersion", concat!($group, "/", $version))?;
                object.serialize_field("kind", stringify!($kind))?;
                object.serialize_field("metadata", &self.metadata)?;
                object.serialize_field("spec", &self.spec)?;
                if with_status {
                    object.serialize_field("status", &self.status)?;
                }
                object.end()
            }
        }

        impl kube_core::Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;

            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                Self::KIND.into()
            }
            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                Self::GROUP.into()
            }
            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                Self::VERSION.into()
            }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                Self::PLURAL.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use resource;
