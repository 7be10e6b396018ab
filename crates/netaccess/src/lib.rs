//! Layer 1, arbitration: who is polled how often, and how a waiter waits.

pub mod wait;
