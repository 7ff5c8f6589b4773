//! Settings of the kubelet: `spec.kubelet` of an EC2NodeClass.
//!
//! The field is an open object, so that AL2023 takes whatever the kubelet takes. Here it is read and checked:
//!
//! - [`Kubelet`]: the settings that scheduling, or the user data of some family, must understand.
//! - `schema`: every field the kubelet knows, to find typing errors before a node is launched with them.
//! - `validate`: what the structure does not say, and what a family cannot apply.
//! - `expression`: values that depend on the instance type, written in CEL (feature gate NodeClassCEL).
//! - `resolve`: the settings for one instance type.
//! - `compatibility`: settings that a NodePool of v1beta1 had.
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
pub use settings::{Kubelet, MaxPods, canonical_json};
pub use validate::{unsupported_fields, violations};
