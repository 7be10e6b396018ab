//! Steps that are made in sequence, as C.

use super::options::{option_name, set_option};
use crate::op::{Ctl, Data, ExitHow, Family, FileMode, Handler, Memory, Op, Opt, Pieces, Request, Slot, Time};
use crate::program::Program;
use crate::via::{AcceptVia, CloseVia, DupVia, EpollVia, FileVia, ForkVia, PollVia, RecvVia, SendVia};

/// The body of a step.
pub(super) fn body(program: &Program, number: usize, op: &Op) -> Option<String> {
    let kinds = [traffic, waits, connections, descriptors, lives, files];
    kinds.iter().find_map(|kind| kind(program, number, op))
}

/// Steps that send and receive.
fn traffic(program: &Program, number: usize, op: &Op) -> Option<String> {
    Some(match op {
        Op::Send(data) => send(program, number, data),
        Op::Recv(data) => recv(program, number, data),
        Op::Exchange { slot, first, rounds, size, send, recv } => {
            let out = send_some(program, *slot, 0, *size, *size, *send);
            let into = recv_some(program, number, *slot, &size.to_string(), *size, *recv);
            let (one, other) = if *first { (out, into) } else { (into, out) };
            format!(
                "int how = FULL; long all = 0; for (int i = 0; i < {rounds} && how == FULL; i++) {{ \
                 size_t moved = 0; {one} all += moved; if (how == FULL) {{ moved = 0; {other} all += moved; }} }} \
                 tell({number}, all), note({number}, how);"
            )
        }
        Op::SendAll { slot, len, chunk, via, lane } => {
            format!(
                "size_t moved = 0; int how; {} tell({number}, moved), note({number}, how);",
                send_some(program, *slot, *lane, *len, *chunk, *via)
            )
        }
        Op::RecvAll { slot, len, chunk, via } => {
            format!(
                "size_t moved = 0; int how; {} tell({number}, moved), note({number}, how);",
                recv_some(program, number, *slot, &len.to_string(), *chunk, *via)
            )
        }
        Op::RecvToEnd { slot, chunk, via } => {
            format!(
                "size_t moved = 0; int how; {} tell({number}, moved), note({number}, how);",
                recv_some(program, number, *slot, "SIZE_MAX", *chunk, *via)
            )
        }
        Op::Drain { slot, .. } => format!("drain({number}, fd[{slot}], {});", program.incoming(*slot)),
        Op::Timed { slot, len, us } => format!(
            "timer({us}); ssize_t r = recv(fd[{slot}], room(), {len}, 0); int error = errno; timer(0); errno = error; \
             tell({number}, r); if (r > 0) check({number}, {}, room(), r, 1);",
            program.incoming(*slot)
        ),
        _ => return None,
    })
}

/// Steps that wait.
fn waits(_: &Program, number: usize, op: &Op) -> Option<String> {
    Some(match op {
        Op::Poll { entries, via, time } => poll(number, entries, *via, *time),
        Op::EpollCreate { slot } => open(number, *slot, "epoll_create1(0)"),
        Op::EpollCtl { set, what, slot, events, data } => {
            let what = match what {
                Ctl::Add => "EPOLL_CTL_ADD",
                Ctl::Mod => "EPOLL_CTL_MOD",
                Ctl::Del => "EPOLL_CTL_DEL",
            };
            format!(
                "struct epoll_event e = {{{events:#x}U, {{.u64 = {data:#x}UL}}}}; tell({number}, epoll_ctl(fd[{set}], {what}, fd[{slot}], &e));"
            )
        }
        Op::EpollWait { set, max, via, time } => epoll(number, *set, *max, *via, *time),
        _ => return None,
    })
}

