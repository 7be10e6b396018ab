//! Adds a host to the text of a `grid.toml`: comments, order and everything else stay as they are.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value, value};

/// What a grid.toml begins with.
pub(super) const TEMPLATE: &str = "\
# The hosts of grid NAME: the same file on each of them. `madrigal grid add` writes here and brings the file to the hosts; after a change
# by hand type `madrigal grid check`, then `madrigal grid push`. docs/daemon.md has all keys. A site as it may look:
#
#   [site.a]                        # hosts that reach each other
#   hosts.a1 = \"198.51.100.7\"       # where others reach its daemon; [] where nobody can
#   relay = [\"a1\"]                  # it carries streams of hosts that cannot reach each other
#   allow = \"22,6379\"               # ports of these hosts that others may connect to
";

/// Behind all tables of a file, for one that is new.
const LAST: isize = isize::MAX / 2;

/// What is written of a host.
pub(super) struct NewHost<'a> {
    pub(super) host: &'a str,
    pub(super) site: &'a str,
    pub(super) addresses: &'a [String],
    pub(super) relay: bool,
    pub(super) allow: Option<&'a str>,
    pub(super) ssh: Option<&'a str>,
}

/// The text with a host more; or why it cannot be written there.
pub(super) fn with_host(text: &str, new: &NewHost<'_>) -> Result<String, String> {
    let mut document = read(text)?;
    let table = site(&mut document, new.site)?;
    let hosts = below(table, "hosts")?;
    hosts.insert(new.host, addresses(new.addresses));
    if new.relay {
        let relays = table.entry("relay").or_insert_with(|| value(Array::new()));
        append(relays, new.host).ok_or_else(|| format!("site.{}.relay must be a list of hosts", new.site))?;
    }
    match (new.allow, table.get("allow")) {
        (Some(allow), Some(there)) if there.as_str() != Some(allow) => {
            let there = there.to_string();
            return Err(format!("site {} has allow = {} already: change that in grid.toml", new.site, there.trim()));
        }
        (Some(allow), None) => drop(table.insert("allow", value(allow))),
        _ => {}
    }
    if let Some(ssh) = new.ssh {
        below(table, "ssh")?.insert(new.host, value(ssh));
    }
    Ok(document.to_string())
}

/// The text with another way for ssh to a host of that site.
pub(super) fn with_ssh(text: &str, of: &str, host: &str, ssh: &str) -> Result<String, String> {
    let mut document = read(text)?;
    below(site(&mut document, of)?, "ssh")?.insert(host, value(ssh));
    Ok(document.to_string())
}

/// Whether a text has sites, or is none of this kind.
pub(super) fn has_sites(text: &str) -> bool {
    read(text).map_or(true, |document| document.contains_key("site"))
}

fn read(text: &str) -> Result<DocumentMut, String> {
    text.parse::<DocumentMut>().map_err(|error| format!("grid.toml: {}", error.message()))
}

/// The table of a site, made if need be: behind all others, and behind the comments at the end of the file.
fn site<'a>(document: &'a mut DocumentMut, name: &str) -> Result<&'a mut dyn TableLike, String> {
    let wrong = |what: &str| format!("grid.toml: {what} must be a table");
    let is_new = document.get("site").and_then(Item::as_table_like).is_none_or(|sites| !sites.contains_key(name));
    let before = document.trailing().as_str().unwrap_or_default().to_owned();
    let is_first = document.is_empty();
    if is_new {
        document.set_trailing("");
    }
    let parent = document.entry("site").or_insert_with(|| {
        let mut sites = Table::new();
        sites.set_implicit(true);
        Item::Table(sites)
    });
    let sites = parent.as_table_like_mut().ok_or_else(|| wrong("site"))?;
    let entry = sites.entry(name).or_insert_with(|| {
        let mut table = Table::new();
        table.set_position(Some(LAST));
        let gap = if is_first && before.is_empty() { "" } else { "\n" };
        table.decor_mut().set_prefix(format!("{before}{gap}"));
        Item::Table(table)
    });
    entry.as_table_like_mut().ok_or_else(|| wrong(&format!("site.{name}")))
}

