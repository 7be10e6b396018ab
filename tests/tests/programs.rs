//! Real programs of many kinds, plain and wrapped, there also with connections that move at once and at random: the same output and the
//! same exit status.
//!
//! Each script in `programs/` names the programs it needs in its first line, uses the ports `$P1`, `$P2`, `$P3`, and prints what must
//! not differ. Everything it starts is wrapped or plain as a whole.
//!
//! Features (docs/features.md): P2, P9 (`hla`), P10 (`grpc`, `soap`), P11 (`java`, `rmi`), B16 (`nats`, which is never wrapped).

use std::path::Path;

use madrigal_tests::host::{self, Ended, How, Scratch};
use madrigal_tests::trials::skip;

/// What every script begins with: `await PORT` waits for a listener.
const PRELUDE: &str = "export LC_ALL=C
[ -z \"$LD_PRELOAD\" ] || grep -qF \"$LD_PRELOAD\" /proc/$$/maps || exit 99
await(){ until grep -qi \":$(printf %04X $1) 0*:0000 0A\" /proc/net/tcp; do sleep 0.03; done; }
";

fn run(how: How, script: &str) -> Ended {
    let scratch = Scratch::new();
    let file = scratch.path().join("script");
    std::fs::write(&file, format!("{PRELUDE}{script}")).unwrap();
    let mut command = host::command(how, "bash", &scratch);
    for port in ["P1", "P2", "P3"] {
        command.env(port, host::free_port().to_string());
    }
    host::run(command.arg(&file))
}

fn same(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.sh"));
    let script = std::fs::read_to_string(path).unwrap();
    let needs = script.lines().next().and_then(|l| l.strip_prefix("# needs: ")).expect("the first line names programs");
    if let Some(missing) = needs.split(' ').find(|p| host::find_program(p).is_none() && !Path::new(p).is_file()) {
        skip(format!("{missing} is not installed"));
    }
    let plain = run(How::Plain, &script);
    if plain.status == 77 {
        skip(plain.text().trim());
    }
    let plain_err = String::from_utf8_lossy(&plain.err).into_owned();
    assert!(plain.status == 0 && !plain.out.is_empty(), "plain: {} {} {plain_err}", plain.status, plain.text());
    for how in How::ALL.into_iter().filter(|how| how.is_wrapped()) {
        let wrapped = run(how, &script);
        let err = String::from_utf8_lossy(&wrapped.err).into_owned();
        assert_eq!((wrapped.status, wrapped.text()), (plain.status, plain.text()), "{how:?} against plain; {err}");
    }
}

macro_rules! programs {
    ($($test:ident = $script:literal;)*) => { madrigal_tests::trials![$($test),*];

        $(fn $test() { same($script); })* };
}

programs! {
    rsync = "rsync";
    haproxy_in_front_of_nginx = "haproxy-nginx";
    nginx_keep_alive = "nginx-keepalive";
    ssh_and_scp = "ssh";
    socat_and_nc = "socat-nc";
    redis = "redis";
    memcached = "memcached";
    postgres = "postgres";
    python_asyncio = "asyncio";
    node = "node";
    java_nio = "java";
    java_rmi = "rmi";
    grpc = "grpc";
    gsoap = "soap";
    hla = "hla";
    zeromq = "zeromq";
    nats = "nats";
}
