//! Breadth-first search over all orders, and the fair course from each state.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::steps::Step;
use crate::world::World;

/// How many states are expanded together.
const CHUNK: usize = 1024;
/// The longest fair course; a longer one is taken for one without an end.
const LONGEST: usize = 5_000;

/// Which states come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those that fewest steps lead to: a counterexample is the shortest.
    Steps,
    /// Those with the fewest departures from the fair course: a counterexample has the fewest. What takes long is reached sooner.
    Departures,
}

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Which states come first.
    pub order: Order,
    /// The most steps, or departures.
    pub depth: usize,
    /// The number of states after which no further level is begun, and a begun one is not finished.
    pub states: usize,
    /// The number of states of the frontier whose fair course is followed.
    pub courses: usize,
}

/// What the search found.
#[derive(Debug, Default)]
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
    /// The first path to what is violated.
    pub counterexample: Option<Counterexample>,
}

/// A path to a violation.
#[derive(Debug)]
pub struct Counterexample {
    /// The steps from the first state.
    pub steps: Vec<Step>,
    pub what: Vec<String>,
}

/// A state to expand: the step that leads to it from one that was expanded.
struct Open {
    id: u32,
    hash: u64,
    from: Arc<World>,
    step: Option<Step>,
}

impl Open {
    fn world(&self) -> World {
        match &self.step {
            Some(step) => self.from.after(step),
            None => World::clone(&self.from),
        }
    }
}

type Frontier = VecDeque<Open>;

/// The next state of fair courses, by state; `None` at an end.
type Fair = Mutex<FxHashMap<u64, Option<u64>>>;

struct Entry {
    parent: u32,
    step: Option<Step>,
    /// The hash of the state without what may still happen to it.
    core: u64,
}

/// A state that follows another.
struct Next {
    step: Step,
    hash: u64,
    core: u64,
}

/// What can follow a state.
#[derive(Default)]
struct Expansion {
    core: u64,
    from: Option<Arc<World>>,
    next: Vec<Next>,
    fair: Option<u64>,
    violation: Option<(Step, Vec<String>)>,
    tried: usize,
}

impl Expansion {
    /// Adds what follows a step, if that changes anything; returns its number of writes then.
    fn add(&mut self, before: &World, own: u64, step: Step) -> Option<u32> {
        self.tried += 1;
        let world = before.after(&step);
        if !world.violations.is_empty() {
            let violation = (step.clone(), world.violations.clone());
            self.violation.get_or_insert(violation);
        }
        let core = world.hash_of_state();
        let (hash, writes) = (world.hash_with(core), world.writes);
        (hash != own).then(|| {
            self.next.push(Next { step, hash, core });
            writes
        })
    }
}

impl World {
    /// Takes a step in a copy; returns the copy.
    fn after(&self, step: &Step) -> Self {
        let mut next = self.clone();
        next.take(step);
        next
    }

    /// Returns the next step of a fair course without faults, the hash of the state after it, and that state; `None` if nothing will
    /// ever happen. `core` is the hash of this state.
    fn fair(&self, core: u64) -> Option<(Step, u64, Self)> {
        let to = |step: Step| {
            let next = self.after(&step);
            (step, next.hash_of_state(), next)
        };
        let mut steps = self.steps().into_iter().map(to);
        let first = steps.find(|(_, after, it)| *after != core || !it.violations.is_empty());
        first.or_else(|| self.next_deadline().map(|_| to(Step::Deadline)))
    }

    fn expand(self) -> Expansion {
        let core = self.hash_of_state();
        let own = self.hash_with(core);
        let mut all = Expansion {
            core,
            ..Expansion::default()
        };
        let mut changing = Vec::new();
        for step in self.steps() {
            let writes = all.add(&self, own, step.clone());
            changing.extend(writes.map(|writes| (step, writes)));
        }
        let is_idle = changing.is_empty();
        if is_idle && self.next_deadline().is_some() {
            all.add(&self, own, Step::Deadline);
        }
        all.fair = all.next.first().map(|next| next.core);
        for step in self.faults(&changing, is_idle) {
            all.add(&self, own, step);
        }
        all.from = Some(Arc::new(self));
        all
    }
}