/// Steps about connections.
fn connections(_: &Program, number: usize, op: &Op) -> Option<String> {
    Some(match op {
        Op::Listen { slot, family, nonblock } => {
            let family = match family {
                Family::Four => 4,
                Family::Six => 6,
                Family::Mapped => 46,
            };
            format!("listen_at({number}, {slot}, {family}, {});", if *nonblock { "SOCK_NONBLOCK" } else { "0" })
        }
        Op::Connect { slot, to, how, four } => {
            format!("connect_to({number}, {slot}, {to}, {}, \"{how:?}\");", u8::from(*four))
        }
        Op::Refused { nonblock } => format!("refused({number}, {});", if *nonblock { "SOCK_NONBLOCK" } else { "0" }),
        Op::Accept { slot, from, via } => {
            let call = match via {
                AcceptVia::Accept => format!("accept(fd[{from}], NULL, NULL)"),
                AcceptVia::Accept4 => format!("accept4(fd[{from}], NULL, NULL, 0)"),
                AcceptVia::Nonblock => format!("accept4(fd[{from}], NULL, NULL, SOCK_NONBLOCK)"),
                AcceptVia::Cloexec => format!("accept4(fd[{from}], NULL, NULL, SOCK_CLOEXEC)"),
            };
            open(number, *slot, &call)
        }
        Op::Shutdown { slot, how } => format!("tell({number}, shutdown(fd[{slot}], {how}));"),
        Op::Names { slot } => format!(
            "struct sockaddr_storage a; socklen_t n = sizeof a; note_call({number}, getsockname(fd[{slot}], (void *)&a, &n)); \
             n = sizeof a; note_call({number}, getpeername(fd[{slot}], (void *)&a, &n)); tell({number}, 0);"
        ),
        _ => return None,
    })
}

/// Steps about descriptors and their options.
fn descriptors(_: &Program, number: usize, op: &Op) -> Option<String> {
    let tell = |call: String| format!("tell({number}, {call});");
    Some(match op {
        Op::Close { slot, via } => {
            let call = match via {
                CloseVia::Close => "close(s)",
                CloseVia::Range => "close_range(s, s, 0)",
                CloseVia::Syscall => "syscall(SYS_close, s)",
                CloseVia::Closefrom => {
                    return Some(format!(
                        "int s = fd[{slot}]; if (s >= 0) {{ for (int i = 0; i < SLOTS; i++) if (fd[i] >= s) fd[i] = -1; \
                         close_range(s, 899, 0); }} tell({number}, 0);"
                    ));
                }
            };
            format!("int s = fd[{slot}]; fd[{slot}] = -1; tell({number}, {call});")
        }
        Op::Dup { slot, new, via } => open(number, *new, &dup(*slot, *via)),
        Op::DupOver { slot, over, new } => {
            format!("int to = fd[{over}]; fd[{over}] = -1; {}", open(number, *new, &format!("dup2(fd[{slot}], to)")))
        }
        Op::SetOption { slot, option, value } => set_option(number, *slot, *option, *value),
        Op::GetOption { slot, option } => {
            let (level, name) = option_name(*option);
            let len = match option {
                Opt::Info => 256,
                Opt::RcvTimeo | Opt::SndTimeo => 16,
                Opt::Linger => 8,
                _ => 4,
            };
            format!("option({number}, fd[{slot}], {level}, {name}, {len});")
        }
        Op::Ioctl { slot, request } => {
            let (request, value) = match request {
                Request::FionRead => ("FIONREAD", -77),
                Request::SiocOutq => ("TIOCOUTQ", -77),
                Request::AtMark => ("0x8905", -77),
                Request::Fionbio(on) => ("FIONBIO", i32::from(*on)),
                Request::FioAsync(on) => ("FIOASYNC", i32::from(*on)),
            };
            format!(
                "int value = {value}; tell({number}, ioctl(fd[{slot}], {request}, &value)); note({number}, (uint32_t)value);"
            )
        }
        Op::AtMark { slot } => tell(format!("sockatmark(fd[{slot}])")),
        Op::NonBlocking { slot, on } => format!(
            "int flags = fcntl(fd[{slot}], F_GETFL); note_call({number}, flags); \
             tell({number}, fcntl(fd[{slot}], F_SETFL, (flags & ~O_NONBLOCK) | {}));",
            if *on { "O_NONBLOCK" } else { "0" }
        ),
        Op::Flags { slot } => {
            format!(
                "note_call({number}, fcntl(fd[{slot}], F_GETFL)), note_call({number}, fcntl(fd[{slot}], F_GETFD)), tell({number}, 0);"
            )
        }
        Op::Own { slot } => tell(format!("fcntl(fd[{slot}], F_SETOWN, getpid())")),
        _ => return None,
    })
}

