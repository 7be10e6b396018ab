//! Layer 1: the drivers.

pub mod shm;
