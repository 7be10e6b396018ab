//! `grid.toml`: the sites and hosts, the addresses of their daemons, and what they allow others. Every host has the same file.
//!
//! ```toml
//! [site.a]
//! hosts = { a1 = "10.1.0.2", a2 = ["10.1.0.3", "[fd00:a::3]:7781"] }
//! allow = "22,8000-8010"
//! ```

mod file;
mod pools;
mod rule;
mod rules;

use std::net::{IpAddr, SocketAddr};

use madrigal_base::network::Ports;
use madrigal_document::{Document, FileError, Table, Value};

pub use file::read_text;
pub use pools::{EtcdSettings, PoolSettings};
pub use rule::Rule;

/// The default port of daemons.
pub const PORT: u16 = 7780;

/// The most hosts of a grid. Every daemon keeps links with all others, and they have to fit in its answers and in the hosts file.
pub const MOST_HOSTS: usize = 1024;
/// The most sites of a grid.
const MOST_SITES: usize = MOST_HOSTS;
/// The most addresses of a host: all are dialled at once, and an answer lists each.
const MOST_ADDRESSES: usize = 8;

/// A grid, as its file describes it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Grid {
    /// The networks between the sites are trusted, too.
    pub trusted: bool,
    /// Between all sites programs may connect unencrypted while their daemon is down; see [`Site::plain`].
    pub plain: bool,
    /// In the order of the file.
    pub sites: Vec<Site>,
    /// In the order of the file; names are unique.
    pub hosts: Vec<Host>,
    /// In the order of the file.
    pub rules: Vec<Rule>,
    /// Where pools are kept.
    pub pools: PoolSettings,
}

/// A site: hosts in one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Its network is trusted: links inside it are plain.
    pub trusted: bool,
    /// Programs of other sites may connect to it unencrypted while their daemon is down.
    pub plain: bool,
    /// The sites and hosts whose programs may connect to its ports; if empty, all.
    pub from: Vec<String>,
    /// The sites and hosts whose programs may not, and for which its relays carry nothing. It overrides the other lists.
    pub deny: Vec<String>,
    /// The sites and hosts for which its relays carry streams; if empty, all.
    pub carries: Vec<String>,
}

/// A host, and its daemon.
#[derive(Clone, PartialEq, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The index of its site in [`Grid::sites`].
    pub site: usize,
    /// Where its daemon listens.
    pub port: u16,
    /// The addresses of its daemon; none where no other host can connect to it.
    pub addresses: Vec<SocketAddr>,
    /// It relays streams of other hosts.
    pub relay: bool,
    /// The ports of it that others may connect to; `None`: none.
    pub allow: Option<Ports>,
    /// A command whose input and output carry a link with its daemon.
    pub via: Option<String>,
    /// Where ssh reaches it from the machine of the grid's authority.
    pub ssh: Option<String>,
}

/// The suffix of the name of a host that was removed from a description in use; no name in a file ends so.
pub(crate) const GONE: char = '!';

impl Host {
    /// Whether it was removed from the description in use.
    pub(crate) fn is_gone(&self) -> bool {
        self.name.ends_with(GONE)
    }
}

impl Grid {
    /// Reads a file's text; `file` is named in errors.
    pub fn read(file: &str, text: &str) -> Result<Self, FileError> {
        Document::new(file, text).read(|top| {
            top.only(&["trusted", "plain", "site", "rule", "pools"])?;
            let mut grid = Self { trusted: flag(&top, "trusted")?, plain: flag(&top, "plain")?, ..Self::default() };
            for (name, table) in top.tables("site")? {
                grid.read_site(name, &table)?;
            }
            if grid.hosts.is_empty() {
                return Err(
                    top.error("there is no host: write for instance [site.a] with hosts = { a1 = \"10.1.0.2\" }")
                );
            }
            for (_, table) in top.tables("site")? {
                grid.check_words(&table)?;
            }
            for (name, table) in top.tables("rule")? {
                let rule = grid.read_rule(name, &table)?;
                grid.rules.push(rule);
            }
            let pools = top.get("pools").map(|value| value.table()).transpose()?;
            let first = grid.hosts.iter().find(|host| host.relay).or(grid.hosts.first());
            let first = first.map_or("", |host| host.name.as_str());
            grid.pools = PoolSettings::read(pools.as_ref(), first, |name| grid.host(name).is_some())?;
            Ok(grid)
        })
    }

    /// The host of a name, and its index.
    pub fn host(&self, name: &str) -> Option<(usize, &Host)> {
        self.hosts.iter().enumerate().find(|(_, host)| host.name == name)
    }

