//! What can be typed. Help, completions and manual pages all come from here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use madrigal::config::Methods;

use crate::out;
use crate::remote::Caller;
use values::ports;

pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod grid;
pub(crate) mod identity;
pub(crate) mod lab;
pub(crate) mod run;
mod values;

const ABOUT: &str = "Run unmodified socket programs over the fastest safe path, and see which path they took";

const EXAMPLES: &str = "Examples:
  madrigal exec -- redis-server --port 7000
  madrigal exec -- redis-benchmark -p 7000
  madrigal why
  madrigal info

Start both programs under `madrigal exec`. Their connection is made by the kernel as always; once it has earned it, its bytes move
through shared memory. A program at the other end that is not under madrigal sees plain TCP.";

/// Everything that can be typed.
#[derive(Parser)]
#[command(name = "madrigal", version, about = ABOUT, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a program over Madrigal
    Exec(Exec),
    /// Start the processes of a parallel job, on this host or several, over Madrigal
    Run(run::Run),
    /// Show the connections of wrapped programs and the peers of MPI ranks, or the ways between two hosts: the path each takes, and why
    Why(Why),
    /// Show what works here: drivers, shared directory, kernel, configuration
    Info(Info),
    /// Measure how fast a path is here
    Perf(Perf),
    /// Start your daemon on this host, which holds links to the hosts of a grid
    Up(daemon::Up),
    /// End it
    Down,
    /// Show it: its links with other hosts, and why there is none
    Status(daemon::Status),
    /// Connect to a port of a host of the grid: standard input goes there, what comes back to standard output
    Connect(daemon::Connect),
    /// Have a local port lead to a port of a host of the grid, until this command ends
    Forward(daemon::Forward),
    /// Check two hosts of the grid, or this one, and say what to type where something is wrong
    Doctor(doctor::Doctor),
    /// Lead another host's daemon to this host's by standard input and output, as `via` in grid.toml does
    Link,
    /// Set up a grid: make it, add hosts, look for what is wrong in its description
    Grid(grid::Grid),
    /// Make a grid's certificate authority, issue and take back certificates
    Ca(identity::Ca),
    /// Log in to the grid for some hours, on every site at once
    Login(identity::Login),
    /// Build a grid on this machine: hosts, sites, NAT, firewalls and WAN links, to try things on
    Lab(lab::Lab),
    /// Start a job's processes on this host, for `run`
    #[command(hide = true)]
    Agent,
    /// Look at the memory of a process, for `info -d`
    #[command(hide = true)]
    Peek(Peek),
    /// Print the completion script of a shell
    ///
    /// For bash: madrigal completions bash > ~/.local/share/bash-completion/completions/madrigal
    #[command(verbatim_doc_comment)]
    Completions(Completions),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(Man),
}

const EXEC_HELP: &str = "The program runs in place of this command: same process id, same exit status, same signals. Exit status 127:
no such program; 126: it cannot be executed; 1: the library to preload was not found; 2: something typed makes no sense.

Not wrapped, and said in one line before the program runs plain: static programs (most Go programs are), SUID and SGID programs,
programs with capabilities, programs of another architecture or C library. UDP stays with the kernel; `madrigal why` counts it.

Of MPI: madrigal exec -- mpirun -n 2 ./prog; the other way round, mpirun -n 2 madrigal exec -- ./prog, only sockets are looked after.

Examples:
  madrigal exec -- redis-server --port 7000
  madrigal exec --only 7000,8000-8010 -- ./server
  madrigal exec --methods tcp -- ./server         kernel sockets only, with spinning waits
  madrigal exec -v -- ./server                    say what is set";

/// `madrigal exec`.
#[derive(Args)]
#[command(
    after_help = EXEC_HELP,
    override_usage = "madrigal exec [-v] [--only PORTS] [--methods LIST] -- PROGRAM [ARGUMENTS]..."
)]
pub(crate) struct Exec {
    /// Say on standard error what is run and what is set
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Look after connections to these ports only, such as 80,8000-8010 (sets MADRIGAL_ONLY)
    #[arg(long, value_name = "PORTS", value_parser = ports)]
    pub(crate) only: Option<String>,
    /// Use these methods, such as shm,tcp or ^shm for all but shm (sets MADRIGAL_METHODS)
    #[arg(long, value_name = "LIST", value_parser = methods)]
    pub(crate) methods: Option<String>,
    /// Which host asked for this, and its addresses in what it says: typed by `madrigal-remote`
    #[arg(long, value_name = "HOST=ADDRESSES", hide = true)]
    pub(crate) caller: Option<Caller>,
    /// It is one process of a job that `madrigal run` has started
    #[arg(long, hide = true)]
    pub(crate) rank: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, num_args = 0..)]
    pub(crate) program: Vec<OsString>,
}

