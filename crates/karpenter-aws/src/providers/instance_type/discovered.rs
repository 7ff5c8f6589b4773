//! Memory capacity that registered nodes report, which replaces the estimate.
//!
//! The memory that a registered node reports is used for its instance type and AMI from then on; the smallest reported
//! value is used.
//!
//! UPSTREAM: pkg/controllers/providers/instancetype/capacity, pkg/providers/instancetype/instancetype.go

use jiff::{SignedDuration, Timestamp};
use karpenter_core::requirements::Requirements;
use rustc_hash::FxHashMap;

use crate::api::Ami;
use crate::providers::image::first_compatible;

/// How long a reported value is used after it was last confirmed.
pub const TTL: SignedDuration = SignedDuration::from_hours(60 * 24);

/// Memory capacity by instance type and AMI.
// DIFFERS: upstream drops the values of a type when any AMI of the class changes; here only the AMI it boots matters.
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
    /// Records the memory of a registered node. Ignores nodes whose AMI is no longer the one that their type boots, and
    /// nodes with more memory than recorded. Returns whether the recorded value changed.
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

    /// Returns the memory in bytes of an instance type with the AMI that it boots, if a node has reported it.
    pub fn of(&self, amis: &[Ami], name: &str, requirements: &Requirements) -> Option<i64> {
        let findings = self.by_type.get(name)?;
        let image = &first_compatible(amis, requirements)?.id;
        let finding = findings.iter().find(|finding| finding.image == *image)?;
        Some(finding.bytes)
    }

    /// Removes values that no node has confirmed within [`TTL`].
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

    /// Returns a version that increases with every change.
    pub fn version(&self) -> u64 {
        self.version
    }
}
