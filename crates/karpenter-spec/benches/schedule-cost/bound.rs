//! What a mix costs at the very least: a linear programme that may rent fractions of machines and split pods.
//!
//! Variables: how many of each machine are rented (x), and how many pods of each deployment run on each machine (y). All pods
//! run; on each machine the pods' requests stay within what it has; and no more pods of one deployment than fit in whole
//! numbers (y <= x * floor(room / request)), which makes the bound tighter where pods are large. Every plan of whole machines
//! satisfies these, so none costs less.

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, constraint, microlp, variable};
use karpenter_api::labels;
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use karpenter_spec::World;
use karpenter_spec::catalogue::GPU;

use crate::mixes::{Deployment, Place};

const RESOURCES: [&str; 4] = [CPU, MEMORY, PODS, GPU];

/// A machine under one capacity type, in its cheapest zone.
struct Column {
    amd64: bool,
    on_demand: bool,
    room: [f64; 4],
    price: f64,
}

impl Column {
    /// Whether the other does all this one does for no more.
    fn is_beaten_by(&self, other: &Column) -> bool {
        (self.amd64, self.on_demand) == (other.amd64, other.on_demand)
            && other.price <= self.price
            && self
                .room
                .iter()
                .zip(&other.room)
                .all(|(own, more)| own <= more)
    }

    fn takes(&self, deployment: &Deployment) -> bool {
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
    for machine in &world.instance_types["default"] {
        for capacity_type in [labels::CAPACITY_TYPE_ON_DEMAND, labels::CAPACITY_TYPE_SPOT] {
            let offerings = machine
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
                amd64: machine
                    .requirements
                    .get(labels::ARCH)
                    .is_some_and(|arch| arch.has(labels::ARCH_AMD64)),
                on_demand: capacity_type == labels::CAPACITY_TYPE_ON_DEMAND,
                room: amounts(&machine.allocatable()),
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
        if !kept.iter().any(|other| column.is_beaten_by(other)) {
            kept.push(column);
        }
    }
    kept
}

/// Dollars an hour that no plan can undercut. None if the programme has no solution: some pod fits no machine.
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
        let machines = variables.add(variable().min(0.0));
        cost += column.price * machines;
        let mut used = vec![Expression::default(); RESOURCES.len()];
        for (index, deployment) in deployments.iter().enumerate() {
            let wanted = requests[index]
                .iter()
                .zip(&column.room)
                .filter(|(request, _)| **request > 0.0);
            let whole = wanted
                .map(|(request, room)| (room / request).floor())
                .fold(f64::INFINITY, f64::min);
            if !column.takes(deployment) || whole < 1.0 {
                continue;
            }
            let pods = variables.add(variable().min(0.0));
            running[index] += pods;
            constraints.push(constraint!(pods <= whole * machines));
            for (used, request) in used
                .iter_mut()
                .zip(&requests[index])
                .filter(|(_, request)| **request > 0.0)
            {
                *used += *request * pods;
            }
        }
        // In shares of the machine, so that bytes and cores weigh alike.
        for (used, room) in used
            .into_iter()
            .zip(&column.room)
            .filter(|(_, room)| **room > 0.0)
        {
            constraints.push(constraint!(used * (1.0 / room) <= machines));
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
