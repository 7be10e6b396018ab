//! What may stand in a file, and whether it goes together.

use madrigal_document::{Document, FileError, Table, Value};

use super::parts::{Firewall, Forward, Grid, Host, Site, Switch, WanLink};
use crate::net::{Net, is_six};
use crate::wan::settings::{KEYS, Settings};

/// Names that devices and nodes of ours have.
const TAKEN: &[&str] = &["lo", "lan", "localhost", "all", "default"];

pub(super) fn read(document: &Document<'_>) -> Result<Grid, FileError> {
    document.read(|top| {
        top.only(&["site", "switch", "host", "link"])?;
        let mut grid = Grid::default();
        for (name, table) in top.tables("site")? {
            let read = site(&mut grid, name, &table)?;
            grid.sites.push(read);
        }
        for (name, table) in top.tables("switch")? {
            let read = switch(&mut grid, name, &table)?;
            grid.switches.push(read);
        }
        for (name, table) in top.tables("host")? {
            host(&mut grid, name, &table)?;
        }
        for (name, table) in top.tables("link")? {
            let read = link(&grid, name, &table)?;
            grid.links.push(read);
        }
        if grid.hosts.is_empty() {
            return Err(top.error("there is no host: write for instance [site.a] with hosts = [\"a1\"]"));
        }
        check_networks(&grid, &top)?;
        Ok(grid)
    })
}

/// A name: short enough for a network device, and nothing else's.
fn check_name(name: &str, is_taken: bool, wrong: impl Fn(String) -> FileError) -> Result<(), FileError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good = name.chars().all(plain) && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 12;
    if !good {
        return Err(wrong(format!("`{name}` is no name: write up to 12 of a-z, 0-9 and -, a letter first")));
    }
    if is_taken || TAKEN.contains(&name) || name.starts_with("gw-") || name.starts_with("wire") {
        return Err(wrong(format!("the name `{name}` is taken")));
    }
    Ok(())
}

fn site(grid: &mut Grid, name: &str, table: &Table<'_>) -> Result<Site, FileError> {
    table.only(&["network", "hosts", "nat", "forward", "firewall", "open", "refuse"])?;
    check_name(name, false, |text| table.error(text))?;
    let hosts = hosts(grid, table)?;
    let (nat, symmetric) = table.get("nat").map_or(Ok((false, false)), |value| nat(&value))?;
    let forward = match table.get("forward") {
        Some(value) if !nat => return Err(value.error("needs nat = true")),
        Some(value) => {
            value.table()?.entries().iter().map(|(port, to)| forward(&hosts, port, to)).collect::<Result<_, _>>()?
        }
        None => Vec::new(),
    };
    let (networks, firewall) = (networks(table)?, firewall(table)?);
    Ok(Site { name: name.to_owned(), networks, hosts, nat, symmetric, forward, firewall })
}

/// Whether there is NAT, and whether it is symmetric.
fn nat(value: &Value<'_>) -> Result<(bool, bool), FileError> {
    match (value.flag(), value.text()) {
        (Ok(nat), _) => Ok((nat, false)),
        (_, Ok("symmetric")) => Ok((true, true)),
        _ => Err(value.error("must be true, false or 'symmetric'")),
    }
}

fn switch(grid: &mut Grid, name: &str, table: &Table<'_>) -> Result<Switch, FileError> {
    table.only(&["network", "hosts"])?;
    check_name(name, grid.sites.iter().any(|site| site.name == name), |text| table.error(text))?;
    Ok(Switch { name: name.to_owned(), networks: networks(table)?, hosts: hosts(grid, table)? })
}

