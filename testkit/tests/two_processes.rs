//! Two processes over every method, with checksums.

fn main() {}
