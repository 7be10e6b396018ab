//! The grid as programs of this host see it, with or without a daemon.

use std::ffi::OsString;
use std::path::Path;

use madrigal_daemon::Runtime;
use madrigal_daemon::grid::{self, Grid};
use madrigal_identity as identity;

use crate::out;

/// The directory that programs find a daemon in, if there is a grid: one is described, or a daemon was up since the machine started.
pub(crate) fn directory() -> Option<OsString> {
    let runtime = Runtime::find();
    let dir = identity::directory(|name| std::env::var(name).ok());
    let described = dir.is_ok_and(|dir| dir.join("grid.toml").exists());
    (described || runtime.was_used()).then(|| runtime.path().as_os_str().to_owned())
}

/// If no daemon is up and a grid is described: writes the hosts file, which refuses what must not go without a daemon, and reports that.
pub(crate) fn describe_for_programs() {
    let Ok(dir) = identity::directory(|name| std::env::var(name).ok()) else { return };
    let file = dir.join("grid.toml");
    let Ok(text) = grid::read_text(&file) else { return };
    // Errors in the file are reported by `madrigal up`.
    let Ok(grid) = Grid::read(&file.display().to_string(), &text) else { return };
    if Runtime::find().describe(&grid, &this_host(&grid, &dir)).is_ok_and(|strict| strict) {
        out::report(
            "no daemon is up: what goes to other sites over networks that are not trusted will not be connected; type madrigal up, or write \
             plain = true in grid.toml",
        );
    }
}

/// Which host of a grid this one is: the one of its name, or the one that its certificate names.
pub(crate) fn this_host(grid: &Grid, dir: &Path) -> String {
    let own = own_name();
    if grid.host(&own).is_some() {
        return own;
    }
    certified(dir).filter(|name| grid.host(name).is_some()).unwrap_or(own)
}

/// The host that a certificate in `dir` names.
pub(crate) fn certified(dir: &Path) -> Option<String> {
    let (_, held) = identity::status(dir).ok()?;
    let host = held.into_iter().find(|one| one.kind == "host")?;
    Some(host.subject?.role.name()?.to_string())
}

/// The name of this host.
fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
