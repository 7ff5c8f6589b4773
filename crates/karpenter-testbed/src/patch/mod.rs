//! How JSON, merge and strategic merge patches change an object.
