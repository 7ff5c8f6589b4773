//! An expression in the cost estimate: its cost, type, origin and size.

use std::cell::RefCell;
use std::rc::Rc;

use super::declaration::{Declaration, Type};
use super::size::Size;

/// The path from a variable to a field: the variable's name, then names of fields, `@items`, `@values` or `@keys`.
///
/// INVARIANT: this behaves like a Go slice, whose `append` overwrites elements that other paths share while there is capacity.
/// The API server's estimate depends on it: if a list inside of a list is iterated over and the body reads another field of the
/// outer item, the size is that of the other field. CRDs that it rejects because of this must be rejected here, too.
#[derive(Clone, Debug, Default)]
pub struct Path {
    names: Rc<RefCell<Vec<String>>>,
    length: usize,
    capacity: usize,
}

impl Path {
    /// Returns the path of a variable.
    #[must_use]
    pub fn variable(name: &str) -> Self {
        Self::default().then(name)
    }

    /// Returns the path of its field `name`.
    #[must_use]
    pub fn then(&self, name: &str) -> Self {
        let length = self.length + 1;
        if length <= self.capacity {
            let mut names = self.names.borrow_mut();
            match names.get_mut(self.length) {
                Some(taken) => name.clone_into(taken),
                None => names.push(name.to_owned()),
            }
            drop(names);
            return Self {
                names: Rc::clone(&self.names),
                length,
                capacity: self.capacity,
            };
        }
        let mut names = self.names();
        names.push(name.to_owned());
        Self {
            names: Rc::new(RefCell::new(names)),
            length,
            capacity: (self.capacity * 2).max(1),
        }
    }

    /// Returns the current elements of the path.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.names
            .borrow()
            .iter()
            .take(self.length)
            .cloned()
            .collect()
    }

    /// Whether the origin of the value is unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// The sizes of the entries of a list or map that an expression builds.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// A map; otherwise a list.
    pub map: bool,
    /// Keys of a map.
    pub key: Size,
    /// Elements of a list, values of a map.
    pub value: Size,
}

impl Entries {
    /// Returns the entries of a value that is one or the other.
    #[must_use]
    pub fn or(this: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (this, other) = (this?, other?);
        Some(Self {
            map: this.map,
            key: this.key.or(other.key),
            value: this.value.or(other.value),
        })
    }
}

/// An expression.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its maximum cost.
    pub cost: u64,
    /// Its type.
    pub kind: Type,
    /// Its origin.
    pub path: Path,
    /// Its size, once computed.
    pub computed: Option<Size>,
    /// The size of a literal.
    pub literal: Option<Size>,
    /// The size of the variable it names.
    pub variable: Option<Size>,
    /// The size of its entries.
    pub entries: Option<Entries>,
    /// Its value, if it is a number.
    pub number: Option<i64>,
}

impl Node {
    /// Returns an expression of a type with nothing else known.
    #[must_use]
    pub fn new(cost: u64, kind: Type) -> Self {
        Self {
            cost,
            kind,
            path: Path::default(),
            computed: None,
            literal: None,
            variable: None,
            entries: None,
            number: None,
        }
    }

    /// Returns the size, if known; `root` is the start of paths.
    pub fn size(&mut self, root: &Declaration) -> Option<Size> {
        if let Some(size) = self.computed.or(self.literal) {
            return Some(size);
        }
        if let Some(size) = size_at(&self.path, root) {
            self.computed = Some(size);
            return Some(size);
        }
        if self.kind.is_scalar() {
            return Some(Size::fixed(1));
        }
        self.variable
    }

    /// Returns the size, or that it is unknown.
    pub fn size_or_unknown(&mut self, root: &Declaration) -> Size {
        self.size(root).unwrap_or(Size::UNKNOWN)
    }
}

/// Returns the size of values at a path from the schema. Only the path's first name is a variable, and every variable counts as
/// the object itself.
#[must_use]
pub fn size_at(path: &Path, root: &Declaration) -> Option<Size> {
    let names = path.names();
    let max = root.max_elements_at(names.get(1..)?)?;
    Some(Size { min: 0, max })
}
