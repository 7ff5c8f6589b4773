//! Writes a bundle of a cluster like those of core issue 3225: 100 nodes, `consolidateAfter: 5m`. The pages of the book compare
//! versions of Karpenter with it:
//!
//! ```sh
//! cargo run -p karpenter-decisions --example churning_fleet > fleet.karpenter.zst
//! kubectl karpenter plan --bundle fleet.karpenter.zst --from karpenter-1.13 --to karpenter-1.14 --churn 20%/2h --for 6h
//! ```

#[path = "../benches/fleet/churning.rs"]
mod churning;

use std::error::Error;
use std::io;

use karpenter_decisions::bundle::{self, Bundle, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let (snapshot, settings) = (churning::fleet(100)?, Settings::at(churning::now()));
    let bundle = Bundle::new("fake", "issue-3225", snapshot, settings);
    bundle::write(&bundle, &mut io::stdout().lock())?;
    Ok(())
}
