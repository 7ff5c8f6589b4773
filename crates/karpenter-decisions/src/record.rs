//! Records of decisions.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::choice::Chosen;
use crate::digest::Digest;

/// The largest record, as JSON in bytes: a container's log line is split at this length.
pub const MAX_RECORD: usize = 16 * 1024;
/// How many pods or nodes an item names.
pub const NAMED: usize = 3;
/// How many instance types an item names.
pub const NAMED_TYPES: usize = 10;
/// The longest text of an item in bytes; longer ones are cut.
pub const MAX_TEXT: usize = 256;

/// Identifies a record: the time of the pass in milliseconds, in base 36, and the number of the record since this replica leads.
///
/// ```
/// use karpenter_decisions::record::RecordId;
///
/// let id = RecordId { millis: 1_763_889_242_113, number: 7 };
/// assert_eq!(id.to_string(), "mibi41s1-7");
/// assert_eq!("mibi41s1-7".parse(), Ok(id));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId {
    /// Unix time of the pass in milliseconds.
    pub millis: u64,
    /// The number of the record, from 1.
    pub number: u32,
}

impl RecordId {
    /// Returns the id of a record made at `at`; times before 1970 count as 1970.
    pub fn new(at: Timestamp, number: u32) -> Self {
        Self {
            millis: u64::try_from(at.as_millisecond()).unwrap_or_default(),
            number,
        }
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = Vec::new();
        let mut rest = self.millis;
        loop {
            let digit = u32::try_from(rest % 36).unwrap_or_default();
            digits.extend(char::from_digit(digit, 36));
            rest /= 36;
            if rest == 0 {
                break;
            }
        }
        let text: String = digits.iter().rev().collect();
        write!(f, "{text}-{}", self.number)
    }
}

/// A text that is not the id of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRecordId;

impl FromStr for RecordId {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        let (millis, number) = text.split_once('-').ok_or(InvalidRecordId)?;
        // `from_str_radix` accepts a sign.
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !plain(millis) || !plain(number) {
            return Err(InvalidRecordId);
        }
        Ok(Self {
            millis: u64::from_str_radix(millis, 36).map_err(|_| InvalidRecordId)?,
            number: number.parse().map_err(|_| InvalidRecordId)?,
        })
    }
}

impl Serialize for RecordId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The controller that made a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Pass {
    Provisioning,
    /// Disruption: drift, emptiness and consolidation.
    Disruption,
    /// Disruption's validation of a command before it starts.
    Validation,
    /// Static capacity: NodePools with `replicas`.
    StaticCapacity,
    /// Node repair: unhealthy nodes.
    Repair,
}

impl Pass {
    pub const ALL: [Self; 5] = [
        Self::Provisioning,
        Self::Disruption,
        Self::Validation,
        Self::StaticCapacity,
        Self::Repair,
    ];

    /// Returns the name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "Provisioning",
            Self::Disruption => "Disruption",
            Self::Validation => "Validation",
            Self::StaticCapacity => "StaticCapacity",
            Self::Repair => "Repair",
        }
    }
}

pub(crate) fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The numbers of a record, over all its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Pods placed on existing nodes.
    pub placed: usize,
    pub unplaced: usize,
    pub launched: usize,
    pub disrupted: usize,
    pub kept: usize,
    /// Price of the planned nodes, less the savings of the commands, in dollars per hour.
    pub price_per_hour: f64,
    /// Items that the record has no room for.
    pub omitted_items: usize,
}

