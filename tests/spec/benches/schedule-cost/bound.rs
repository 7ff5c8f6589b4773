//! A lower bound on the price of a mix: a linear program that may launch fractions of nodes and split pods.
//!
//! Variables: the number of nodes of each instance type (x), and the number of pods of each deployment on nodes of each type
//! (y). All pods run; the requests of pods stay within the allocatable resources of each type; and no more pods of one
//! deployment than fit in whole numbers (y <= x * floor(allocatable / request)), which makes the bound tighter where pods are
//! large. Every plan of whole nodes satisfies these constraints, so none costs less.

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, constraint, microlp, variable};
use karpenter_api::labels;
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use karpenter_spec::World;
use karpenter_spec::catalogue::GPU;

use crate::mixes::{Deployment, Place};

const RESOURCES: [&str; 4] = [CPU, MEMORY, PODS, GPU];

/// An instance type of one capacity type, in its cheapest zone.
struct Column {
    amd64: bool,
    on_demand: bool,
    room: [f64; 4],
    price: f64,
}

impl Column {
    /// Returns whether the other holds all pods that this one holds at no higher price.
    fn is_dominated_by(&self, other: &Column) -> bool {
        (self.amd64, self.on_demand) == (other.amd64, other.on_demand)
            && other.price <= self.price
            && self
                .room
                .iter()
                .zip(&other.room)
                .all(|(own, more)| own <= more)
    }

    fn admits(&self, deployment: &Deployment) -> bool {
        match deployment.place {
            Place::Anywhere => true,
            Place::Amd64 => self.amd64,
            Place::OnDemand => self.amd64 && self.on_demand,
        }
    }
}

fn amounts(resources: &Resources) -> [f64; 4] {
    RESOURCES.map(|name| resources.get(name) as f64)
}

fn columns(world: &World) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for instance_type in &world.instance_types["default"] {
        for capacity_type in [labels::CAPACITY_TYPE_ON_DEMAND, labels::CAPACITY_TYPE_SPOT] {
            let offerings = instance_type
                .offerings
                .iter()
                .filter(|offering| offering.capacity_type() == Some(capacity_type));
            let Some(price) = offerings
                .map(|offering| offering.price)
                .min_by(f64::total_cmp)
            else {
                continue;
            };
            columns.push(Column {
                amd64: instance_type
                    .requirements
                    .get(labels::ARCH)
                    .is_some_and(|arch| arch.has(labels::ARCH_AMD64)),
                on_demand: capacity_type == labels::CAPACITY_TYPE_ON_DEMAND,
                room: amounts(&instance_type.allocatable()),
                price,
            });
        }
    }
    columns.sort_by(|a, b| {
        a.price
            .total_cmp(&b.price)
            .then_with(|| b.room[0].total_cmp(&a.room[0]))
    });
    let mut kept: Vec<Column> = Vec::new();
    for column in columns {
        if !kept.iter().any(|other| column.is_dominated_by(other)) {
            kept.push(column);
        }
    }
    kept
}

/// Returns a price in $ per hour below every plan, or None if some pod fits no instance type.
pub fn lower_bound(world: &World, deployments: &[Deployment]) -> Option<f64> {
    let requests: Vec<[f64; 4]> = deployments
        .iter()
        .map(|d| [d.cpu as f64, (d.memory << 20) as f64, 1.0, d.gpus as f64])
        .collect();
    let mut variables = ProblemVariables::new();
    let (mut cost, mut running) = (
        Expression::default(),
        vec![Expression::default(); deployments.len()],
    );
    let mut constraints = Vec::new();
    for column in columns(world) {
        let nodes = variables.add(variable().min(0.0));
        cost += column.price * nodes;
        let mut used = vec![Expression::default(); RESOURCES.len()];
        for (index, deployment) in deployments.iter().enumerate() {
            let wanted = requests[index]
                .iter()
                .zip(&column.room)
                .filter(|(request, _)| **request > 0.0);
            let whole = wanted
                .map(|(request, room)| (room / request).floor())
                .fold(f64::INFINITY, f64::min);
            if !column.admits(deployment) || whole < 1.0 {
                continue;
            }
            let pods = variables.add(variable().min(0.0));
            running[index] += pods;
            constraints.push(constraint!(pods <= whole * nodes));
            for (used, request) in used
                .iter_mut()
                .zip(&requests[index])
                .filter(|(_, request)| **request > 0.0)
            {
                *used += *request * pods;
            }
        }
        // In fractions of the node, so that bytes and cores have the same scale.
        for (used, room) in used
            .into_iter()
            .zip(&column.room)
            .filter(|(_, room)| **room > 0.0)
        {
            constraints.push(constraint!(used * (1.0 / room) <= nodes));
        }
    }
    for (running, deployment) in running.into_iter().zip(deployments) {
        constraints.push(constraint!(running >= deployment.replicas as f64));
    }
    let problem = constraints
        .into_iter()
        .fold(variables.minimise(&cost).using(microlp), |problem, c| {
            problem.with(c)
        });
    let solution = problem.solve().ok()?;
    Some(solution.eval(&cost))
}
