//! Presentation of kinds: discovery, OpenAPI, Tables, protobuf request bodies.
//!
//! - [`discovery`]: the documents of discovery, the `/version` document.
//! - [`openapi`]: the `/openapi/v3` index and the document of a group and version, custom resources included.
//! - [`table`]: `Table` responses with kubectl's cells, and `PartialObjectMetadata`.
//! - [`age`]: durations as kubectl prints them.
//! - [`jsonpath`]: the paths of printer columns.
//! - [`protobuf`]: request bodies in Kubernetes' protobuf envelope, decoded to JSON.
//!
//! All functions are pure functions of the registry, objects and the given instant.

pub mod age;
pub mod discovery;
pub mod jsonpath;
pub mod openapi;
pub mod protobuf;
mod rows;
pub mod table;