/// `[host.NAME]`: more about a host that a site or a switch has.
fn host(grid: &mut Grid, name: &str, table: &Table<'_>) -> Result<(), FileError> {
    table.only(&["address", "bridges", "dangling", "firewall", "open", "refuse", "private", "shm", "sysctl"])?;
    let Some(host) = grid.hosts.iter_mut().find(|host| host.name == name) else {
        return Err(table.error(format!("no site or switch has a host `{name}`: name it in its hosts = [...]")));
    };
    let list = |key: &str| table.get(key).map(|value| value.list()).unwrap_or_default();
    for value in list("address") {
        let wrong = |_| value.error("must be an address such as \"10.1.0.7\"");
        host.addresses.push(value.text()?.parse().map_err(wrong)?);
    }
    host.bridges = devices(table, "bridges")?;
    host.dangling = devices(table, "dangling")?;
    host.firewall = firewall(table)?;
    for value in list("private") {
        let path = value.text()?;
        if !path.starts_with('/') || path.len() < 2 || path.split('/').any(|part| part == "..") {
            return Err(value.error("must be directories such as [\"/tmp\"]"));
        }
        host.private.push(path.to_owned());
    }
    if let Some(value) = table.get("shm") {
        let size = value.text()?;
        let number = size.trim_end_matches(['k', 'm', 'g', 'K', 'M', 'G']);
        if size.len() > number.len() + 1 || number.parse::<u64>().is_err() {
            return Err(value.error("must be a size such as \"64m\""));
        }
        host.shm = Some(size.to_owned());
    }
    if let Some(value) = table.get("sysctl") {
        for (key, value) in value.table()?.entries() {
            if !key.starts_with("net.") || key.contains(['/', ' ']) {
                return Err(
                    value.error("must be a kernel setting of the network such as \"net.ipv4.tcp_congestion_control\"")
                );
            }
            host.sysctl.push((key.to_owned(), value.plain()?));
        }
    }
    Ok(())
}

fn link(grid: &Grid, name: &str, table: &Table<'_>) -> Result<WanLink, FileError> {
    let known: Vec<&str> = ["between", "seed"].iter().chain(KEYS).copied().collect();
    table.only(&known)?;
    check_name(name, grid.hosts.iter().any(|host| host.name == name), |text| table.error(text))?;
    let between =
        table.get("between").ok_or_else(|| table.error("between is missing: write between = [\"a\", \"b\"]"))?;
    let mut ends = Vec::new();
    for end in between.list() {
        let name = end.text()?;
        let place = grid.sites.iter().position(|site| site.name == name);
        let known = || grid.sites.iter().map(|site| site.name.as_str()).collect::<Vec<_>>().join(", ");
        ends.push(place.ok_or_else(|| end.error(format!("there is no site `{name}`; there are {}", known())))?);
    }
    let between = match ends[..] {
        [from, to] if from != to => [from, to],
        _ => return Err(between.error("must be two sites")),
    };
    let mut settings = Settings::default();
    for (key, value) in table.entries().iter().filter(|(key, _)| KEYS.contains(key)) {
        settings.set(key, &value.plain()?).map_err(|error| value.error(error.to_string()))?;
    }
    let settings = settings.check().map_err(|error| table.error(error.to_string()))?;
    let seed = table.get("seed").map_or(Ok(1), |value| value.number())?;
    Ok(WanLink { name: name.to_owned(), between, settings, seed })
}

