//! One thing that was tried, and what came of it.

use madrigal_sys::mem;
use serde::Serialize;

/// Whether something is as it should be.
#[derive(Serialize)]
pub(super) struct State {
    pub(super) ok: bool,
    /// What there is, or what is wrong and what to type.
    pub(super) detail: String,
}

impl State {
    pub(super) fn of(found: Result<String, String>) -> Self {
        Self { ok: found.is_ok(), detail: found.unwrap_or_else(|wrong| wrong) }
    }
}

#[derive(Serialize)]
pub(super) struct Item {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) state: State,
}

impl Item {
    pub(super) fn new(name: &str, found: Result<impl Into<String>, String>) -> Self {
        Self { name: name.to_owned(), state: State::of(found.map(Into::into)) }
    }
}

pub(super) fn memfd() -> Item {
    let made = mem::sealed_memfd(c"madrigal-info", 4096);
    let wrong = |e| format!("no shared memory: {}; it takes Linux 3.17 or later", std::io::Error::from(e));
    Item::new("sealed memfd", made.map(|_| "works").map_err(wrong))
}