    /// The names of all hosts.
    pub(crate) fn names(&self) -> String {
        self.hosts.iter().filter(|host| !host.is_gone()).map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Whether links between two hosts may be plain: on one machine, inside a trusted site, or where all networks are trusted.
    pub fn is_trusted_between(&self, one: &Host, other: &Host) -> bool {
        let local = |host: &Host| !host.addresses.is_empty() && host.addresses.iter().all(|at| at.ip().is_loopback());
        let inside = one.site == other.site && self.sites.get(one.site).is_some_and(|site| site.trusted);
        self.trusted || inside || (local(one) && local(other))
    }

    /// Whether programs of a host may connect to hosts of a site, if the port is allowed.
    pub fn lets_in(&self, site: usize, host: &str) -> bool {
        self.sites.get(site).is_some_and(|site| self.is_among(&site.from, &site.deny, host))
    }

    /// Whether relays of a site carry streams that begin at a host.
    pub fn carries(&self, site: usize, host: &str) -> bool {
        self.sites.get(site).is_some_and(|site| self.is_among(&site.carries, &site.deny, host))
    }

    fn is_among(&self, allowed: &[String], denied: &[String], host: &str) -> bool {
        let site = self.host(host).and_then(|(_, host)| self.sites.get(host.site));
        let is = |word: &String| word == host || site.is_some_and(|site| site.name == *word);
        !denied.iter().any(is) && (allowed.is_empty() || allowed.iter().any(is))
    }

    /// Whether programs on `one` may connect to `other` unencrypted while the daemon of `one` is down.
    pub fn is_plain_without_daemon(&self, one: &Host, other: &Host) -> bool {
        let plain = self.plain || self.sites.get(other.site).is_some_and(|site| site.plain);
        plain || one.site == other.site || self.is_trusted_between(one, other)
    }

    /// Checks that lists of sites and hosts name existing ones.
    fn check_words(&self, table: &Table<'_>) -> Result<(), FileError> {
        let values = WORDS.iter().filter_map(|key| table.get(key)).flat_map(|value| value.list());
        for value in values {
            let word = value.text()?;
            if self.host(word).is_none() && self.sites.iter().all(|site| site.name != word) {
                return Err(value.error(format!("the grid has no site or host `{word}`")));
            }
        }
        Ok(())
    }

    fn read_site(&mut self, name: &str, table: &Table<'_>) -> Result<(), FileError> {
        table
            .only(&["hosts", "relay", "trusted", "plain", "port", "allow", "from", "deny", "carries", "via", "ssh"])?;
        check_name(name).map_err(|wrong| table.error(wrong))?;
        let port = match table.get("port") {
            Some(value) => u16::try_from(value.number()?)
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| value.error("must be a port, from 1 to 65535"))?,
            None => PORT,
        };
        let allow = match table.get("allow") {
            Some(value) => Some(ports(&value)?).filter(|ports| !ports.ranges().is_empty()),
            None => None,
        };
        let via = table.get("via").map(|value| via(&value)).transpose()?;
        let site = self.sites.len();
        if site >= MOST_SITES {
            return Err(table.error(format!("a grid has up to {MOST_SITES} sites")));
        }
        let (trusted, plain) = (flag(table, "trusted")?, flag(table, "plain")?);
        let [from, deny, carries] = WORDS.map(|key| words(table, key));
        let (from, deny, carries) = (from?, deny?, carries?);
        self.sites.push(Site { name: name.to_owned(), trusted, plain, from, deny, carries });
        let hosts = table.get("hosts").ok_or_else(|| table.error("hosts is missing"))?;
        let first = self.hosts.len();
        for (name, value) in hosts.table()?.entries() {
            self.check_new_host(name).map_err(|wrong| value.error(wrong))?;
            let addresses = addresses(&value, port)?;
            let via = via.as_ref().map(|via| via.replace(HOST_WORD, name));
            let allow = allow.clone();
            let host = Host { name: name.to_owned(), site, port, addresses, relay: false, allow, via, ssh: None };
            self.hosts.push(host);
        }
        for value in table.get("relay").map(|value| value.list()).unwrap_or_default() {
            let name = value.text()?;
            let host = self.hosts.iter_mut().skip(first).find(|host| host.name == name);
            host.ok_or_else(|| value.error(format!("this site has no host `{name}`")))?.relay = true;
        }
        self.read_ssh(first, table)
    }

