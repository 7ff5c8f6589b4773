//! Breadth-first search over all orders, and the fair course from each state.

use std::time::{Duration, Instant};

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::steps::Step;
use crate::world::World;

/// How many states are expanded together.
const CHUNK: usize = 1024;
/// The longest fair course; a longer one is taken for one without an end.
const LONGEST: usize = 5_000;

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest path.
    pub depth: usize,
    /// The number of states after which no further level is begun, and a begun one is not finished.
    pub states: usize,
}

/// What the search found.
#[derive(Debug)]
pub struct Outcome {
    /// Number of distinct states.
    pub states: usize,
    /// Number of steps that were tried.
    pub steps: usize,
    /// The length of the longest path of which all states of this distance were expanded.
    pub depth: usize,
    /// Whether no state is left to expand.
    pub is_exhausted: bool,
    /// Number of states on fair courses beyond the bound.
    pub beyond: usize,
    /// How long it took.
    pub took: Duration,
    /// The shortest path to what is violated.
    pub counterexample: Option<Counterexample>,
}

/// A path to a violation.
#[derive(Debug)]
pub struct Counterexample {
    /// The steps from the first state.
    pub steps: Vec<Step>,
    /// What is violated.
    pub what: Vec<String>,
}

/// Progress of a search.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Number of states.
    pub states: usize,
    /// Number of states that are not expanded.
    pub frontier: usize,
    /// The current distance.
    pub depth: usize,
    /// The time since the start.
    pub took: Duration,
}

struct Entry {
    parent: u32,
    step: Option<Step>,
    /// The state without what may still happen to it.
    core: u64,
}

/// What can follow a state.
struct Expansion {
    next: Vec<(Step, u64, World)>,
    fair: Option<u64>,
    violation: Option<(Step, Vec<String>)>,
    tried: usize,
}

impl World {
    /// Takes a step in a copy; returns the copy.
    fn after(&self, step: &Step) -> Self {
        let mut next = self.clone();
        next.take(step);
        next
    }

    /// Returns the next state of a fair course without faults, and the step to it; `None` if nothing will ever happen.
    pub fn fair(&self) -> Option<(Step, Self)> {
        let own = self.hash_of_state();
        let changes = |step: Step| {
            let next = self.after(&step);
            (next.hash_of_state() != own).then_some((step, next))
        };
        let first = self.steps().into_iter().find_map(changes);
        first.or_else(|| {
            self.next_deadline()?;
            Some((Step::Deadline, self.after(&Step::Deadline)))
        })
    }

    fn expand(&self) -> Expansion {
        let own = self.hash();
        let mut all = Expansion {
            next: Vec::new(),
            fair: None,
            violation: None,
            tried: 0,
        };
        let ordinary = self.steps();
        let mut changing = Vec::new();
        for step in ordinary {
            all.tried += 1;
            let next = self.after(&step);
            if !next.violations.is_empty() {
                all.violation
                    .get_or_insert((step.clone(), next.violations.clone()));
            }
            let hash = next.hash();
            if hash != own {
                all.fair.get_or_insert_with(|| next.hash_of_state());
                changing.push((step.clone(), next.writes));
                all.next.push((step, hash, next));
            }
        }
        let is_idle = changing.is_empty();
        let mut more = self.faults(&changing, is_idle);
        if is_idle && self.next_deadline().is_some() {
            more.insert(0, Step::Deadline);
        }
        for step in more {
            all.tried += 1;
            let next = self.after(&step);
            if !next.violations.is_empty() {
                all.violation
                    .get_or_insert((step.clone(), next.violations.clone()));
            }
            if step == Step::Deadline {
                all.fair.get_or_insert_with(|| next.hash_of_state());
            }
            let hash = next.hash();
            if hash != own {
                all.next.push((step, hash, next));
            }
        }
        all
    }
}

