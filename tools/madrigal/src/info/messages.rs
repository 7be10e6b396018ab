//! `madrigal info -d`: by which drivers the processes of a parallel job reach each other here, and why not by others.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use madrigal_sys::raw::{self, Piece};
use serde::Serialize;

use super::item::{Item, State, memfd};
use crate::{cli, library, out, settings};

#[derive(Serialize)]
struct Answer {
    drivers: Vec<Item>,
    /// What decides how messages go, tried.
    tried: Vec<Item>,
    /// Where a process started here could be found by others.
    addresses: Vec<String>,
    libfabric: State,
    /// What it offers for reliable messages in order.
    providers: Vec<Provider>,
    warnings: Vec<String>,
}

/// A provider of libfabric's, and what it goes through.
#[derive(Serialize)]
struct Provider {
    name: String,
    domains: Vec<String>,
    /// What to type to have messages go over it.
    method: Option<String>,
}

/// Runs the command.
pub(super) fn run(json: bool) -> i32 {
    let answer = inspect();
    if json {
        return out::print_json(&answer);
    }
    out::print(&describe(&answer));
    out::FOUND
}

/// The drivers of messages, and whether each works here.
pub(super) fn drivers() -> Vec<Item> {
    let place = place();
    let item = |driver: &&'static dyn madrigal::message::MessageDriver| {
        Item::new(driver.name(), driver.usable(&place).map(|()| "usable"))
    };
    let asked = own_settings().methods;
    let named = asked.listed().iter().filter(|name| madrigal::MESSAGE_DRIVERS.iter().all(|d| d.name() != *name));
    let named: Vec<_> = named.filter_map(|name| madrigal::message_driver(name)).collect();
    madrigal::MESSAGE_DRIVERS.iter().chain(&named).map(item).collect()
}

fn inspect() -> Answer {
    let env: Vec<_> = std::env::vars_os().collect();
    let (settings, errors) = settings::read(&env);
    let (libfabric, providers) = libfabric();
    Answer {
        drivers: drivers(),
        tried: vec![
            Item::new("single copy", single_copy()),
            memfd(),
            Item::new("/dev/shm", shared_folder()),
            Item::new("provider for MPI", provider()),
        ],
        addresses: addresses(&settings),
        libfabric,
        providers,
        warnings: errors.iter().map(settings::advice).collect(),
    }
}

fn own_settings() -> madrigal::config::Settings {
    let env: Vec<_> = std::env::vars_os().collect();
    settings::read(&env).0
}

fn place() -> madrigal::message::Place {
    let settings = own_settings();
    let directory = settings.directory(rustix::process::geteuid().as_raw());
    madrigal::message::Place { directory, network: settings.network, ..Default::default() }
}

/// Whether a process may copy out of the memory of another that is not its child, as ranks are to each other: tried with two.
fn single_copy() -> Result<String, String> {
    let unable = |what: &str, error: std::io::Error| format!("could not be tried: {what}: {error}");
    let mut target = Command::new("cat");
    let target = target.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut target = target.map_err(|error| unable("cat", error))?;
    let tried = wait_for_echo(&mut target).map_err(|error| unable("cat", error));
    let tried = tried.and_then(|()| try_copy(target.id()).map_err(|error| unable("madrigal peek", error)));
    let _ = target.kill();
    let _ = target.wait();
    tried?
}

/// Waits until `cat` echoes a line. It may have been started, and exec(2) still be about to map it.
fn wait_for_echo(cat: &mut Child) -> std::io::Result<()> {
    let (Some(input), Some(output)) = (&mut cat.stdin, &mut cat.stdout) else { return Ok(()) };
    input.write_all(b"\n")?;
    output.read_exact(&mut [0])
}

fn try_copy(pid: u32) -> std::io::Result<Result<String, String>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    // A program lies where a file of its name is mapped from its first byte on.
    let begins = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, _, "00000000", _, _, path, ..] = fields[..] else { return None };
        path.starts_with('/').then(|| u64::from_str_radix(range.split('-').next()?, 16).ok())?
    };
    let Some(address) = maps.lines().find_map(begins) else {
        return Ok(Err("could not be tried: nothing is mapped".into()));
    };
    let own = std::env::current_exe()?;
    let peeked = Command::new(own).args(["peek", &pid.to_string(), &address.to_string()]).output()?;
    let output = String::from_utf8_lossy(&peeked.stdout).trim().to_owned();
    Ok(if peeked.status.success() {
        Ok("process_vm_readv works between processes: long messages inside a host may be copied once".to_owned())
    } else {
        Err(format!(
            "{output}: long messages inside a host go through shared memory in parts, which works as well (kernel.yama.ptrace_scope=0, \
             or a container that allows ptrace, would allow it)"
        ))
    })
}

