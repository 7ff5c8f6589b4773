//! Which machine images a node class means.
//!
//! 1. An alias (`al2023@latest`) names parameters that AWS keeps up to date; [`Alias::parameters`] says which, and for which
//!    machines each is meant ([`Variant`]).
//! 2. Selector terms and resolved parameters become few [`ImageQuery`]s.
//! 3. Of what EC2 answers, [`choose`] keeps the best image for each kind of machine, newest first.
//! 4. A machine gets the first image that [`first_compatible`] finds for its type.
//!
//! [`Alias::parameters`]: crate::api::Alias::parameters
//!
//! All of this is decided without a call; [`ParameterCache`] remembers what calls returned, and `resolver` makes them.
// UPSTREAM: pkg/providers/amifamily

mod alias;
mod choice;
mod devices;
mod parameters;
mod query;
#[cfg(feature = "sdk")]
mod resolver;

pub use alias::{Parameter, UnsupportedAlias, Variant};
pub use choice::{ChosenImage, Image, choose, first_compatible};
pub use devices::{DefaultDevice, default_devices};
pub use parameters::ParameterCache;
pub use query::{Filter, ImageQuery, bottlerocket_version, queries};
#[cfg(feature = "sdk")]
pub use resolver::{Forgetting, Images, ImagesError};
