//! Memory that nodes turned out to have, which the formula only guesses.
//!
//! What a registered node reports counts for its type and image from then on; the least that was seen counts.
//!
//! UPSTREAM: pkg/controllers/providers/instancetype/capacity, pkg/providers/instancetype/instancetype.go

use jiff::{SignedDuration, Timestamp};
use karpenter_core::requirements::Requirements;
use rustc_hash::FxHashMap;

use crate::{api::Ami, images::first_compatible};

/// How long a finding counts after it was last confirmed.
pub const TTL: SignedDuration = SignedDuration::from_hours(60 * 24);

/// Memory of nodes by instance type and image.
// DIFFERS: upstream forgets everything about a type when any image of the class changes; here only the image it boots counts.
#[derive(Clone, Debug, Default)]
pub struct DiscoveredMemory {
    by_type: FxHashMap<String, Vec<Finding>>,
    version: u64,
}

#[derive(Clone, Debug)]
struct Finding {
    image: String,
    bytes: i64,
    expires: Timestamp,
}

impl DiscoveredMemory {
    /// Takes note of a registered node's memory. A node whose image is no longer the one its type boots teaches nothing, and
    /// neither does one with more memory than was seen before. Whether anything was learnt.
    pub fn observe(
        &mut self,
        amis: &[Ami],
        name: &str,
        requirements: &Requirements,
        image: &str,
        bytes: i64,
        now: Timestamp,
    ) -> bool {
        if first_compatible(amis, requirements).is_none_or(|ami| ami.id != image) {
            return false;
        }
        let expires = now.checked_add(TTL).unwrap_or(Timestamp::MAX);
        let findings = self.by_type.entry(name.to_owned()).or_default();
        match findings.iter_mut().find(|finding| finding.image == image) {
            Some(finding) if bytes > finding.bytes => return false,
            Some(finding) if bytes == finding.bytes => {
                finding.expires = expires;
                return false;
            }
            Some(finding) => {
                finding.bytes = bytes;
                finding.expires = expires;
            }
            None => findings.push(Finding {
                image: image.to_owned(),
                bytes,
                expires,
            }),
        }
        self.version += 1;
        true
    }

    /// The memory in bytes of a type's machines with the image that they boot of these, if a node has shown it.
    pub fn of(&self, amis: &[Ami], name: &str, requirements: &Requirements) -> Option<i64> {
        let findings = self.by_type.get(name)?;
        let image = &first_compatible(amis, requirements)?.id;
        let finding = findings.iter().find(|finding| finding.image == *image)?;
        Some(finding.bytes)
    }

    /// Forgets what nobody has confirmed for long.
    pub fn expire(&mut self, now: Timestamp) {
        let mut expired = false;
        self.by_type.retain(|_, findings| {
            let before = findings.len();
            findings.retain(|finding| finding.expires > now);
            expired |= findings.len() != before;
            !findings.is_empty()
        });
        if expired {
            self.version += 1;
        }
    }

    /// Counts up with every change.
    pub fn version(&self) -> u64 {
        self.version
    }
}
