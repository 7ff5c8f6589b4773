//! Which pods a query may place on which nodes.

use std::sync::Arc;

use karpenter_core::schedule::{PodSet, Query};

use crate::fixture::*;

fn parsed(pod: Object<Pod>) -> Arc<karpenter_core::pod::Pod> {
    Arc::new(karpenter_core::pod::Pod::parse(&pod.build()))
}

#[test]
fn a_node_that_is_avoided_takes_pending_pods_and_those_of_buffers_alone() {
    let on_node = |query: Query, pending: Option<Object<Pod>>| {
        let mut world = World::new().with((node("n"), pending));
        world.query = query;
        world.plan().existing.len()
    };
    let avoiding = |mut query: Query| {
        query.avoid = ["n".to_owned()].into();
        query
    };
    let given = || Query::new(PodSet::Given(vec![parsed(pod("p").cpu("1"))]));
    assert_eq!(on_node(given(), None), 1);
    assert_eq!(on_node(avoiding(given()), None), 0);
    let buffer = Query::new(PodSet::Given(Vec::new()));
    let buffer = buffer.with_buffer_pods(vec![parsed(pod("p").cpu("1"))]);
    assert_eq!(on_node(avoiding(buffer), None), 1);
    let pending = Some(pod("p").cpu("1"));
    assert_eq!(on_node(avoiding(Query::default()), pending), 1);
}
