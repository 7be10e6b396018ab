//! The driver below a stack.

use core::ops::Deref;
use std::sync::Arc;

use madrigal_progress::driver::Driver;

/// A driver of a table, or one that was made.
#[derive(Clone)]
pub enum Below {
    /// Of a table.
    Known(&'static dyn Driver),
    /// With something of its own, such as certificates.
    Made(Arc<dyn Driver>),
}

impl Deref for Below {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Known(driver) => *driver,
            Self::Made(driver) => &**driver,
        }
    }
}
