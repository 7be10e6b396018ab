//! `madrigal grid`: a grid from its making to hosts that are up.
//!
//! ```text
//!  place   the directory, and grid.toml in it     edit      a host more in its text, comments kept
//!  add     a new host                             deliver   by ssh, or as a line and a code
//!  join    what is done on the new host           check     errors in the file, and daemons that do not answer
//!  code    typed, and not shown                   failure   why a command did not do it
//! ```

mod add;
mod check;
mod code;
mod deliver;
mod edit;
mod failure;
mod join;
mod place;

use madrigal_daemon::{Runtime, client};
use madrigal_identity::{AUTHORITY, Authority, DAY, Validity};
use serde_json::json;

use crate::cli::grid::{Grid, GridDoes, Init};
use crate::out;
use failure::Failure;
use place::Place;

/// Runs the command.
pub(crate) fn run(args: &Grid) -> i32 {
    let done = match &args.what {
        GridDoes::Init(init) => make(init, args.json),
        GridDoes::Add(add) => add::run(add, args.json),
        GridDoes::Push(push) => deliver::push(push, args.json),
        GridDoes::Join(join) => join::run(join, args.json),
        GridDoes::Check(check) => check::run(check, args.json),
        GridDoes::Reload => reload(args.json),
    };
    match done {
        Ok(status) => status,
        Err(Failure::Usage(text)) => out::usage(&text),
        Err(Failure::Failed(text)) => out::fail(&text),
    }
}

/// `madrigal grid init`. An authority that is there already signs for this grid, too.
fn make(args: &Init, json: bool) -> Result<i32, Failure> {
    let place = Place::find()?;
    let path = place.file();
    if path.exists() {
        let advice = "type madrigal grid add HOST --site SITE to add a host to it";
        return Err(Failure::Failed(format!("{} is there already: {advice}", path.display())));
    }
    let authority = if Authority::exists(&place.dir) {
        Authority::open(&place.dir)?
    } else {
        Authority::create(&place.dir, &args.grid, Validity::seconds(args.days * DAY), false)?
    };
    let (name, until) = (authority.grid(), authority.not_after());
    if *name != args.grid && args.grid.as_str() != "grid" {
        return Err(Failure::Failed(format!(
            "{} has the key of grid {name}: type madrigal grid init {name}, or set MADRIGAL_CONFIG_DIR to another directory",
            place.dir.display()
        )));
    }
    place.write(&edit::TEMPLATE.replace("NAME", name.as_str()))?;
    if json {
        return Ok(out::print_json(
            &json!({ "grid": name.as_str(), "directory": place.dir, "file": path, "not_after": until.0 }),
        ));
    }
    out::print(&format!(
        "grid {name}, until {until}\n{}: its hosts, none yet\n{}/{AUTHORITY}: its key, which stays here: whoever has it is the grid\n\n\
         Next, for each host:\n  madrigal grid add HOST --site SITE --here               this machine\n  \
         madrigal grid add HOST --site SITE --ssh USER@ADDRESS   one that ssh reaches\n  \
         madrigal grid add HOST --site SITE                      any other: prints a line to paste there\n\
         Where sites cannot reach each other, one host that all reach: --address ADDRESS --relay\n",
        path.display(),
        place.dir.display()
    ));
    Ok(out::FOUND)
}

/// `madrigal grid reload`.
fn reload(json: bool) -> Result<i32, Failure> {
    let told = client::reload(&Runtime::find()).map_err(|error| Failure::Failed(error.to_string()))?;
    if json {
        return Ok(out::print_json(&told));
    }
    out::print(&format!("{told}\n"));
    Ok(out::FOUND)
}
