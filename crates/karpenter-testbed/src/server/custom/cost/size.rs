//! Ranges of sizes and the cost of traversing them. Arithmetic saturates.
//!
//! UPSTREAM: cel-go checker/cost.go, common/cost.go

/// Cost of accessing a variable or field.
pub const ACCESS: u64 = 1;
/// Cost of a call whose cost does not depend on the size of its arguments.
pub const CALL: u64 = 1;
/// Cost of creating a list.
pub const LIST: u64 = 10;
/// Cost of creating a map.
pub const MAP: u64 = 30;
/// Cost of creating an object.
pub const STRUCT: u64 = 40;
/// Cost of reading one character of a string.
pub const TRAVERSAL: f64 = 0.1;
/// Cost of one character of a regular expression for each unit of the string's cost.
pub const REGEX: f64 = 0.25;

/// The length of a string, list or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Minimum.
    pub min: u64,
    /// Maximum.
    pub max: u64,
}

impl Size {
    /// An unknown size.
    pub const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };

    /// Exactly `size`.
    #[must_use]
    pub fn fixed(size: u64) -> Self {
        Self {
            min: size,
            max: size,
        }
    }

    /// Exactly the length of a value in memory.
    #[must_use]
    pub fn of_length(length: usize) -> Self {
        Self::fixed(u64::try_from(length).unwrap_or(u64::MAX))
    }

    /// The sum of both sizes.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    /// The product of both sizes.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    /// The union of both ranges.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// Returns the maximum cost of reading all of it.
    #[must_use]
    pub fn cost(self, each: f64) -> u64 {
        scaled(self.max, each)
    }
}

/// `cost` times `factor`, rounded up.
#[must_use]
pub fn scaled(cost: u64, factor: f64) -> u64 {
    // Casts from floating point saturate.
    (cost as f64 * factor).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_rounded_up_and_never_overflow() {
        assert_eq!(Size::fixed(0).cost(TRAVERSAL), 0);
        assert_eq!(Size::fixed(1).cost(TRAVERSAL), 1);
        assert_eq!(Size::fixed(21).cost(TRAVERSAL), 3);
        assert_eq!(Size::UNKNOWN.cost(2.0), u64::MAX);
        assert_eq!(
            Size::UNKNOWN.plus(Size::fixed(1)),
            Size {
                min: 1,
                max: u64::MAX
            }
        );
        assert_eq!(
            Size::UNKNOWN.times(Size::fixed(2)),
            Size {
                min: 0,
                max: u64::MAX
            }
        );
    }
}