/// Steps about threads, processes, signals, and descriptors on their way.
fn lives(program: &Program, number: usize, op: &Op) -> Option<String> {
    Some(match op {
        Op::Thread { actor } => {
            format!(
                "tell({number}, pthread_create(&thread_of[{actor}], NULL, thread, (void *){actor}L)); await_begin({actor});"
            )
        }
        Op::Fork { actor, via } => {
            let call = match via {
                ForkVia::Fork => "fork()",
                ForkVia::UnderscoreFork => "_Fork()",
                ForkVia::Syscall => "syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)",
            };
            format!(
                "pid_t child = {call}; if (child == 0) memset(counts, 0, sizeof counts), live({actor}, 0); tell({number}, child < 0 ? 1 : 0); await_begin({actor});"
            )
        }
        Op::Child { via } => format!("tell({number}, idle_child(\"{via:?}\"));"),
        Op::Exec { plain } => format!(
            "char *args[5]; image(args, actor, {}); shared->result[{number}] = 0; \
             tell({number}, execve(args[0], args, environment({})));",
            number + 1,
            u8::from(*plain)
        ),
        Op::Spawn { actor, plain, fork } => {
            format!("tell({number}, begin({actor}, {}, {})); await_begin({actor});", u8::from(*plain), u8::from(*fork))
        }
        Op::WaitChild { actor } => format!(
            "int status = 0; pid_t done = waitpid(shared->pid[{actor}], &status, 0); tell({number}, done < 0 ? -errno : status);"
        ),
        Op::Exit { how } => exit(*how).to_owned(),
        Op::Cancel { actor } => format!(
            "void *value = NULL; tell({number}, pthread_cancel(thread_of[{actor}])); \
             note_call({number}, pthread_join(thread_of[{actor}], &value)), note({number}, value == PTHREAD_CANCELED);"
        ),
        Op::Handle(handler) => handle(program, *handler) + &format!(" tell({number}, 0);"),
        Op::Signals => format!(
            "note({number}, counts[SIGUSR1]), note({number}, counts[SIGUSR2]), note({number}, counts[SIGPIPE]), \
             note({number}, !!counts[SIGURG]), note({number}, !!counts[SIGIO]), tell({number}, 0);"
        ),
        Op::UnixPair { slot, other } => format!(
            "int ends[2]; tell({number}, socketpair(AF_UNIX, SOCK_STREAM, 0, ends)); take({slot}, ends[0]), take({other}, ends[1]);"
        ),
        Op::UnixListen { slot } => format!(
            "struct sockaddr_un name; socklen_t len = unix_name(&name, {slot}); {} \
             note_call({number}, bind(fd[{slot}], (void *)&name, len)), note_call({number}, listen(fd[{slot}], 8));",
            open(number, *slot, "socket(AF_UNIX, SOCK_STREAM, 0)")
        ),
        Op::UnixConnect { slot, to } => format!(
            "struct sockaddr_un name; socklen_t len = unix_name(&name, {to}); {} \
             note_call({number}, connect(fd[{slot}], (void *)&name, len));",
            open(number, *slot, "socket(AF_UNIX, SOCK_STREAM, 0)")
        ),
        Op::UnixAccept { slot, from } => open(number, *slot, &format!("accept(fd[{from}], NULL, NULL)")),
        Op::Pass { through, slot } => format!("pass({number}, fd[{through}], fd[{slot}]);"),
        Op::Take { through, slot } => format!("take_passed({number}, fd[{through}], {slot});"),
        _ => return None,
    })
}

