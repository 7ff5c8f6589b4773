//! The difference of two overviews.

use std::cmp::Ordering;

use serde::Serialize;

use super::columns::{COLUMNS, Column, Columns};
use super::{Overview, PendingGroup, PoolBudget, PoolLimit, Row, Totals};

/// What changed from one overview to the next.
#[derive(Debug)]
pub struct Delta<'a> {
    new: &'a Overview,
    pending: Option<&'a [PendingGroup]>,
    budgets: Option<&'a [PoolBudget]>,
    limits: Option<&'a [PoolLimit]>,
    add: Vec<&'a Row>,
    /// New versions, and the ones before.
    change: Vec<(&'a Row, &'a Row)>,
    remove: Vec<&'a str>,
}

impl Overview {
    /// Returns what changed since an earlier overview; `None` if nothing did but time and epoch.
    pub fn since<'a>(&'a self, earlier: &'a Self) -> Option<Delta<'a>> {
        let mut delta = Delta {
            new: self,
            pending: (self.pending != earlier.pending).then_some(&self.pending),
            budgets: (self.budgets != earlier.budgets).then_some(&self.budgets),
            limits: (self.limits != earlier.limits).then_some(&self.limits),
            add: Vec::new(),
            change: Vec::new(),
            remove: Vec::new(),
        };
        let mut old = earlier.rows.iter().peekable();
        for new in &self.rows {
            while let Some(gone) = old.next_if(|old| old.id < new.id) {
                delta.remove.push(&gone.id);
            }
            match old.next_if(|old| old.id.cmp(&new.id) == Ordering::Equal) {
                None => delta.add.push(new),
                Some(old) if old != new => delta.change.push((new, old)),
                Some(_) => {}
            }
        }
        delta.remove.extend(old.map(|gone| gone.id.as_str()));
        let is_empty = delta.add.is_empty() && delta.change.is_empty() && delta.remove.is_empty();
        let same = is_empty
            && delta.pending.is_none()
            && delta.budgets.is_none()
            && delta.limits.is_none()
            && self.totals == earlier.totals;
        (!same).then_some(delta)
    }
}

impl Delta<'_> {
    /// Returns the difference as JSON: `change` has only the columns in which a row changed.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Event<'a> {
            epoch: u64,
            at: jiff::Timestamp,
            totals: &'a Totals,
            #[serde(skip_serializing_if = "Option::is_none")]
            pending: Option<&'a [PendingGroup]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            budgets: Option<&'a [PoolBudget]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            limits: Option<&'a [PoolLimit]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            add: Option<Columns<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            change: Option<Columns<'a>>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            remove: &'a [&'a str],
        }
        let changed: Vec<&Row> = self.change.iter().map(|(new, _)| *new).collect();
        let differs = |column: &Column| {
            let mut pairs = self.change.iter();
            pairs.any(|(new, old)| !column.is_same(new, old))
        };
        let event = Event {
            epoch: self.new.observed.epoch,
            at: self.new.observed.at,
            totals: &self.new.totals,
            pending: self.pending,
            budgets: self.budgets,
            limits: self.limits,
            add: (!self.add.is_empty()).then(|| Columns::all(&self.add)),
            change: (!changed.is_empty())
                .then(|| Columns::some(&changed, COLUMNS.into_iter().filter(differs))),
            remove: &self.remove,
        };
        serde_json::to_string(&event).unwrap_or_default()
    }
}
