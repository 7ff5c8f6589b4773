//! Kubelet settings: `spec.kubelet` of an EC2NodeClass.
//!
//! The field is an open object, so that AL2023 supports every field of KubeletConfiguration. It is parsed and validated
//! here:
//!
//! - [`Kubelet`]: the settings that scheduling, or the user data of some family, depend on.
//! - `schema`: every field of KubeletConfiguration, to reject misspelled fields before a node is launched with them.
//! - `validate`: rules beyond the schema, and fields that a family does not support.
//! - `expression`: settings that depend on the instance type, written in CEL (feature gate NodeClassCEL).
//! - `resolve`: the settings for one instance type.
//! - `compatibility`: kubelet settings of v1beta1 NodePools.
//!
//! A misspelled field would otherwise be noticed on a node that never registers.
//!
//! UPSTREAM: pkg/apis/v1/kubeletconfiguration.go, pkg/providers/amifamily/bootstrap, pkg/cel

mod compatibility;
mod expression;
mod resolve;
mod schema;
mod settings;
mod validate;

pub use compatibility::with_v1beta1;
pub use expression::{Expression, ExpressionError, Variables};
pub use resolve::{Evaluator, Reserved};
pub use settings::{Kubelet, MaxPods};
pub use validate::{unsupported_fields, violations};