/// Explores all orders from a state; reports the numbers of states and of those to expand, and the depth.
pub fn explore(
    first: &World,
    bounds: Bounds,
    mut report: impl FnMut(usize, usize, usize),
) -> Outcome {
    let core = first.hash_of_state();
    let start = Entry {
        parent: 0,
        step: None,
        core,
    };
    let hash = first.hash_with(core);
    let mut search = Search {
        first,
        known: FxHashMap::from_iter([(hash, 0)]),
        begun: FxHashSet::default(),
        entries: vec![start],
        fair: Fair::default(),
        steps: 0,
    };
    let mut frontier = Frontier::from([Open {
        id: 0,
        hash,
        from: Arc::new(first.clone()),
        step: None,
    }]);
    let (mut depth, mut counterexample, mut is_full) = (0, None, false);
    while depth < bounds.depth && !frontier.is_empty() && counterexample.is_none() && !is_full {
        let (mut next, mut level) = (Frontier::new(), frontier);
        // A fair course may have led to it meanwhile.
        level.retain(|open| search.begun.insert(open.hash));
        while !level.is_empty() && counterexample.is_none() {
            let chunk: Vec<Open> = level.drain(..level.len().min(CHUNK)).collect();
            if search.entries.len() >= bounds.states {
                is_full = true;
                next.extend(chunk);
                continue;
            }
            let expansions = chunk.par_iter().map(|open| open.world().expand());
            let expansions: Vec<Expansion> = expansions.collect();
            for (open, expansion) in chunk.iter().zip(expansions) {
                let found = search.add(open.id, expansion, bounds.order, &mut level, &mut next);
                counterexample = counterexample.or(found);
            }
            report(search.entries.len(), next.len() + level.len(), depth);
        }
        depth += usize::from(!is_full && counterexample.is_none());
        frontier = next;
    }
    let is_exhausted = frontier.is_empty() && counterexample.is_none();
    let (states, inside) = (search.entries.len(), search.fair.lock().len());
    if counterexample.is_none() {
        let every = frontier.len().div_ceil(bounds.courses.max(1)).max(1);
        let mut number = 0;
        frontier.retain(|open| {
            number += 1;
            number % every == 0
                || open
                    .step
                    .as_ref()
                    .is_some_and(|step| step.is_rare(&open.from))
        });
        counterexample = search.fair_courses(&mut frontier, &mut |all, frontier| {
            report(states + all - inside, frontier, depth);
        });
    }
    let beyond = search.fair.lock().len() - inside;
    Outcome {
        states,
        steps: search.steps,
        depth,
        is_exhausted,
        beyond,
        counterexample,
    }
}

struct Search<'a> {
    first: &'a World,
    /// The number of each state, by hash.
    known: FxHashMap<u64, u32>,
    /// The states that are expanded or about to be.
    begun: FxHashSet<u64>,
    entries: Vec<Entry>,
    fair: Fair,
    steps: usize,
}

