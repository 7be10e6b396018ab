//! The `MADRIGAL_*` keys: names, meanings, defaults, and how their values are parsed.
//!
//! Nothing here reads the environment: callers pass the pairs they found.

use crate::network::{Nets, Network, Ports};

/// Every key's name begins with this.
pub const PREFIX: &str = "MADRIGAL_";

/// One configuration key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The environment variable.
    pub name: &'static str,
    /// Its value unless set, as one would type it.
    pub default: &'static str,
    /// What the value is counted in; empty for texts.
    pub unit: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
}

/// The keys every process of Madrigal knows.
pub const KEYS: &[Key] = &[
    Key {
        name: "MADRIGAL_METHODS",
        default: "^loopback",
        unit: "",
        help: "Methods that may be used, best first, such as `shm,tcp`; `^shm` means all but shm, `fabric:NAME` a provider of libfabric's.",
    },
    Key {
        name: "MADRIGAL_ONLY",
        default: "",
        unit: "",
        help: "Ports whose connections are looked after, such as `80,8000-8010`; empty for all.",
    },
    Key {
        name: "MADRIGAL_DIR",
        default: "/dev/shm/madrigal-UID",
        unit: "",
        help: "Directory through which processes of one user and host find each other; UID is replaced.",
    },
    Key {
        name: "MADRIGAL_SPIN_US",
        default: "50",
        unit: "us",
        help: "The longest time a waiter looks again and again before it sleeps; 0 never spins.",
    },
    Key {
        name: "MADRIGAL_EAGER",
        default: "",
        unit: "",
        help: "For tests: `first` moves a connection at its first byte, `random` or `random:SEED` leaves the ring now and then, too.",
    },
    Key {
        name: "MADRIGAL_CHECK",
        default: "0",
        unit: "",
        help: "1 keeps sums of what travels in rings, where both ends do, and resets a connection whose bytes differ.",
    },
    Key {
        name: "MADRIGAL_PORTS",
        default: "",
        unit: "",
        help: "Ports on which a process of a parallel job may be reached, such as `4000-4099`; empty for any.",
    },
    Key {
        name: "MADRIGAL_NET",
        default: "",
        unit: "",
        help: "Networks that may be used, such as `10.0.0.0/8,^docker0,ib*`; ^ means not; empty for all.",
    },
    Key {
        name: "MADRIGAL_CONNECT_TIMEOUT",
        default: "12",
        unit: "s",
        help: "How long a process tries to reach another before it says why it cannot.",
    },
    Key {
        name: "MADRIGAL_ADDR_LEN",
        default: "",
        unit: "",
        help: "Bytes of the addresses an MPI carries for us, 16 or 64; empty for what it can.",
    },
    Key {
        name: "MADRIGAL_CONFIG_DIR",
        default: "~/.config/madrigal",
        unit: "",
        help: "Directory of certificates, keys and the description of the grid; ~ is the home directory. XDG_CONFIG_HOME goes before ~/.config.",
    },
    Key {
        name: "MADRIGAL_DAEMON",
        default: "",
        unit: "",
        help: "Directory of the daemon that programs use, or `none`; empty for the usual one, where a grid is described or a daemon was up.",
    },
    Key {
        name: "MADRIGAL_AGENT",
        default: "ssh",
        unit: "",
        help: "What launchers of MPI under `madrigal exec` run to start something on another host, where there is a grid.",
    },
    Key {
        name: "MADRIGAL_STACK",
        default: "",
        unit: "",
        help: "What links of the daemon are made of, such as `stripe(4)/tls/tcp`; empty for what each is worth.",
    },
    Key {
        name: "MADRIGAL_MESSAGE_STACK",
        default: "",
        unit: "",
        help: "What links of Circuits and ports with other hosts are made of, such as `adoc/tls/stripe(4)/tcp`, the same in all processes; empty for TCP alone.",
    },
    Key {
        name: "MADRIGAL_DRIVERS",
        default: "",
        unit: "",
        help: "Directory of drivers of your own, shared objects with a description each; empty for none.",
    },
];

/// The key of that name.
pub fn lookup(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The known key nearest to an unknown name, if it is near enough to be a typing error. The common prefix does not count.
pub fn nearest(name: &str) -> Option<&'static Key> {
    let bare = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let name = bare(name);
    let near = |key: &&Key| edit_distance(&bare(key.name), &name);
    KEYS.iter().min_by_key(near).filter(|key| near(key) <= 1 + bare(key.name).len().min(name.len()) / 4)
}

/// What is wrong with a setting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such key.
    #[error("unknown key {name}{}", suggestion.map_or(String::new(), |s| format!(": did you mean {s}?")))]
    UnknownKey {
        /// What was set.
        name: String,
        /// The nearest key there is.
        suggestion: Option<&'static str>,
    },
    /// The value does not parse; the default holds.
    #[error("{key}={value}: not {wanted}")]
    BadValue {
        /// Which key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        wanted: &'static str,
    },
}

