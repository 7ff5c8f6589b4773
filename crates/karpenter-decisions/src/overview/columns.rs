//! Rows as columns.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::{Row, pack};

/// How a column is read from a row.
#[derive(Clone, Copy)]
enum Read {
    /// A text that differs from row to row.
    Text(fn(&Row) -> &str),
    /// A text that repeats.
    Word(fn(&Row) -> &str),
    Number(fn(&Row) -> i64),
}

/// A field of all rows.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    read: Read,
}

impl Column {
    /// Reports whether two rows have the same value.
    pub(super) fn is_same(&self, a: &Row, b: &Row) -> bool {
        match self.read {
            Read::Text(read) | Read::Word(read) => read(a) == read(b),
            Read::Number(read) => read(a) == read(b),
        }
    }
}

const fn text(name: &'static str, read: fn(&Row) -> &str) -> Column {
    Column {
        name,
        read: Read::Text(read),
    }
}

const fn word(name: &'static str, read: fn(&Row) -> &str) -> Column {
    Column {
        name,
        read: Read::Word(read),
    }
}

const fn number(name: &'static str, read: fn(&Row) -> i64) -> Column {
    Column {
        name,
        read: Read::Number(read),
    }
}

/// Identifies the rows; the first of all columns.
pub(super) const ID: Column = text("id", |row| &row.id);

/// All columns but [`ID`].
pub(super) const COLUMNS: [Column; 17] = [
    text("node", |row| &row.node),
    word("nodePool", |row| &row.node_pool),
    word("zone", |row| &row.zone),
    word("instanceType", |row| &row.instance_type),
    word("capacityType", |row| &row.capacity_type),
    word("state", |row| row.state),
    word("reason", |row| row.reason),
    word("text", |row| &row.text),
    number("since", |row| row.since),
    number("created", |row| row.created),
    number("price", |row| row.price),
    number("pods", |row| row.pods),
    number("podsAllocatable", |row| row.pods_allocatable),
    number("cpu", |row| row.cpu),
    number("cpuAllocatable", |row| row.cpu_allocatable),
    number("memory", |row| row.memory),
    number("memoryAllocatable", |row| row.memory_allocatable),
];

/// Some columns of some rows.
pub(super) struct Columns<'a> {
    rows: &'a [&'a Row],
    columns: Vec<Column>,
}

impl<'a> Columns<'a> {
    pub(super) fn all(rows: &'a [&'a Row]) -> Self {
        Self::some(rows, COLUMNS.into_iter())
    }

    /// These columns, and that of the ids.
    pub(super) fn some(rows: &'a [&'a Row], columns: impl Iterator<Item = Column>) -> Self {
        Self {
            rows,
            columns: std::iter::once(ID).chain(columns).collect(),
        }
    }
}

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.columns.len()))?;
        for column in &self.columns {
            let rows = self.rows.iter();
            match column.read {
                Read::Text(read) => {
                    let texts: Vec<&str> = rows.map(|row| read(row)).collect();
                    map.serialize_entry(column.name, &pack::texts(&texts))?;
                }
                Read::Word(read) => {
                    let words: Vec<&str> = rows.map(|row| read(row)).collect();
                    map.serialize_entry(column.name, &pack::words(&words))?;
                }
                Read::Number(read) => {
                    let numbers: Vec<i64> = rows.map(|row| read(row)).collect();
                    map.serialize_entry(column.name, &pack::numbers(&numbers))?;
                }
            }
        }
        map.end()
    }
}
