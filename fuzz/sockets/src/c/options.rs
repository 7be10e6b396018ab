//! Options of sockets, as a C program sets them.

use crate::op::{Opt, Slot};

pub(super) fn option_name(option: Opt) -> (&'static str, &'static str) {
    match option {
        Opt::NoDelay => ("IPPROTO_TCP", "TCP_NODELAY"),
        Opt::Cork => ("IPPROTO_TCP", "TCP_CORK"),
        Opt::QuickAck => ("IPPROTO_TCP", "TCP_QUICKACK"),
        Opt::Info => ("IPPROTO_TCP", "TCP_INFO"),
        Opt::MaxSeg => ("IPPROTO_TCP", "TCP_MAXSEG"),
        Opt::Unknown => ("IPPROTO_TCP", "999"),
        Opt::KeepAlive => ("SOL_SOCKET", "SO_KEEPALIVE"),
        Opt::SndBuf => ("SOL_SOCKET", "SO_SNDBUF"),
        Opt::RcvBuf => ("SOL_SOCKET", "SO_RCVBUF"),
        Opt::OobInline => ("SOL_SOCKET", "SO_OOBINLINE"),
        Opt::RcvLowat => ("SOL_SOCKET", "SO_RCVLOWAT"),
        Opt::RcvTimeo => ("SOL_SOCKET", "SO_RCVTIMEO"),
        Opt::SndTimeo => ("SOL_SOCKET", "SO_SNDTIMEO"),
        Opt::Linger => ("SOL_SOCKET", "SO_LINGER"),
        Opt::ReuseAddr => ("SOL_SOCKET", "SO_REUSEADDR"),
        Opt::ReusePort => ("SOL_SOCKET", "SO_REUSEPORT"),
        Opt::Error => ("SOL_SOCKET", "SO_ERROR"),
        Opt::Type => ("SOL_SOCKET", "SO_TYPE"),
        Opt::BusyPoll => ("SOL_SOCKET", "SO_BUSY_POLL"),
        Opt::Priority => ("SOL_SOCKET", "SO_PRIORITY"),
        Opt::AcceptConn => ("SOL_SOCKET", "SO_ACCEPTCONN"),
        Opt::Protocol => ("SOL_SOCKET", "SO_PROTOCOL"),
    }
}

pub(super) fn set_option(number: usize, slot: Slot, option: Opt, value: i32) -> String {
    let (level, name) = option_name(option);
    let value = match option {
        Opt::RcvTimeo | Opt::SndTimeo => {
            format!("struct timeval value = {{{}, {}}};", value / 1000, value % 1000 * 1000)
        }
        Opt::Linger => format!("struct linger value = {{{}, {}}};", i32::from(value >= 0), value.max(0)),
        _ => format!("int value = {value};"),
    };
    format!("{value} tell({number}, setsockopt(fd[{slot}], {level}, {name}, &value, sizeof value));")
}
