use super::*;

fn wrong(text: &str) -> String {
    read("lab.toml", text).unwrap_err().to_string()
}

const SITES: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nnat = true\nhosts = ['a1', 'a2']\n\
    [site.b]\nnetwork = ['10.2.0.0/24', 'fd00:b::/64']\nhosts = ['b1']\n";

#[test]
fn a_file_reads_as_it_is_meant() {
    let more = "[link.ab]\nbetween = ['a', 'b']\nrate = '100M'\ndelay = '20ms'\nmtu = 1400\n\
        [switch.fast]\nnetwork = '192.168.9.0/24'\nhosts = ['a1', 'b1', 'c1']\n\
        [host.a1]\nbridges = { docker0 = '172.17.0.1/16' }\nprivate = '/tmp'\nshm = '64m'\nfirewall = 'in'\nopen = [22]\n\
        sysctl = { 'net.ipv4.tcp_congestion_control' = 'cubic' }\n";
    let grid = read("lab.toml", &format!("{SITES}{more}")).unwrap();
    assert_eq!(grid.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["a1", "a2", "b1", "c1"]);
    assert_eq!((grid.sites[0].nat, grid.sites[1].networks.len(), grid.links[0].between), (true, 2, [0, 1]));
    assert_eq!(grid.links[0].settings.texts()[..2], ["rate=100M", "delay=20ms"]);
    let a1 = &grid.hosts[0];
    assert_eq!(
        (a1.bridges[0].0.as_str(), a1.private[0].as_str(), &a1.firewall.open[..]),
        ("docker0", "/tmp", &[22][..])
    );
    assert!(a1.firewall.inward && !a1.firewall.outward);
}

#[test]
fn errors_name_line_and_key() {
    let cases = [
        (
            "[site.a]\nnetwork = '10.1.0.0/24'\nhost = ['a1']\n",
            "lab.toml:3: site.a.host: there is no such key; did you mean `hosts`?",
        ),
        ("[site.a]\nnetwork = 'ten'\nhosts = ['a1']\n", "lab.toml:2: site.a.network: must be a network such as"),
        (
            "[site.a]\nnetwork = '10.1.0.1/24'\nhosts = ['a1']\n",
            "lab.toml:2: site.a.network: `10.1.0.1/24` is the address of a host",
        ),
        ("[site.a]\nhosts = ['a1']\n", "lab.toml:1: site.a: network is missing"),
        ("[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1',\n 'A 2']\n", "lab.toml:4: site.a.hosts: `A 2` is no name"),
        (
            "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1', 'a1']\n",
            "lab.toml:3: site.a.hosts: the name `a1` is taken",
        ),
        (
            "[site.a]\nnetwork = '10.1.0.0/24'\nnat = 'yes'\nhosts = []\n",
            "lab.toml:3: site.a.nat: must be true, false or 'symmetric'",
        ),
        ("[site.a]\nnetwork = '10.1.0.0/24'\nhosts = []\n", "lab.toml:1: there is no host"),
        ("[site.a\n", "lab.toml:1: "),
        ("x = 1\n", "lab.toml:1: x: there is no such key; there are site, switch, host, link"),
    ];
    for (text, expected) in cases {
        let told = wrong(text);
        assert!(told.starts_with(expected), "{told}");
    }
}

#[test]
fn errors_in_what_comes_after_the_sites() {
    let cases = [
        ("[link.ab]\nbetween = ['a', 'c']\n", "lab.toml:9: link.ab.between: there is no site `c`; there are a, b"),
        ("[link.ab]\nbetween = ['a', 'a']\n", "lab.toml:9: link.ab.between: must be two sites"),
        (
            "[link.ab]\nbetween = ['a', 'b']\nrate = 'fast'\n",
            "lab.toml:10: link.ab.rate: `fast` is no rate: write bits a second",
        ),
        ("[link.ab]\nbetween = ['a', 'b']\njitter = '5ms'\n", "lab.toml:8: link.ab: jitter is longer than delay"),
        ("[link.a1]\nbetween = ['a', 'b']\n", "lab.toml:8: link.a1: the name `a1` is taken"),
        ("[host.b2]\n", "lab.toml:8: host.b2: no site or switch has a host `b2`"),
        ("[host.a1]\nfirewall = 'left'\n", "lab.toml:9: host.a1.firewall: must be \"in\""),
        ("[host.a1]\nopen = [22]\n", "lab.toml:9: host.a1.open: needs firewall"),
        ("[host.a1]\naddress = '10.9.0.1'\n", "lab.toml:9: host.a1.address: `10.9.0.1` lies in no IPv4 network"),
        ("[host.a1]\nprivate = ['tmp']\n", "lab.toml:9: host.a1.private: must be directories"),
        (
            "[site.c]\nnetwork = '10.2.0.128/25'\nhosts = ['c1']\n",
            "lab.toml:9: site.c.network: overlaps with that of site `b`",
        ),
        (
            "[site.c]\nnetwork = '10.3.0.0/24'\nhosts = ['c1']\nforward = { 22 = 'c1:22' }\n",
            "lab.toml:11: site.c.forward: needs nat = true",
        ),
    ];
    for (text, expected) in cases {
        let told = wrong(&format!("{SITES}{text}"));
        assert!(told.starts_with(expected), "{told}");
    }
}
