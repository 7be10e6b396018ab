//! The addresses of Open MPI's launcher, in the command by which it starts its daemon on another host:
//!
//! ```text
//!  orted -mca ess "env" ... -mca orte_hnp_uri "3922788352.0;tcp://10.0.0.2,172.17.0.1:38723" ...
//! ```
//! Only addresses at such a place, in exactly this form, are found. The rest of a command is not changed.

use std::net::Ipv4Addr;
use std::ops::Range;

/// The parameters with the addresses: of the launcher, and of the daemon that starts further ones.
const PARAMETERS: [&[u8]; 2] = [b"orte_hnp_uri", b"orte_parent_uri"];

/// The IPv4 addresses of the launcher in a command.
pub(super) fn addresses(command: &[u8]) -> Vec<Ipv4Addr> {
    found(command).into_iter().map(|(_, ip)| ip).collect()
}

/// The command, with each address replaced for which `other` returns one.
pub(super) fn replaced(command: &[u8], other: impl Fn(Ipv4Addr) -> Option<Ipv4Addr>) -> Vec<u8> {
    let mut changed = command.to_vec();
    // The last one first, so that the places before it stay valid.
    for (place, ip) in found(command).into_iter().rev() {
        if let Some(ip) = other(ip) {
            changed.splice(place, ip.to_string().into_bytes());
        }
    }
    changed
}

/// The addresses, and where in the command they stand; the first one first.
fn found(command: &[u8]) -> Vec<(Range<usize>, Ipv4Addr)> {
    let words = words(command).unwrap_or_default();
    let values = words.windows(2).filter_map(|two| match two {
        [name, value] if PARAMETERS.contains(&command.get(name.clone())?) => Some(value.clone()),
        _ => None,
    });
    values.filter_map(|value| of_value(command.get(value.clone())?, value.start)).flatten().collect()
}

/// The words of a command as a shell splits them; `None`: a quote or an escape is not closed.
fn words(command: &[u8]) -> Option<Vec<Range<usize>>> {
    let (mut all, mut begin, mut quote, mut escaped) = (Vec::new(), None, None, false);
    for (at, &byte) in command.iter().enumerate() {
        let space = matches!(byte, b' ' | b'\t' | b'\n') && quote.is_none() && !escaped;
        if space {
            all.extend(begin.take().map(|begin| begin..at));
            continue;
        }
        begin.get_or_insert(at);
        match (quote, byte) {
            _ if escaped => escaped = false,
            (None | Some(b'"'), b'\\') => escaped = true,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if byte == open => quote = None,
            _ => {}
        }
    }
    all.extend(begin.map(|begin| begin..command.len()));
    (quote.is_none() && !escaped).then_some(all)
}

