//! The decisions of a cluster as records, explanations, bundles and rehearsals, one folder or file for each module of the crate.

mod blocking;
mod bounds;
mod bundle;
mod choice;
mod doctor;
mod overview;
mod rehearse;
mod shadow;
mod what_if;
