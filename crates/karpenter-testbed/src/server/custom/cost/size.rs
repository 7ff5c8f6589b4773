//! Ranges of sizes and what traversing them costs. Nothing overflows: what is too large is the largest number.
//!
//! UPSTREAM: cel-go checker/cost.go, common/cost.go

/// What an access of a variable or field costs.
pub const ACCESS: u64 = 1;
/// What any call costs whose cost does not depend on the size of its arguments.
pub const CALL: u64 = 1;
/// What creating a list costs.
pub const LIST: u64 = 10;
/// What creating a map costs.
pub const MAP: u64 = 30;
/// What creating an object costs.
pub const STRUCT: u64 = 40;
/// What looking at one character of a string costs.
pub const TRAVERSAL: f64 = 0.1;
/// What one character of a regular expression costs for each unit of the string's cost.
pub const REGEX: f64 = 0.25;

/// How long a string, list or map may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// At least.
    pub min: u64,
    /// At most.
    pub max: u64,
}

impl Size {
    /// Nothing is known.
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

    /// Exactly the length of something in memory.
    #[must_use]
    pub fn of_length(length: usize) -> Self {
        Self::fixed(u64::try_from(length).unwrap_or(u64::MAX))
    }

    /// Both after another.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    /// One for each of the other.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    /// One or the other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// What it costs at most to look at all of it.
    #[must_use]
    pub fn cost(self, each: f64) -> u64 {
        scaled(self.max, each)
    }
}

/// `cost` times `factor`, rounded up.
#[must_use]
pub fn scaled(cost: u64, factor: f64) -> u64 {
    // Casts from floating point end at the largest number.
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