fn files(program: &Program, number: usize, op: &Op) -> Option<String> {
    Some(match op {
        Op::Fdopen { slot, file, mode } => {
            let mode = match mode {
                FileMode::Read => "r",
                FileMode::Write => "w",
                FileMode::Both => "r+",
            };
            format!(
                "file[{file}] = fdopen(fd[{slot}], \"{mode}\"); fd[{slot}] = -1; tell({number}, file[{file}] ? 0 : -1);"
            )
        }
        Op::FileWrite { file, len, via } => {
            let stream = program.out(*file);
            let call = match via {
                FileVia::Character => format!("for (int i = 0; i < {len}; i++) fputc(room()[i], f);"),
                FileVia::Formatted => format!("fprintf(f, \"%.*s\", {len}, room());"),
                _ => format!("fwrite(room(), 1, {len}, f);"),
            };
            format!(
                "FILE *f = file[{file}]; fill({stream}, 0, room(), {len}); {call} note_call({number}, fflush(f)); \
                 shared->sent[{stream}][0] += {len}; tell({number}, {len});"
            )
        }
        Op::FileRead { file, len, via } => {
            let read = match via {
                FileVia::Line => {
                    format!("char *line = fgets(room(), {len} + 1, f); size_t n = line ? strlen(line) : 0;")
                }
                FileVia::Character => {
                    format!("size_t n = 0; for (int c; n < {len} && (c = fgetc(f)) != EOF; n++) room()[n] = c;")
                }
                _ => format!("size_t n = fread(room(), 1, {len}, f);"),
            };
            format!(
                "FILE *f = file[{file}]; clearerr(f); {read} tell({number}, n), note({number}, !!feof(f)), note({number}, !!ferror(f)); \
                 check({number}, {}, room(), n, 1);",
                program.incoming(*file)
            )
        }
        Op::FileClose { file } => format!("tell({number}, fclose(file[{file}])); file[{file}] = NULL;"),
        _ => return None,
    })
}

fn open(number: usize, slot: Slot, call: &str) -> String {
    format!("int opened = {call}; tell({number}, opened); if (opened >= 0) take({slot}, opened);")
}

/// How a program names the memory of a call: where it is, and how much of it is good.
fn memory(memory: Memory, len: u32) -> (String, String) {
    match memory {
        Memory::Good | Memory::Header => ("room()".to_owned(), len.to_string()),
        Memory::Null => ("NULL".to_owned(), "0".to_owned()),
        Memory::Low => ("(char *)8".to_owned(), "0".to_owned()),
        Memory::Last => ("(char *)-1".to_owned(), "0".to_owned()),
        Memory::Guard => ("room() + ROOM".to_owned(), "0".to_owned()),
        Memory::Half(good) => (format!("room() + ROOM - {good}"), u32::from(good).min(len).to_string()),
    }
}

/// The call, with `s`, `at`, `len`, `v`, `n` for what it is given.
fn send_call(number: usize, via: SendVia, flags: i32) -> String {
    match via {
        SendVia::Send => format!("send(s, at, len, {flags:#x})"),
        SendVia::Sendto => format!("sendto(s, at, len, {flags:#x}, NULL, 0)"),
        SendVia::Sendmsg => format!("message_out(s, v, n, {flags:#x}, 0)"),
        SendVia::SysSendmsg => format!("message_out(s, v, n, {flags:#x}, 1)"),
        SendVia::Sendmmsg => format!("many_out({number}, s, v, n, {flags:#x}, &result)"),
        SendVia::Write => "write(s, at, len)".to_owned(),
        SendVia::Writev => "writev(s, v, n)".to_owned(),
        SendVia::Pwritev2 => "pwritev2(s, v, n, -1, 0)".to_owned(),
        SendVia::SysWrite => "syscall(SYS_write, s, at, len)".to_owned(),
        SendVia::SysSendto => format!("syscall(SYS_sendto, s, at, len, {flags:#x}, NULL, 0)"),
        SendVia::SysWritev => "syscall(SYS_writev, s, v, n)".to_owned(),
        SendVia::Aio => "by_aio(s, at, len, 0)".to_owned(),
        SendVia::Lio => "by_lio(s, at, len)".to_owned(),
        SendVia::Dprintf => "dprintf(s, \"%.*s\", (int)len, at)".to_owned(),
        SendVia::Sendfile => "from_file(s, at, len)".to_owned(),
        SendVia::Splice => "by_pipe(s, at, len, 0)".to_owned(),
    }
}