    /// Whether a host of this name may be added.
    fn check_new_host(&self, name: &str) -> Result<(), String> {
        check_name(name)?;
        if self.hosts.len() >= MOST_HOSTS {
            return Err(format!("a grid has up to {MOST_HOSTS} hosts"));
        }
        match self.hosts.iter().find(|host| host.name.eq_ignore_ascii_case(name)) {
            Some(host) if host.name == name => Err(format!("there are two hosts `{name}`")),
            Some(host) => Err(format!("case alone tells it from host `{}`, and programs do not look at it", host.name)),
            None => Ok(()),
        }
    }

    fn read_ssh(&mut self, first: usize, table: &Table<'_>) -> Result<(), FileError> {
        let reached = table.get("ssh").map(|value| value.table()).transpose()?;
        for (name, value) in reached.iter().flat_map(Table::entries) {
            let host = self.hosts.iter_mut().skip(first).find(|host| host.name == name);
            let host = host.ok_or_else(|| value.error(format!("this site has no host `{name}`")))?;
            let to = value.text()?;
            check_destination(to).map_err(|wrong| value.error(wrong))?;
            host.ssh = Some(to.to_owned());
        }
        Ok(())
    }
}

/// The keys of a site whose values are names of sites and hosts.
const WORDS: [&str; 3] = ["from", "deny", "carries"];
/// Stands for a host's name in a command.
const HOST_WORD: &str = "{host}";

fn via(value: &Value<'_>) -> Result<String, FileError> {
    let text = value.text()?.trim();
    let good = !text.is_empty() && !text.contains('\0');
    good.then(|| text.to_owned()).ok_or_else(|| value.error("must be a command such as \"ssh {host} madrigal link\""))
}

fn words(table: &Table<'_>, key: &str) -> Result<Vec<String>, FileError> {
    let list = table.get(key).map(|value| value.list()).unwrap_or_default();
    list.iter().map(|value| value.text().map(str::to_owned)).collect()
}

fn flag(table: &Table<'_>, key: &str) -> Result<bool, FileError> {
    table.get(key).map_or(Ok(false), |value| value.flag())
}

/// Ports in the form of [`Ports`], or a single number.
fn ports(value: &Value<'_>) -> Result<Ports, FileError> {
    let text = value.plain()?;
    Ports::parse(&text).ok_or_else(|| value.error("must be ports such as \"22,8000-8010\""))
}

fn addresses(value: &Value<'_>, port: u16) -> Result<Vec<SocketAddr>, FileError> {
    let list = value.list();
    if list.len() > MOST_ADDRESSES {
        return Err(value.error(format!("a host has up to {MOST_ADDRESSES} addresses")));
    }
    list.iter().map(|one| address(one, port)).collect()
}

fn address(value: &Value<'_>, port: u16) -> Result<SocketAddr, FileError> {
    let text = value.text()?;
    let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port));
    let wrong = |_| value.error("must be an address such as \"10.1.0.2\", \"10.1.0.2:7781\" or \"[fd00:a::2]:7781\"");
    bare.or_else(|_| text.parse()).map_err(wrong)
}

/// Whether ssh takes a text as a destination and nothing else: neither the user nor the host can be parsed as an option.
pub fn check_destination(text: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:[]%".contains(c);
    let begins_well = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric() || "[_".contains(c));
    if text.split('@').all(begins_well) && text.chars().all(plain) {
        Ok(())
    } else {
        Err("must be where ssh goes, such as \"b1.example.org\" or \"ann@b1\"; options belong in ~/.ssh/config"
            .to_owned())
    }
}

