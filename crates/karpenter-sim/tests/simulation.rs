//! A few simulations for every run of the tests; `cargo xtask sim` runs as many as you like.

use std::time::Duration;

use karpenter_sim::{Settings, run};

fn minutes(minutes: u64) -> Settings {
    Settings {
        busy: Duration::from_secs(minutes * 60),
        keep_trace: false,
    }
}

fn survives(seed: u64) {
    let failure = run(seed, &minutes(60)).err();
    let context = failure.as_ref().map(|f| f.context.join("\n"));
    let again = format!("cargo xtask sim --seeds 1 --seed {seed} --hours 1 -- --trace");
    assert!(
        failure.is_none(),
        "{}\n{}\nagain: {again}",
        context.unwrap_or_default(),
        failure.map(|f| f.to_string()).unwrap_or_default()
    );
}

macro_rules! seeds {
    ($($name:ident: $seed:literal,)*) => {
        $(#[test]
        fn $name() {
            survives($seed);
        })*
    };
}

seeds! {
    the_cluster_of_seed_1_survives: 1,
    the_cluster_of_seed_2_survives: 2,
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let settings = Settings {
        keep_trace: true,
        ..minutes(30)
    };
    let trace = |seed| run(seed, &settings).unwrap().trace;
    let (once, again) = (trace(5), trace(5));
    let differs = once.iter().zip(&again).find(|(a, b)| a != b);
    assert_eq!(differs, None);
    assert_eq!(once.len(), again.len());
}