fn recv_call(number: &str, via: RecvVia, flags: i32) -> String {
    match via {
        RecvVia::Recv | RecvVia::RecvChk => format!("recv(s, at, len, {flags:#x})"),
        RecvVia::Recvfrom | RecvVia::RecvfromChk => {
            format!("recvfrom(s, at, len, {flags:#x}, (void *)&name, &name_len)")
        }
        RecvVia::Recvmsg => format!("message_in(s, v, n, {flags:#x}, {number}, 0)"),
        RecvVia::SysRecvmsg => format!("message_in(s, v, n, {flags:#x}, {number}, 1)"),
        RecvVia::Recvmmsg => format!("many_in({number}, s, v, n, {flags:#x}, at, &result)"),
        RecvVia::Read | RecvVia::ReadChk => "read(s, at, len)".to_owned(),
        RecvVia::Readv => "readv(s, v, n)".to_owned(),
        RecvVia::Preadv2 => "preadv2(s, v, n, -1, 0)".to_owned(),
        RecvVia::SysRead => "syscall(SYS_read, s, at, len)".to_owned(),
        RecvVia::SysRecvfrom => format!("syscall(SYS_recvfrom, s, at, len, {flags:#x}, NULL, NULL)"),
        RecvVia::SysReadv => "syscall(SYS_readv, s, v, n)".to_owned(),
        RecvVia::Aio => "by_aio(s, at, len, 1)".to_owned(),
        RecvVia::Splice => "by_pipe(s, at, len, 1)".to_owned(),
    }
}

/// The pieces of a call's memory, if it takes any.
fn pieces(has: bool, bad: bool, pieces: Pieces) -> String {
    match (has, bad) {
        (false, _) => String::new(),
        (true, true) => "struct iovec *v = (void *)8; int n = 1;".to_owned(),
        (true, false) => format!("static __thread struct iovec v[1025]; int n = cut(v, at, len, \"{pieces:?}\");"),
    }
}

fn send(program: &Program, number: usize, data: &Data<SendVia>) -> String {
    let (at, good) = memory(data.memory, data.len);
    let (slot, len, stream) = (data.slot, data.len, program.out(data.slot));
    let urgent = data.flags & libc::MSG_OOB != 0;
    let blind = if urgent { format!("shared->blind[{stream}] = 1; ") } else { String::new() };
    let v = pieces(data.via.has_pieces(), data.memory == Memory::Header, data.pieces);
    let call = send_call(number, data.via, data.flags);
    format!(
        "{blind}size_t len = {len}; char *at = {at}; int s = fd[{slot}]; fill({stream}, 0, at, {good}); {v} long result = -2; \
         ssize_t r = {call}; tell({number}, r < 0 || result == -2 ? r : result); if (r > 0) shared->sent[{stream}][0] += r;"
    )
}

fn recv(program: &Program, number: usize, data: &Data<RecvVia>) -> String {
    let (at, good) = memory(data.memory, data.len);
    let (slot, len, stream) = (data.slot, data.len, program.incoming(data.slot));
    let v = pieces(data.via.has_pieces(), data.memory == Memory::Header, data.pieces);
    let call = recv_call(&number.to_string(), data.via, data.flags);
    let names = matches!(data.via, RecvVia::Recvfrom | RecvVia::RecvfromChk);
    let name = if names { "struct sockaddr_storage name; socklen_t name_len = sizeof name; " } else { "" };
    let peek = data.flags & libc::MSG_PEEK != 0;
    let after = if data.flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 || data.via == RecvVia::Recvmmsg && peek {
        String::new()
    } else if data.flags & libc::MSG_TRUNC != 0 {
        match peek {
            true => String::new(),
            false if program.handlers_send_on(stream) => format!("if (r > 0) shared->blind[{stream}] = 1;"),
            false => format!("if (r > 0) shared->got[{stream}][0] += r;"),
        }
    } else {
        format!("if (r > 0) check({number}, {stream}, at, r < {good} ? r : {good}, {});", u8::from(!peek))
    };
    format!(
        "{name}size_t len = {len}; char *at = {at}; int s = fd[{slot}]; {v} long result = -2; \
         ssize_t r = {call}; tell({number}, r < 0 || result == -2 ? r : result); {after}"
    )
}

/// Sends much; `moved` and `how` say how much and how it ended.
fn send_some(program: &Program, slot: Slot, lane: u8, len: u32, chunk: u32, via: SendVia) -> String {
    let via = if via == SendVia::Sendmmsg { SendVia::Sendmsg } else { via };
    let (call, stream) = (send_call(0, via, libc::MSG_NOSIGNAL), program.out(slot));
    format!("int s = fd[{slot}]; SEND_SOME(s, {stream}, {lane}, {len}, {chunk}, {call}, moved, how);")
        .replace("int s = ", "{ int s = ")
        + " }"
}