/// `madrigal peek`: reads the first bytes of a program in another process.
pub(crate) fn peek(args: &cli::Peek) -> i32 {
    let mut seen = [0u8; 4];
    let here = [Piece { address: seen.as_mut_ptr().addr(), len: seen.len() }];
    let there = [Piece { address: args.address as usize, len: seen.len() }];
    // SAFETY: `seen` is writable for its length.
    match unsafe { raw::process_vm(args.pid, &here, &there, false) } {
        Ok(4) if seen == *b"\x7fELF" => return out::FOUND,
        Ok(_) => out::print("process_vm_readv read something else"),
        Err(errno) => out::print(&format!("process_vm_readv is refused: {}", std::io::Error::from(errno))),
    }
    out::FAILED
}

fn shared_folder() -> Result<String, String> {
    let stat = rustix::fs::statvfs("/dev/shm").map_err(|errno| {
        format!("{}: the shared directory needs another place: set MADRIGAL_DIR", std::io::Error::from(errno))
    })?;
    let size = |blocks: u64| size(blocks.saturating_mul(stat.f_frsize));
    Ok(format!("{}, {} free; messages need none of it (memfds)", size(stat.f_blocks), size(stat.f_bavail)))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x40_0000 => format!("{} KiB", bytes >> 10),
        0x40_0000..0x1_0000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn provider() -> Result<String, String> {
    let missing =
        "libmadrigal-fi.so is not where this program is: build it with `make build`, or install it with `make install`";
    library::find_provider().map(|path| path.display().to_string()).ok_or_else(|| missing.to_owned())
}

/// What a worker opened now would publish.
fn addresses(settings: &madrigal::config::Settings) -> Vec<String> {
    let Ok(worker) = madrigal::worker_with(settings) else { return Vec::new() };
    let own = worker.address();
    own.addresses.iter().map(ToString::to_string).collect()
}

fn libfabric() -> (State, Vec<Provider>) {
    match madrigal::fabric::installed() {
        Err(why) => (State::of(Err(why)), Vec::new()),
        Ok(madrigal::fabric::Installed { version: (major, minor), offers }) => {
            let mut providers: Vec<Provider> = Vec::new();
            for (name, domain) in offers {
                if let Some(known) = providers.iter_mut().find(|known| known.name == name) {
                    known.domains.push(domain);
                    continue;
                }
                let ours = name.split(';').any(|part| part == "madrigal");
                let method = (!ours).then(|| format!("fabric:{}", name.split(';').next().unwrap_or(&name)));
                providers.push(Provider { name, domains: vec![domain], method });
            }
            (State::of(Ok(format!("version {major}.{minor}"))), providers)
        }
    }
}

fn describe(answer: &Answer) -> String {
    let mark = |ok: bool| if ok { "ok" } else { "NOT" }.to_owned();
    let row = |name: String, state: &State| vec![name, mark(state.ok), state.detail.clone()];
    let mut rows: Vec<_> = answer.drivers.iter().map(|d| row(format!("messages {}", d.name), &d.state)).collect();
    rows.extend(answer.tried.iter().map(|tried| row(tried.name.clone(), &tried.state)));
    let addresses = if answer.addresses.is_empty() { "none".to_owned() } else { answer.addresses.join(" ") };
    rows.push(vec!["addresses".into(), mark(!answer.addresses.is_empty()), addresses]);
    rows.push(row("libfabric".to_owned(), &answer.libfabric));
    for provider in &answer.providers {
        let method = provider.method.as_ref().map_or(String::new(), |method| format!(" (MADRIGAL_METHODS={method})"));
        rows.push(vec![
            String::new(),
            String::new(),
            format!("{} through {}{method}", provider.name, provider.domains.join(", ")),
        ]);
    }
    let mut text = out::table(&rows, &[]);
    for warning in &answer.warnings {
        text += &format!("\nwarning: {warning}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_one_reads_them() {
        assert_eq!([2 << 20, 64 << 20, 8 << 30].map(size), ["2048 KiB", "64 MiB", "8 GiB"]);
    }

    #[test]
    fn what_is_no_program_is_not_taken_for_one() {
        let word = [0u32; 1];
        let args = cli::Peek { pid: std::process::id(), address: word.as_ptr().addr() as u64 };
        assert_eq!(peek(&args), out::FAILED);
    }
}
