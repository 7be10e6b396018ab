//! The rules of a grid: how they are read, and which of them apply.

use madrigal_adapters::stack::{MOST_STREAMS, Stack};
use madrigal_base::network::Ports;
use madrigal_document::{FileError, Table, Value};
use madrigal_proto::mux::Class;
use madrigal_selector::route;

use super::rule::Rule;
use super::{Grid, check_name, ports};

/// The methods that rules may name.
const METHODS: &[&str] = &["direct", "reverse", "command", "relay"];

impl Grid {
    /// The rules for connections to a port of a host; without a port, those that apply to all ports.
    pub fn rules_for(&self, host: usize, port: Option<u16>) -> Vec<route::Rule> {
        let is_port = |rule: &Rule| port.map_or(rule.ports.ranges().is_empty(), |port| rule.ports.contains(port));
        let holds = |rule: &&Rule| rule.ranks_ways() && is_port(rule);
        self.about_host(host).filter(holds).map(|rule| rule.rule.clone()).collect()
    }

    /// The most connections of a link with a host, if a rule sets it.
    pub(crate) fn most_connections(&self, host: usize) -> Option<u8> {
        self.about_host(host).filter_map(|rule| rule.connections).min()
    }

    /// The stack of links with a host, if a rule sets it; the first such rule counts.
    pub(crate) fn stack(&self, host: usize) -> Option<&Stack> {
        self.about_host(host).find_map(|rule| rule.stack.as_ref())
    }

    /// The congestion control for the connections of a link with a host, if a rule sets it; the first such rule counts.
    pub(crate) fn congestion(&self, host: usize) -> Option<&str> {
        self.about_host(host).find_map(|rule| rule.congestion.as_deref())
    }

    /// The priority of a connection to a port of a host; the first rule that sets it counts.
    pub(crate) fn class(&self, host: usize, port: u16) -> Class {
        self.about(host, port).find_map(|rule| rule.class).unwrap_or(Class::Data)
    }

    /// Whether a rule makes some connections to a host urgent.
    pub(crate) fn has_urgent(&self, host: usize) -> bool {
        self.about_host(host).any(|rule| rule.class == Some(Class::Urgent))
    }

    /// The rule that caps connections to a port of a host: the first one.
    pub(crate) fn capped_by(&self, host: usize, port: u16) -> Option<&str> {
        self.about(host, port).find(|rule| rule.cap.is_some()).map(|rule| rule.rule.name.as_str())
    }

    /// The rules about connections to a port of a host.
    fn about(&self, host: usize, port: u16) -> impl Iterator<Item = &Rule> {
        let is_port = move |rule: &&Rule| rule.ports.ranges().is_empty() || rule.ports.contains(port);
        self.about_host(host).filter(is_port)
    }

    /// The rules about connections to a host, to some of its ports at least.
    fn about_host(&self, host: usize) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.hosts.is_empty() || rule.hosts.contains(&host))
    }

    /// The most bytes a second, each way, of the connections that a rule is about.
    pub(crate) fn cap(&self, rule: &str) -> Option<u64> {
        self.rules.iter().find(|own| own.rule.name == rule).and_then(|own| own.cap)
    }

    pub(super) fn read_rule(&self, name: &str, table: &Table<'_>) -> Result<Rule, FileError> {
        table.only(&["ports", "hosts", "prefer", "forbid", "connections", "stack", "congestion", "class", "cap"])?;
        check_name(name).map_err(|wrong| table.error(wrong))?;
        let list = |key: &str| table.get(key).map(|value| value.list()).unwrap_or_default();
        let host = |value: &Value<'_>| {
            let name = value.text()?;
            self.host(name).map(|(at, _)| at).ok_or_else(|| value.error(format!("the grid has no host `{name}`")))
        };
        let way = |value: &Value<'_>| {
            let word = value.text()?;
            let known = METHODS.contains(&word) || self.host(word).is_some_and(|(_, host)| host.relay);
            let wrong = || value.error(format!("must be {} or the name of a relay", METHODS.join(", ")));
            known.then(|| word.to_owned()).ok_or_else(wrong)
        };
        let ways = |key| list(key).iter().map(way).collect::<Result<Vec<_>, _>>();
        let rule = route::Rule { name: name.to_owned(), prefer: ways("prefer")?, forbid: ways("forbid")? };
        let connections = table.get("connections").map(|value| connections(&value)).transpose()?;
        let stack = table.get("stack").map(|value| stack(&value)).transpose()?;
        let congestion = table.get("congestion").map(|value| congestion(&value)).transpose()?;
        let is_of_links = connections.is_some() || stack.is_some() || congestion.is_some();
        let class = table.get("class").map(|value| class(&value)).transpose()?;
        let cap = table.get("cap").map(|value| cap(&value)).transpose()?;
        let is_of_streams = class.is_some() || cap.is_some();
        if rule.prefer.is_empty() && rule.forbid.is_empty() && !is_of_links && !is_of_streams {
            return Err(
                table.error("it says nothing: write prefer, forbid, class, cap, connections, stack or congestion")
            );
        }
        for key in ["connections", "stack", "congestion"] {
            if let (Some(_), Some(ports)) = (table.get(key), table.get("ports")) {
                return Err(ports.error(format!("a link carries all ports: write {key} in a rule without ports")));
            }
        }
        if let (Some(_), Some(value)) = (connections, table.get("stack")) {
            return Err(value.error("it says the number of connections, too: write stack or connections"));
        }
        Ok(Rule {
            ports: table.get("ports").map_or_else(|| Ok(Ports::default()), |value| ports(&value))?,
            hosts: list("hosts").iter().map(host).collect::<Result<_, _>>()?,
            rule,
            connections,
            congestion,
            class,
            cap,
            stack,
        })
    }
}

