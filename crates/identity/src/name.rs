//! Names of grids, hosts and users, and how a certificate names its owner: `madrigal://GRID/host/NAME`.

use core::fmt;

/// The longest name.
pub const NAME_LEN: usize = 63;
const SCHEME: &str = "madrigal://";

/// A name that may stand in a certificate, in a path and on a terminal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(String);

/// Why a text is no name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{}` is no name: give up to {NAME_LEN} of a-z, 0-9, `-`, `_` and `.`, first and last a letter or digit", .0.escape_debug())]
pub struct NameError(pub String);

impl Name {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let ends = [text.bytes().next(), text.bytes().last()].iter().all(|b| b.is_some_and(plain));
        let legal = text.bytes().all(|b| plain(b) || b"-_.".contains(&b));
        let good = ends && legal && text.len() <= NAME_LEN && !text.contains("..");
        if good { Ok(Self(text.to_owned())) } else { Err(NameError(text.to_owned())) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a certificate is for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The grid's own: signs all others, or their signers.
    Authority,
    /// A user, for long: signs that user's logins and nothing else.
    Identity(Name),
    /// A user, for hours: signs for that user's processes, and for hosts on which that user has daemons.
    Login(Name),
    /// A process of a user.
    User(Name),
    /// A daemon on a host.
    Host(Name),
}

impl Role {
    /// Whether the owner of this certificate may sign that one. This is the whole hierarchy: four deep at most.
    pub(crate) fn may_sign(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Authority, Self::Identity(_) | Self::Login(_) | Self::Host(_)) => true,
            (Self::Identity(user), Self::Login(whose)) | (Self::Login(user), Self::User(whose)) => user == whose,
            (Self::Login(_), Self::Host(_)) => true,
            _ => false,
        }
    }

    /// How many more certificates may follow below it in a chain; `None`: it signs none.
    pub(crate) fn signs(&self) -> Option<u8> {
        match self {
            Self::Authority => Some(2),
            Self::Identity(_) => Some(1),
            Self::Login(_) => Some(0),
            Self::User(_) | Self::Host(_) => None,
        }
    }

    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Authority => "ca",
            Self::Identity(_) => "identity",
            Self::Login(_) => "login",
            Self::User(_) => "user",
            Self::Host(_) => "host",
        }
    }

    /// The owner's name; none for the authority.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Authority => None,
            Self::Identity(name) | Self::Login(name) | Self::User(name) | Self::Host(name) => Some(name),
        }
    }

    fn parse(word: &str, name: Option<&str>) -> Option<Self> {
        let name = name.map(Name::parse).transpose().ok()?;
        match (word, name) {
            ("ca", None) => Some(Self::Authority),
            ("identity", Some(name)) => Some(Self::Identity(name)),
            ("login", Some(name)) => Some(Self::Login(name)),
            ("user", Some(name)) => Some(Self::User(name)),
            ("host", Some(name)) => Some(Self::Host(name)),
            _ => None,
        }
    }
}

/// Whose a certificate is; printed and read as the address in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Subject {
    /// The grid.
    pub grid: Name,
    /// What it is for.
    pub role: Role,
}

impl Subject {
    /// Reads `madrigal://GRID/KIND/NAME`.
    pub fn parse(uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        let grid = Name::parse(parts.next()?).ok()?;
        let role = Role::parse(parts.next()?, parts.next())?;
        parts.next().is_none().then_some(Self { grid, role })
    }

    /// As in a sentence: `host b1 of grid lyon`.
    pub fn spoken(&self) -> String {
        let name = self.role.name().map_or(String::new(), |name| format!(" {name}"));
        format!("{}{name} of grid {}", self.role.word(), self.grid)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.grid, self.role.word())?;
        self.role.name().map_or(Ok(()), |name| write!(f, "/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_what_the_message_says() {
        for good in ["a", "b1", "lyon.inria-fr", "a_b", &"x".repeat(63)] {
            assert_eq!(Name::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "-a", "a-", "A", "a/b", "a b", "a\n", "..", "a..b", "é", "a\0", &"x".repeat(64)] {
            let text = Name::parse(bad).unwrap_err().to_string();
            assert!(text.contains("is no name: give") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn only_the_hierarchy_signs() {
        let name = |n: &str| Name::parse(n).unwrap();
        let (ann, bob) = (name("ann"), name("bob"));
        let all = [
            Role::Authority,
            Role::Identity(ann.clone()),
            Role::Login(ann.clone()),
            Role::User(ann.clone()),
            Role::Host(ann.clone()),
        ];
        let signs = |by: &Role| all.iter().filter(|of| by.may_sign(of)).map(Role::word).collect::<Vec<_>>();
        assert_eq!(
            all.iter().map(signs).collect::<Vec<_>>(),
            [vec!["identity", "login", "host"], vec!["login"], vec!["user", "host"], vec![], vec![]]
        );
        assert!(!Role::Identity(bob.clone()).may_sign(&Role::Login(ann.clone())));
        assert!(!Role::Login(bob).may_sign(&Role::User(ann)));
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(grid in "[a-z0-9]{1,20}", who in "[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?", kind in 0..5) {
            let who = Name::parse(&who).unwrap();
            let role = match kind {
                0 => Role::Authority,
                1 => Role::Identity(who),
                2 => Role::Login(who),
                3 => Role::User(who),
                _ => Role::Host(who),
            };
            let subject = Subject { grid: Name::parse(&grid).unwrap(), role };
            prop_assert_eq!(Subject::parse(&subject.to_string()), Some(subject));
        }

        #[test]
        fn whatever_reads_prints_as_it_was(text in "(madrigal://)?[a-z/.:A-Z0-9-]{0,40}") {
            if let Some(subject) = Subject::parse(&text) {
                prop_assert_eq!(subject.to_string(), text);
            }
        }

        #[test]
        fn any_text_is_a_name_or_an_error(text in any::<String>()) {
            match Name::parse(&text) {
                Ok(name) => prop_assert!(name.as_str() == text && text.len() <= NAME_LEN && text.is_ascii()),
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
            let _ = Subject::parse(&text);
        }
    }
}
