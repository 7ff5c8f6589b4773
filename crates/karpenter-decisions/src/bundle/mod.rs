//! Bundles: a snapshot of the cluster with all that its decisions depend on, in one file.
//!
//! A bundle is zstd-compressed JSON, one value a line: a manifest, what leads from an empty cluster to the state of each pass, and a
//! trailer with the number of lines and their BLAKE3 digest. `zstdcat FILE | jq` reads it. It has what the engine reads and nothing else: the writer is handed a
//! [`Snapshot`], whose pods were parsed without environment, arguments and images, and the objects that the model keeps whole are
//! reduced.
//!
//! ```
//! use jiff::Timestamp;
//! use karpenter_core::cluster::{Cluster, ClusterConfig};
//! use karpenter_core::pod::Pod;
//! use karpenter_core::resources::Resources;
//! use karpenter_decisions::bundle::{self, Bundle, Settings};
//!
//! let mut cluster = Cluster::new(ClusterConfig::default());
//! cluster.insert_pod(Pod::pending("shop", "web", Resources::new().with("cpu", 500)));
//! let settings = Settings::at(Timestamp::UNIX_EPOCH);
//! let bundle = Bundle::new("racks", "0.1.0", cluster.snapshot(), settings).decided(None);
//! let mut file = Vec::new();
//! bundle::write(&bundle, &mut file)?;
//!
//! let read = bundle::read(file.as_slice())?;
//! assert_eq!(read.snapshot.pod("shop", "web"), bundle.snapshot.pod("shop", "web"));
//! assert!(read.replay(8).iter().all(|decision| !decision.differs()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod catalogue;
mod changes;
mod decision;
mod error;
mod kinds;
mod lines;
mod objects;
mod offline;
mod out;
mod read;
pub mod recording;
pub mod redact;
mod rows;
mod settings;
mod write;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::schedule::Cancel;

pub use decision::{Comparison, Decision, PassResult, Replayed, run_pass};
pub use error::ReadError;
pub use offline::Offline;
pub use read::read;
pub use recording::RecordedPass;
pub use settings::{Redaction, Settings};
pub use write::write;

/// The version of the format. Earlier versions were never released, and are not read.
pub const SCHEMA: u32 = 4;

/// A snapshot with all that its decisions depend on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Bundle {
    /// The name of the cloud provider.
    pub provider: String,
    /// The version of the engine that wrote it.
    pub engine: String,
    pub snapshot: Snapshot,
    /// The settings of the passes. Their time is that of the capture.
    pub settings: Settings,
    pub decisions: Vec<Decision>,
    /// Passes of the time before, each with the state that it decided on.
    pub recording: Vec<RecordedPass>,
    /// Which names are pseudonyms.
    pub redaction: Redaction,
}

impl Bundle {
    /// Creates a bundle without decisions.
    #[must_use]
    pub fn new(provider: &str, engine: &str, snapshot: Snapshot, settings: Settings) -> Self {
        Self {
            provider: provider.to_owned(),
            engine: engine.to_owned(),
            snapshot,
            settings,
            decisions: Vec::new(),
            recording: Vec::new(),
            redaction: Redaction::None,
        }
    }

    /// Returns the time of the capture.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.settings.policy().now
    }

    /// Returns the bundle with the decisions of each pass on its snapshot; those that `cancel` ends early are marked.
    #[must_use]
    pub fn decided(mut self, cancel: Option<&Cancel>) -> Self {
        let cancelled = || cancel.is_some_and(|cancel| cancel());
        let decide = |pass| {
            let result = run_pass(pass, &self.snapshot, &self.settings, 1, cancel);
            result.decision(pass, cancelled())
        };
        self.decisions = Replayed::ALL.map(decide).into();
        self
    }

    /// Makes the recorded decisions again: those of earlier passes, then those on the snapshot.
    #[must_use]
    pub fn replay(&self, threads: usize) -> Vec<Comparison> {
        let recording = self.recording.iter().map(|pass| pass.replay(threads));
        let decisions = self.decisions.iter();
        let decisions = decisions
            .map(|recorded| decision::replay(recorded, &self.snapshot, &self.settings, threads));
        recording.chain(decisions).collect()
    }

    /// Returns the ids of its decisions, in the order of [`Self::replay`].
    pub fn decision_ids(&self) -> impl Iterator<Item = &str> {
        let recording = self.recording.iter().map(|pass| pass.decision.id.as_str());
        recording.chain(self.decisions.iter().map(|decision| decision.id.as_str()))
    }

    /// Keeps only the decisions with this id.
    pub fn retain_decision(&mut self, id: &str) {
        self.recording.retain(|pass| pass.decision.id == id);
        self.decisions.retain(|decision| decision.id == id);
    }
}
