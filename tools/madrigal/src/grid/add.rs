//! `madrigal grid add`: a host in the description, its certificate, and both on the host.

use madrigal_daemon::grid::{Grid, Host};
use madrigal_daemon::{Runtime, client};
use madrigal_identity::{Authority, DAY, IdentityError, Issued, Moment, Parcel, Validity, Which};
use serde_json::{Value, json};

use super::deliver::{self, Delivery, LINE_SECONDS, Line};
use super::edit::{self, NewHost};
use super::failure::Failure;
use super::join;
use super::place::Place;
use crate::cli::grid::Add;
use crate::out;

/// How the host has got what it needs.
enum Delivered {
    /// It is this one.
    Here(String),
    /// By ssh.
    Ssh(String),
    /// Not yet.
    Line(Line),
}

pub(super) fn run(args: &Add, as_json: bool) -> Result<i32, Failure> {
    let place = Place::find()?;
    if !Authority::exists(&place.dir) {
        let advice = "type madrigal grid init NAME, or go to where that was typed";
        return Err(Failure::Failed(format!("there is no key of a grid in {}: {advice}", place.dir.display())));
    }
    let authority = Authority::open(&place.dir)?;
    let (text, grid) = describe(&place, args)?;
    let (_, host) = grid.host(args.host.as_str()).ok_or_else(|| Failure::Failed("the host is lost".to_owned()))?;
    let issued = certify(&authority, args)?;
    let (serial, until) = (issued.serial(), issued.not_after());
    let parcel = issued.parcel(&text, Moment::now().plus(LINE_SECONDS));
    // The other hosts know a new host before it starts; an existing host gets its new certificate before the old one is refused.
    let (delivered, others) = if args.again {
        (deliver(&place, args, host, parcel)?, notify_others(&place, args, &text, &grid)?)
    } else {
        let others = notify_others(&place, args, &text, &grid)?;
        (deliver(&place, args, host, parcel)?, others)
    };
    let by_hand = deliver::by_hand(&grid, &place, Some(args.host.as_str()));
    let status = if others.iter().all(|one| one.done.is_ok()) { out::FOUND } else { out::FAILED };
    let site = grid.sites.get(host.site).map_or("?", |site| site.name.as_str());
    if as_json {
        let (way, answer, line) = match &delivered {
            Delivered::Here(answer) => ("here", Some(answer), None),
            Delivered::Ssh(answer) => ("ssh", Some(answer), None),
            Delivered::Line(line) => ("line", None, Some(line.json())),
        };
        let deliveries: Vec<Value> = others.iter().map(Delivery::json).collect();
        out::print_json(&json!({
            "host": host.name, "site": site, "file": place.file(), "serial": serial, "not_after": until.0,
            "delivered": way, "said": answer, "line": line, "others": deliveries, "by_hand": by_hand,
        }));
        return Ok(status);
    }
    out::print(&format!(
        "{} (site {site}) is in {}, its certificate good until {until}\n",
        host.name,
        place.file().display()
    ));
    match delivered {
        Delivered::Here(answer) | Delivered::Ssh(answer) => out::print(&format!("{}: {answer}\n", host.name)),
        Delivered::Line(line) => out::print(&format!("\n{}", line.text(&host.name))),
    }
    others.iter().for_each(Delivery::print);
    out::print(&deliver::rest(&by_hand));
    Ok(status)
}

/// Writes the description with the host in it. With `--again` the host has to be there already.
fn describe(place: &Place, args: &Add) -> Result<(String, Grid), Failure> {
    let _lock = place.lock()?;
    let text = place.text()?;
    // A file without sites has no hosts either, which is no error.
    let known = if edit::has_sites(&text) { Some(place.parse(&text)?) } else { None };
    let there = known.as_ref().and_then(|grid| Some((grid, grid.host(args.host.as_str())?.1)));
    let new = match (there, &args.site) {
        (Some((grid, host)), _) if args.again => {
            match args.ssh.as_ref().filter(|ssh| Some(*ssh) != host.ssh.as_ref()) {
                Some(ssh) => {
                    let site = grid.sites.get(host.site).map_or("", |site| site.name.as_str());
                    edit::with_ssh(&text, site, &host.name, ssh).map_err(Failure::Usage)?
                }
                None => text.clone(),
            }
        }
        (Some(_), _) => {
            let (file, host) = (place.file(), &args.host);
            let advice = format!("type madrigal grid add {host} --again to give it a new certificate");
            return Err(Failure::Usage(format!("{} has host {host} already: {advice}", file.display())));
        }
        (None, Some(site)) => edit::with_host(&text, &new_host(args, site)).map_err(Failure::Usage)?,
        (None, None) => {
            let advice = "leave --again away, and give --site SITE";
            return Err(Failure::Usage(format!("{} has no host {}: {advice}", place.file().display(), args.host)));
        }
    };
    let grid = place.parse(&new)?;
    if new != text {
        place.write(&new)?;
    }
    Ok((new, grid))
}

fn new_host<'a>(args: &'a Add, site: &'a str) -> NewHost<'a> {
    let (allow, ssh) = (args.allow.as_deref(), args.ssh.as_deref());
    NewHost { host: args.host.as_str(), site, addresses: &args.address, relay: args.relay, allow, ssh }
}

/// A new certificate; those that the host had before are taken back.
fn certify(authority: &Authority, args: &Add) -> Result<Issued, IdentityError> {
    if args.again {
        match authority.revoke(&Which::Host(args.host.clone())) {
            Ok(_) | Err(IdentityError::NotIssued { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    authority.issue_host(&args.host, Validity::seconds(args.days * DAY))
}

fn deliver(place: &Place, args: &Add, host: &Host, parcel: Parcel) -> Result<Delivered, Failure> {
    if args.here {
        parcel.install(&place.dir, args.again)?;
        return Ok(Delivered::Here(join::start(&host.name)?));
    }
    match &host.ssh {
        Some(to) => match deliver::by_ssh(to, &args.command, &parcel) {
            Ok(answer) => Ok(Delivered::Ssh(answer)),
            Err(why) => Err(Failure::Failed(format!(
                "{why}; {0} stands in {1} by now: then type madrigal grid add {0} --again",
                host.name,
                place.file().display()
            ))),
        },
        None => Ok(Delivered::Line(Line::seal(&parcel)?)),
    }
}

/// This host's daemon and those that ssh reaches read the description again.
fn notify_others(place: &Place, args: &Add, text: &str, grid: &Grid) -> Result<Vec<Delivery>, Failure> {
    let mut deliveries = Vec::new();
    if !args.here
        && let Some(own) = place.own()
    {
        let again = "madrigal grid reload".to_owned();
        match client::reload(&Runtime::find()) {
            Ok(reloaded) => deliveries.push(Delivery { host: own, done: Ok(reloaded.to_string()), again }),
            Err(client::ClientError::Down) => {}
            Err(error) => deliveries.push(Delivery { host: own, done: Err(error.to_string()), again }),
        }
    }
    deliveries.extend(deliver::update(
        place,
        text,
        &deliver::reached(grid, place, Some(args.host.as_str())),
        &args.command,
    )?);
    Ok(deliveries)
}