/// Explores all orders from a state.
pub fn explore(first: &World, bounds: Bounds, mut report: impl FnMut(Progress)) -> Outcome {
    let started = Instant::now();
    let mut search = Search {
        first,
        known: FxHashMap::default(),
        entries: vec![Entry {
            parent: 0,
            step: None,
            core: first.hash_of_state(),
        }],
        fair: FxHashMap::default(),
        steps: 0,
    };
    search.known.insert(first.hash(), 0);
    let mut frontier: Vec<(u32, World)> = vec![(0, first.clone())];
    let (mut depth, mut counterexample, mut is_full) = (0, None, false);
    while depth < bounds.depth && !frontier.is_empty() && counterexample.is_none() && !is_full {
        let mut next = Vec::new();
        let mut rest = frontier.into_iter();
        loop {
            let chunk: Vec<(u32, World)> = rest.by_ref().take(CHUNK).collect();
            if chunk.is_empty() {
                break;
            }
            if search.entries.len() >= bounds.states {
                is_full = true;
                next.extend(chunk);
                continue;
            }
            let expansions: Vec<Expansion> =
                chunk.par_iter().map(|(_, world)| world.expand()).collect();
            for ((id, world), expansion) in chunk.iter().zip(expansions) {
                let found = search.add(*id, world, expansion, &mut next);
                counterexample = counterexample.or(found);
            }
            let (states, frontier) = (search.entries.len(), next.len() + rest.len());
            report(Progress {
                states,
                frontier,
                depth,
                took: started.elapsed(),
            });
            if counterexample.is_some() {
                break;
            }
        }
        depth += usize::from(!is_full && counterexample.is_none());
        frontier = next;
    }
    let is_exhausted = frontier.is_empty() && counterexample.is_none();
    let mut beyond = 0;
    if counterexample.is_none() {
        (beyond, counterexample) = search.fair_courses(&frontier);
    }
    Outcome {
        states: search.entries.len(),
        steps: search.steps,
        depth,
        is_exhausted,
        beyond,
        took: started.elapsed(),
        counterexample,
    }
}

struct Search<'a> {
    first: &'a World,
    known: FxHashMap<u64, u32>,
    entries: Vec<Entry>,
    /// The next state of the fair course; `None` at an end.
    fair: FxHashMap<u64, Option<u64>>,
    steps: usize,
}

impl Search<'_> {
    /// Adds what follows a state; returns what is violated.
    fn add(
        &mut self,
        id: u32,
        world: &World,
        expansion: Expansion,
        frontier: &mut Vec<(u32, World)>,
    ) -> Option<Counterexample> {
        self.steps += expansion.tried;
        self.fair.insert(world.hash_of_state(), expansion.fair);
        if let Some((step, what)) = expansion.violation {
            let mut steps = self.path(id);
            steps.push(step);
            return Some(Counterexample { steps, what });
        }
        for (step, hash, next) in expansion.next {
            let number = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
            if let std::collections::hash_map::Entry::Vacant(entry) = self.known.entry(hash) {
                entry.insert(number);
                self.entries.push(Entry {
                    parent: id,
                    step: Some(step),
                    core: next.hash_of_state(),
                });
                frontier.push((number, next));
            }
        }
        None
    }

    fn path(&self, mut id: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(entry) = self.entries.get(id as usize) {
            let Some(step) = &entry.step else { break };
            steps.push(step.clone());
            id = entry.parent;
        }
        steps.reverse();
        steps
    }

    /// Checks that the fair course of every state ends where nothing is left to do. Returns the number of states of fair courses
    /// that the search did not reach.
    fn fair_courses(&mut self, frontier: &[(u32, World)]) -> (usize, Option<Counterexample>) {
        let mut beyond = 0;
        for chunk in frontier.chunks(CHUNK) {
            let fair = &self.fair;
            let courses: Vec<Course> = chunk
                .par_iter()
                .map(|(_, world)| Course::of(world, fair))
                .collect();
            for ((id, _), course) in chunk.iter().zip(courses) {
                beyond += course.edges.len();
                self.fair.extend(course.edges);
                if let Some(what) = course.problem {
                    let mut steps = self.path(*id);
                    steps.extend(course.steps);
                    return (beyond, Some(Counterexample { steps, what }));
                }
            }
        }
        // Courses that end inside of what was explored: each cycle once.
        let mut checked: FxHashSet<u64> = FxHashSet::default();
        let mut by_core: FxHashMap<u64, u32> = FxHashMap::default();
        for (id, entry) in (0..).zip(&self.entries) {
            by_core.entry(entry.core).or_insert(id);
        }
        for id in 0..self.entries.len() {
            let Some(entry) = self.entries.get(id) else {
                break;
            };
            let (mut core, mut path) = (entry.core, FxHashSet::default());
            while !checked.contains(&core) && path.insert(core) {
                match self.fair.get(&core) {
                    Some(Some(next)) => core = *next,
                    _ => break,
                }
            }
            let ends_here = path.contains(&core);
            checked.extend(path);
            let Some(id) = by_core.get(&core).copied().filter(|_| ends_here) else {
                continue;
            };
            let mut steps = self.path(id);
            let mut world = self.first.clone();
            steps.iter().for_each(|step| world.take(step));
            let course = Course::of(&world, &FxHashMap::default());
            if let Some(what) = course.problem {
                steps.extend(course.steps);
                return (beyond, Some(Counterexample { steps, what }));
            }
        }
        (beyond, None)
    }
}

