//! The root types of resources: `apiVersion`, `kind`, `metadata`, `spec`, `status`, with their kube-core implementations.

/// Defines the root type of a custom resource with its serde and [`kube_core::Resource`] implementations. Providers define
/// their NodeClasses with it, too.
///
/// `apiVersion` and `kind` are constants of the type: always serialized, ignored on deserializing. A status equal to its
/// default is not serialized. `spec` is required, unless its type is preceded by `#[serde(default)]`.
///
/// ```
/// use karpenter_api::{crd::{Column, Definition}, k8s_openapi::ClusterResourceScope};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// /// The desired state of a ToyNodeClass.
/// #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
/// pub struct ToyNodeClassSpec {
///     /// The kind of toy.
///     #[serde(default)]
///     #[schemars(extend("x-default" = "bear"))]
///     pub toy: String,
/// }
///
/// /// The observed state of a ToyNodeClass.
/// #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
/// pub struct ToyNodeClassStatus {}
///
/// karpenter_api::resource! {
///     /// A NodeClass of toys.
///     ToyNodeClass {
///         group: "toys.example.com", version: "v1", plural: "toynodeclasses", scope: ClusterResourceScope,
///         spec: ToyNodeClassSpec, status: ToyNodeClassStatus
///     }
/// }
///
/// let class = ToyNodeClass::new("default", ToyNodeClassSpec::default());
/// assert_eq!(serde_json::to_value(&class).unwrap()["kind"], "ToyNodeClass");
/// let definition = Definition {
///     group: ToyNodeClass::GROUP,
///     version: ToyNodeClass::VERSION,
///     kind: ToyNodeClass::KIND,
///     plural: ToyNodeClass::PLURAL,
///     namespaced: false,
///     short_names: &["toy"],
///     categories: &["karpenter"],
///     description: "A NodeClass of toys.",
///     columns: vec![Column::new("Toy", "string", ".spec.toy")],
///     scale: None,
/// };
/// assert_eq!(definition.build::<ToyNodeClassSpec, ToyNodeClassStatus>()["metadata"]["name"], "toynodeclasses.toys.example.com");
/// ```
#[macro_export]
macro_rules! resource {
    (
        $(#[$doc:meta])*
        $kind:ident { group: $group:expr, version: $version:expr, plural: $plural:expr, scope: $scope:ty, spec: $(#[$spec_attribute:meta])* $spec:ty, status: $status:ty }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, $crate::serde::Deserialize)]
        #[serde(crate = "karpenter_api::serde")]
        pub struct $kind {
            /// Standard object metadata.
            #[serde(default)]
            pub metadata: $crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// The desired state.
            $(#[$spec_attribute])*
            pub spec: $spec,
            /// The observed state.
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

            /// Creates an object with this name and specification.
            pub fn new(name: &str, spec: $spec) -> Self {
                let metadata = $crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
                Self { metadata, spec, status: Default::default() }
            }

            /// Returns the object's name; empty if it has none.
            pub fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }

            /// Returns the object's uid; empty if it has none.
            pub fn uid(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }
        }

        impl $crate::serde::Serialize for $kind {
            fn serialize<S: $crate::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use $crate::serde::ser::SerializeStruct;
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

        impl $crate::kube_core::Resource for $kind {
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
            fn meta(&self) -> &$crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut $crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
