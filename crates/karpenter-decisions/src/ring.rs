//! The latest records, within bounds of number, age and memory.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::record::{DecisionRecord, Outcome, Pass, RecordId};

/// The bounds of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The maximum number of records.
    pub records: usize,
    /// The age at which a record is dropped, from the last pass that it describes.
    pub age: SignedDuration,
    /// The maximum memory of all records in bytes.
    pub memory: usize,
}

impl Default for Bounds {
    /// 2,048 records of 24 hours in 4 MiB.
    fn default() -> Self {
        Self {
            records: 2048,
            age: SignedDuration::from_hours(24),
            memory: 4 << 20,
        }
    }
}

/// Records by number, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    bounds: Bounds,
    records: VecDeque<Arc<DecisionRecord>>,
    memory: usize,
    last: u32,
}

/// The effect of a pass on the ring.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// The pass has a record of its own.
    New(Arc<DecisionRecord>),
    /// The pass found what the last one of its kind found: that record now lasts until this pass.
    Extended(RecordId),
}

impl Recorded {
    /// Returns the id of the record that describes the pass.
    pub fn id(&self) -> RecordId {
        match self {
            Self::New(record) => record.id,
            Self::Extended(id) => *id,
        }
    }
}

/// The memory of a slot beside the record's own.
const SLOT: usize = size_of::<Arc<DecisionRecord>>() + 2 * size_of::<usize>();

impl Ring {
    /// Creates an empty ring.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// Records a pass that ended at `now`.
    pub fn push(&mut self, outcome: Outcome, now: Timestamp) -> Recorded {
        let number = self.last.saturating_add(1);
        let record = DecisionRecord::new(RecordId::new(now, number), now, outcome);
        self.expire(now);
        if let Some(same) = self.last_of(record.pass)
            && same.output_digest == record.output_digest
            && same.truncated == record.truncated
        {
            let same = Arc::make_mut(same);
            same.until = same.until.max(now);
            return Recorded::Extended(same.id);
        }
        self.last = number;
        let record = Arc::new(record);
        self.memory += record.memory() + SLOT;
        self.records.push_back(Arc::clone(&record));
        while self.records.len() > self.bounds.records || self.memory > self.bounds.memory {
            let Some(oldest) = self.records.pop_front() else {
                break;
            };
            self.memory -= oldest.memory() + SLOT;
        }
        Recorded::New(record)
    }

    /// Drops the records that are too old.
    pub fn expire(&mut self, now: Timestamp) {
        let age = self.bounds.age;
        let mut freed = 0;
        self.records.retain(|record| {
            let keep = now.duration_since(record.until) <= age;
            if !keep {
                freed += record.memory() + SLOT;
            }
            keep
        });
        self.memory -= freed;
    }

    /// Amends the latest record for which `amend` returns true; returns that record. Its digests stay: they are those of the decision.
    pub fn amend(
        &mut self,
        mut amend: impl FnMut(&mut DecisionRecord) -> bool,
        is_candidate: impl Fn(&DecisionRecord) -> bool,
    ) -> Option<Arc<DecisionRecord>> {
        let mut records = self.records.iter_mut().rev();
        let record = records.find(|record| is_candidate(record))?;
        let before = record.memory();
        if !amend(Arc::make_mut(record)) {
            return None;
        }
        self.memory = (self.memory + record.memory()).saturating_sub(before);
        Some(Arc::clone(record))
    }

    fn last_of(&mut self, pass: Pass) -> Option<&mut Arc<DecisionRecord>> {
        self.records
            .iter_mut()
            .rev()
            .find(|record| record.pass == pass)
    }

    /// Iterates over the records, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<DecisionRecord>> {
        self.records.iter()
    }

    /// Returns the record of this number, unless it was dropped.
    pub fn get(&self, number: u32) -> Option<&Arc<DecisionRecord>> {
        let at = self
            .records
            .binary_search_by_key(&number, |record| record.id.number);
        self.records.get(at.ok()?)
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Reports whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the memory of all records in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }
}
