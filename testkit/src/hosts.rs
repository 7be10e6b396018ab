//! Two hosts on one machine: network namespaces joined by a cable (a pair of veth), made and removed by a test that is root.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two of them, `10.77.0.1` and `10.77.0.2`.
pub struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// Makes them; `Err`: why that cannot be done here.
    pub fn two() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|side| format!("madrigal-test-{}-{n}{side}", std::process::id()));
        let hosts = Self { names };
        for name in &hosts.names {
            run("ip", &format!("netns add {name}"))?;
        }
        let [a, b] = &hosts.names;
        run("ip", &format!("link add cable netns {a} type veth peer name cable netns {b}"))?;
        for (i, name) in hosts.names.iter().enumerate() {
            run("ip", &format!("-n {name} addr add 10.77.0.{}/24 dev cable", i + 1))?;
            run("ip", &format!("-n {name} link set cable up"))?;
            run("ip", &format!("-n {name} link set lo up"))?;
        }
        Ok(hosts)
    }

    /// Runs `ip` with these words on a host.
    pub fn ip(&self, host: usize, words: &str) {
        run("ip", &format!("-n {} {words}", self.names[host])).expect("ip does it");
    }

    /// A bridge like that of a container system: up, with an address, and nothing behind it.
    pub fn bridge(&self, host: usize, name: &str, address: &str) {
        self.ip(host, &format!("link add {name} type bridge"));
        self.ip(host, &format!("addr add {address} dev {name}"));
        self.ip(host, &format!("link set {name} up"));
    }

    /// Lets no connection in that others open; those that the host opens itself work.
    pub fn shut(&self, host: usize) {
        let rules = "add table inet shut; add chain inet shut in { type filter hook input priority 0; }; \
                     add rule inet shut in iif cable tcp flags & (syn|ack) == syn drop";
        let nft = Command::new("ip").args(["netns", "exec", &self.names[host], "nft", rules]).status();
        assert!(nft.expect("nft starts").success(), "nft sets the rules");
    }

    /// A command that will run on a host.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], program]);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made cannot be removed.
            let _ = run("ip", &format!("netns del {name}"));
        }
    }
}

fn run(program: &str, words: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    let output = command.args(words.split_ascii_whitespace()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {words}: {}", errors.trim())) }
}
