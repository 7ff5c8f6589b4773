//! An in-memory Kubernetes control plane for real `kubectl` and kube clients.
//!
//! ```
//! use k8s_openapi::api::core::v1::Namespace;
//! use karpenter_testbed::Testbed;
//! use kube::Api;
//! use kube::api::ListParams;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let testbed = Testbed::builder().start().await;
//! let namespaces: Api<Namespace> = Api::all(testbed.client());
//! let names: Vec<_> = namespaces.list(&ListParams::default()).await?.items;
//! assert!(names.iter().any(|it| it.metadata.name.as_deref() == Some("default")));
//! # Ok::<(), kube::Error>(())
//! # }).unwrap();
//! ```
//!
//! It consists of an API server (in process as a `tower::Service`, or over HTTPS on loopback), a scheduler, the workload
//! controllers and node agents, with injectable time and faults. It shares no code with the engine (architecture invariant I5),
//! so that it can contradict it.
//!
//! | module | contents |
//! |---|---|
//! | `registry` | the kinds, their names and schemas |
//! | `fields` | ownership of fields: managed fields and server-side apply |
//! | `patch` | JSON, merge and strategic merge patches |
//! | `present` | presentation of kinds: discovery, OpenAPI, Tables, protobuf request bodies |
//! | `store` | storage of objects: revisions, optimistic concurrency, watch |
//! | [`server`] | handling of requests: verbs, admission, subresources, custom resources, HTTP |
//! | [`loops`] | controllers: scheduler, workload controllers, node agents, garbage collection |
//! | [`Testbed`] | starts all of it for a test or the playground |
//! | [`clock`], [`faults`] | time and fault injection |

pub mod clock;
pub mod faults;
mod fields;
pub mod loops;
mod patch;
mod present;
mod quantity;
mod registry;
mod selector;
pub mod server;
mod store;
mod testbed;

pub use clock::Clock;
pub use faults::Faults;
pub use testbed::{Builder, Testbed};

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
