//! The classes of an engine's sources that a program can name.

use madrigal::engine::{Class, Engine};

use crate::codes::MDG_EINVAL;
use crate::failure::Failure;
use crate::sources::{DESCRIPTORS, TIMERS};

/// The engine's class of that name.
pub(crate) fn class(engine: &Engine, name: &str) -> Result<Class, Failure> {
    let known = names().find(|known| *known == name).ok_or_else(|| {
        let names: Vec<_> = names().collect();
        Failure::new(MDG_EINVAL, format!("there is no class `{name}` of sources: {}", names.join(", ")))
    })?;
    Ok(engine.class(known))
}

/// How much was done so far by an engine's sources of every class.
pub(crate) fn work_done(engine: &Engine) -> u64 {
    names().map(|name| engine.work_done(engine.class(name))).fold(0, u64::wrapping_add)
}

/// The classes whose weights can be set: the drivers, and what is the caller's own.
fn names() -> impl Iterator<Item = &'static str> {
    madrigal::drivers().map(|driver| driver.name()).chain([DESCRIPTORS, TIMERS])
}
