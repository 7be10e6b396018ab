//! `madrigal ca` and `madrigal login`.

use std::path::{Path, PathBuf};

use madrigal_identity::{
    AUTHORITY, Authority, DAY, Entry, HOST, HOUR, Held, IDENTITY, IdentityError, Issued, Moment, Name, Peer, REVOKED,
    TRUST, USER, Validity, Which, directory, issue_host, login, logout, renew, status,
};
use nix::unistd::{User, geteuid};
use serde::Serialize;

use crate::cli::identity::{Ca, CaDoes, Init, Issue, Login, Revoke};
use crate::out;

/// Runs `madrigal ca`.
pub(crate) fn ca(args: &Ca) -> i32 {
    let done = here().and_then(|dir| match &args.what {
        CaDoes::Init(init) => make(&dir, init, args.json),
        CaDoes::Issue(issue) => give(&dir, issue, args.json),
        CaDoes::Revoke(revoke) => take_back(&dir, revoke, args.json),
        CaDoes::List => list(&dir, args.json),
    });
    done.unwrap_or_else(|error| out::fail(&error.to_string()))
}

/// Runs `madrigal login`.
pub(crate) fn log_in(args: &Login) -> i32 {
    let done = here().and_then(|dir| match () {
        () if args.status => show(&dir, args.json),
        () if args.end => end(&dir, args.json),
        () if args.renew => renew(&dir).map(|peer| match peer {
            Some(peer) => greet(&peer, args.json),
            None if args.json => out::print_json(&serde_json::json!({ "renewed": false })),
            None => out::FOUND,
        }),
        () => login(&dir, user(&dir, args).as_ref(), args.hours * HOUR).map(|peer| greet(&peer, args.json)),
    });
    done.unwrap_or_else(|error| out::fail(&error.to_string()))
}

fn here() -> Result<PathBuf, IdentityError> {
    directory(|name| std::env::var(name).ok())
}

#[derive(Serialize)]
struct Made<'a> {
    grid: &'a str,
    directory: &'a Path,
    not_after: i64,
}

fn make(dir: &Path, args: &Init, json: bool) -> Result<i32, IdentityError> {
    let made = Authority::create(dir, &args.grid, Validity::seconds(args.days * DAY), args.force)?;
    let (grid, to) = (made.grid().as_str(), made.not_after());
    if json {
        return Ok(out::print_json(&Made { grid, directory: dir, not_after: to.0 }));
    }
    let dir = dir.display();
    out::print(&format!(
        "grid {grid}, until {to}\n{dir}/{TRUST}: its certificate, which everybody of the grid has\n\
         {dir}/{AUTHORITY}: its key, which stays here: whoever has it is the grid. Keep a copy of it where nobody comes.\n\n\
         Next: madrigal ca issue --host NAME, madrigal ca issue --user NAME, madrigal login\n"
    ));
    Ok(out::FOUND)
}

#[derive(Serialize)]
struct Given<'a> {
    grid: &'a str,
    kind: &'a str,
    name: &'a str,
    serial: String,
    not_after: i64,
    signed_by: &'a str,
    directory: &'a Path,
    file: &'a Path,
}

fn give(dir: &Path, args: &Issue, json: bool) -> Result<i32, IdentityError> {
    let (Some(name), file) =
        (args.host.as_ref().or(args.user.as_ref()), if args.host.is_some() { HOST } else { IDENTITY })
    else {
        return Ok(out::usage("give --host NAME or --user NAME"));
    };
    let beside = || dir.join("issued").join(name.as_str());
    let target = if args.here { dir.to_owned() } else { args.out.clone().unwrap_or_else(beside) };
    if !args.force {
        Issued::may_install(&target, file, None)?;
    }
    let life = Validity::seconds(args.days * DAY);
    let by_ca = Authority::exists(dir) || args.user.is_some();
    let issued = match (&args.host, by_ca) {
        (Some(host), true) => Authority::open(dir)?.issue_host(host, life)?,
        (Some(host), false) => issue_host(dir, host, life)?,
        (None, _) => Authority::open(dir)?.issue_user(name, life)?,
    };
    let file = issued.install(&target, args.force)?;
    let subject = issued.subject();
    let (grid, kind) = (subject.grid.as_str(), subject.role.word());
    if json {
        let (serial, not_after) = (issued.serial(), issued.not_after().0);
        let signed_by = if by_ca { "ca" } else { "login" };
        let (name, directory, file) = (name.as_str(), target.as_path(), file.as_path());
        return Ok(out::print_json(&Given { grid, kind, name, serial, not_after, signed_by, directory, file }));
    }
    out::print(&format!(
        "{}, until {}, serial {}\n{}\n",
        subject.spoken(),
        issued.not_after(),
        issued.serial(),
        file.display()
    ));
    if !args.here {
        out::print(&bring(&target, args.host.as_ref(), name));
    }
    Ok(out::FOUND)
}

