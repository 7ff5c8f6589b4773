//! See the package description; this crate is being filled.
