//! Which kinds exist, how they are named, and what schema they have.
