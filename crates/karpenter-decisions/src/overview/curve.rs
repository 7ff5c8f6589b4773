//! The sums over time, within bounds.

use std::collections::VecDeque;

use serde::Serialize;

/// The most points of a curve.
pub const POINTS: usize = 512;
/// The seconds between the first points.
const INTERVAL: i64 = 5;
/// The oldest point, in seconds before the latest.
const WINDOW: i64 = 24 * 60 * 60;

/// The sums at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Seconds of Unix time.
    pub at: i64,
    pub nodes: usize,
    /// The number of bound pods.
    pub pods: usize,
    /// The number of pending pods.
    pub pending: usize,
    /// Price in millionths of a dollar per hour.
    pub price: i64,
}

/// The sums of at most 24 hours in at most [`POINTS`] points: once there are more, every second one is dropped, and later ones are
/// twice as far apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    interval: i64,
    points: VecDeque<Point>,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            interval: INTERVAL,
            points: VecDeque::new(),
        }
    }
}

impl Curve {
    /// Reports whether the next point is due at a time, in seconds of Unix time.
    pub fn is_due(&self, at: i64) -> bool {
        let last = self.points.back();
        last.is_none_or(|last| at >= last.at.saturating_add(self.interval))
    }

    /// Adds a point, if it is due.
    pub fn add(&mut self, point: Point) {
        if !self.is_due(point.at) {
            return;
        }
        self.points.push_back(point);
        self.points.retain(|old| old.at >= point.at - WINDOW);
        if self.points.len() > POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.interval *= 2;
        }
    }

    /// Iterates over the points, oldest first.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter()
    }

    pub(super) fn columns(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Columns {
            at: Vec<i64>,
            nodes: Vec<usize>,
            pods: Vec<usize>,
            pending: Vec<usize>,
            price: Vec<i64>,
        }
        Columns {
            at: self.points().map(|point| point.at).collect(),
            nodes: self.points().map(|point| point.nodes).collect(),
            pods: self.points().map(|point| point.pods).collect(),
            pending: self.points().map(|point| point.pending).collect(),
            price: self.points().map(|point| point.price).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: i64) -> Point {
        Point {
            at,
            nodes: 1,
            pods: 2,
            pending: 3,
            price: 4,
        }
    }

    #[test]
    fn points_are_thinned_out_and_cover_a_day() {
        let mut curve = Curve::default();
        let mut longest = 0;
        for at in 0..3 * WINDOW {
            if curve.is_due(at) {
                curve.add(point(at));
            }
            longest = longest.max(curve.points.len());
        }
        assert_eq!(longest, POINTS);
        let times: Vec<i64> = curve.points().map(|point| point.at).collect();
        let last = *times.last().unwrap();
        assert!(last > 3 * WINDOW - 400, "{last}");
        assert!(last - times[0] <= WINDOW && last - times[0] > WINDOW - 400);
        assert!(
            times.is_sorted() && times.len() > POINTS / 4,
            "{}",
            times.len()
        );
    }

    #[test]
    fn a_point_that_is_not_due_is_left_out() {
        let mut curve = Curve::default();
        for at in [100, 101, 104, 105] {
            curve.add(point(at));
        }
        let times: Vec<i64> = curve.points().map(|point| point.at).collect();
        assert_eq!(times, [100, 105]);
    }
}