/// How to bring a directory to where it belongs.
fn bring(target: &Path, host: Option<&Name>, name: &Name) -> String {
    let (target, there) = (target.display(), host.map_or("HOST".to_owned(), Name::to_string));
    let who = if host.is_some() { String::new() } else { format!(" ({name} then types madrigal login there)") };
    format!(
        "\nTo bring it there{who}:\n  ssh {there} mkdir -p -m 700 .config/madrigal && scp -p {target}/*.pem {there}:.config/madrigal/\n"
    )
}

#[derive(Serialize)]
struct Row<'a> {
    serial: &'a str,
    kind: &'a str,
    name: &'a str,
    not_after: i64,
    revoked: Option<i64>,
}

impl<'a> From<&'a Entry> for Row<'a> {
    fn from(entry: &'a Entry) -> Self {
        let Entry { serial, kind, name, not_after, revoked } = entry;
        Self { serial, kind, name, not_after: not_after.0, revoked: revoked.map(|at| at.0) }
    }
}

fn take_back(dir: &Path, args: &Revoke, json: bool) -> Result<i32, IdentityError> {
    let which = match (&args.host, &args.user, &args.serial) {
        (Some(host), _, _) => Which::Host(host.clone()),
        (_, Some(user), _) => Which::User(user.clone()),
        (_, _, Some(serial)) => Which::Serial(serial.clone()),
        _ => return Ok(out::usage("give --host NAME, --user NAME or --serial SERIAL")),
    };
    let entries = Authority::open(dir)?.revoke(&which)?;
    if json {
        return Ok(out::print_json(&entries.iter().map(Row::from).collect::<Vec<_>>()));
    }
    for entry in &entries {
        out::print(&format!("revoked: {} {}, serial {}\n", entry.kind, entry.name, entry.serial));
    }
    if entries.is_empty() {
        out::print("all of them were revoked before\n");
    }
    let list = dir.join(REVOKED);
    out::print(&format!(
        "\nBring {} to every host of the grid: daemons that run take it up at the next connection.\n",
        list.display()
    ));
    Ok(out::FOUND)
}

fn list(dir: &Path, json: bool) -> Result<i32, IdentityError> {
    let entries = Authority::open(dir)?.issued()?;
    if json {
        return Ok(out::print_json(&entries.iter().map(Row::from).collect::<Vec<_>>()));
    }
    let now = Moment::now();
    let mut rows = vec![["kind", "name", "serial", "until", "state"].map(str::to_owned).to_vec()];
    for Entry { serial, kind, name, not_after, revoked } in &entries {
        let state = match revoked {
            Some(at) => format!("revoked at {at}"),
            None if *not_after < now => "ended".to_owned(),
            None => "good".to_owned(),
        };
        rows.push(vec![kind.clone(), name.clone(), serial.clone(), not_after.to_string(), state]);
    }
    out::print(&out::table(&rows, &[]));
    Ok(out::FOUND)
}

/// The user that logs in with the CA's own key: the one that was named, else that of the present login (`None` here), else the system's
/// name for this user; cron does not set it in the environment.
fn user(dir: &Path, args: &Login) -> Option<Name> {
    if args.user.is_some() || dir.join(IDENTITY).exists() || !Authority::exists(dir) {
        return args.user.clone();
    }
    let told = ["USER", "LOGNAME"].iter().find_map(|variable| Name::parse(&std::env::var(variable).ok()?).ok());
    told.or_else(|| Name::parse(&User::from_uid(geteuid()).ok()??.name).ok())
}

