//! `madrigal lab`: each example is brought up, real programs try who reaches whom, and nothing is left. Features L1, L2.

mod bed;
mod changes;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod coupled;
mod cuts;
mod daemons;
mod grid;
mod guide;
mod jobs;
mod killed;
mod lanes;
mod library;
mod links;
mod lossy;
mod matrix;
mod programs;
mod rates;
mod routes;
mod saturated;
mod secured;
mod tunnels;
mod urgent;
mod ways;
mod without;

use bed::{Bed, Who, need_lab};

madrigal_tests::trials![
    two_sites,
    one_way_firewall,
    docker0_twins,
    dangling_nic,
    overlapping,
    ipv6_only,
    nat_left,
    without_rights,
    switches_and_settings_of_hosts,
    commands::a_command_keeps_its_status_and_its_signals,
    commands::a_shell_has_the_terminal,
    commands::wrong_files_and_settings_are_told_by_line_and_key,
    commands::settings_are_refused_with_an_example,
    commands::several_labs_have_names,
    commands::what_is_killed_is_told_and_leaves_nothing,
    coupled::two_codes_of_two_sites_come_to_one_temperature,
    daemons::nat_left_works_both_ways,
    daemons::one_way_firewall_works_both_ways,
    daemons::redis_between_two_sites_behind_nat,
    guide::every_line_of_the_page_works,
    guide::the_readme_leads_to_the_page,
    jobs::ranks_of_two_sites_behind_nat_meet_by_a_relay,
    jobs::ranks_meet_through_a_one_way_firewall,
    jobs::ranks_of_ipv6_meet_ranks_of_ipv4,
    jobs::ranks_of_networks_that_overlap_meet_on_three_hosts,
    jobs::ranks_that_cannot_meet_say_what_was_tried,
    library::programs_of_the_library_between_two_sites_behind_nat,
    lossy::losses_are_those_that_were_suffered_and_a_stream_has_none,
    matrix::open,
    matrix::nat_left_and_right,
    matrix::nat_both_and_a_relay,
    matrix::a_firewall_from_left_to_right_only,
    matrix::nothing_but_ssh,
    matrix::overlapping_networks,
    matrix::ipv6_only,
    matrix::docker0_twins,
    matrix::a_dangling_nic,
    matrix::where_nothing_is_possible_an_error_names_every_attempt,
    routes::programs_between_two_sites_behind_nat,
    routes::programs_through_a_one_way_firewall,
    routes::programs_between_networks_with_the_same_addresses,
    secured::two_sites_with_daemons_show_nothing_but_tls_at_the_border,
    secured::a_host_of_a_lab_is_shut_out_by_its_ca,
    secured::labs_of_all_shapes_have_daemons,
    ways::a_symmetric_nat_keeps_to_the_relay,
    urgent::urgent_streams_have_a_link_of_their_own,
    secured::daemons_need_no_rights,
    secured::a_lab_whose_daemons_cannot_start_is_not_up,
    ways::why_and_doctor_between_sites_behind_nat,
    ways::several_relays_carry_a_stream_and_rules_forbid_them,
    ways::ssh_is_a_way_until_there_is_a_better_one,
    ways::a_command_that_fails_says_why,
    without::what_must_be_enciphered_is_not_connected_without_a_daemon;
    measured:
    without::a_daemon_that_hangs_holds_up_no_connect_that_can_go_by_itself,
    daemons::a_short_cut_is_survived_and_a_long_one_is_a_clean_error,
    lanes::what_each_stack_carries_is_measured_beside_the_link,
    rates::a_relay_fills_a_line_of_100_megabits,
    lanes::a_long_way_is_sent_by_rate_where_the_kernel_lets_it,
    lanes::bulk_leaves_a_full_line_to_others,
    lanes::a_cap_is_what_all_connections_of_a_rule_carry_together,
    lanes::losses_are_met_by_more_connections,
    lanes::one_connection_is_enough_for_bbr,
    lanes::a_rule_may_want_one_connection,
    lanes::text_goes_compressed_where_no_rule_says_otherwise,
    links::delay_is_as_configured_and_changes_live,
    links::a_cut_link_carries_nothing_and_a_healed_one_goes_on,
    links::loss_is_as_configured,
    links::rate_is_as_configured,
    saturated::what_is_urgent_stands_behind_little,
    tunnels::datagrams_of_which_none_may_be_lost_all_come_by_quic,
    tunnels::what_is_lost_of_datagrams_both_ends_know,
    tunnels::datagrams_go_by_a_stream_where_udp_does_not,
    tunnels::the_end_that_is_let_through_connects,
    tunnels::datagrams_of_hosts_behind_nat_go_by_quic_without_the_relay,
    tunnels::datagrams_stay_with_the_stream_behind_a_symmetric_nat,
    ways::both_ends_behind_nat_connect_at_once,
    ways::long_packets_that_vanish_hold_nobody_up;
    long:
    changes::a_transfer_by_one_connection_outlives_all_that_happens_to_its_way,
    changes::a_transfer_by_several_connections_outlives_all_that_happens_to_its_way,
    connections::a_link_outlives_each_of_its_connections,
    connections::a_link_with_one_session_outlives_each_of_its_connections,
    connections::a_rate_of_a_quiet_time_is_found_anew,
    cuts::streams_by_tls_survive_a_cut_of_five_seconds_and_hear_of_a_longer_one,
    cuts::streams_go_on_by_another_relay_when_one_is_killed_or_cut_off,
    killed::a_job_outlives_its_relay_while_there_is_another_one,
    killed::a_job_without_a_relay_or_without_a_daemon_hears_of_it,
];

