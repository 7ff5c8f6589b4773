//! kube-scheduler as far as a burst shows it: its queues, its filter for resources, and its default scores.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// CPU in thousandths and memory in bytes.
pub type Amounts = [i64; 2];

/// A node that is ready for pods.
#[derive(Debug, Clone)]
pub struct Room {
    pub total: Amounts,
    pub used: Amounts,
    pub pods: usize,
    pub most_pods: usize,
    /// Pods by workload.
    pub of: BTreeMap<usize, usize>,
}

impl Room {
    pub fn fits(&self, need: Amounts) -> bool {
        self.pods < self.most_pods && (0..2).all(|r| self.used[r] + need[r] <= self.total[r])
    }

    /// NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation, each from 0 to 100.
    fn score(&self, need: Amounts) -> f64 {
        let share = |r: usize| (self.used[r] + need[r]) as f64 / self.total[r].max(1) as f64;
        let (cpu, memory) = (share(0), share(1));
        let least = 100.0 * (1.0 - (cpu + memory) / 2.0);
        let balanced = 100.0 * (1.0 - (cpu - memory).abs() / 2.0);
        least + balanced
    }

    pub fn add(&mut self, workload: usize, need: Amounts) {
        (0..2).for_each(|r| self.used[r] += need[r]);
        self.pods += 1;
        *self.of.entry(workload).or_default() += 1;
    }
}

/// The queues of kube-scheduler. Pods are numbers.
#[derive(Debug, Default)]
pub struct Queues {
    active: VecDeque<usize>,
    /// Pods that wait for an event, and pods that an event moved while their back-off lasts, by its end.
    waiting: BTreeSet<usize>,
    backing_off: BTreeSet<(u64, usize)>,
    /// Attempts of each pod, and when its back-off ends.
    tried: BTreeMap<usize, (u32, u64)>,
}

impl Queues {
    pub fn arrive(&mut self, pod: usize) {
        self.active.push_back(pod);
    }

    pub fn is_known(&self, pod: usize) -> bool {
        self.tried.contains_key(&pod)
    }

    /// Moves the pods that wait, as after a node was added.
    pub fn wake(&mut self, now: u64) {
        for pod in std::mem::take(&mut self.waiting) {
            let until = self.tried.get(&pod).map_or(0, |tried| tried.1);
            if until <= now {
                self.active.push_back(pod);
            } else {
                self.backing_off.insert((until, pod));
            }
        }
    }

    /// Returns the next pod to try.
    pub fn next(&mut self, now: u64) -> Option<usize> {
        while let Some((until, pod)) = self.backing_off.first().copied() {
            if until > now {
                break;
            }
            self.backing_off.pop_first();
            self.active.push_back(pod);
        }
        self.active.pop_front()
    }

    /// Records that no node has room for a pod.
    pub fn refuse(&mut self, pod: usize, now: u64) {
        let (attempts, until) = self.tried.entry(pod).or_default();
        *attempts += 1;
        let seconds = 1_u64 << (*attempts - 1).min(4);
        *until = now + seconds.min(10) * 1000;
        self.waiting.insert(pod);
    }
}

/// Returns the node with the highest score that has room; nodes with few pods of the workload are preferred, as the default
/// spread constraints do.
pub fn choose(
    rooms: &BTreeMap<usize, Room>,
    workload: usize,
    need: Amounts,
    draw: u64,
) -> Option<usize> {
    let fitting: Vec<(usize, &Room)> = (rooms.iter())
        .filter(|(_, room)| room.fits(need))
        .map(|(node, room)| (*node, room))
        .collect();
    let there = |room: &Room| room.of.get(&workload).copied().unwrap_or(0) as f64;
    let most = fitting
        .iter()
        .map(|(_, room)| there(room))
        .fold(0.0, f64::max);
    let least = fitting
        .iter()
        .map(|(_, room)| there(room))
        .fold(f64::MAX, f64::min);
    let score = |room: &Room| {
        let spread = if most > least {
            100.0 * (most - there(room)) / (most - least)
        } else {
            100.0
        };
        (room.score(need) + 2.0 * spread).floor()
    };
    let best = fitting
        .iter()
        .map(|(_, room)| score(room))
        .fold(f64::MIN, f64::max);
    let equal: Vec<usize> = (fitting.iter())
        .filter(|(_, room)| score(room) >= best)
        .map(|(node, _)| *node)
        .collect();
    equal.get(draw as usize % equal.len().max(1)).copied()
}
