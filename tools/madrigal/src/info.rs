//! `madrigal info`: what works here, tried by use, and what to type where something does not.

mod item;
mod messages;

use std::os::fd::AsRawFd as _;

use madrigal::Runtime;
use madrigal::config::KEYS;
use madrigal_sys::{Errno, process, tcp};
use serde::Serialize;

use crate::{cli, library, out, settings};
use item::{Item, State, memfd};

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    library: State,
    drivers: Vec<Item>,
    /// Those of messages, of which some carry streams too.
    message_drivers: Vec<Item>,
    directory: Directory,
    kernel: Kernel,
    configuration: Vec<Setting>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Directory {
    path: String,
    ok: bool,
    /// The reason's stable name; null when all is well.
    reason: Option<&'static str>,
    detail: &'static str,
    tables: Vec<Table>,
}

#[derive(Serialize)]
struct Table {
    name: String,
    users: Vec<u32>,
}

#[derive(Serialize)]
struct Kernel {
    release: String,
    features: Vec<Item>,
    congestion_control: String,
    congestion_controls: Vec<String>,
}

#[derive(Serialize)]
struct Setting {
    key: &'static str,
    value: String,
    /// `environment` or `default`.
    from: &'static str,
    default: &'static str,
    unit: &'static str,
    help: &'static str,
}

/// Runs the command.
pub(crate) fn run(args: &cli::Info) -> i32 {
    if args.drivers {
        return messages::run(args.json);
    }
    let answer = inspect();
    if args.json {
        return out::print_json(&answer);
    }
    out::print(&describe(&answer));
    out::FOUND
}

pub(crate) use messages::peek;

fn inspect() -> Answer {
    let env: Vec<_> = std::env::vars_os().collect();
    let (_, errors) = settings::read(&env);
    Answer {
        version: env!("CARGO_PKG_VERSION"),
        library: State::of(library::find().map(|path| path.display().to_string())),
        drivers: drivers(),
        message_drivers: messages::drivers(),
        directory: directory(),
        kernel: kernel(),
        configuration: KEYS.iter().map(setting).collect(),
        warnings: errors.iter().map(settings::advice).chain(drivers_refused()).collect(),
    }
}

fn drivers() -> Vec<Item> {
    match Runtime::new() {
        Ok(runtime) => {
            runtime.drivers().into_iter().map(|d| Item::new(d.driver, d.usable.map(|()| usable(d.driver)))).collect()
        }
        Err(error) => {
            let why = error.to_string();
            madrigal::drivers().map(|driver| Item::new(driver.name(), Err::<&str, _>(why.clone()))).collect()
        }
    }
}

/// Why what `MADRIGAL_DRIVERS` names has fewer drivers than files.
fn drivers_refused() -> impl Iterator<Item = String> {
    madrigal::added().refused().iter().map(|why| format!("MADRIGAL_DRIVERS: {why}"))
}

/// That a driver works, and where one comes from that is not ours.
fn usable(driver: &str) -> String {
    madrigal::added().file(driver).map_or_else(|| "usable".to_owned(), |file| format!("usable: {}", file.display()))
}

fn directory() -> Directory {
    let directory = settings::directory();
    let reason = directory.check(settings::netns()).err();
    let tables = directory.tables().into_iter().map(|t| Table { name: t.name, users: t.users }).collect();
    Directory {
        path: directory.path().to_string_lossy().into_owned(),
        ok: reason.is_none(),
        reason: reason.map(madrigal_report::Reason::name),
        detail: reason.map_or("connections can meet here", madrigal_report::Reason::text),
        tables,
    }
}