/// The values in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `MADRIGAL_METHODS`.
    pub methods: Methods,
    /// `MADRIGAL_ONLY`.
    pub only: Ports,
    /// `MADRIGAL_DIR`, UID not yet replaced.
    pub dir: String,
    /// `MADRIGAL_SPIN_US`.
    pub spin_us: u32,
    /// `MADRIGAL_EAGER`.
    pub eager: String,
    /// `MADRIGAL_CHECK`.
    pub check: bool,
    /// `MADRIGAL_PORTS`, `MADRIGAL_NET`, `MADRIGAL_CONNECT_TIMEOUT`.
    pub network: Network,
    /// `MADRIGAL_ADDR_LEN`; `None`: what the MPI can carry.
    pub address_len: Option<usize>,
    /// `MADRIGAL_DAEMON`.
    pub daemon: String,
    /// `MADRIGAL_AGENT`.
    pub agent: String,
    /// `MADRIGAL_STACK`, not parsed yet.
    pub stack: String,
    /// `MADRIGAL_MESSAGE_STACK`, not parsed yet.
    pub message_stack: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Methods that carry bytes inside a process are used there without permission.
            methods: Methods::Except(vec!["loopback".to_owned()]),
            only: Ports::default(),
            dir: "/dev/shm/madrigal-UID".to_owned(),
            spin_us: 50,
            eager: String::new(),
            check: false,
            network: Network::default(),
            address_len: None,
            daemon: String::new(),
            agent: "ssh".to_owned(),
            stack: String::new(),
            message_stack: String::new(),
        }
    }
}

impl Settings {
    /// Reads every pair whose name begins with [`PREFIX`], and skips others. A value that does not parse leaves the default in force and is
    /// reported.
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> (Self, Vec<ConfigError>) {
        let mut settings = Self::default();
        let mut errors = Vec::new();
        for (name, value) in pairs {
            if name.as_ref().starts_with(PREFIX) {
                errors.extend(settings.set(name.as_ref(), value.as_ref()).err());
            }
        }
        (settings, errors)
    }

    /// Sets one key.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let unknown = || ConfigError::UnknownKey { name: name.into(), suggestion: nearest(name).map(|k| k.name) };
        let key = lookup(name).ok_or_else(unknown)?;
        let bad = |wanted| ConfigError::BadValue { key: key.name, value: value.to_owned(), wanted };
        match key.name {
            "MADRIGAL_METHODS" => {
                self.methods = Methods::parse(value).ok_or_else(|| bad("a list of methods such as shm,tcp or ^shm"))?;
            }
            "MADRIGAL_ONLY" => self.only = Ports::parse(value).ok_or_else(|| bad(PORTS))?,
            "MADRIGAL_PORTS" => self.network.ports = Ports::parse(value).ok_or_else(|| bad(PORTS))?,
            "MADRIGAL_NET" => self.network.nets = Nets::parse(value).ok_or_else(|| bad(NETS))?,
            "MADRIGAL_CONNECT_TIMEOUT" => {
                let seconds = value.parse().ok().filter(|s| (1..=3600).contains(s));
                self.network.connect_timeout = seconds.ok_or_else(|| bad("a number of seconds from 1 to 3600"))?;
            }
            "MADRIGAL_ADDR_LEN" if value.is_empty() => self.address_len = None,
            "MADRIGAL_ADDR_LEN" => {
                let len = value.parse().ok().filter(|len| [16, 64].contains(len));
                self.address_len = Some(len.ok_or_else(|| bad("16 or 64"))?);
            }
            // `madrigal_identity::directory` reads it.
            "MADRIGAL_CONFIG_DIR" => {
                let at_home = value.starts_with("~/").then(|| value.to_owned());
                at_home.or_else(|| absolute(value)).ok_or_else(|| bad("a path from / or ~/"))?;
            }
            "MADRIGAL_DAEMON" => {
                let plain = value.is_empty() || value == "none";
                self.daemon = plain.then(|| value.to_owned()).or_else(|| absolute(value)).ok_or_else(|| bad(DAEMON))?;
            }
            "MADRIGAL_EAGER" => {
                let seed =
                    |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(|n| n.parse::<u64>().is_ok());
                let legal = matches!(value, "" | "first") || value.strip_prefix("random").is_some_and(seed);
                self.eager = legal.then(|| value.to_owned()).ok_or_else(|| bad("first, random or random:SEED"))?;
            }
            "MADRIGAL_CHECK" => {
                self.check = match value {
                    "" | "0" => false,
                    "1" => true,
                    _ => return Err(bad("0 or 1")),
                }
            }
            // The table of drivers reads it (crate `drivers`).
            "MADRIGAL_DRIVERS" if value.is_empty() => {}
            "MADRIGAL_DRIVERS" => drop(absolute(value).ok_or_else(|| bad("an absolute path"))?),
            "MADRIGAL_AGENT" => self.agent = value.to_owned(),
            "MADRIGAL_STACK" => self.stack = value.to_owned(),
            "MADRIGAL_MESSAGE_STACK" => self.message_stack = value.to_owned(),
            "MADRIGAL_DIR" => self.dir = absolute(value).ok_or_else(|| bad("an absolute path"))?,
            _ => self.spin_us = value.parse().map_err(|_| bad("a number of microseconds"))?,
        }
        Ok(())
    }

    /// `MADRIGAL_DIR` for this user.
    pub fn directory(&self, uid: u32) -> String {
        self.dir.replace("UID", &uid.to_string())
    }
}