fn two_sites() {
    need_lab(Who::Me);
    let mut bed = Bed::up("two-sites.toml");
    for host in ["a2", "b1", "r", "a1"] {
        bed.serve(host, 7000);
    }
    let all = [("a2", 7000), ("r", 7000), ("b1", 7000), ("10.2.0.2", 7000), ("gw-b", 7000)];
    assert_eq!(bed.call("a1", &all), ["a2 10.1.0.2", "r 198.18.1.1", "-", "-", "-"]);
    assert_eq!(bed.call("b2", &[("b1", 7000), ("r", 7000), ("a1", 7000)]), ["b1 10.2.0.3", "r 198.18.2.1", "-"]);
    assert_eq!(bed.call("r", &[("a1", 7000), ("gw-a", 7000)]), ["-", "-"]);
    let told = bed.exec(
        "a1",
        &[
            "sh",
            "-c",
            "hostname; cat /etc/hostname; echo $MADRIGAL_LAB_HOST $MADRIGAL_LAB; ls -A /dev/shm; touch /dev/shm/of-lab-host-a1",
        ],
    );
    assert_eq!(told.1, "a1\na1\na1 two-sites\n");
    assert_eq!(bed.exec("a2", &["ls", "-A", "/dev/shm"]).1, "");
    assert!(!std::path::Path::new("/dev/shm/of-lab-host-a1").exists());
    // Processes are those of the host: the first, this shell, and what it runs.
    let pids = bed.exec("b2", &["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]).1;
    assert!(pids.trim().parse::<u32>().unwrap() <= 4, "{pids}");
    bed.down();
}

fn one_way_firewall() {
    need_lab(Who::Me);
    let mut bed = Bed::up("one-way-firewall.toml");
    for (host, port) in [("a1", 7000), ("a1", 22), ("b1", 7000)] {
        bed.serve(host, port);
    }
    assert_eq!(bed.call("a1", &[("b1", 7000)]), ["b1 10.1.0.2"]);
    assert_eq!(bed.call("b1", &[("a1", 7000), ("a1", 22)]), ["-", "a1 10.2.0.2"]);
    bed.down();
}

fn docker0_twins() {
    need_lab(Who::Me);
    let mut bed = Bed::up("docker0-twins.toml");
    bed.serve("a1", 7000);
    bed.serve("a2", 7000);
    assert_eq!(bed.call("a1", &[("172.17.0.1", 7000), ("a2", 7000)]), ["a1 172.17.0.1", "a2 10.1.0.2"]);
    assert_eq!(bed.call("a2", &[("172.17.0.1", 7000), ("a1", 7000)]), ["a2 172.17.0.1", "a1 10.1.0.3"]);
    let told = bed.exec("a1", &["sh", "-c", "ip -br address show dev docker0"]).1;
    assert!(told.contains("UP") && told.contains("172.17.0.1/16"), "{told}");
    bed.down();
}

fn dangling_nic() {
    need_lab(Who::Me);
    let mut bed = Bed::up("dangling-nic.toml");
    bed.serve("a2", 7000);
    assert_eq!(bed.call("a1", &[("192.168.7.2", 7000), ("a2", 7000)]), ["-", "a2 10.1.0.2"]);
    let told = bed.exec("a1", &["ip", "-br", "address", "show", "dev", "eth1"]).1;
    assert!(told.contains("UP") && told.contains("192.168.7.1/24"), "{told}");
    bed.down();
}

fn overlapping() {
    need_lab(Who::Me);
    let mut bed = Bed::up("overlapping.toml");
    for (host, port) in [("a1", 22), ("b1", 22), ("r", 7000)] {
        bed.serve(host, port);
    }
    // What one calls the other is its own address.
    assert_eq!(bed.call("a1", &[("b1", 22), ("r", 7000)]), ["a1 10.0.0.2", "r 198.18.1.1"]);
    let across = [("gw-a", 2222), ("gw-b", 2222), ("gw-b", 22)];
    assert_eq!(bed.call("r", &across), ["a1 203.0.113.2", "b1 203.0.113.2", "-"]);
    bed.down();
}

fn ipv6_only() {
    need_lab(Who::Me);
    let mut bed = Bed::up("ipv6-only.toml");
    for host in ["r", "b1"] {
        bed.serve(host, 7000);
    }
    assert_eq!(
        bed.call("a1", &[("2001:db8:1::2", 7000), ("203.0.113.2", 7000), ("b1", 7000)]),
        ["r fd00:a::2", "-", "-"]
    );
    assert_eq!(bed.call("b1", &[("r", 7000), ("2001:db8:1::2", 7000)]), ["r 10.2.0.2", "-"]);
    // The hole: 40 bytes of IPv6 and 8 of ICMP go before these.
    assert!(bed.ping("a1", "2001:db8:1::2", 3, 1200).iter().all(Option::is_some));
    assert_eq!(bed.ping("a1", "2001:db8:1::2", 1, 1300), [None]);
    assert_eq!(bed.status()["links"][0]["now"]["counts"][0]["long"], 1);
    bed.down();
}

fn nat_left() {
    need_lab(Who::Me);
    let mut bed = Bed::up("nat-left.toml");
    bed.serve("a1", 7000);
    bed.serve("b1", 7000);
    assert_eq!(bed.call("a1", &[("b1", 7000)]), ["b1 198.18.1.1"]);
    assert_eq!(bed.call("b1", &[("a1", 7000), ("gw-a", 7000)]), ["-", "-"]);
    bed.down();
}

fn without_rights() {
    let who = if common::bed::is_root() { Who::Nobody } else { Who::Me };
    need_lab(who);
    let mut bed = Bed::up_as(who, &bed::example("two-sites.toml"));
    assert_eq!(bed.status()["unprivileged"], true);
    bed.serve("r", 7000);
    bed.serve("b1", 7000);
    assert_eq!(bed.call("a1", &[("r", 7000), ("10.2.0.2", 7000)]), ["r 198.18.1.1", "-"]);
    let told =
        bed.exec("b2", &["sh", "-c", "hostname; ls -A /dev/shm; echo $XDG_RUNTIME_DIR; touch $XDG_RUNTIME_DIR/x"]);
    assert_eq!((told.0, told.1.as_str()), (0, "b2\n/run/user/0\n"), "{}", told.2);
    bed.down();
}

/// What no example has: switches without a router, firewalls of hosts, directories and kernel settings of their own, refusals.
const REST: &str = "[site.a]\nnetwork = ['10.1.0.0/24', 'fd00:a::/64']\nfirewall = 'out'\nrefuse = true\nhosts = ['a1', 'a2']\n\
    [site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [switch.fast]\nnetwork = '192.168.9.0/24'\nhosts = ['a1', 'b1']\n\
    [host.a1]\naddress = ['10.1.0.77']\nprivate = ['/tmp', '/var/tmp']\nshm = '3m'\nsysctl = { 'net.ipv4.ip_default_ttl' = 33 }\n\
    [host.a2]\nfirewall = 'in'\nopen = [22]\nrefuse = true\n\
    [link.ab]\nbetween = ['a', 'b']\n";

fn switches_and_settings_of_hosts() {
    need_lab(Who::Me);
    let file = std::env::temp_dir().join(format!("madrigal-lab-rest-{}.toml", std::process::id()));
    std::fs::write(&file, REST).unwrap();
    let mut bed = Bed::up_as(Who::Me, &file);
    std::fs::remove_file(&file).unwrap();
    for (host, port) in [("a1", 7000), ("a2", 7000), ("a2", 22), ("b1", 7000)] {
        bed.serve(host, port);
    }
    let hosts = [("b1-fast", 7000), ("b1", 7000), ("a2", 7000), ("fd00:a::3", 22), ("a2", 22)];
    assert_eq!(bed.call("a1", &hosts), ["b1 192.168.9.2", "-", "-", "a2 fd00:a::2", "a2 fd00:a::2"]);
    assert_eq!(bed.call("b1", &[("a1", 7000), ("a2", 22), ("a2", 7000)]), ["a1 10.2.0.2", "a2 10.2.0.2", "-"]);
    // Refused at once, if the firewall is set to refuse.
    const ERRNO: &str = "import socket, sys\ntry: socket.create_connection((sys.argv[1], 7000), timeout=30)\nexcept OSError as e: print(type(e).__name__)";
    assert_eq!(bed.python("a1", ERRNO, &["10.2.0.2"]), "ConnectionRefusedError");
    assert_eq!(bed.python("b1", ERRNO, &["10.1.0.3"]), "ConnectionRefusedError");
    let told = bed
        .exec(
            "a1",
            &[
                "sh",
                "-c",
                "ls -A /tmp /var/tmp; stat -c %a /tmp; cat /proc/sys/net/ipv4/ip_default_ttl; df -k /dev/shm | tail -1",
            ],
        )
        .1;
    assert!(told.starts_with("/tmp:\n\n/var/tmp:\n1777\n33\n") && told.contains(" 3072 "), "{told}");
    bed.down();
}
