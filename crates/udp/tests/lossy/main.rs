//! Links of messages over real sockets: what is lost is told to both ends, and is never more than may be; deadlines; who is refused, and
//! why; peers that are hostile, or killed.
//!
//! Features (docs/features.md): B11.

mod bed;
mod losses;
mod peers;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(task) = std::env::var_os(peers::TASK) {
        peers::child(&task);
        return ExitCode::SUCCESS;
    }
    let trials = losses::CASES.iter().chain(peers::CASES).map(|(name, run)| {
        Trial::test(*name, move || {
            let (over, watched) = std::sync::mpsc::channel::<()>();
            let dog = std::thread::spawn(move || {
                if watched.recv_timeout(bed::WATCHDOG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    eprintln!("watchdog: {name} hangs");
                    std::process::abort();
                }
            });
            run();
            drop(over);
            dog.join().expect("watches");
            Ok::<(), Failed>(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
