//! Step 2: collects the pods of a pass, sorts them, and forms classes of equal pods.

pub(crate) mod class;
pub(crate) mod defaults;
pub(crate) mod intake;
pub(crate) mod queue;
pub(crate) mod volumes;