/// Whether a text may be the name of a site, a host or a rule. Names appear in command lines and messages: none can be parsed as an option,
/// and none has characters with a meaning for a shell or a terminal.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.len() <= 64 && name.chars().all(plain);
    let wrong = "is no name: write up to 64 of a-z, 0-9, -, _ and ., the first a letter or digit";
    if good { Ok(()) } else { Err(format!("`{}` {wrong}", name.escape_debug())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_as_it_is_meant() {
        let text = "[site.a]\nhosts = { a1 = '10.1.0.2', a2 = ['10.1.0.3', '[fd00::3]:99'], a3 = [] }\nrelay = 'a2'\ntrusted = true\n\
            allow = '22,8000-8010'\n[site.b]\nhosts.b1 = '127.0.0.1'\nport = 7000\n[site.c]\nhosts.c1 = '127.0.0.2'\n";
        let grid = Grid::read("grid.toml", text).unwrap();
        let (n, a2) = grid.host("a2").unwrap();
        assert_eq!((n, a2.relay, a2.port, a2.site), (1, true, PORT, 0));
        assert_eq!(a2.addresses, ["10.1.0.3:7780".parse().unwrap(), "[fd00::3]:99".parse().unwrap()]);
        assert!(a2.allow.as_ref().is_some_and(|allow| allow.contains(8005) && !allow.contains(80)));
        let (_, a3) = grid.host("a3").unwrap();
        assert!(a3.addresses.is_empty() && !a3.relay);
        let (_, b1) = grid.host("b1").unwrap();
        let (_, c1) = grid.host("c1").unwrap();
        assert_eq!((b1.addresses[0].port(), b1.allow.is_none()), (7000, true));
        assert!(grid.is_trusted_between(a2, a3) && !grid.is_trusted_between(a2, b1) && grid.is_trusted_between(b1, c1));
    }

    #[test]
    fn the_first_relay_keeps_the_pools_or_the_first_host_or_whom_the_file_names() {
        let keeper = |more: &str| {
            let text = format!("[site.a]\nhosts = {{ a1 = [], a2 = [], a3 = [] }}\n{more}");
            Grid::read("grid.toml", &text).unwrap().pools.keeper
        };
        assert_eq!([keeper(""), keeper("relay = 'a2'\n"), keeper("[pools]\nkeeper = 'a3'\n")], ["a1", "a2", "a3"]);
    }

    #[test]
    fn who_may_connect_and_whose_streams_are_carried() {
        let text = "[site.a]\nhosts = { a1 = [], a2 = [] }\n[site.b]\nhosts.b1 = []\nfrom = ['a', 'c1']\ndeny = 'a2'\n\
            [site.c]\nhosts = { c1 = [], c2 = [] }\nrelay = 'c1'\ncarries = ['a1', 'b']\n";
        let grid = Grid::read("grid.toml", text).unwrap();
        let hosts = ["a1", "a2", "b1", "c1", "c2", "d1"];
        assert_eq!(hosts.map(|host| grid.lets_in(1, host)), [true, false, false, true, false, false]);
        assert_eq!(hosts.map(|host| grid.carries(2, host)), [true, false, true, false, false, false]);
        assert_eq!(hosts.map(|host| grid.carries(1, host)), [true, false, true, true, true, true]);
    }

    #[test]
    fn plain_without_a_daemon_is_only_what_the_file_says() {
        let text = "[site.a]\nhosts = { a1 = '10.1.0.2', a2 = '10.1.0.3' }\n[site.b]\nhosts.b1 = '10.2.0.2'\nplain = true\n[site.c]\nhosts.c1 = []\n";
        let plain = |text: &str, from: usize| {
            let grid = Grid::read("grid.toml", text).unwrap();
            (0..4).map(|to| grid.is_plain_without_daemon(&grid.hosts[from], &grid.hosts[to])).collect::<Vec<_>>()
        };
        assert_eq!(plain(text, 0), [true, true, true, false]);
        assert_eq!(plain(text, 2), [false, false, true, false]);
        for more in ["plain = true\n", "trusted = true\n"] {
            assert_eq!(plain(&format!("{more}{text}"), 2), [true; 4]);
        }
    }

    #[test]
    fn a_file_that_asks_for_too_much_is_refused_at_the_line_that_does() {
        let hosts = |count: usize| {
            let hosts: String = (0..count).map(|n| format!("hosts.h{n} = []\n")).collect();
            Grid::read("grid.toml", &format!("[site.a]\n{hosts}"))
        };
        let wrong = |read: Result<Grid, FileError>| read.unwrap_err().to_string();
        assert_eq!(hosts(MOST_HOSTS).unwrap().hosts.len(), MOST_HOSTS);
        assert_eq!(wrong(hosts(50_000)), "grid.toml:1026: site.a.hosts.h1024: a grid has up to 1024 hosts");
        let sites: String = (0..MOST_SITES + 1).map(|n| format!("[site.s{n}]\nhosts = {{}}\n")).collect();
        assert_eq!(wrong(Grid::read("grid.toml", &sites)), "grid.toml:2049: site.s1024: a grid has up to 1024 sites");
        let many = format!("[site.a]\nhosts.a1 = [{}]\n", "'10.0.0.1', ".repeat(MOST_ADDRESSES + 1));
        assert_eq!(wrong(Grid::read("grid.toml", &many)), "grid.toml:2: site.a.hosts.a1: a host has up to 8 addresses");
        for (open, close) in [("[", "]"), ("{ a = ", " }"), ("a.", "a = 1")] {
            let deep = format!("plain = {}1{}\n", open.repeat(100_000), close.repeat(100_000));
            assert!(wrong(Grid::read("grid.toml", &deep)).starts_with("grid.toml:1: "));
        }
    }

    #[test]
    fn names_and_destinations_are_never_options() {
        for name in ["", "-x", ".", "..", "../a", "a/b", "a b", "a\n", "_a", "é", "a!"] {
            assert!(check_name(name).is_err_and(|error| !error.contains('\n')), "{name}");
        }
        assert!(["a", "1", "A-1.x_"].iter().all(|name| check_name(name).is_ok()));
        for to in ["", "-v", "ann@-v", "@b1", "ann@", "ann@b1@-v", "a b", "a\n", "a'b", "$(x)", "a;b", "a=b"] {
            assert!(check_destination(to).is_err(), "{to}");
        }
        for to in ["b1", "ann@b1.example.org", "[fd00::1]", "ann@fe80::1%eth0", "_b1"] {
            assert!(check_destination(to).is_ok(), "{to}");
        }
    }

    #[test]
    fn errors_name_line_and_key() {
        let cases = [
            ("", "grid.toml:1: there is no host"),
            ("[site.a]\nport = 1\n", "grid.toml:1: site.a: hosts is missing"),
            ("[site.a]\nhost = 1\n", "grid.toml:2: site.a.host: there is no such key; did you mean `hosts`?"),
            ("[site.a]\nhosts = { a1 = 'b1' }\n", "grid.toml:2: site.a.hosts.a1: must be an address such as"),
            ("[site.a]\nhosts.a1 = []\nport = 0\n", "grid.toml:3: site.a.port: must be a port"),
            ("[site.a]\nhosts.a1 = []\nallow = 'ssh'\n", "grid.toml:3: site.a.allow: must be ports such as"),
            ("[site.a]\nhosts.a1 = []\nrelay = ['a2']\n", "grid.toml:3: site.a.relay: this site has no host `a2`"),
            (
                "[site.a]\nhosts.a1 = []\n[site.b]\nhosts.a1 = []\n",
                "grid.toml:4: site.b.hosts.a1: there are two hosts `a1`",
            ),
            (
                "[site.a]\nhosts.a1 = []\n[site.b]\nhosts.A1 = []\n",
                "grid.toml:4: site.b.hosts.A1: case alone tells it from host `a1`",
            ),
            ("[site.a]\nhosts.a1 = []\ndeny = 'b'\n", "grid.toml:3: site.a.deny: the grid has no site or host `b`"),
            ("[site.a]\nhosts.a1 = []\nssh.a2 = 'a2'\n", "grid.toml:3: site.a.ssh.a2: this site has no host `a2`"),
            (
                "[site.a]\nhosts.a1 = []\nssh.a1 = '-oProxyCommand=x'\n",
                "grid.toml:3: site.a.ssh.a1: must be where ssh goes",
            ),
            ("[site.a]\nhosts.a1 = []\nssh.a1 = 'a1 x'\n", "grid.toml:3: site.a.ssh.a1: must be where ssh goes"),
            ("[site.a]\nhosts.a1 = []\nvia = ' '\n", "grid.toml:3: site.a.via: must be a command such as"),
            ("[site.a]\nhosts.a1 = []\n[rule.x]\nports = 1\n", "grid.toml:3: rule.x: it says nothing"),
            (
                "[site.a]\nhosts.a1 = []\n[rule.x]\nforbit = 'relay'\n",
                "grid.toml:4: rule.x.forbit: there is no such key; did you mean `forbid`?",
            ),
            (
                "[site.a]\nhosts.a1 = []\n[rule.x]\nforbid = 'a1'\n",
                "grid.toml:4: rule.x.forbid: must be direct, reverse, command, relay or the name of a relay",
            ),
            (
                "[site.a]\nhosts.a1 = []\n[rule.x]\nforbid = 'relay'\nhosts = 'a2'\n",
                "grid.toml:5: rule.x.hosts: the grid has no host `a2`",
            ),
            (
                "[site.a]\nhosts.a1 = []\n[pools]\nkeeper = 'a2'\n",
                "grid.toml:4: pools.keeper: the grid has no host `a2`",
            ),
            (
                "[site.a]\nhosts.a1 = []\n[pools]\nca = '/ca'\n",
                "grid.toml:3: pools: ca is for etcd, which is not named",
            ),
            ("[site.a]\nhosts.a1 = []\n[pools]\netcd = 'a1:2379'\n", "grid.toml:4: pools.etcd: must be a URL such as"),
            (
                "[site.a]\nhosts.a1 = []\n[pools]\netcd = 'https://a1:2379'\n",
                "grid.toml:4: pools.etcd: give the certificate of its authority, too",
            ),
            ("trusted = 1\n", "grid.toml:1: trusted: must be true or false"),
        ];
        for (text, begins) in cases {
            let error = Grid::read("grid.toml", text).unwrap_err().to_string();
            assert!(error.starts_with(begins), "{error}");
        }
    }
}
