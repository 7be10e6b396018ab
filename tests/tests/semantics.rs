//! Socket behaviour in detail: every check of `semantics` in a process of its own, plain and wrapped.

use libtest_mimic::{Arguments, Failed, Trial};
use madrigal_tests::host::{self, How, Scratch};

const PROGRAM: &str = env!("CARGO_BIN_EXE_semantics");

/// Checks that do not hold wrapped yet, and why.
const OPEN: &[(&str, &str)] = &[
    ("bulk::across_processes_64_mib", "a writer takes the doorbell of a reader of the same socket"),
    ("bulk::both_directions_64_mib", "a writer takes the doorbell of a reader of the same socket"),
    ("threads::reader_and_writer", "a writer takes the doorbell of a reader of the same socket"),
    ("interrupts::handler_uses_the_socket", "a signal handler's send meets the interrupted one in the ring"),
    ("threads::cancelled_in_recv", "a receive asleep on a ring is no cancellation point"),
    ("descriptors::close_under_blocked_reader", "a read under way ends with EBADF"),
    ("receive::peek_waitall", "MSG_PEEK with MSG_WAITALL does not wait"),
    ("close::reset_is_told_once", "a send after a reset gives EPIPE at once"),
    ("close::events_after_reset", "POLLERR stays after the error was taken"),
    ("sets::reset_events", "EPOLLERR stays after the error was taken"),
    ("close::peer_closed_then_send", "the first send after the peer's close gives EPIPE"),
    ("close::sigpipe_by_write", "POLLERR does not come after a write to a closed peer"),
    ("urgent::urgent_mark", "doorbells lie before the urgent mark"),
    ("sets::nested_sets", "an outer set reports an inner one that has nothing to tell"),
    ("sets::exclusive_sets", "an exclusive member can be modified"),
    ("options::sockopt_errors", "a TCP_NODELAY of one byte is taken"),
    ("processes::raw_fork_by_number", "a fork by number is not seen"),
    ("edges::edge_at_end", "the end is reported twice"),
    ("passing::passed_after_end", "unread bytes of a sender that is through cannot be handed back"),
    ("processes::exec_after_end", "unread bytes of a sender that is through cannot be handed back"),
    ("processes::wc_after_end", "unread bytes of a sender that is through cannot be handed back"),
    ("files::splice_after_end", "unread bytes of a sender that is through cannot be handed back"),
    ("files::stdio_after_end", "unread bytes of a sender that is through cannot be handed back"),
    ("files::tee_like_copy", "unread bytes of a sender that is through cannot be handed back"),
];

fn main() {
    let mut arguments = Arguments::from_args();
    // More at once than processors: most checks wait most of the time, some load is part of the test.
    arguments.test_threads.get_or_insert(4);
    let scratch = Scratch::new();
    let list = host::run(host::command(How::Plain, PROGRAM, &scratch).arg("--list")).expect_success();
    let names: Vec<String> = list.text().lines().map(str::to_owned).collect();
    for (open, _) in OPEN {
        assert!(names.iter().any(|n| n == open), "no check {open}");
    }
    let mut trials = Vec::new();
    for name in &names {
        for how in [How::Plain, How::Wrapped] {
            let (check, open) = (name.clone(), OPEN.iter().any(|(o, _)| o == name));
            let title = format!("{}::{name}", if how == How::Plain { "plain" } else { "wrapped" });
            trials.push(Trial::test(title, move || holds(how, &check)).with_ignored_flag(open && how == How::Wrapped));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn holds(how: How, check: &str) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let mut command = host::command(how, PROGRAM, &scratch);
    if how == How::Wrapped {
        command.env("EXPECT_RING", "1");
    }
    let ended = host::run(command.arg(check));
    if ended.status != 0 {
        let why = if ended.status == 128 + libc::SIGALRM { "it hangs" } else { "" };
        return Err(format!("status {} {why}\n{}", ended.status, String::from_utf8_lossy(&ended.err)).into());
    }
    let left = scratch.left_over();
    if left.is_empty() { Ok(()) } else { Err(format!("left in the shared directory: {left:?}").into()) }
}