/// The hosts that a site or switch names; new ones are added to the grid.
fn hosts(grid: &mut Grid, table: &Table<'_>) -> Result<Vec<String>, FileError> {
    let mut names: Vec<String> = Vec::new();
    for value in table.get("hosts").map(|value| value.list()).unwrap_or_default() {
        let name = value.text()?;
        check_name(name, names.iter().any(|known| known == name), |text| value.error(text))?;
        if !grid.hosts.iter().any(|host| host.name == name) {
            grid.hosts.push(Host { name: name.to_owned(), ..Host::default() });
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn net(value: &Value<'_>) -> Result<Net, FileError> {
    Net::parse(value.text()?).ok_or_else(|| value.error("must be a network such as \"10.1.0.0/24\" or \"fd00:a::/64\""))
}

/// One network, or one of IPv4 and one of IPv6.
fn networks(table: &Table<'_>) -> Result<Vec<Net>, FileError> {
    let value =
        table.get("network").ok_or_else(|| table.error("network is missing: write network = \"10.1.0.0/24\""))?;
    let mut nets: Vec<Net> = Vec::new();
    for value in value.list() {
        let net = net(&value)?;
        if !net.is_network() {
            return Err(value.error(format!("`{net}` is the address of a host: write the network")));
        }
        if nets.iter().any(|known| known.is_six() == net.is_six()) {
            return Err(value.error("one network of IPv4 and one of IPv6 at most"));
        }
        nets.push(net);
    }
    Ok(nets)
}

/// Devices with an address each.
fn devices(table: &Table<'_>, key: &str) -> Result<Vec<(String, Net)>, FileError> {
    let Some(value) = table.get(key) else { return Ok(Vec::new()) };
    let device = |(name, value): (&str, Value<'_>)| {
        if name.len() > 12 || name.contains(['/', ' ', ':']) || name == "lo" || name.starts_with("wire") {
            return Err(value.error("is no name for a device: up to 12 letters and digits, not of another device"));
        }
        Ok((name.to_owned(), net(&value)?))
    };
    value.table()?.entries().into_iter().map(device).collect()
}

fn forward(hosts: &[String], port: &str, to: &Value<'_>) -> Result<Forward, FileError> {
    let wrong = || to.error("must be PORT = \"HOST:PORT\" such as 2222 = \"a1:22\", with a host of this site");
    let (host, target) = to.text()?.rsplit_once(':').ok_or_else(wrong)?;
    let number = |text: &str| text.parse().ok().filter(|port| *port > 0);
    if !hosts.iter().any(|known| known == host) {
        return Err(wrong());
    }
    Ok(Forward { port: number(port).ok_or_else(wrong)?, host: host.to_owned(), to: number(target).ok_or_else(wrong)? })
}

fn firewall(table: &Table<'_>) -> Result<Firewall, FileError> {
    let mut firewall = Firewall::default();
    if let Some(value) = table.get("firewall") {
        (firewall.inward, firewall.outward) = match value.text()? {
            "in" => (true, false),
            "out" => (false, true),
            "both" => (true, true),
            _ => return Err(value.error("must be \"in\" (nobody outside opens a connection), \"out\" or \"both\"")),
        };
    }
    for value in table.get("open").map(|value| value.list()).unwrap_or_default() {
        let port = u16::try_from(value.number()?).ok().filter(|port| *port > 0);
        firewall.open.push(port.ok_or_else(|| value.error("must be ports from 1 to 65535"))?);
    }
    firewall.refuse = table.get("refuse").map_or(Ok(false), |value| value.flag())?;
    for key in ["open", "refuse"] {
        if let Some(value) = table.get(key).filter(|_| !firewall.inward && !firewall.outward) {
            return Err(value.error("needs firewall = \"in\", \"out\" or \"both\""));
        }
    }
    Ok(firewall)
}

/// Networks that everybody has a way to must differ, and addresses must be of a network of their host.
fn check_networks(grid: &Grid, top: &Table<'_>) -> Result<(), FileError> {
    let at = |kind: &str, name: &str, key: &str, text: String| {
        let table = top.tables(kind).ok().and_then(|all| all.into_iter().find(|(known, _)| *known == name));
        let value = table.as_ref().and_then(|(_, table)| table.get(key));
        value.map_or_else(|| top.error(text.clone()), |value| value.error(text.clone()))
    };
    let open: Vec<&Site> = grid.sites.iter().filter(|site| !site.nat).collect();
    for (n, site) in open.iter().enumerate() {
        for other in open.iter().take(n) {
            let same = |net: &Net| other.networks.iter().any(|known| known.overlaps(net));
            if site.networks.iter().any(same) {
                let text = format!(
                    "overlaps with that of site `{}`: both can be seen from everywhere; hide one by nat = true",
                    other.name
                );
                return Err(at("site", &site.name, "network", text));
            }
        }
    }
    for host in &grid.hosts {
        let site_nets =
            grid.sites.iter().filter(|site| site.hosts.contains(&host.name)).flat_map(|site| &site.networks);
        let switch_nets = grid.switches.iter().filter(|s| s.hosts.contains(&host.name)).flat_map(|s| &s.networks);
        let nets: Vec<&Net> = site_nets.chain(switch_nets).collect();
        if let Some(stray) = host.addresses.iter().find(|address| !nets.iter().any(|net| net.contains(**address))) {
            let six = if is_six(*stray) { "IPv6" } else { "IPv4" };
            return Err(at("host", &host.name, "address", format!("`{stray}` lies in no {six} network of this host")));
        }
    }
    Ok(())
}
