//! Rows as columns.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::Row;
use super::pack::packed;

/// How a column is read from a row.
#[derive(Clone, Copy)]
enum Read {
    Text(fn(&Row) -> &str),
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
            Read::Text(read) => read(a) == read(b),
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
    text("nodePool", |row| &row.node_pool),
    text("zone", |row| &row.zone),
    text("instanceType", |row| &row.instance_type),
    text("capacityType", |row| &row.capacity_type),
    text("state", |row| row.state),
    text("reason", |row| row.reason),
    text("text", |row| &row.text),
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
                    map.serialize_entry(column.name, &packed(&texts))?;
                }
                Read::Number(read) => {
                    let numbers: Vec<i64> = rows.map(|row| read(row)).collect();
                    map.serialize_entry(column.name, &packed(&numbers))?;
                }
            }
        }
        map.end()
    }
}
