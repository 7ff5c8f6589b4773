//! Resolution of the AMIs of a node class.
//!
//! 1. An alias (`al2023@latest`) resolves to SSM parameters; [`Alias::parameters`] returns them with the instance types
//!    that each AMI is built for ([`Variant`]).
//! 2. Selector terms and resolved parameters become a few [`ImageQuery`]s.
//! 3. Of the AMIs that EC2 returns, [`choose`] keeps the best for each set of requirements, newest first.
//! 4. An instance type boots the first AMI that [`first_compatible`] returns for it.
//!
//! [`Alias::parameters`]: crate::api::Alias::parameters
//!
//! These steps make no calls; [`ParameterCache`] caches the values of SSM parameters, and `resolver` makes the calls.
// UPSTREAM: pkg/providers/amifamily

mod alias;
#[cfg(feature = "sdk")]
mod choice;
mod compatible;
mod devices;
mod parameters;
#[cfg(feature = "sdk")]
mod query;
#[cfg(feature = "sdk")]
mod resolver;

pub use alias::{Parameter, UnsupportedAlias, Variant};
#[cfg(feature = "sdk")]
pub use choice::{Image, choose};
pub use compatible::first_compatible;
pub use devices::{DefaultDevice, default_devices};
pub use parameters::ParameterCache;
#[cfg(feature = "sdk")]
pub use query::{ImageQuery, bottlerocket_version, queries};
#[cfg(feature = "sdk")]
pub use resolver::{Images, ImagesError, ParameterInvalidation};