const WHY_HELP: &str =
    "Columns: bytes through shared memory (ring) and by the kernel's socket (tcp), each way; how often the
connection moved into shared memory; doorbells sent to wake the other end; why it is not in shared memory.

Of an MPI rank: the nodes it knows; the driver that carries messages to each; frames and their bytes, each way, and bytes copied
from memory to memory at once; below, how long messages go, what was not taken and why, and the addresses a node published.

With two hosts, by their names in the grid: every way from one to the other as its daemon sees it, what was measured of it, and why
another one is used.

Exit status 1: no such process, it is not under madrigal, or it belongs to another user; no way, or no daemon.";

/// `madrigal why`.
#[derive(Args)]
#[command(after_help = WHY_HELP, override_usage = "madrigal why [--json] [PID]\n       madrigal why [--json] [--port PORT] A B")]
pub(crate) struct Why {
    /// The process, or two hosts of the grid; without, all processes of yours under madrigal, and all MPI ranks over it
    #[arg(value_name = "PID | A B", num_args = 0..=2)]
    pub(crate) what: Vec<String>,
    /// For two hosts: the port that is to be connected to, for rules that are about ports
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `madrigal info`.
#[derive(Args)]
pub(crate) struct Info {
    /// Only the parallel side: by which drivers processes of a job reach each other here, and why not by others
    #[arg(short, long)]
    pub(crate) drivers: bool,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `madrigal peek`.
#[derive(Args)]
pub(crate) struct Peek {
    /// The process
    pub(crate) pid: u32,
    /// Where a program begins in its memory
    pub(crate) address: u64,
}

const PERF_HELP: &str = "Two hosts: the daemon of A makes one link after the other with B, beside the one that programs use, and sends bytes that mean nothing by
it. What went in the second half of the time is counted. Each column is of that link: how much it carried, how many times as much as the
first one, by how many connections at the end, how the kernel decides how fast they send, and what was sent. A `*` marks the stack of the
link that programs use.

Exit status 1: a link could not be made, no way, or no daemon.";

/// `madrigal perf`.
#[derive(Args)]
#[command(
    after_help = PERF_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "madrigal perf [--seconds S] [--stack STACK]... [--json] A B\n       madrigal perf vlink|circuit|port [OPTIONS]"
)]
pub(crate) struct Perf {
    #[command(subcommand)]
    pub(crate) what: Option<PerfOf>,
    /// Two hosts of the grid: what links of one connection, of several, and compressed ones carry from A to B
    #[arg(value_name = "A B", num_args = 2, required = true)]
    pub(crate) hosts: Vec<String>,
    /// How long each carries bytes, in seconds
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=15))]
    pub(crate) seconds: u64,
    /// Instead of those: this stack, such as `stripe(4)/tls/tcp`; may be repeated
    #[arg(long, value_parser = stack)]
    pub(crate) stack: Vec<String>,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum PerfOf {
    /// A ping-pong over a VLink between two processes, against two processes sharing one cache line, in the same run
    Vlink(Vlink),
    /// A ping-pong over a Circuit of two processes, against the same driver with nothing above it and one cache line, in the same run
    Circuit(Circuit),
    /// A ping-pong between send ports and receive ports of two processes, against a Circuit of theirs, in the same run
    Port(Vlink),
    /// A ping-pong between mailboxes of two processes: headers alone, and shared buffers of 4 KiB against those of 1 MiB, in the same run
    Mailbox(Mailbox),
    /// A ping-pong of messages of which a part may be lost, by `vrp/udp`, between two processes, against a VLink by the same, in the same run
    Lossy(Lossy),
}