impl Search<'_> {
    /// Adds what follows a state; returns what is violated.
    fn add(
        &mut self,
        id: u32,
        expansion: Expansion,
        order: Order,
        level: &mut Frontier,
        next_level: &mut Frontier,
    ) -> Option<Counterexample> {
        self.steps += expansion.tried;
        self.fair.lock().insert(expansion.core, expansion.fair);
        if let Some((step, what)) = expansion.violation {
            let mut steps = self.path(id);
            steps.push(step);
            return Some(Counterexample { steps, what });
        }
        let from = expansion.from?;
        for (index, next) in expansion.next.into_iter().enumerate() {
            let hash = next.hash;
            let number = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
            let id_of = *self.known.entry(hash).or_insert(number);
            if id_of == number {
                self.entries.push(Entry {
                    parent: id,
                    step: Some(next.step.clone()),
                    core: next.core,
                });
            }
            let open = Open {
                id: id_of,
                hash,
                from: Arc::clone(&from),
                step: Some(next.step),
            };
            if order == Order::Departures && index == 0 {
                if self.begun.insert(hash) {
                    level.push_back(open);
                }
            } else if id_of == number {
                next_level.push_back(open);
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

    /// Checks that the fair course of every state ends where nothing is left to do.
    fn fair_courses(
        &mut self,
        frontier: &mut Frontier,
        report: &mut impl FnMut(usize, usize),
    ) -> Option<Counterexample> {
        let mut ended: FxHashSet<u64> = FxHashSet::default();
        let all = frontier.len();
        for (index, chunk) in frontier.make_contiguous().chunks(CHUNK).enumerate() {
            let fair = &self.fair;
            let courses = chunk
                .par_iter()
                .map(|open| Course::of(&open.world(), Some(fair)));
            let courses: Vec<Course> = courses.collect();
            for (open, course) in chunk.iter().zip(courses) {
                ended.extend(course.ends);
                if let Some(what) = course.problem {
                    let mut steps = self.path(open.id);
                    steps.extend(course.steps);
                    return Some(Counterexample { steps, what });
                }
            }
            report(self.fair.lock().len(), all - index * CHUNK);
        }
        // Courses whose end no course of the frontier has reached.
        let mut checked: FxHashSet<u64> = FxHashSet::default();
        for (id, entry) in (0..).zip(&self.entries) {
            if !self.fair.lock().contains_key(&entry.core) {
                continue;
            }
            let (mut core, mut path) = (entry.core, FxHashSet::default());
            let mut is_followed = true;
            while is_followed && !checked.contains(&core) && path.insert(core) {
                match self.fair.lock().get(&core).copied() {
                    Some(Some(next)) => core = next,
                    Some(None) => break,
                    // A state of the frontier whose course is not among those to follow.
                    None => is_followed = false,
                }
            }
            let is_new = is_followed && path.contains(&core) && !ended.contains(&core);
            checked.extend(path);
            if !is_new {
                continue;
            }
            let mut steps = self.path(id);
            let mut world = self.first.clone();
            steps.iter().for_each(|step| world.take(step));
            let course = Course::of(&world, None);
            if let Some(what) = course.problem {
                steps.extend(course.steps);
                return Some(Counterexample { steps, what });
            }
        }
        None
    }
}

/// A fair course.
#[derive(Default)]
struct Course {
    steps: Vec<Step>,
    /// The states in which nothing happens any more, or which repeat themselves.
    ends: Vec<u64>,
    problem: Option<Vec<String>>,
}

impl Course {
    /// Follows the fair course of a state until it is known, or until it ends or repeats itself; then nothing may be left to do.
    fn of(world: &World, known: Option<&Fair>) -> Self {
        let mut course = Self::default();
        let mut world = world.clone();
        let mut core = world.hash_of_state();
        let mut seen: FxHashMap<u64, usize> = FxHashMap::default();
        let (mut cores, mut writes) = (Vec::new(), Vec::new());
        loop {
            if let Some(from) = seen.insert(core, writes.len()) {
                course.end(&world, &writes[from..], &cores[from..]);
                return course;
            }
            if known.is_some_and(|known| known.lock().contains_key(&core)) {
                return course;
            }
            let next = world.fair(core);
            if let Some(known) = known {
                known
                    .lock()
                    .insert(core, next.as_ref().map(|(_, after, _)| *after));
            }
            let Some((step, after, next)) = next else {
                course.end(&world, &[], &[core]);
                return course;
            };
            cores.push(core);
            writes.push(next.writes > 0 || next.api.exact() != world.api.exact());
            course.steps.push(step);
            if !next.violations.is_empty() {
                course.problem = Some(next.violations);
                return course;
            }
            if writes.len() > LONGEST {
                course.problem = Some(vec!["a fair course without faults does not end".to_owned()]);
                return course;
            }
            (world, core) = (next, after);
        }
    }

    fn end(&mut self, world: &World, cycle: &[bool], cores: &[u64]) {
        self.ends.extend(cores);
        let mut what = world.unfinished();
        // A course that repeats itself answers its requests.
        let open = world.tasks.iter().filter(|_| cycle.is_empty());
        what.extend(open.map(|task| format!("a request is never answered: {:?}", task.print)));
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
    let (mut world, mut text) = (first.clone(), Vec::new());
    for (number, step) in (1..).zip(&found.steps) {
        let seconds = -first.age(world.now);
        text.push(format!("{number:4}. {seconds:5} s  {step:?}"));
        world.log = Some(Vec::new());
        world.take(step);
        let lines = world.log.take().unwrap_or_default();
        text.extend(lines.iter().map(|line| format!("{:16}-> {line}", "")));
    }
    text.extend(found.what.iter().map(|what| format!("VIOLATED: {what}")));
    text.join("\n")
}