const DAEMON: &str = "an absolute path, or none";
const PORTS: &str = "a list of ports such as 80,8000-8010";
const NETS: &str = "a list of networks such as 10.0.0.0/8,^docker0,ib*";

fn absolute(text: &str) -> Option<String> {
    text.starts_with('/').then(|| text.to_owned())
}

/// Which methods may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Methods {
    /// These, best first.
    Only(Vec<String>),
    /// All but these, in their natural order.
    Except(Vec<String>),
}

impl Methods {
    /// Reads `shm,tcp` or `^shm`. `None`: empty, or something in it is not a word.
    pub fn parse(text: &str) -> Option<Self> {
        let (list, negated) = text.strip_prefix('^').map_or((text, false), |rest| (rest, true));
        let word = |part: &str| {
            let part = part.trim();
            let legal = !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b":;_".contains(&b));
            legal.then(|| part.to_owned())
        };
        let names = list.split(',').map(word).collect::<Option<Vec<_>>>()?;
        Some(if negated { Self::Except(names) } else { Self::Only(names) })
    }

    /// The names the user gave, if the list names the methods that may be used.
    pub fn listed(&self) -> &[String] {
        match self {
            Self::Only(names) => names,
            Self::Except(_) => &[],
        }
    }

    /// Whether the method may be used.
    pub fn allows(&self, method: &str) -> bool {
        match self {
            Self::Only(names) => names.iter().any(|name| name == method),
            Self::Except(names) => names.iter().all(|name| name != method),
        }
    }

    /// The method's place in the user's order; the same for all if the user gave none.
    pub fn rank(&self, method: &str) -> usize {
        match self {
            Self::Only(names) => names.iter().position(|name| name == method).unwrap_or(names.len()),
            Self::Except(_) => 0,
        }
    }
}

/// How many letters must be added, removed or changed to make one text of the other (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn defaults_are_what_the_table_says() {
        let (settings, errors) = Settings::from_pairs(KEYS.iter().map(|key| (key.name, key.default)));
        assert_eq!((settings, errors), (Settings::default(), vec![]));
    }

    #[test]
    fn unknown_keys_get_a_suggestion_and_others_are_passed_over() {
        let (_, errors) = Settings::from_pairs([("MADRIGAL_METHOD", "shm"), ("HOME", "/"), ("MADRIGAL_FOO", "1")]);
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["unknown key MADRIGAL_METHOD: did you mean MADRIGAL_METHODS?", "unknown key MADRIGAL_FOO"]);
    }

    #[test]
    fn bad_values_leave_the_default() {
        for (name, value) in [
            ("MADRIGAL_METHODS", "shm,,tcp"),
            ("MADRIGAL_ONLY", "80-70"),
            ("MADRIGAL_DIR", "relative"),
            ("MADRIGAL_SPIN_US", "-1"),
            ("MADRIGAL_PORTS", "99999"),
            ("MADRIGAL_NET", "10.0.0.0/99"),
            ("MADRIGAL_CONNECT_TIMEOUT", "0"),
            ("MADRIGAL_CONFIG_DIR", "relative"),
            ("MADRIGAL_DAEMON", "relative"),
            ("MADRIGAL_DRIVERS", "relative"),
        ] {
            let (settings, errors) = Settings::from_pairs([(name, value)]);
            assert_eq!(settings, Settings::default());
            assert!(errors[0].to_string().starts_with(&format!("{name}={value}: not ")), "{}", errors[0]);
        }
    }

    #[test]
    fn lists_read_as_documented() {
        let only = Methods::parse("tcp,shm").unwrap();
        assert!(only.allows("shm") && !only.allows("udp") && only.rank("tcp") < only.rank("shm"));
        assert_eq!(Methods::parse("shm,fabric:tcp;ofi_rxm").unwrap().listed(), ["shm", "fabric:tcp;ofi_rxm"]);
        let but = Methods::parse("^shm").unwrap();
        assert!(!but.allows("shm") && but.allows("tcp"));
        assert_eq!(Settings::default().directory(7), "/dev/shm/madrigal-7");
    }

    proptest! {
        #[test]
        fn distance_is_a_metric(a in "[A-C]{0,6}", b in "[A-C]{0,6}", c in "[A-C]{0,6}") {
            prop_assert_eq!(edit_distance(&a, &b) == 0, a == b);
            prop_assert_eq!(edit_distance(&a, &b), edit_distance(&b, &a));
            prop_assert!(edit_distance(&a, &c) <= edit_distance(&a, &b) + edit_distance(&b, &c));
        }
    }
}
