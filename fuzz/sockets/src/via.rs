//! The names by which a program can make the same call: each is hooked by itself, or not at all.

use serde::{Deserialize, Serialize};

macro_rules! names {
    ($(#[doc = $doc:literal] $name:ident: $($value:ident)*;)*) => {
        $(
            #[doc = $doc]
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
            #[allow(missing_docs)] // named as the functions
            pub enum $name { $($value),* }

            impl $name {
                /// All of them.
                pub const ALL: &[Self] = &[$(Self::$value),*];
            }
        )*
    };
}

names! {
    /// Ways to send.
    SendVia: Send Sendto Sendmsg Sendmmsg Write Writev Pwritev2 SysWrite SysSendto SysSendmsg SysWritev Aio Lio Dprintf Sendfile Splice;
    /// Ways to receive.
    RecvVia: Recv Recvfrom Recvmsg Recvmmsg Read Readv Preadv2 RecvChk ReadChk RecvfromChk SysRead SysRecvfrom SysRecvmsg SysReadv Aio Splice;
    /// Ways to wait for some descriptors.
    PollVia: Poll Ppoll PpollMask PollChk PpollChk Select Pselect PselectMask SysPoll;
    /// Ways to wait for a set.
    EpollVia: Wait Pwait PwaitMask Pwait2 SysWait;
    /// Ways to accept.
    AcceptVia: Accept Accept4 Nonblock Cloexec;
    /// Ways to connect.
    ConnectHow: Block Nonblock NonblockStays SockNonblock;
    /// Ways to close.
    CloseVia: Close Range Syscall Closefrom;
    /// Ways to duplicate.
    DupVia: Dup Dup2 Dup3 Fcntl FcntlCloexec Zero One Two High Syscall;
    /// Ways to fork.
    ForkVia: Fork UnderscoreFork Syscall;
    /// Children that do nothing with the sockets.
    StormVia: Fork ForkClose ForkQuick ForkExec Vfork Spawn Spawnp System Popen Kill;
    /// Ways to move bytes by stdio.
    FileVia: Block Line Character Formatted;
    /// Ways of a server to serve a connection.
    Serve: Inline Thread Fork Spread;
    /// Ways of an event loop to wait.
    FreeWait: Level Edge OneShot Nested Poll Ppoll Select Exclusive;
}

impl SendVia {
    /// Whether the call takes flags.
    pub fn has_flags(self) -> bool {
        use SendVia::{Send, Sendmmsg, Sendmsg, Sendto, SysSendmsg, SysSendto};
        matches!(self, Send | Sendto | Sendmsg | Sendmmsg | SysSendto | SysSendmsg)
    }

    /// Whether the call takes pieces.
    pub fn has_pieces(self) -> bool {
        use SendVia::{Pwritev2, Sendmmsg, Sendmsg, SysSendmsg, SysWritev, Writev};
        matches!(self, Sendmsg | Sendmmsg | Writev | Pwritev2 | SysSendmsg | SysWritev)
    }
}

impl RecvVia {
    /// Whether the call takes flags.
    pub fn has_flags(self) -> bool {
        use RecvVia::{Recv, RecvChk, Recvfrom, RecvfromChk, Recvmmsg, Recvmsg, SysRecvfrom, SysRecvmsg};
        matches!(self, Recv | Recvfrom | Recvmsg | Recvmmsg | RecvChk | RecvfromChk | SysRecvfrom | SysRecvmsg)
    }

    /// Whether the call takes pieces.
    pub fn has_pieces(self) -> bool {
        use RecvVia::{Preadv2, Readv, Recvmmsg, Recvmsg, SysReadv, SysRecvmsg};
        matches!(self, Recvmsg | Recvmmsg | Readv | Preadv2 | SysRecvmsg | SysReadv)
    }
}