fn greet(peer: &Peer, json: bool) -> i32 {
    let left = peer.not_after.after(Moment::now());
    if json {
        return out::print_json(&serde_json::json!({
            "grid": peer.grid, "user": peer.name, "serial": peer.serial, "not_after": peer.not_after.0, "seconds_left": left,
        }));
    }
    out::print(&format!("{peer}, until {} ({})\n", peer.not_after, span(left)));
    out::FOUND
}

fn end(dir: &Path, json: bool) -> Result<i32, IdentityError> {
    let ended = logout(dir)?;
    if json {
        return Ok(out::print_json(&serde_json::json!({ "ended": ended })));
    }
    out::print(if ended {
        "logged out here; what runs elsewhere with this login lasts until that expires\n"
    } else {
        "nobody was logged in\n"
    });
    Ok(out::FOUND)
}

#[derive(Serialize)]
struct Status<'a> {
    directory: &'a Path,
    grid: &'a str,
    /// Whether there is a certificate to connect with.
    ok: bool,
    held: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    kind: &'static str,
    name: Option<&'a str>,
    file: &'a Path,
    serial: Option<&'a str>,
    not_before: Option<i64>,
    not_after: Option<i64>,
    seconds_left: Option<i64>,
    ok: bool,
    problem: Option<String>,
}

impl<'a> Item<'a> {
    fn new(held: &'a Held, now: Moment) -> Self {
        Self {
            kind: held.kind,
            name: held.subject.as_ref().and_then(|subject| subject.role.name()).map(Name::as_str),
            file: &held.path,
            serial: held.serial.as_deref(),
            not_before: held.life.map(|life| life.from.0),
            not_after: held.life.map(|life| life.to.0),
            seconds_left: held.life.map(|life| life.to.after(now)),
            ok: held.problem.is_none(),
            problem: held.problem.as_ref().map(ToString::to_string),
        }
    }
}

fn show(dir: &Path, json: bool) -> Result<i32, IdentityError> {
    let (grid, held) = status(dir)?;
    let now = Moment::now();
    let held: Vec<_> = held.iter().map(|held| Item::new(held, now)).collect();
    let ok = held.iter().any(|item| item.ok && ["user", "host"].contains(&item.kind));
    let code = if ok { out::FOUND } else { out::FAILED };
    let status = Status { directory: dir, grid: grid.as_str(), ok, held };
    if json {
        return Ok(code.max(out::print_json(&status)));
    }
    out::print(&describe(&status));
    Ok(code)
}

fn describe(status: &Status<'_>) -> String {
    let mut text = format!("grid {}, in {}\n", status.grid, status.directory.display());
    let mut rows = vec![["what", "name", "left", "until", "serial"].map(str::to_owned).to_vec()];
    for item in &status.held {
        let cell = |text: Option<&str>| text.unwrap_or("-").to_owned();
        let left = item.seconds_left.map_or("-".to_owned(), span);
        let until = item.not_after.map_or("-".to_owned(), |to| Moment(to).to_string());
        rows.push(vec![item.kind.to_owned(), cell(item.name), left, until, cell(item.serial)]);
    }
    text += &out::table(&rows, &[]);
    for problem in status.held.iter().filter_map(|item| item.problem.as_ref()) {
        text += &format!("NOT good: {problem}\n");
    }
    if !status.ok && status.held.iter().all(|item| item.kind != "user") {
        text += &format!("nobody is logged in ({USER}): type madrigal login\n");
    }
    text
}

/// A span of time, in its two largest units.
fn span(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / DAY, seconds / HOUR % 24, seconds / 60 % 60);
    match seconds {
        ..0 => "ended".to_owned(),
        0..60 => format!("{seconds} s"),
        60..HOUR => format!("{minutes} min"),
        HOUR..DAY => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let spans: Vec<_> = [-1, 0, 59, 60, 3599, 3600, 43_200, 86_400, 31_536_000].map(span).to_vec();
        assert_eq!(
            spans,
            ["ended", "0 s", "59 s", "1 min", "59 min", "1 h 0 min", "12 h 0 min", "1 d 0 h", "365 d 0 h"]
        );
    }
}