/// `madrigal perf lossy`.
#[derive(Args)]
pub(crate) struct Lossy {
    /// So many of a thousand bytes may be lost
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) tolerance: u32,
    /// Bytes of a message
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..16 << 20))]
    pub(crate) size: u32,
    /// Ping-pongs in each round
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `madrigal perf vlink`, `madrigal perf circuit` and `madrigal perf port`.
#[derive(Args)]
pub(crate) struct Vlink {
    /// The driver to measure: shm or tcp; messages also by fabric:NAME, a provider of libfabric's; a VLink also by vrp/udp; or a stack of
    /// adapters, such as adoc/stripe(2)/tcp
    #[arg(long, alias = "driver", default_value = "shm", value_parser = measured)]
    pub(crate) method: String,
    /// Bytes of a message
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    pub(crate) size: u32,
    /// Ping-pongs in each round
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `madrigal perf mailbox`.
#[derive(Args)]
pub(crate) struct Mailbox {
    /// The driver to measure: shm or tcp
    #[arg(long, alias = "driver", default_value = "shm", value_parser = measured)]
    pub(crate) method: String,
    /// Ping-pongs in each round
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// `madrigal perf circuit`.
#[derive(Args)]
pub(crate) struct Circuit {
    #[command(flatten)]
    pub(crate) of: Vlink,
    /// Instead: two that are connected with N idle peers by TCP, each of them, against two that have none, in the same run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) peers: Option<u32>,
}

/// `madrigal completions`.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// `madrigal man`.
#[derive(Args)]
pub(crate) struct Man {
    /// Where to
    pub(crate) directory: PathBuf,
}

fn stack(text: &str) -> Result<String, String> {
    text.parse::<madrigal_daemon::Stack>().map(|stack| stack.to_string()).map_err(|error| error.to_string())
}

fn methods(text: &str) -> Result<String, String> {
    let list = Methods::parse(text);
    let (Some(Methods::Only(names)) | Some(Methods::Except(names))) = &list else {
        return Err("give a list such as shm,tcp or ^shm".to_owned());
    };
    // Not one of the drivers: what the library does at connect(2).
    let mut drivers = names.iter().filter(|name| *name != "daemon");
    drivers.try_for_each(|name| method(name).map(drop)).map_err(|wrong| wrong + ", daemon")?;
    Ok(text.to_owned())
}

fn method(name: &str) -> Result<String, String> {
    let mut known: Vec<_> = madrigal::drivers().map(|driver| driver.name()).collect();
    let others = madrigal::MESSAGE_DRIVERS.iter().map(|driver| driver.name());
    known.extend(others.filter(|other| madrigal::driver(other).is_none()));
    let wrong = || format!("there is no method `{name}`; there are {}", known.join(", "));
    let exists = known.contains(&name) || madrigal::message_driver(name).is_some();
    exists.then(|| name.to_owned()).ok_or_else(wrong)
}

/// A method, or one with a stack of adapters in front of it.
fn measured(text: &str) -> Result<String, String> {
    let Some((above, driver)) = text.rsplit_once('/') else { return method(text) };
    if driver == "udp" {
        // Only there it may have `vrp` in front.
        let address: Result<madrigal::Address, _> = format!("{text}://127.0.0.1:0").parse();
        return address.map(|_| text.to_owned()).map_err(|error| error.to_string());
    }
    stack(&format!("{above}/tcp"))?;
    method(driver).map(|_| text.to_owned())
}

/// Prints the completion script of `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> i32 {
    clap_complete::generate(shell, &mut listed(&Cli::command()), "madrigal", &mut std::io::stdout());
    out::FOUND
}

/// A command and what is below it, without what is hidden: completions would have that, too.
fn listed(command: &clap::Command) -> clap::Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(listed);
    let about = command.get_about().cloned().unwrap_or_default();
    let plain = clap::Command::new(command.get_name().to_owned()).about(about).args(args).subcommands(below);
    command.get_version().map_or(plain.clone(), |version| plain.version(version.to_owned()))
}

/// Writes one manual page a command into `directory`.
pub(crate) fn man(directory: &Path) -> i32 {
    match std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory)) {
        Ok(()) => out::FOUND,
        Err(error) => out::fail(&format!("cannot write manual pages to {}: {error}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_have_every_command_and_nothing_that_is_hidden() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut listed(&Cli::command()), "madrigal", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: no {}", command.get_name());
            }
            for hidden in ["peek", "caller", "manual pages"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }

    /// The first cells of a table of README.md's.
    fn cells(from: &str) -> String {
        let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
        let table = readme.split_once(from).expect(from).1;
        let rows = table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        rows.filter_map(|row| row.split('|').nth(1)).collect()
    }

    #[test]
    fn readme_has_every_command() {
        let told = cells("## The commands");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let stands = [' ', '`'].iter().any(|end| {
                [format!("`madrigal {name}{end}"), format!("`{name}{end}")].iter().any(|text| told.contains(text))
            });
            assert!(stands, "README.md, \"The commands\": no row for `madrigal {name}`");
        }
    }

    #[test]
    fn ports_and_methods_read_as_documented() {
        for good in ["80", "80,8000-8010", "0-65535"] {
            assert_eq!(ports(good).as_deref(), Ok(good));
        }
        for bad in ["", "80-", "99999", "5-3", "http", "80,,81"] {
            assert!(ports(bad).unwrap_err().contains("such as 80,8000-8010"), "{bad}");
        }
        assert!(methods("shm,tcp").is_ok() && methods("^shm").is_ok() && methods("^daemon").is_ok());
        assert!(method("daemon").is_err());
        let wrong = methods("smh").unwrap_err();
        assert!(wrong.contains("there is no method `smh`; there are loopback, shm, "), "{wrong}");
        assert!(madrigal::DRIVERS.iter().all(|driver| wrong.contains(driver.name())), "{wrong}");
        assert!(methods("shm,,tcp").is_err() && methods("").is_err());
    }
}
