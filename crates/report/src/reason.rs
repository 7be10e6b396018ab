//! Why a connection is not in shared memory: every reason is a named variant, a sentence for people and a stable name for scripts.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $slug:literal, $text:literal;)*) => {
        /// Why bytes of a connection travel by the kernel's TCP.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Reason { $($(#[doc = $doc])* $name = $code,)* }

        impl Reason {
            /// Every reason.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The reason with this number, as it stands in a shared record.
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Reason::$name),)* _ => None }
            }

            /// Stable name for scripts.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$name => $slug,)* }
            }

            /// One sentence for people, with a remedy if there is one.
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Too little traffic so far.
    Unearned = 1, "unearned", "too little traffic so far: a connection moves after its eighth send or 256 KiB";
    /// No wrapped listener is known on the peer's port.
    NoListener = 2, "no-listener", "no program of this user under madrigal listens on that port of this host: start it with `madrigal exec`";
    /// The offer was not taken up.
    NoAnswer = 3, "no-answer", "the accepting program did not answer: it is not under madrigal, or a proxy stands in between";
    /// The two ends belong to different users.
    OtherUser = 4, "other-user", "the two ends run as different users, or one changed user or may not be inspected";
    /// The shared directory cannot be created or found.
    DirMissing = 5, "dir-missing", "the shared directory does not exist and cannot be made: set MADRIGAL_DIR";
    /// The shared directory cannot be written.
    DirReadOnly = 6, "dir-read-only", "the shared directory cannot be written: set MADRIGAL_DIR";
    /// No room.
    DirFull = 7, "dir-full", "the shared directory is full: free some space or set MADRIGAL_DIR";
    /// Wrong owner or mode.
    DirUnsafe = 8, "dir-unsafe", "the shared directory belongs to another user or others may enter it: chmod 700 it, or set MADRIGAL_DIR";
    /// The method is not allowed.
    MethodOff = 9, "method-off", "shared memory is switched off by --methods or MADRIGAL_METHODS";
    /// The port is not among those wanted.
    PortOff = 10, "port-off", "the port is not among those of --only or MADRIGAL_ONLY";
    /// Several processes hold the socket.
    Shared = 11, "shared", "more than one process holds this socket since a fork; it moves when the others close theirs";
    /// Holders cannot be counted.
    SharedUnknown = 12, "shared-unknown", "the socket was inherited or handed out where its holders cannot be counted";
    /// A FILE was opened on the socket.
    Stdio = 13, "stdio", "the C library reads or writes this socket by itself (stdio)";
    /// splice(2) was used.
    Splice = 14, "splice", "the program uses splice on this socket";
    /// Urgent data was sent.
    Urgent = 15, "urgent", "urgent (out-of-band) data was sent";
    /// Signal-driven I/O.
    AsyncIo = 16, "async-io", "the program uses signal-driven I/O (O_ASYNC) on this socket";
    /// An option rings cannot honour.
    Option = 17, "option", "a socket option is set that only the kernel can honour (zero copy, time stamps, TCP_INQ, ULP, filter, ...)";
    /// SO_RCVLOWAT is set.
    LowWater = 18, "low-water", "SO_RCVLOWAT is set";
    /// io_uring is in use.
    IoUring = 19, "io-uring", "the program uses io_uring, whose reads and writes cannot be seen";
    /// The process entered a system-call sandbox.
    Seccomp = 20, "seccomp", "the program entered a seccomp sandbox";
    /// The descriptor was sent to another process.
    Passed = 21, "passed", "the descriptor was sent to another process (SCM_RIGHTS) or kept across exec";
    /// A direction was shut down.
    HalfClosed = 22, "half-closed", "one direction was shut down; the rest goes by TCP";
    /// The reader did not read.
    Stalled = 23, "stalled", "the peer stopped reading; TCP's own buffers took over";
    /// No block for a large ring.
    NoMemory = 24, "no-memory", "no shared memory for a ring of the size this traffic needs";
    /// The peer sealed the connection.
    PeerLeft = 25, "peer-left", "the other end went back to TCP: see `madrigal why` of that process";
    /// An event set shared with another process.
    EventSet = 26, "event-set", "the socket is in an epoll set that other processes share, or in too many sets";
    /// The peer wrote nonsense.
    Corrupt = 27, "corrupt", "the other end wrote impossible values into the shared segment";
    /// Bytes could not be handed back when that became necessary.
    NoHandBack = 28, "no-hand-back", "unread bytes could not be put back into the socket for a reader that is not under madrigal: the connection was reset";
    /// Not a fully open connection.
    NotOpen = 29, "not-open", "the connection is not open in both directions";
    /// The process forked while the connection was in shared memory.
    Forked = 30, "forked", "the program forked; the connection moves again when one holder is left";
    /// The kernel lacks something.
    Kernel = 31, "kernel", "the kernel does not report what moving needs (TCP_INFO byte counts, memfd sealing)";
    /// The offer table is full of other people's offers.
    TableFull = 32, "table-full", "too many connections were being set up at once; it will be tried again";
    /// The socket is corked.
    Corked = 33, "corked", "TCP_CORK is set";
    /// Through the daemon.
    Daemon = 34, "daemon", "the connection goes to a host of another site, through the daemons";
    /// There is none.
    NoDaemon = 35, "no-daemon", "the connection should go through a daemon, and none is up or it refused: `madrigal status`; it went by plain TCP";
    /// There is none, and nothing else is allowed.
    Refused = 36, "refused", "not connected: the network between is not trusted, and no daemon is up that could encipher: `madrigal up`, or plain = true in grid.toml";
    /// It hangs, and nothing else is possible.
    DaemonHangs = 37, "daemon-hangs", "not connected: the daemon of this host does not answer: `madrigal status`";
    /// Our shared memory has impossible values.
    Contradiction = 39, "contradiction", "something impossible was found in shared memory: nothing moves in this process any more; please report it";
    /// A test left the session.
    Tested = 40, "tested", "the session was left at random, for MADRIGAL_EAGER=random is set; it is earned again";
    /// A data-race detector watches this process.
    RaceDetector = 52, "race-detector", "the program runs under ThreadSanitizer, helgrind or drd, which would not see what orders its threads: it runs plain";
    /// It is the alias of a host, and there is no daemon.
    NoAlias = 38, "no-alias", "not connected: that address is the name of a host for the daemon, and none is up or it refused: `madrigal status`";
    // What the process cannot know; `madrigal why` finds it out by checking the other end.
    /// The other end runs without the library.
    PeerPlain = 41, "peer-not-wrapped", "the program at the other end is not under madrigal: start it with `madrigal exec`";
    /// The library cannot be loaded into the other end.
    PeerUnfit = 42, "peer-unfit", "the program at the other end cannot be wrapped: it is statically linked, or changes privileges, or is built for another C library";
    /// The other end has a reason of its own.
    PeerStays = 43, "peer-stays", "the other end stays with TCP";
    /// The process at the other end is not to be seen.
    PeerUnseen = 44, "peer-unseen", "no process can be seen that holds the other end: it may not be inspected, or is in a container";
    /// Nobody has accepted the connection.
    NotAccepted = 45, "not-accepted", "the program at the other end has not accepted the connection yet";
    /// Another host.
    OtherHost = 46, "other-host", "the other end is not on this host, or its address is translated in between";
    /// Another network namespace of this host.
    OtherNamespace = 47, "other-namespace", "the other end is in another network namespace of this host, such as a container's";
    /// The ends search for each other in different places.
    OtherDirectory = 48, "other-directory", "both programs are under madrigal and use different shared directories: set the same MADRIGAL_DIR";
    /// It came by exec.
    Inherited = 49, "inherited", "the program was started with this connection (across exec, as by inetd or sshd): who else holds it cannot be counted";
    /// Nothing was done with it yet.
    NotUsed = 50, "not-used-yet", "this process has not used the connection since the fork";
    /// It cannot be intercepted.
    RawCalls = 51, "raw-calls", "the program makes its system calls itself (Go), and cannot be seen";
    /// A process of the family holds it that is not counted any more.
    Uncounted = 53, "uncounted", "another process that had this socket, in a sandbox or started anew, may have it still: who holds it cannot be counted";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_codes_round_trip() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(Reason::from_code(*reason as u32), Some(*reason));
        }
        assert_eq!(Reason::from_code(0), None);
    }

    #[test]
    fn the_page_has_every_reason_and_no_other() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/why.md")).unwrap();
        let table = page.split_once("\n## Every reason\n").expect("its part of docs/why.md").1;
        let documented: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
        let rows: Vec<String> = Reason::ALL.iter().map(|r| format!("| `{}` | {} |", r.name(), r.text())).collect();
        for row in &rows {
            assert!(documented.contains(&row.as_str()), "docs/why.md, \"Every reason\", has no row\n{row}");
        }
        assert_eq!(documented.len(), rows.len(), "docs/why.md, \"Every reason\": rows that are no reason's");
    }
}
