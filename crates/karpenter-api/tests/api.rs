//! The resources as an API server and a reader of arbitrary input see them.

mod admission;
mod arbitrary_input;
