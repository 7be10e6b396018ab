//! Daemons that hang: what programs see that connect through them.

use madrigal_tests::trials::need;
use std::process::Command;

use crate::bed;
use crate::common::bed::echo;
use crate::common::{Running, run};

pub(crate) fn a_daemon_that_hangs_is_an_error_that_says_so_where_there_is_no_other_way() {
    need("python3");
    let bed = bed("silent", "1-65535");
    let port = echo().to_string();
    let script = "
import time
port = int(sys.argv[1])
print('ready', flush=True); sys.stdin.readline()
begin = time.monotonic()
s = socket.socket()
for n in range(20): assert failed(lambda: s.connect(('b1', port))) == 'ETIMEDOUT', n
took = time.monotonic() - begin
# Only the first one waits for two seconds.
assert took < 30, took
print('well', flush=True); sys.stdin.readline()
while failed(lambda: s.connect(('b1', port))) == 'ETIMEDOUT': pass
exchange(s, 3000)
print('well', flush=True); sys.stdin.readline()
";
    let mut program = Running::start(&mut bed.script(&[], script, &[&port]));
    assert_eq!(program.line(), "ready", "{}", bed.logs());
    let pid = bed.pid("a1").to_string();
    let signal = |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    signal("-STOP");
    program.send_line("");
    let told = program.line();
    signal("-CONT");
    assert_eq!(told, "well");
    let (status, told, err) = run(&mut bed.on("a1", &["why", &program.pid().to_string()]));
    let line = format!("to 127.77.0.2:{port}: daemon-hangs: not connected: the daemon of this host does not answer");
    assert!(status == Some(0) && told.contains(&line), "{told}{err}");
    program.send_line("");
    // A request that came while it hung is not executed when it wakes: this socket has one connection.
    assert_eq!(program.line(), "well", "{}", bed.logs());
    let begun = |line: &&str| line.contains(" connected: to b1:") && !line.contains(" ended: ");
    assert_eq!(bed.log("a1").lines().filter(begun).count(), 1, "{}", bed.logs());
    program.finish();
}

pub(crate) fn a_daemon_that_hangs_holds_up_no_connect_that_does_not_block() {
    need("python3");
    let mut bed = bed("hangs", "1-65535");
    let port = echo().to_string();
    // Of thirty each would wait for two seconds if it waited for the daemon, and be refused after that.
    let script = "
import time
port = int(sys.argv[1])
def line(): sys.stdout.flush(); return sys.stdin.readline()
print('ready'); line()
begin, many = time.monotonic(), []
for n in range(30):
    s = socket.socket(); s.setblocking(False)
    assert s.connect_ex(('b1', port)) == errno.EINPROGRESS, n
    many.append(s)
took = time.monotonic() - begin
assert took < 15, took
assert select.select([], many, [], 0)[1] == []
print('asked'); line()
left = set(many)
while left and sys.argv[2] == 'goes on':
    _, ready, _ = select.select([], left, [], 30)
    assert ready
    for s in ready:
        assert error(s) == 0 and s.getpeername() == ('127.77.0.2', port)
        left.remove(s); s.setblocking(True); exchange(s, 3000)
while left:
    _, ready, _ = select.select([], left, [], 30)
    assert ready
    for s in ready: assert error(s) == errno.ECONNREFUSED; left.remove(s)
print('well'); line()
";
    // A process that connected before has nothing more to learn than one that did not.
    for (end, warm) in [("goes on", true), ("goes on", false), ("is killed", false)] {
        let before = if warm { "socket.create_connection(('b1', int(sys.argv[1]))).close()\n" } else { "" };
        let mut program = Running::start(&mut bed.script(&[], &format!("{before}{script}"), &[&port, end]));
        assert_eq!(program.line(), "ready", "{}", bed.logs());
        let pid = bed.pid("a1").to_string();
        let signal = |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        signal("-STOP");
        program.send_line("");
        assert_eq!(program.line(), "asked", "{end}, {warm}");
        if end == "goes on" {
            signal("-CONT")
        } else {
            bed.kill("a1")
        }
        program.send_line("");
        assert_eq!(program.line(), "well", "{end}, {warm}: {}", bed.logs());
        program.finish();
    }
}