/// A fair course.
struct Course {
    edges: Vec<(u64, Option<u64>)>,
    steps: Vec<Step>,
    problem: Option<Vec<String>>,
}

impl Course {
    /// Follows the fair course of a state until it is known, or until it ends or repeats itself; then nothing may be left to do.
    fn of(world: &World, known: &FxHashMap<u64, Option<u64>>) -> Self {
        let mut course = Self {
            edges: Vec::new(),
            steps: Vec::new(),
            problem: None,
        };
        let mut world = world.clone();
        let mut core = world.hash_of_state();
        let mut seen: FxHashMap<u64, usize> = FxHashMap::default();
        let mut writes: Vec<bool> = Vec::new();
        while !known.contains_key(&core) {
            if let Some(from) = seen.insert(core, writes.len()) {
                course.check_end(&world, &writes[from..]);
                return course;
            }
            let Some((step, next)) = world.fair() else {
                course.edges.push((core, None));
                course.check_end(&world, &[]);
                return course;
            };
            let after = next.hash_of_state();
            course.edges.push((core, Some(after)));
            writes.push(next.writes > 0 || step.is_of_environment());
            course.steps.push(step);
            if !next.violations.is_empty() {
                course.problem = Some(next.violations.clone());
                return course;
            }
            if writes.len() > LONGEST {
                course.problem = Some(vec!["a fair course without faults does not end".to_owned()]);
                return course;
            }
            (world, core) = (next, after);
        }
        course
    }

    fn check_end(&mut self, world: &World, cycle: &[bool]) {
        let mut what = world.unfinished();
        if cycle.contains(&true) {
            what.insert(0, "the same effects follow each other forever".to_owned());
        }
        if !what.is_empty() {
            self.problem = Some(what);
        }
    }
}

/// Returns a path as a numbered list that names the objects.
pub fn story(first: &World, found: &Counterexample) -> String {
    let mut world = first.clone();
    let mut text = String::new();
    let mut number = 0;
    for step in &found.steps {
        let before = world.now;
        world.log = Some(Vec::new());
        world.take(step);
        number += 1;
        let seconds = before.as_second() - first.now.as_second();
        text.push_str(&format!("{number:4}. {seconds:5} s  {step}\n"));
        for line in world.log.take().unwrap_or_default() {
            text.push_str(&format!("                -> {line}\n"));
        }
    }
    for what in &found.what {
        text.push_str(&format!("VIOLATED: {what}\n"));
    }
    text
}
