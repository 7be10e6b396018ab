//! Socket behaviour in detail: every check of `semantics` in a process of its own, plain and wrapped, there also with connections that
//! move at once, and, with `MADRIGAL_TEST_RANDOM` set, at random.
//!
//! Features (docs/features.md): P2.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use madrigal_tests::host::{self, How, Scratch};

const PROGRAM: &str = env!("CARGO_BIN_EXE_semantics");

/// Checks that do not hold yet where connections leave their rings at random.
const OPEN_AT_RANDOM: &[(&str, &str)] = &[
    ("held::", "what is held back is shown when its session ends"),
    ("turns::", "the kernel tells of a registration anew when it is given back, and puts it behind the others"),
    ("sets::many_members", "beside rings the kernel's events may come one call later"),
    (
        "between::waitall_interrupted_keeps_part",
        "the rest of it is restarted where its first part came by a ring that was left",
    ),
    ("edges::edge_", "the kernel tells of a registration anew when it is given back"),
];

/// Why a check is known not to hold.
fn open(how: How, check: &str) -> Option<&'static str> {
    let mut open = OPEN_AT_RANDOM.iter().filter(|_| how == How::Random);
    open.find(|(name, _)| check.starts_with(name)).map(|(_, why)| *why)
}

fn main() {
    let mut arguments = Arguments::from_args();
    // More at once than processors: most checks wait most of the time, some load is part of the test.
    arguments.test_threads.get_or_insert(4);
    let scratch = Scratch::new();
    let list = host::run(host::command(How::Plain, PROGRAM, &scratch).arg("--list")).expect_success();
    let names: Vec<String> = list.text().lines().map(str::to_owned).collect();
    for (open, _) in OPEN_AT_RANDOM {
        assert!(names.iter().any(|n| n.starts_with(open)), "no check {open}");
    }
    // Rare differences at random points are still found one by one: a run of them is asked for (CONTRIBUTING.md).
    let at_random = std::env::var_os("MADRIGAL_TEST_RANDOM").is_some();
    let mut trials = Vec::new();
    for name in &names {
        for how in How::ALL.into_iter().filter(|how| at_random || *how != How::Random) {
            let (check, open) = (name.clone(), open(how, name));
            let title = format!("{}::{name}", format!("{how:?}").to_lowercase());
            trials.push(Trial::ignorable_test(title, move || match open {
                Some(why) => Ok(Completion::ignored_with(why)),
                None => holds(how, &check).map(|()| Completion::Completed),
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn holds(how: How, check: &str) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let mut command = host::command(how, PROGRAM, &scratch);
    if matches!(how, How::Wrapped | How::First) {
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