/// What a pass decided about one class of pods, one planned node, one command, or the nodes kept for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Item {
    /// A command: nodes to delete, and their replacements.
    Disrupted {
        /// `empty`, `drifted` or `underutilized`; `unhealthy` for a repair, `surplus` for a static NodePool.
        reason: &'static str,
        /// The command: eight hexadecimal digits, the same in each record about it. Empty for a node that is only deleted.
        #[serde(skip_serializing_if = "String::is_empty")]
        command: String,
        /// `delete` or `replace`.
        decision: &'static str,
        /// The number of nodes.
        count: usize,
        names: Vec<String>,
        replacements: usize,
        /// The first instance types of the replacements.
        instance_types: Vec<String>,
        /// The number of pods that move.
        pods: usize,
        /// Savings in dollars per hour.
        savings_per_hour: f64,
        /// The id of the reason why the command was not started, if validation rejected it.
        #[serde(skip_serializing_if = "Option::is_none")]
        rejected: Option<&'static str>,
        /// What has become of the command since it was started.
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<CommandOutcome>,
    },
    Launched {
        node_pool: String,
        /// The NodeClaim; absent if it could not be created.
        #[serde(skip_serializing_if = "Option::is_none")]
        node_claim: Option<String>,
        pods: usize,
        names: Vec<String>,
        /// The first instance types, cheapest first.
        instance_types: Vec<String>,
        /// The number of further instance types.
        more_instance_types: usize,
        /// Price of the cheapest offering in dollars per hour.
        price_per_hour: f64,
        /// What the cloud chose; absent before the launch.
        #[serde(skip_serializing_if = "Option::is_none")]
        chosen: Option<Chosen>,
    },
    /// Pods of one class that have no place.
    Unplaced {
        /// The class: pods of one workload have the same.
        class: String,
        /// The number of pods.
        count: usize,
        names: Vec<String>,
        reason: &'static str,
        /// The text of the reason.
        text: String,
    },
    /// Pods of one class that were placed on existing nodes.
    Placed {
        /// The class: pods of one workload have the same.
        class: String,
        /// The number of pods.
        count: usize,
        names: Vec<String>,
        nodes: Vec<String>,
    },
    /// Nodes of a NodePool that are kept for one reason.
    Kept {
        /// The NodePool; empty for nodes without one.
        node_pool: String,
        reason: &'static str,
        /// The number of nodes.
        count: usize,
        names: Vec<String>,
        /// Price of the nodes in dollars per hour.
        price_per_hour: f64,
    },
}

impl Item {
    /// Reports whether the item is about an object of this name: `namespace/name` for a pod.
    pub fn names(&self, subject: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|name| name == subject);
        match self {
            Self::Disrupted { names, outcome, .. } => {
                let replacements = outcome.as_ref().map(|it| it.replacements.as_slice());
                has(names) || has(replacements.unwrap_or_default())
            }
            Self::Unplaced { names, .. } | Self::Kept { names, .. } => has(names),
            Self::Launched {
                node_claim, names, ..
            } => node_claim.as_deref() == Some(subject) || has(names),
            Self::Placed { names, nodes, .. } => has(names) || has(nodes),
        }
    }

    /// Returns the id of the item's reason, if it has one.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Unplaced { reason, .. } | Self::Kept { reason, .. } => Some(reason),
            Self::Disrupted { rejected, .. } => *rejected,
            Self::Launched { .. } | Self::Placed { .. } => None,
        }
    }

    fn heap(&self) -> usize {
        let text = |text: &String| text.capacity();
        let texts = |texts: &Vec<String>| {
            texts.capacity() * size_of::<String>() + texts.iter().map(text).sum::<usize>()
        };
        match self {
            Self::Disrupted {
                command,
                names,
                instance_types,
                outcome,
                ..
            } => {
                let outcome = outcome.as_ref().map_or(0, |it| {
                    texts(&it.replacements) + it.why.as_ref().map_or(0, text)
                });
                text(command) + texts(names) + texts(instance_types) + outcome
            }
            Self::Launched {
                node_pool,
                node_claim,
                names,
                instance_types,
                chosen,
                ..
            } => {
                let chosen = chosen.as_ref().map_or(0, |chosen| {
                    text(&chosen.instance_type)
                        + chosen.zone.as_ref().map_or(0, text)
                        + chosen.capacity_type.as_ref().map_or(0, text)
                });
                text(node_pool)
                    + node_claim.as_ref().map_or(0, text)
                    + texts(names)
                    + texts(instance_types)
                    + chosen
            }
            Self::Unplaced {
                class,
                names,
                text: why,
                ..
            } => text(class) + texts(names) + text(why),
            Self::Placed {
                class,
                names,
                nodes,
                ..
            } => text(class) + texts(names) + texts(nodes),
            Self::Kept {
                node_pool, names, ..
            } => text(node_pool) + texts(names),
        }
    }
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CommandState {
    /// Its nodes are tainted, and its replacements are launching.
    Started,
    /// Its nodes are being deleted.
    Succeeded,
    /// It was not started: its nodes could not be tainted, or its replacements could not be created.
    NotStarted,
    /// A replacement was lost, or a node could not be deleted; the nodes stay.
    RolledBack,
    /// The replacements were not initialized in time; the nodes stay.
    TimedOut,
}