/// Receives much.
fn recv_some(program: &Program, number: usize, slot: Slot, len: &str, chunk: u32, via: RecvVia) -> String {
    let via = match via {
        RecvVia::Recvmmsg => RecvVia::Recvmsg,
        RecvVia::Recvfrom | RecvVia::RecvfromChk => RecvVia::Recv,
        other => other,
    };
    let (call, stream) = (recv_call("-1", via, 0), program.incoming(slot));
    format!("{{ int s = fd[{slot}]; RECV_SOME({number}, s, {stream}, {len}, {chunk}, {call}, moved, how); }}")
}

fn milliseconds(time: Time) -> i32 {
    match time {
        Time::Zero => 0,
        Time::Ms(ms) => i32::from(ms),
        Time::Forever => -1,
    }
}

fn poll(number: usize, entries: &[(Slot, i16)], via: PollVia, time: Time) -> String {
    let list: Vec<String> = entries.iter().map(|(slot, events)| format!("{{fd[{slot}], {events:#x}, 0}}")).collect();
    let (n, ms) = (entries.len(), milliseconds(time));
    let call = match via {
        PollVia::Select | PollVia::Pselect | PollVia::PselectMask => {
            return format!("struct pollfd p[] = {{{}}}; by_select({number}, p, {n}, {ms});", list.join(", "));
        }
        PollVia::Poll | PollVia::PollChk => format!("poll(p, {n}, {ms})"),
        PollVia::SysPoll => format!("syscall(SYS_ppoll, p, {n}, span(&t, {ms}), NULL, 8)"),
        _ => format!("ppoll(p, {n}, span(&t, {ms}), NULL)"),
    };
    format!(
        "struct timespec t; (void)t; struct pollfd p[] = {{{}}}; tell({number}, {call}); \
         for (int i = 0; i < {n}; i++) note({number}, (uint16_t)p[i].revents);",
        list.join(", ")
    )
}

fn epoll(number: usize, set: Slot, max: u8, via: EpollVia, time: Time) -> String {
    let ms = milliseconds(time);
    let call = match via {
        EpollVia::Wait => format!("epoll_wait(fd[{set}], e, {max}, {ms})"),
        EpollVia::Pwait | EpollVia::PwaitMask => format!("epoll_pwait(fd[{set}], e, {max}, {ms}, NULL)"),
        EpollVia::Pwait2 => format!("epoll_pwait2(fd[{set}], e, {max}, span(&t, {ms}), NULL)"),
        EpollVia::SysWait => format!("syscall(SYS_epoll_pwait, fd[{set}], e, {max}, {ms}, NULL, 8)"),
    };
    format!("struct timespec t; (void)t; struct epoll_event e[16]; events({number}, {call}, e);")
}

fn dup(slot: Slot, via: DupVia) -> String {
    let (what, rest) = match via {
        DupVia::Dup => ("dup", ""),
        DupVia::Dup2 => ("dup2", ", 300"),
        DupVia::Dup3 => ("dup3", ", 301, O_CLOEXEC"),
        DupVia::Fcntl => ("fcntl", ", F_DUPFD, 310"),
        DupVia::FcntlCloexec => ("fcntl", ", F_DUPFD_CLOEXEC, 0"),
        DupVia::Zero => ("dup2", ", 0"),
        DupVia::One => ("dup2", ", 1"),
        DupVia::Two => ("dup2", ", 2"),
        DupVia::High => ("dup2", ", 1000"),
        DupVia::Syscall => return format!("syscall(SYS_dup, fd[{slot}])"),
    };
    format!("{what}(fd[{slot}]{rest})")
}

fn exit(how: ExitHow) -> &'static str {
    match how {
        ExitHow::Exit => "exit(0);",
        ExitHow::UnderscoreExit => "_exit(0);",
        ExitHow::Abort => "abort();",
        ExitHow::Quick => "quick_exit(0);",
    }
}

/// What the handler of SIGUSR1 does from now on.
fn handle(program: &Program, handler: Handler) -> String {
    match handler {
        Handler::Count => "action = 0;".to_owned(),
        Handler::Send(slot, len) => {
            format!("action_slot = {slot}, action_stream = {}, action_len = {len}, action = 1;", program.out(slot))
        }
        Handler::Receive(slot, len) => {
            format!("action_slot = {slot}, action_stream = {}, action_len = {len}, action = 2;", program.incoming(slot))
        }
    }
}