/// A table below a key of a site, `key.NAME = ...`, made if need be.
fn below<'a>(table: &'a mut dyn TableLike, key: &str) -> Result<&'a mut dyn TableLike, String> {
    let dotted = || {
        let mut fresh = Table::new();
        fresh.set_dotted(true);
        Item::Table(fresh)
    };
    let item = table.entry(key).or_insert_with(dotted);
    if let Item::Value(Value::InlineTable(inline)) = item {
        make_room(inline);
    }
    item.as_table_like_mut().ok_or_else(|| format!("grid.toml: {key} must be a table"))
}

/// The space before a closing brace belongs to the last value, and would end up before the comma.
fn make_room(inline: &mut InlineTable) {
    if let Some((_, last)) = inline.iter_mut().last()
        && last.decor().suffix().and_then(|suffix| suffix.as_str()).is_some_and(|suffix| suffix.trim().is_empty())
    {
        last.decor_mut().set_suffix("");
    }
}

/// One address as itself, any other number as a list.
fn addresses(all: &[String]) -> Item {
    match all {
        [one] => value(one),
        _ => value(all.iter().collect::<Array>()),
    }
}

/// Appends to a list; a text stands for a list of itself.
fn append(list: &mut Item, text: &str) -> Option<()> {
    if let Item::Value(Value::String(only)) = list {
        let mut several = Array::from_iter([only.value().as_str()]);
        // With the comment that may stand behind it.
        *several.decor_mut() = only.decor().clone();
        *list = Item::Value(several.into());
    }
    list.as_array_mut()?.push(text);
    Some(())
}

#[cfg(test)]
mod tests {
    use madrigal_daemon::grid::Grid;

    use super::*;

    fn new<'a>(host: &'a str, site: &'a str, addresses: &'a [String]) -> NewHost<'a> {
        NewHost { host, site, addresses, relay: false, allow: None, ssh: None }
    }

    #[test]
    fn a_file_grows_host_by_host() {
        let at = ["203.0.113.2".to_owned()];
        let mut text = TEMPLATE.to_owned();
        text = with_host(&text, &new("a1", "a", &[])).unwrap();
        let relay = NewHost { relay: true, ssh: Some("root@203.0.113.2"), ..new("r", "public", &at) };
        text = with_host(&text, &relay).unwrap();
        text = with_host(&text, &NewHost { allow: Some("6379"), ..new("b1", "b", &[]) }).unwrap();
        text = with_host(&text, &NewHost { relay: true, ..new("r2", "public", &["1.2.3.4".into(), "[::1]:9".into()]) })
            .unwrap();
        text = with_ssh(&text, "b", "b1", "b1").unwrap();
        let written = text.strip_prefix(TEMPLATE).unwrap();
        assert_eq!(
            written,
            "\n[site.a]\nhosts.a1 = []\n\n[site.public]\nhosts.r = \"203.0.113.2\"\nhosts.r2 = [\"1.2.3.4\", \"[::1]:9\"]\n\
             relay = [\"r\", \"r2\"]\nssh.r = \"root@203.0.113.2\"\n\n[site.b]\nhosts.b1 = []\nallow = \"6379\"\nssh.b1 = \"b1\"\n"
        );
        let grid = Grid::read("grid.toml", &text).unwrap();
        assert_eq!(grid.hosts.len(), 4);
        assert_eq!(grid.host("r").unwrap().1.ssh.as_deref(), Some("root@203.0.113.2"));
    }

    #[test]
    fn what_somebody_wrote_stays() {
        let text = "# ours\ntrusted = true # all of it\n\n[site.a]\nhosts = { a1 = '10.1.0.2', a2 = [] } # two\nrelay = 'a1' # one\n\
            [rule.x]\nforbid = 'relay' # never\n# the end\n";
        let more = with_host(text, &NewHost { relay: true, ..new("a3", "a", &[]) }).unwrap();
        let more = with_host(&more, &new("b1", "b", &[])).unwrap();
        assert_eq!(
            more,
            "# ours\ntrusted = true # all of it\n\n[site.a]\nhosts = { a1 = '10.1.0.2', a2 = [], a3 = [] } # two\n\
             relay = [\"a1\", \"a3\"] # one\n[rule.x]\nforbid = 'relay' # never\n# the end\n\n[site.b]\nhosts.b1 = []\n"
        );
        let told =
            with_host("[site.a]\nhosts.a1 = []\nallow = '22'\n", &NewHost { allow: Some("80"), ..new("a2", "a", &[]) });
        assert!(told.unwrap_err().contains("site a has allow = '22' already"));
        assert!(with_host("site = 1\n", &new("a1", "a", &[])).is_err());
    }
}
