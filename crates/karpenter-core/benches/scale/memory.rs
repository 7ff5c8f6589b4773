//! The memory of the model's objects, counted by the allocator.

use karpenter_bench::{Suite, allocated};
use karpenter_core::cluster::Cluster;
use karpenter_core::fake;
use karpenter_core::schedule::{Policy, Query, Solver};

use crate::fleet::{Fleet, now};

pub fn cases(suite: &mut Suite) {
    suite.case("memory", |run| {
        let fleet = Fleet::of(5000, 20);
        let mut cluster: Option<Cluster> = None;
        let mut each = |name: &str, count: usize, work: &mut dyn FnMut()| {
            let bytes = allocated(work);
            run.record(name, bytes / count as i64);
        };
        let catalogue = fake::families(700);
        let offerings: usize = catalogue.iter().map(|each| each.offerings.len()).sum();
        let mut copies = Vec::new();
        each("bytes_per_type_with_offerings", 700, &mut || {
            copies.push(fake::families(700));
        });
        let copy = copies.remove(0);
        let mut without = Vec::new();
        each("bytes_per_offering", offerings, &mut || {
            without.extend(copy.iter().map(|each| each.offerings.to_vec()));
        });
        drop(without);
        each("bytes_of_an_empty_cluster", 1, &mut || {
            cluster = Some(fleet.empty());
        });
        let cluster = cluster.get_or_insert_with(|| fleet.empty());
        let objects: Vec<_> = (0..fleet.nodes).map(|index| fleet.node(index)).collect();
        each("bytes_per_node_claim", fleet.nodes, &mut || {
            for (_, claim) in &objects {
                cluster.apply_node_claim(claim);
            }
        });
        each("bytes_per_node_beside_its_claim", fleet.nodes, &mut || {
            for (node, _) in &objects {
                cluster.apply_node(node);
            }
        });
        let templates = fleet.templates();
        each("bytes_per_pod", fleet.pods(), &mut || {
            for index in 0..fleet.nodes {
                fleet.add_pods(cluster, index, &templates);
            }
        });
        let snapshot = cluster.snapshot();
        let mut solver = None;
        each("bytes_per_node_compiled", fleet.nodes, &mut || {
            let policy = Policy::at(now());
            solver = Some(Solver::prepare_for(&snapshot, &policy, &Query::default()));
        });
        drop(solver);
        run.parameter("nodes", fleet.nodes);
        run.parameter("pods", fleet.pods());
    });
}