fn kernel() -> Kernel {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Kernel {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        features: vec![tcp_info(), memfd(), pidfd_getfd(), yama(&read("/proc/sys/kernel/yama/ptrace_scope"))],
        congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
        congestion_controls: read("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .split_ascii_whitespace()
            .map(str::to_owned)
            .collect(),
    }
}

/// Whether byte counts show at which byte a connection moves into a ring.
fn tcp_info() -> Item {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let told = socket.and_then(|socket| tcp::info(socket.as_raw_fd()));
    let wrong = |e| format!("connections stay with TCP: {}; it takes Linux 4.19 or later", std::io::Error::from(e));
    Item::new("TCP_INFO byte counts", told.map(|_| "the kernel tells them").map_err(wrong))
}

fn pidfd_getfd() -> Item {
    let copied = rustix::stdio::stdin();
    let copied = process::steal_fd(process::own_pid(), copied.as_raw_fd());
    let wrong = |e: Errno| {
        let os = std::io::Error::from(e);
        format!(
            "bytes cannot be handed back: {os}; it takes Linux 5.6 or later, and a container that allows pidfd_getfd"
        )
    };
    // Standard input may be closed; then the call fails with that error, and works all the same.
    let works = copied.map(drop).or_else(|e| if e == Errno::BADF { Ok(()) } else { Err(e) });
    Item::new("pidfd_getfd", works.map(|()| "works").map_err(wrong))
}

fn yama(scope: &str) -> Item {
    let name = "yama ptrace_scope";
    let may_trace = may_trace_anything();
    match scope {
        "" => Item::new(name, Ok("not in this kernel: processes of one user may reach each other's descriptors")),
        "0" => Item::new(name, Ok("0: processes of one user may reach each other's descriptors")),
        "1" | "2" if may_trace => {
            Item::new(name, Ok(format!("{scope}, which does not bind a process with CAP_SYS_PTRACE")))
        }
        scope => Item::new(
            name,
            Err::<&str, _>(format!(
                "{scope}: connections stay with TCP (no-hand-back): type sysctl kernel.yama.ptrace_scope=0 as root"
            )),
        ),
    }
}

/// Whether this process has CAP_SYS_PTRACE.
fn may_trace_anything() -> bool {
    let held = rustix::thread::capabilities(None);
    held.is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE))
}

fn setting(key: &'static madrigal::config::Key) -> Setting {
    let set = std::env::var(key.name).ok().filter(|value| !value.is_empty());
    let from = if set.is_some() { "environment" } else { "default" };
    let value = set.or_else(|| found(key)).unwrap_or_else(|| key.default.to_owned());
    Setting { key: key.name, value, from, default: key.default, unit: key.unit, help: key.help }
}

/// Where a default depends on other variables: what it is.
fn found(key: &'static madrigal::config::Key) -> Option<String> {
    let dir = || madrigal_identity::directory(|name| std::env::var(name).ok()).ok();
    (key.name == "MADRIGAL_CONFIG_DIR").then(dir).flatten().map(|dir| dir.display().to_string())
}

fn describe(answer: &Answer) -> String {
    let mark = |ok: bool| if ok { "ok" } else { "NOT" }.to_owned();
    let mut rows = vec![
        vec!["version".into(), String::new(), answer.version.into()],
        vec!["library".into(), mark(answer.library.ok), answer.library.detail.clone()],
    ];
    let item = |kind: &str, i: &Item| vec![format!("{kind} {}", i.name), mark(i.state.ok), i.state.detail.clone()];
    rows.extend(answer.drivers.iter().map(|d| item("driver", d)));
    rows.extend(answer.message_drivers.iter().map(|d| item("messages", d)));
    let directory = &answer.directory;
    let reason = directory.reason.map_or(String::new(), |name| format!("{name}: "));
    rows.push(vec![
        "shared directory".into(),
        mark(directory.ok),
        format!("{}: {reason}{}", directory.path, directory.detail),
    ]);
    for table in &directory.tables {
        let users: Vec<_> = table.users.iter().map(u32::to_string).collect();
        let users =
            if users.is_empty() { "nobody (the next `madrigal exec` removes it)".into() } else { users.join(" ") };
        rows.push(vec![String::new(), String::new(), format!("{}: in use by {users}", table.name)]);
    }
    rows.push(vec!["kernel".into(), String::new(), answer.kernel.release.clone()]);
    rows.extend(answer.kernel.features.iter().map(|f| item("kernel", f)));
    let kernel = &answer.kernel;
    let others = format!("{} (available: {})", kernel.congestion_control, kernel.congestion_controls.join(", "));
    rows.push(vec!["congestion control".into(), String::new(), others]);
    let mut text = out::table(&rows, &[]);
    text += "\nConfiguration:\n";
    text += &out::table(&configuration(&answer.configuration), &[]);
    for warning in &answer.warnings {
        text += &format!("\nwarning: {warning}");
    }
    if answer.warnings.is_empty() { text } else { text + "\n" }
}

fn configuration(settings: &[Setting]) -> Vec<Vec<String>> {
    let mut rows = vec![["key", "value", "from", "default", "meaning"].map(str::to_owned).to_vec()];
    let shown = |value: &str, unit: &str| match (value, unit) {
        ("", _) => "(empty)".to_owned(),
        (value, "") => value.to_owned(),
        (value, unit) => format!("{value} {unit}"),
    };
    for s in settings {
        let cells =
            [s.key.to_owned(), shown(&s.value, s.unit), s.from.to_owned(), shown(s.default, s.unit), s.help.to_owned()];
        rows.push(cells.to_vec());
    }
    rows
}