/// What has become of a command.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandOutcome {
    /// How far it has come.
    pub state: CommandState,
    pub at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The first NodeClaims that replace its nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replacements: Vec<String>,
}

/// The room in a record for later amendments of an item.
const AMENDMENT_BYTES: usize = 512;

/// What a pass decided, before it has an id.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub pass: Pass,
    /// The epoch of the snapshot that the pass decided on.
    pub epoch: u64,
    pub input: Digest,
    /// Duration of the pass in milliseconds.
    pub took_ms: u64,
    /// Whether the pass ran out of time.
    pub truncated: bool,
    pub totals: Totals,
    /// The items, the most important ones first.
    pub items: Vec<Item>,
}

/// A record of one pass, or of several that had the same result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionRecord {
    pub id: RecordId,
    /// When the pass ended.
    pub at: Timestamp,
    /// When the last pass with the same result ended.
    pub until: Timestamp,
    pub pass: Pass,
    /// The epoch of the snapshot that the pass decided on.
    pub epoch: u64,
    pub input_digest: Digest,
    /// Digest of all items, also of those that the record has no room for.
    pub output_digest: Digest,
    /// Duration of the pass in milliseconds.
    pub took_ms: u64,
    /// Whether the pass ran out of time.
    pub truncated: bool,
    pub totals: Totals,
    /// The items, the most important ones first.
    pub items: Vec<Item>,
}

impl DecisionRecord {
    /// Creates the record of a pass that ended at `at`. Items that do not fit into [`MAX_RECORD`] are only counted.
    pub fn new(id: RecordId, at: Timestamp, outcome: Outcome) -> Self {
        let output_digest = Digest::of(&outcome.items);
        let mut record = Self {
            id,
            at,
            until: at,
            pass: outcome.pass,
            epoch: outcome.epoch,
            input_digest: outcome.input,
            output_digest,
            took_ms: outcome.took_ms,
            truncated: outcome.truncated,
            totals: outcome.totals,
            items: Vec::new(),
        };
        // The number of omitted items and a later `until` may need more digits, and a log line has more keys.
        let mut left = MAX_RECORD.saturating_sub(length(&record) + 256);
        let all = outcome.items.len();
        for item in outcome.items {
            let later = matches!(item, Item::Disrupted { .. } | Item::Launched { .. });
            let needed = length(&item) + 1 + if later { AMENDMENT_BYTES } else { 0 };
            if needed > left {
                break;
            }
            left -= needed;
            record.items.push(item);
        }
        record.items.shrink_to_fit();
        record.totals.omitted_items = all - record.items.len();
        record
    }

    /// Returns the memory of the record in bytes.
    pub fn memory(&self) -> usize {
        let items = self.items.capacity() * size_of::<Item>();
        size_of::<Self>() + items + self.items.iter().map(Item::heap).sum::<usize>()
    }

    /// Returns the record as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns the length of a value's JSON in bytes.
fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(MAX_RECORD, |json| json.len())
}

/// Returns a text of at most [`MAX_TEXT`] bytes: a longer one is cut at the end of a character.
pub fn clipped(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT - '…'.len_utf8())
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text.shrink_to_fit();
    text
}