/// The addresses in a parameter's value, a word in quotes that begins at `start`: a name, and what it listens at.
fn of_value(word: &[u8], start: usize) -> Option<Vec<(Range<usize>, Ipv4Addr)>> {
    let text = std::str::from_utf8(word).ok()?;
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let value = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".,:;/[]-_@".contains(&byte);
    let mut parts = value.split(';');
    let (job, process) = parts.next()?.split_once('.')?;
    if !value.bytes().all(is_plain) || !is_number(job) || !is_number(process) {
        return None;
    }
    let mut all = Vec::new();
    for part in parts {
        // The place of a part, or of an address in it, in the command: `text` begins at `start`, with the quote.
        let place = |of: &str| start + (of.as_ptr() as usize - text.as_ptr() as usize);
        let Some((list, port)) = part.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')) else { continue };
        let ips: Option<Vec<_>> =
            list.split(',').map(|ip| Some((place(ip)..place(ip) + ip.len(), ip.parse::<Ipv4Addr>().ok()?))).collect();
        all.extend(ips.filter(|_| is_number(port))?);
    }
    Some(all)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIAS: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);
    const COMMAND: &str = " orted -mca ess \"env\" -mca orte_node_regex \"a[1:1],b[1:1]@0(2)\" -mca orte_hnp_uri \
        \"3922788352.0;tcp://10.0.0.2,172.17.0.1:38723;tcp6://[fd00::2]:4\" -mca plm \"rsh\" --tree-spawn -mca orte_parent_uri \
        '3922788352.0;tcp://10.0.0.2:38723' -mca x \"tcp://10.0.0.2:1\" 10.0.0.2 1.0;tcp://10.0.0.2:1";

    fn all(command: &str) -> String {
        String::from_utf8(replaced(command.as_bytes(), |_| Some(ALIAS))).unwrap()
    }

    #[test]
    fn a_launchers_addresses_are_replaced_and_nothing_else() {
        let ips: [Ipv4Addr; 3] = ["10.0.0.2", "172.17.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        assert_eq!(addresses(COMMAND.as_bytes()), ips);
        let other = |ip: Ipv4Addr| (ip == ips[0]).then_some(ALIAS);
        let changed = replaced(COMMAND.as_bytes(), other);
        let expected = COMMAND
            .replace("0;tcp://10.0.0.2,172.17.0.1:3", "0;tcp://127.77.0.1,172.17.0.1:3")
            .replace("tcp://10.0.0.2:38723", "tcp://127.77.0.1:38723");
        assert_eq!(String::from_utf8(changed).unwrap(), expected);
        assert_eq!(replaced(COMMAND.as_bytes(), |_| None), COMMAND.as_bytes());
        assert!(all(COMMAND).contains("0;tcp://127.77.0.1,127.77.0.1:3"));
    }

    #[test]
    fn what_is_not_written_just_so_is_left() {
        for command in [
            "",
            "orte_hnp_uri",
            "/bin/proxy --upstream-host 10.0.0.2 --upstream-port 4",
            // The value of something else, or of nothing.
            "./program tcp://10.0.0.2:5000 \"1.0;tcp://10.0.0.2:1\"",
            "orted -mca xorte_hnp_uri \"1.0;tcp://10.0.0.2:1\"",
            "orted -mca orte_hnp_uris \"1.0;tcp://10.0.0.2:1\"",
            "orted -mca orte_hnp_uri -mca y \"1.0;tcp://10.0.0.2:1\"",
            "echo ' orte_hnp_uri \"1.0;tcp://10.0.0.2:1\" '",
            "echo \\\" orte_hnp_uri \\\"1.0;tcp://10.0.0.2:1\\\"",
            "orted -mca orte_hnp_uri 1.0;tcp://10.0.0.2:1",
            // No end, or more than one word.
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1\"x",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1'",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1\" 'and",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1\" \\",
            "orted -mca orte_hnp_uri \"",
            // No address, no list, no port, no name.
            "orted -mca orte_hnp_uri \"1.0;tcp://a1:1\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://a1,10.0.0.2:1\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.256:1\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2,:1\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1:24\"",
            "orted -mca orte_hnp_uri \"1.0;tcp6://10.0.0.2:1\"",
            "orted -mca orte_hnp_uri \"1.0;udp://10.0.0.2:1\"",
            "orted -mca orte_hnp_uri \"tcp://10.0.0.2:1\"",
            "orted -mca orte_hnp_uri \"1;tcp://10.0.0.2:1\"",
            "orted -mca orte_hnp_uri \"$(id).0;tcp://10.0.0.2:1\"",
            "orted -mca orte_hnp_uri \"1.0;tcp://10.0.0.2:1;`id`\"",
            "orted -mca orte_hnp_uri \"file:/tmp/10.0.0.2\"",
        ] {
            assert_eq!(all(command), command);
            assert!(addresses(command.as_bytes()).is_empty(), "{command}");
        }
        let no_text = b"orte_hnp_uri \"1.0;tcp://10.0.0.2:1\xff\"";
        assert_eq!(replaced(no_text, |_| Some(ALIAS)), no_text);
    }

    #[test]
    fn no_part_of_a_command_makes_a_fault() {
        for end in 0..COMMAND.len() {
            for start in 0..end {
                let part = &COMMAND[start..end];
                let changed = all(part);
                // Each one says 127.77.0.1 then; nothing else has become another.
                assert!(changed.replace("127.77.0.1", "").len() <= part.len(), "{part}");
            }
        }
    }
}
