use super::*;
use crate::file::read;

const TWO_SITES: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nnat = true\nforward = { 2222 = 'a1:22' }\nhosts = ['a1', 'a2']\n\
    [site.b]\nnetwork = ['10.2.0.0/24', 'fd00:b::/64']\nfirewall = 'in'\nopen = [22]\nhosts = ['b1']\n\
    [site.c]\nnetwork = '10.3.0.0/24'\nhosts = ['c1']\n\
    [switch.fast]\nnetwork = '192.168.9.0/24'\nhosts = ['a2', 'b1']\n\
    [host.a1]\nbridges = { docker0 = '172.17.0.1/16' }\n[host.b1]\ndangling = { eth7 = '10.9.0.2/24' }\n\
    [link.ab]\nbetween = ['a', 'b']\ndelay = '10ms'\n[link.bc]\nbetween = ['b', 'c']\n[link.ac]\nbetween = ['a', 'c']\ndelay = '90ms'\n";

fn node<'p>(plan: &'p Plan, name: &str) -> &'p Node {
    plan.nodes.iter().find(|node| node.name == name).unwrap()
}

fn has(node: &Node, line: &str) {
    assert!(node.ip.iter().any(|known| known == line), "no `{line}` in {:#?}", node.ip);
}

#[test]
fn hosts_have_addresses_names_and_ways_out() {
    let plan = plan(&read("f", TWO_SITES).unwrap()).unwrap();
    assert_eq!(
        plan.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
        ["a1", "a2", "b1", "c1", "gw-a", "gw-b", "gw-c"]
    );
    has(node(&plan, "a2"), "addr add 10.1.0.3/24 dev eth0");
    has(node(&plan, "a2"), "addr add 192.168.9.2/24 dev eth1");
    has(node(&plan, "a2"), "route add default via 10.1.0.1");
    has(node(&plan, "b1"), "addr add fd00:b::2/64 dev eth0 nodad");
    has(node(&plan, "b1"), "route add ::/0 via fd00:b::1");
    for line in ["10.1.0.2 a1\n", "10.2.0.2 b1\n", "fd00:b::2 b1\n", "192.168.9.3 b1-fast\n", "198.18.1.1 gw-a\n"] {
        assert!(plan.hosts.contains(line), "{line} in {}", plan.hosts);
    }
}

#[test]
fn devices_that_lead_nowhere_have_a_carrier() {
    let plan = plan(&read("f", TWO_SITES).unwrap()).unwrap();
    has(node(&plan, "a1"), "link set dev veth2 master docker0");
    has(node(&plan, "a1"), "addr add 172.17.0.1/16 dev docker0");
    has(node(&plan, "b1"), "addr add 10.9.0.2/24 dev eth7");
    let ends: Vec<_> = plan.cables.iter().map(|cable| cable.0[1].device.as_str()).collect();
    assert_eq!(ends, ["a1", "a2", "b1", "c1", "wire0", "wire1", "wire2", "wire3"]);
    assert!(plan.keeper.iter().any(|line| line == "link set dev wire3 up"));
}

#[test]
fn routers_know_the_shortest_way_and_no_network_behind_nat() {
    let plan = plan(&read("f", TWO_SITES).unwrap()).unwrap();
    has(node(&plan, "gw-a"), "route replace 10.3.0.0/24 dev ab");
    has(node(&plan, "gw-a"), "route replace fd00:b::/64 dev ab");
    has(node(&plan, "gw-c"), "route replace 198.18.1.1/32 dev bc");
    has(node(&plan, "gw-a"), "addr add 198.18.1.1 peer 198.18.3.1 dev ac");
    assert!(!node(&plan, "gw-c").ip.iter().any(|line| line.contains("10.1.0.0")));
}

#[test]
fn rules_say_who_may_connect() {
    let plan = plan(&read("f", TWO_SITES).unwrap()).unwrap();
    let a = &node(&plan, "gw-a").nft;
    assert!(
        a.contains("ip saddr 10.1.0.0/24 oifname { \"ab\", \"ac\" } masquerade")
            && a.contains("iifname { \"ab\", \"ac\" } meta l4proto { 6, 17 } drop")
            && a.contains("dport 2222 dnat ip to 10.1.0.2:22"),
        "{a}"
    );
    let b = &node(&plan, "gw-b").nft;
    assert!(
        b.contains("iifname { \"ab\", \"bc\" } oifname \"lan\" tcp dport { 22 } accept")
            && b.contains("iifname { \"ab\", \"bc\" } oifname \"lan\" drop"),
        "{b}"
    );
    assert!(!b.contains("masquerade") && node(&plan, "gw-c").nft.is_empty() && node(&plan, "a1").nft.is_empty());
}

#[test]
fn a_network_can_be_too_small() {
    let text = "[site.a]\nnetwork = '10.1.0.0/30'\nhosts = ['a1', 'a2']\n";
    assert!(plan(&read("f", text).unwrap()).unwrap_err().contains("has no address for host `a2`"));
}