fn stack(value: &Value<'_>) -> Result<Stack, FileError> {
    value.text()?.parse::<Stack>().map_err(|error| value.error(error.to_string()))
}

fn connections(value: &Value<'_>) -> Result<u8, FileError> {
    let count = u8::try_from(value.number()?).ok().filter(|count| (1..=MOST_STREAMS).contains(count));
    count.ok_or_else(|| value.error(format!("must be a number of connections, from 1 to {MOST_STREAMS}")))
}

fn class(value: &Value<'_>) -> Result<Class, FileError> {
    match value.text()? {
        "urgent" => Ok(Class::Urgent),
        "data" => Ok(Class::Data),
        "bulk" => Ok(Class::Bulk),
        _ => Err(value.error("must be urgent, data or bulk")),
    }
}

/// Bits a second, as bytes.
fn cap(value: &Value<'_>) -> Result<u64, FileError> {
    let text = value.text()?;
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let rate = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let fits = rate.filter(|rate| (8_000..=1_000_000_000_000).contains(rate));
    fits.map(|rate| rate / 8).ok_or_else(|| value.error("must be bits a second, such as \"20M\", from 8k to 1000G"))
}

/// A name that the kernel may know (`tcp_available_congestion_control`).
fn congestion(value: &Value<'_>) -> Result<String, FileError> {
    let name = value.text()?;
    let is_like = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let fits = (1..=15).contains(&name.len()) && name.bytes().all(is_like);
    fits.then(|| name.to_owned()).ok_or_else(|| value.error("must be a congestion control, such as cubic or bbr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_they_are_meant() {
        let text = "[site.a]\nhosts = { a1 = '10.1.0.2', b1 = [] }\nrelay = 'a1'\nvia = 'ssh {host} madrigal link'\n\
            [rule.bulk]\nports = '873'\nhosts = ['b1']\nprefer = ['a1', 'direct']\n[rule.never]\nforbid = 'command'\n\
            [rule.one]\nhosts = ['b1']\nconnections = 1\n[rule.few]\nconnections = 4\n[rule.made]\nhosts = ['b1']\n\
            stack = 'adoc/tls/stripe(2)/tcp'\n[rule.night]\nports = '873'\nclass = 'bulk'\ncap = '20M'\n[rule.fair]\nhosts = ['b1']\ncongestion = 'cubic'\n";
        let grid = Grid::read("grid.toml", text).unwrap();
        assert_eq!(grid.hosts[1].via.as_deref(), Some("ssh b1 madrigal link"));
        let never = || vec!["never".to_owned()];
        let names = |host, port| grid.rules_for(host, port).into_iter().map(|rule| rule.name).collect::<Vec<_>>();
        assert_eq!((names(1, Some(873)), names(1, Some(22))), (vec!["bulk".into(), "never".into()], never()));
        assert_eq!((names(0, Some(873)), names(1, None)), (never(), never()));
        assert_eq!(grid.rules_for(1, Some(873))[0].prefer, ["a1", "direct"]);
        assert_eq!([0, 1].map(|host| grid.most_connections(host)), [Some(4), Some(1)]);
        assert_eq!([873, 22].map(|port| grid.class(1, port)), [Class::Bulk, Class::Data]);
        assert_eq!([873, 22].map(|port| grid.capped_by(1, port)), [Some("night"), None]);
        assert_eq!([grid.cap("night"), grid.cap("fair")], [Some(2_500_000), None]);
        assert_eq!([0, 1].map(|host| grid.congestion(host)), [None, Some("cubic")]);
        let stacks = [0, 1].map(|host| grid.stack(host).map(ToString::to_string));
        assert_eq!(stacks, [None, Some("adoc/tls/stripe(2)/tcp".to_owned())]);
    }

    #[test]
    fn what_a_link_is_made_of_is_checked() {
        let wrong = |rule: &str| {
            let text = format!("[site.a]\nhosts.a1 = []\n[rule.x]\n{rule}\n");
            Grid::read("grid.toml", &text).unwrap_err().to_string()
        };
        for count in ["0", "33", "'8'", "-1"] {
            let error = wrong(&format!("connections = {count}"));
            assert!(error.starts_with("grid.toml:4: rule.x.connections: must be a "), "{error}");
        }
        let error = wrong("connections = 2\nports = 22");
        assert_eq!(
            error,
            "grid.toml:5: rule.x.ports: a link carries all ports: write connections in a rule without ports"
        );
        for (rule, error) in [
            (
                "stack = 'tls/adoc/tcp'",
                "4: rule.x.stack: `adoc` below `tls`: what is enciphered cannot be compressed; write `adoc/tls`",
            ),
            ("class = 'fast'", "4: rule.x.class: must be urgent, data or bulk"),
            ("cap = '7k'", "4: rule.x.cap: must be bits a second, such as \"20M\", from 8k to 1000G"),
            ("cap = 'M'", "4: rule.x.cap: must be bits a second, such as \"20M\", from 8k to 1000G"),
            ("congestion = 'BBR'", "4: rule.x.congestion: must be a congestion control, such as cubic or bbr"),
            ("congestion = ''", "4: rule.x.congestion: must be a congestion control, such as cubic or bbr"),
            (
                "congestion = 'bbr'\nports = 22",
                "5: rule.x.ports: a link carries all ports: write congestion in a rule without ports",
            ),
            (
                "stack = 'tcp'\nports = 22",
                "5: rule.x.ports: a link carries all ports: write stack in a rule without ports",
            ),
            (
                "stack = 'tcp'\nconnections = 2",
                "4: rule.x.stack: it says the number of connections, too: write stack or connections",
            ),
        ] {
            assert_eq!(wrong(rule), format!("grid.toml:{error}"));
        }
    }
}
