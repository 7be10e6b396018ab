//! What programs of this host are told of its grid, whether a daemon is up or not.

use std::ffi::OsString;

use madrigal_daemon::Runtime;
use madrigal_daemon::grid::Grid;
use madrigal_identity as identity;

use crate::out;

/// The directory that programs find a daemon in, if there is a grid: one is described, or a daemon was up since the machine started.
pub(crate) fn directory() -> Option<OsString> {
    let runtime = Runtime::find();
    let dir = identity::directory(|name| std::env::var(name).ok());
    let described = dir.is_ok_and(|dir| dir.join("grid.toml").exists());
    (described || runtime.was_used()).then(|| runtime.path().as_os_str().to_owned())
}

/// Where no daemon is up, and a grid is described: writes for programs what must not go without one, and says so.
pub(crate) fn describe_for_programs() {
    let Ok(dir) = identity::directory(|name| std::env::var(name).ok()) else { return };
    let file = dir.join("grid.toml");
    let Ok(text) = std::fs::read_to_string(&file) else { return };
    // What is wrong with it says whoever starts a daemon.
    let Ok(grid) = Grid::read(&file.display().to_string(), &text) else { return };
    if Runtime::find().describe(&grid, &own_name()).is_ok_and(|strict| strict) {
        out::say(
            "no daemon is up: what goes to other sites over networks that are not trusted will not be connected; type madrigal up, or write \
             plain = true in grid.toml",
        );
    }
}

/// The name of this host.
pub(crate) fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
