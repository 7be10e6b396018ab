"""The faults. Each text must be found exactly once in its file: where the code changes, the fault is chosen anew.

Quick tests come first. A model says in its third word how much of it is run: percent of the usual number of interleavings.
"""

from __future__ import annotations

from bed.tree import Mutant

SYSWRAP = "personalities/syswrap/src/"
SESSION = SYSWRAP + "state/session/"
RINGS = "crates/shm-ring/src/"
SHM = "crates/drivers/src/shm/"

MUTANTS = [
    # --- doorbells and sleep ------------------------------------------------------------------------------------------------------
    Mutant(
        "bell-never-rung", SESSION + "bells.rs",
        "        if let Err(e) = bell(self.wire) {",
        "        let _ = bell;\n        if let Err(e) = Ok::<(), Errno>(()) {",
        "a doorbell is counted and never sent: whoever sleeps is not woken",
        ("model madrigal-syswrap both_streams_arrive_whole 5", "semantics threads::duplex_ping_pong default"),
    ),
    Mutant(
        "bell-sometimes-lost", SESSION + "bells.rs",
        "        self.out.w.bells.fetch_add(1, Ordering::SeqCst);\n        if let Err(e)",
        "        if self.wire.now() >> 12 & 7 == 0 {\n            return;\n        }\n"
        "        self.out.w.bells.fetch_add(1, Ordering::SeqCst);\n        if let Err(e)",
        "one doorbell of eight is neither counted nor sent",
        ("model madrigal-syswrap both_streams_arrive_whole 10", "semantics threads::duplex_ping_pong default",
         "semantics edges::edge_after_drain default"),
    ),
    Mutant(
        "discard-leaves-unarmed", SESSION + "bells.rs",
        "                if self.others_may_sleep() {",
        "                if false {",
        "who takes a doorbell out does not arm again: another thread asleep on the socket is never woken",
        ("semantics sleepers::another_takes_what_woke_it default", "semantics threads::many_readers default"),
    ),
    Mutant(
        "last-never-asked-for", SESSION + "bells.rs",
        "            self.inn.wake.last.store(1, Ordering::SeqCst);\n",
        "            self.call_off_last();\n",
        "a thread that sleeps in a receive sleeps on through a seal of its own side, until a byte of the program's comes",
        ("model madrigal-syswrap who_sleeps_through_a_seal 20",
         "semantics urgent::receive_that_waits_beside_another_sender_passes_over_it default"),
    ),
    Mutant(
        "set-leaves-unarmed", SYSWRAP + "io/epoll/wait.rs",
        "        if shared {\n            let _ = View::<Socket<'_>>::CONSUMER.arm(v.inn);",
        "        if false {\n            let _ = View::<Socket<'_>>::CONSUMER.arm(v.inn);",
        "a thread that hears of a doorbell through its event set does not arm again: others asleep on the socket are never woken",
        ("semantics sleepers::another_on_the_set_has_gone default", "semantics sleepers::workers_asleep_as_all_move default"),
    ),
    Mutant(
        "key-shown-after-sleep", SYSWRAP + "io/epoll/wait.rs",
        "    if got <= 0 || !sets::has_keys() && set.registry.may_report_gone.load(Ordering::Relaxed) == 0 {\n        return Some(got);",
        "    if got <= i32::MAX {\n        return Some(got);",
        "a thread that fell asleep before a registration became ours is told our key instead of its own data",
        ("semantics sleepers::set_asleep_as_it_moves default", "semantics sleepers::set_asleep_as_it_moves first"),
    ),
    Mutant(
        "mark-passed-over", SYSWRAP + "io/recv.rs",
        "        let most = if op.done() > 0 { before_mark(op.fd())? } else { usize::MAX };",
        "        let most = usize::MAX;",
        "a receive that has got a part takes what comes behind an urgent mark, too",
        # Each finds it more often than not.
        ("semantics urgent::receive_that_waits_ends_at_a_mark_at_any_time default",
         "semantics urgent::receive_that_waits_ends_at_a_mark_at_any_time first",
         "semantics urgent::receive_that_waits_ends_at_a_mark_at_any_time random"),
    ),
    Mutant(
        "kernel-send-beside-a-switch", SYSWRAP + "io/send/behind.rs",
        "        moved = s.session.sends();",
        "        moved = false;",
        "a sendfile that found the connection not moved yet sends by the kernel behind the switch: its bytes are taken for doorbells",
        ("semantics files::sendfile_beside_a_sender default", "semantics files::sendfile_beside_a_sender random"),
    ),
    Mutant(
        "slot-of-a-family-dropped", SYSWRAP + "state/teardown.rs",
        "        () => s.pending_release.set(place),",
        "        () => lease.end_session(place.slot, place.side == 0),",
        "a session that ends while a child has it, too, is forgotten: nobody ever leaves its slot",
        ("semantics processes::slots_come_back_after_forks default",),
    ),
    # --- who may use what ---------------------------------------------------------------------------------------------------------
    Mutant(
        "claim-by-any-number", RINGS + "slot.rs",
        "self.session.load(Ordering::Acquire) == lent.session.get() && self.step(lent, stage::OFFERED, stage::ATTACHING)",
        "self.step(lent, stage::OFFERED, stage::ATTACHING)",
        "who takes a slot does not compare the session's number: a stale offer is believed",
        ("unit madrigal-shm-ring slot::tests",),
    ),
    Mutant(
        "leave-by-any-number", RINGS + "slot.rs",
        "            && seen & own == 0\n            && self.session.load(Ordering::Relaxed) == lent.session.get();",
        "            && seen & own == 0;",
        "who leaves a slot does not compare the session's number: another session's slot and blocks are given away",
        ("unit madrigal-shm-ring slot::tests",),
    ),
    Mutant(
        "switch-without-echo", SESSION + "switch.rs",
        "let understood = self.out.r.ready.load(Ordering::Acquire) == self.number();",
        "let understood = true;",
        "the writer does not wait for the number that its reader echoes: a reader that knows no doorbells is told by them",
        ("model madrigal-syswrap unread_bytes_go_back 100", "semantics sleepers::reader_asleep_as_it_moves first",
         "semantics sleepers::reader_asleep_as_it_moves default"),
    ),
    Mutant(
        "grow-into-any-block", SESSION + "source.rs",
        "if self.know_block(word) { Ok(span) }",
        "if self.know_block(word) || true { Ok(span) }",
        "a reader follows its writer into a block that is lent to another session",
        ("test madrigal-tests hostile a_block_that_was_not_lent",),
    ),
    Mutant(
        "room-that-is-not-free", RINGS + "ring.rs",
        "let fits = used + left <= limit",
        "let fits = left <= limit",
        "a send by the short way writes over what is not read yet",
        ("model madrigal-syswrap both_streams_arrive_whole 100",),
    ),
    Mutant(
        "ring-left-behind-a-seal", SYSWRAP + "state/session/put.rs",
        "        if self.s.producer.is_sealed(self.out) {\n            return Err(Trouble::Sealed);\n        }\n        let Some(block)",
        "        let Some(block)",
        "a sender leaves its ring to another session while the reader hands the ring's bytes back",
        ("model madrigal-syswrap a_ring_that_was_left 100",),
    ),
    Mutant(
        "number-free-before-its-close", SYSWRAP + "state/number.rs",
        ".then_some(closing_by);",
        ".then_some(closing_by & 0);",
        "a call that begins while another thread closes its descriptor goes past every hook",
        ("model madrigal-syswrap no_call_finds_what_is_ours 100",),
    ),
    Mutant(
        "block-lent-twice", RINGS + "units.rs",
        "match word.compare_exchange(seen, seen | mask, Ordering::AcqRel, Ordering::Relaxed) {",
        "match { word.store(word.load(Ordering::Relaxed) | mask, Ordering::Release); Ok::<u64, u64>(seen) } {",
        "two sides that borrow a block in the same moment get the same one",
        ("model madrigal-shm-ring two_sides_never_share_a_unit 100",),
    ),
    Mutant(
        "slot-handed-out-early", RINGS + "slot.rs",
        "let over = seen & BOTH == BOTH ||",
        "let over = seen & BOTH != 0 ||",
        "a slot is given out again while one side still reads and writes it",
        ("unit madrigal-shm-ring a_slot_is_free_when_both_sides_have_left", "model madrigal-shm-ring a_slot_and_a_block_have_one_owner 100"),
    ),
    Mutant(
        "only-ignored-by-acceptor", SYSWRAP + "lifecycle/earn.rs",
        "    if !process::port_wanted(s.tuple.port()) {\n        return s.set_never(Reason::PortOff);",
        "    if false {\n        return s.set_never(Reason::PortOff);",
        "a server's --only keeps none of its connections with TCP",
        ("test madrigal-tests ports the_accepting_side_keeps_to_only",),
    ),
    Mutant(
        "directory-of-another-user", "crates/offers/src/directory.rs",
        "if private && own { Ok(()) }",
        "if private { Ok(()) }",
        "processes meet in a directory that belongs to somebody else",
        ("test madrigal-tests directory a_directory_of_another_user",),
    ),
    Mutant(
        "revocation-ignored", "crates/identity/src/verify.rs",
        "        self.judge_revoked(&chain)?;\n",
        "",
        "a certificate that was taken back is let in",
        ("test madrigal-identity handshake taken_back", "test madrigal-cli lab a_host_of_a_lab_is_shut_out_by_its_ca"),
    ),
    Mutant(
        "reach-ignored", "crates/selector/src/lib.rs",
        "        Reach::Host if !pair.same_host => return Err(Reason::OtherHost),\n",
        "",
        "shared memory is chosen between two hosts",
        ("unit madrigal-selector the_table",),
    ),
    # --- the ring -----------------------------------------------------------------------------------------------------------------
    Mutant(
        "space-not-counted", RINGS + "ring.rs",
        "Ok(Span::new(base, size, tail, size - used))",
        "Ok(Span::new(base, size, tail, size))",
        "a writer takes the whole ring for free, and writes over what is not read yet",
        ("unit madrigal-shm-ring ring::tests", "semantics bulk::by_tiny_writes default"),
    ),
    Mutant(
        "quiet-though-stirred", SESSION + "bells.rs",
        "            && !Self::CONSUMER.stirred(self.inn)\n            && self.inn.w.fate",
        "            && self.inn.w.fate",
        "an event set passes over a connection in whose ring something has come",
        ("semantics sets::level_stays default", "semantics sets::added_when_readable default"),
    ),
    Mutant(
        "published-before-copied", SESSION + "put.rs",
        """            let n = match copy(&span, done) {
                Ok(n) if n > 0 => n,
                Ok(_) => break,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            self.publish_sum(&span, n);
            self.publish_progress();
            match if more { self.hold(&span, n) } else { self.publish(&span, n) } {""",
        """            let early = if more { self.hold(&span, span.len()) } else { self.publish(&span, span.len()) };
            let n = match copy(&span, done) {
                Ok(n) if n > 0 => n,
                Ok(_) => break,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            self.publish_sum(&span, n);
            match early {""",
        "bytes are published before they are in the ring: a reader in between gets old ones",
        ("model madrigal-syswrap both_streams_arrive_whole 5",),
    ),
    Mutant(
        "seal-ignored", RINGS + "ring.rs",
        "            Err(seen) if seen & SEALED != 0 => Err(Trouble::Sealed),\n",
        "            Err(seen) if seen & SEALED != 0 => {\n                dir.w.tail.store(new | SEALED, Ordering::SeqCst);\n"
        "                self.tail.store(new, Ordering::Relaxed);\n                Ok(())\n            }\n",
        "a writer adds bytes behind the seal, where its reader does not look for them any more",
        ("unit madrigal-shm-ring ring::tests", "model madrigal-shm-ring a_seal_cuts_at_one_place 100"),
    ),
    Mutant(
        "taken-back-twice", RINGS + "ring.rs",
        "_ if dir.r.head.compare_exchange(head, tail, Ordering::SeqCst, Ordering::Relaxed).is_ok() => {",
        "_ if dir.r.head.load(Ordering::SeqCst) == head => {",
        "bytes that go back to the kernel stay in the ring, too: their reader gets them twice",
        ("semantics close::half_close_with_ring_full default", "model madrigal-syswrap whoever_leaves_at_any_time 5"),
    ),
    Mutant(
        "sums-not-compared", SESSION + "sums.rs",
        "            if sum != (piece >> 32) as u32 {",
        "            if false {",
        "MADRIGAL_CHECK keeps sums and compares none",
        ("test madrigal-tests hostile a_changed_byte",),
    ),
    # --- the switch, and the way back ---------------------------------------------------------------------------------------------
    Mutant(
        "cork-unheard", SESSION + "leave.rs",
        "                self.wire.cork();",
        "                let _ = W::cork;",
        "the kernel does not hear that the program has corked the socket, when it carries again what that sends",
        ("model madrigal-syswrap the_kernel_hears_of_a_cork 20",),
    ),
    Mutant(
        "options-of-others", SYSWRAP + "lifecycle/earn.rs",
        "    if s.has(flag::OPTIONS_UNKNOWN) {",
        "    if false {",
        "what another process has set on a connection is not asked for before it moves",
        ("semantics options::time_out_set_by_a_child default",),
    ),
    Mutant(
        "urgent-end-of-one", SESSION + "urgent.rs",
        "        self.out.wake.urgent_end.store(self.wire.given().unwrap_or(0), Ordering::SeqCst);",
        "        let _ = self.wire.given();",
        "nobody knows where the last urgent byte was sent that is to be dropped",
        ("semantics urgent::urgent_byte_behind_one_of_another_process default",),
    ),
    Mutant(
        "kernel-bytes-off-by-one", SESSION + "switch.rs",
        "self.out.w.n_kernel.store(position, Ordering::Relaxed);",
        "self.out.w.n_kernel.store(position + 1, Ordering::Relaxed);",
        "one byte too many is said to be in the kernel: a doorbell is read for a byte of the program's",
        ("model madrigal-syswrap both_streams_arrive_whole 5", "semantics threads::duplex_ping_pong first"),
    ),
    Mutant(
        "bells-left-in-queue", SESSION + "bells.rs",
        "                Left::Bells(left) => self.discard(left),",
        "                Left::Bells(_) => return true,",
        "at the end of a session doorbells stay in the kernel's queue, and are read for bytes of the program's",
        ("churn default half", "model madrigal-syswrap whoever_leaves_at_any_time 5"),
    ),
    Mutant(
        "gate-not-closed", SESSION + "handback.rs",
        "self.inn.wake.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);",
        "self.inn.wake.gate.fetch_or(0, Ordering::SeqCst);",
        "while unread bytes are put back into the kernel's queue their sender sends on: the order of the stream is lost",
        ("model madrigal-syswrap unread_bytes_go_back 20",),
    ),
    Mutant(
        "fin-not-looked-for", SESSION + "handback.rs",
        "if self.inn.w.shut.load(Ordering::SeqCst) != 0 || peer.is_mute() {",
        "if false {",
        "unread bytes are put back behind a FIN, which nobody can: the connection is reset",
        ("model madrigal-syswrap a_half_close_beside_a_hand_back 100", "semantics rest::half_closed_at_any_time_beside_a_file default"),
    ),
    Mutant(
        "others-not-looked-for", SESSION + "handback.rs",
        "            if others == 0 || own == 0 {",
        "            if others < usize::MAX {",
        "what a FILE of the peer's sends while bytes are put back comes in front of them",
        ("model madrigal-syswrap what_knows_no_gate 100",),
    ),
    Mutant(
        "doorbells-before-a-fin", SESSION + "unmix.rs",
        "        if !self.may_be_mixed() {\n            return;",
        "        if self.wire.now() > 0 {\n            return;",
        "doorbells stay between unread bytes when the stream ends: who knows no rings would read them, and finds a reset",
        ("model madrigal-syswrap no_doorbell_lies_before 100",),
    ),
    Mutant(
        "reader-beside-unmix", SESSION + "unmix.rs",
        "(self.inn.w.taking.load(Ordering::SeqCst) != taking::ALL).then_some(before)",
        "Some(before)",
        "a reader counts and takes bytes of the kernel's while the writer takes them out to send them again",
        ("model madrigal-syswrap a_half_close_beside_a_hand_back 100", "model madrigal-syswrap what_knows_no_gate 100"),
    ),
    Mutant(
        "fork-keeps-sessions", SYSWRAP + "lifecycle/fork.rs",
        "        leave(&s, fd, Reason::Forked, Back::IfPossible);\n",
        "        let _ = (&s, fd, leave as fn(&_, _, _, _), Reason::Forked, Back::IfPossible);\n",
        "parent and child of a fork both use one session, each with a memory of its own of it",
        ("semantics processes::fork_both_write default", "semantics processes::fork_with_unread_bytes default",
         "semantics processes::fork_child_reads_parent_writes default"),
    ),
    Mutant(
        "passed-on-counts-as-sole", SYSWRAP + "state/holders.rs",
        "        counter.fetch_or(LOST, Ordering::AcqRel);\n",
        "        let _ = (counter, LOST);\n",
        "a socket that another process got by SCM_RIGHTS counts as this one's alone, and moves",
        ("unit madrigal-syswrap holders::tests", "semantics passing::passed_and_kept default"),
    ),
    # --- what a program sees ------------------------------------------------------------------------------------------------------
    Mutant(
        "reset-shown-as-end", SESSION + "gone.rs",
        "            fate::RESET => true,",
        "            fate::RESET => false,",
        "a peer's reset looks like the end of its stream",
        ("semantics close::linger_zero_resets default", "fuzz 20 3 default,eager-first"),
    ),
    Mutant(
        "end-shown-as-reset", SESSION + "gone.rs",
        "            _ => self.inn.w.resets.load(Ordering::Acquire) != 0 || self.refuses_bytes() && self.wire.peer_lives(),",
        "            _ => true,",
        "a peer that is killed with doorbells in its queue, and nothing else, seems to have reset the connection",
        ("semantics killed::peer_killed_behind_a_doorbell default", "semantics gone::killed_behind_doorbells default", "test madrigal-tests kill a_sender_killed_after_it_moved"),
    ),
    Mutant(
        "looked-error-lost", SESSION + "source.rs",
        "                    (Err(e), _) => _ = self.refused(e),",
        "                    (Err(_), _) => {}",
        "an error that the kernel tells a look behind a sealed ring is told to nobody",
        ("semantics killed::peeked_behind_a_seal default",),
    ),
    Mutant(
        "sealed-sleep-without-urgent", SYSWRAP + "io/recv/sleep.rs",
        "    if in_ring && !sealed || op.is_peek() {",
        "    if in_ring || op.is_peek() {",
        "a receive that sleeps behind a seal is not woken by an urgent byte",
        ("semantics urgent::receive_that_waits_ends_beside_a_slow_sender default",),
    ),
    Mutant(
        "end-behind-a-doorbell", SHM + "early.rs",
        "            Err(Errno::AGAIN) => return false,\n            Ok(_) | Err(Errno::INTR) => {}",
        "            Ok(_) | Err(Errno::AGAIN) => return false,\n            Err(Errno::INTR) => {}",
        "the end of a link is not seen that came together with a doorbell",
        ("unit madrigal-drivers an_end_behind_a_doorbell",),
    ),
    Mutant(
        "closed-before-accept-withdrawn", SHM + "link.rs",
        "        if self.is_gone() { early.end() } else { early::keep(early) }",
        "        early.end();\n        let _ = early::keep;",
        "a link that is closed before it was accepted vanishes with what was written",
        ("test madrigal-testkit drivers what_is_written_and_closed_before_accept_is_read",),
    ),
    Mutant(
        "unread-close-not-told", SESSION + "leave.rs",
        "        if resets || self.leaves_unread() {",
        "        if resets {",
        "a close that leaves bytes unread looks like a plain end of the stream",
        ("semantics close::close_with_unread_resets default",),
    ),
    Mutant(
        "linger-zero-not-told", SYSWRAP + "lifecycle/earn.rs",
        "let resets = u32::from(s.has(flag::LINGER0));",
        "let resets = u32::from(false && s.has(flag::LINGER0));",
        "a process with SO_LINGER 0 that is killed seems to have ended its streams",
        ("semantics killed::peer_killed_that_resets default",),
    ),
    Mutant(
        "peek-consumes", SYSWRAP + "io/recv.rs",
        "                () if op.is_peek() => peek::peek(&v, op),\n",
        "                () if op.is_peek() && v.s.rx() != phase::RING => peek::peek(&v, op),\n",
        "MSG_PEEK takes the bytes it looks at",
        ("semantics receive::peek_leaves_bytes default",),
    ),
    Mutant(
        "fionread-without-ring", SESSION + "source.rs",
        "phase::RING if !self.is_sealed_in() => ring(),",
        "phase::RING if !self.is_sealed_in() => 0 * ring(),",
        "FIONREAD says 0 while the ring holds bytes",
        ("semantics receive::fionread_counts default",),
    ),
    Mutant(
        "receive-timeout-ignored", SYSWRAP + "io/progress.rs",
        "self.deadline.set(if s.has(limited)",
        "self.deadline.set(if !receiving && s.has(limited)",
        "SO_RCVTIMEO ends no receive",
        ("semantics receive::receive_timeout default",),
    ),
    Mutant(
        "one-shot-forgotten", SYSWRAP + "state/member.rs",
        "        one_shot && !self.has(bit::OURS | bit::SPENT)",
        "        false && one_shot && !self.has(bit::OURS | bit::SPENT)",
        "a one-shot registration that the kernel has fired counts as armed when the connection moves",
        ("semantics edges::oneshot_fired_before_the_ring default", "semantics edges::oneshot_fired_before_the_ring first"),
    ),
    Mutant(
        "spent-not-set", SYSWRAP + "state/member/edge.rs",
        "        if wanted & EPOLLONESHOT as u32 != 0 {",
        "        if false && wanted & EPOLLONESHOT as u32 != 0 {",
        "a one-shot registration fires again and again",
        ("semantics edges::oneshot_once default", "semantics edges::oneshot_once first"),
    ),
    Mutant(
        "edge-told-twice", SYSWRAP + "state/member/edge.rs",
        "        was_in >> part != into >> part || edge_out\n",
        "        was_in >> part <= u64::MAX || edge_out\n",
        "an edge is told as often as it is asked for",
        ("semantics edges::edge_once_per_arrival default", "semantics edges::edge_once_per_arrival first"),
    ),
    # --- what waits -----------------------------------------------------------------------------------------------------------
    Mutant(
        "poll-sleeps-through-a-kill", SYSWRAP + "io/poll/mod.rs",
        "    let killed = if end_is_new { POLLRDHUP } else { 0 };",
        "    let killed = if end_is_new { 0 } else { 0 };",
        "whoever polls for nothing is not woken by the end of a killed peer",
        ("semantics killed::wakes_who_polls_for_nothing default",),
    ),
    Mutant(
        "given-up-arena-offered", SYSWRAP + "lifecycle/earn.rs",
        "            lease.inspect(|lease| lease.unmapped_by(bound));\n",
        "            let _ = lease;\n",
        "slots are offered in an arena that the server has given up: the connection never moves",
        ("semantics processes::many_clients_come_back default",),
    ),
    Mutant(
        "lent-without-a-mark", SYSWRAP + "state/registration/lent.rs",
        "&& s.holds_unread() && !s.is_gone() { MARK }",
        "&& s.holds_unread() && !s.is_gone() { 0 }",
        "the kernel tells parent and child nothing of what is unread in a ring over a fork",
        ("semantics families::data_changed_by_the_parent default", "semantics families::read_by_the_child first"),
    ),
    # --- signal handlers ----------------------------------------------------------------------------------------------------
    Mutant(
        "handlers-do-not-wait", "crates/sys/src/critical.rs",
        "        if thread.depth.load(Relaxed) == 0 {\n            return false;",
        "        if thread.depth.load(Relaxed) < u32::MAX {\n            return false;",
        "a handler runs in the middle of a hook's logic",
        ("semantics any_instruction::waits default", "semantics any_instruction::forks default"),
    ),
    Mutant(
        "second-signal-runs", "crates/sys/src/critical.rs",
        "        let is_first = !thread.keeps.swap(true, Relaxed);\n",
        "        if thread.keeps.swap(true, Relaxed) {\n            return false;\n        }\n        let is_first = true;\n",
        "of two signals that come at once one's handler runs in the middle of a hook's logic, and stays blocked for ever",
        ("unit madrigal-sys critical",),
    ),
    Mutant(
        "kept-signal-in-a-child", "crates/sys/src/critical.rs",
        "        if thread.keeps.swap(false, Relaxed) {",
        "        if thread.depth.load(Relaxed) == u32::MAX {",
        "a signal that came in the parent is sent to the child of a fork, too",
        ("semantics any_instruction::forks default",),
    ),
    # --- registrations --------------------------------------------------------------------------------------------------------
    Mutant(
        "left-behind-hangs-up", "personalities/syswrap/src/lifecycle/close.rs",
        "        registration::leave_behind(s);\n",
        "",
        "a peer's end is told as a hang-up by a set, once this process has closed a socket that its child has",
        ("semantics gone::killed_then_closed_beside_a_child default",),
    ),
    Mutant(
        "ask-not-listed", SYSWRAP + "state/registration/control.rs",
        "    member.ask(event);\n    set.activate_locked(s.id(m), member);\n",
        "    let _ = (set, s, m);\n    member.ask(event);\n",
        "what the program asks of a registration of ours is not looked at: a byte that is there is never told",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "restored-otherwise", SYSWRAP + "state/registration/give_back.rs",
        "member.events.load(Ordering::Relaxed), member.data.load(Ordering::Relaxed));\n"
        "}",
        "libc::EPOLLIN as u32, member.data.load(Ordering::Relaxed));\n"
        "}",
        "a registration is given back with other events than the program asks for",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "spent-given-back", SYSWRAP + "state/registration/give_back.rs",
        "    if member.has(bit::SPENT) {\n"
        "        // An entry",
        "    if false {\n"
        "        // An entry",
        "a one-shot registration that was told of is armed again as its session ends",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "detached-given-back", SYSWRAP + "state/registration/entry.rs",
        "    if member.has(bit::DETACHED) {\n"
        "        take_out",
        "    if false {\n"
        "        take_out",
        "what the program has taken out of its set is there again as its session ends",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "forgotten-and-listed", SYSWRAP + "state/registration/entry.rs",
        "    set.deactivate(member);\n"
        "    member.clear();",
        "    member.clear();",
        "a member that leaves its set stays on the list of those that may have something to tell",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "left-and-looked-at", SYSWRAP + "state/registration/scan.rs",
        """    let enough = out.len() >= set.registry().length.load(Ordering::Relaxed) as usize;
    for (id, s, member) in set.active() {
        if !member.is_in(set.index()) || !member.is_live() {
            set.deactivate(member);
            continue;
        }
""",
        """    let enough = out.len() >= set.registry().length.load(Ordering::Relaxed) as usize;
    for (id, s, member) in set.active() {
""",
        "an event set looks at what has left it, or is not there yet",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "sleepers-not-stirred", SYSWRAP + "state/registration.rs",
        "    // SYNC: SeqCst with `epoll::sleep`: a sleeper counts itself and then scans the list.\n"
        "    if set.registry().sleepers.load(Ordering::SeqCst) > 0\n",
        "    if false\n",
        "what is asked for while another thread sleeps on the set is not told to it",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "quiet-for-ever", SYSWRAP + "state/registration.rs",
        "    member.set_bit(bit::IDLE_IN | bit::IDLE_OUT | bit::WOKEN, false);\n"
        "    // Under",
        "    // Under",
        "the kernel is not asked again of what it has told something new of",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "rests-unarmed", SYSWRAP + "state/registration/scan.rs",
        "&& s.may_rest(member) {",
        "{",
        "a member leaves a long list though nobody will tell of its next byte",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    Mutant(
        "stays-told-once", SYSWRAP + "state/registration/scan.rs",
        "        found.stays |= again;\n",
        "        let _ = again;\n",
        "who is told of what stays ready and does not see to it is the only one told: others sleep on",
        ("semantics sleepers::another_sees_to_nothing default", "model madrigal-syswrap registrations_change_hands 300"),
    ),
    Mutant(
        "added-to-a-closed-set", SYSWRAP + "state/registration/control.rs",
        "    if set.is_closed() {",
        "    if false {",
        "what is added to a set while another thread closes that stays its member for ever",
        ("model madrigal-syswrap registrations_change_hands 100",),
    ),
    # --- several streams as one link, and compression -----------------------------------------------------------------------------
    Mutant(
        "lost-pieces", "crates/adapters/src/stripe/sender.rs",
        "            out.pieces().iter().filter(|piece| !piece.again).for_each(|piece| self.again.insert(piece.from, piece.to));\n",
        "            let _ = out;\n",
        "what a stream that broke had not brought is not sent again",
        ("unit madrigal-adapters stripe::tests",),
    ),
    Mutant(
        "doubles-overwrite", "crates/adapters/src/stripe/receiver.rs",
        "while let Some((first, last)) = self.came.missing(at, to) {",
        "while let Some((first, last)) = Some((at, to)).filter(|_| at < to) {",
        "bytes that came already are written over by those that come again",
        ("unit madrigal-adapters stripe::tests",),
    ),
    Mutant(
        "sleep-by-number", "personalities/syswrap/src/io/file_wait.rs",
        "    if !real::may_have_threads() || process::is_plain() {",
        "    if fd >= 0 || process::is_plain() {",
        "a call that sleeps for a time sleeps on, for good, where its number is another file's meanwhile",
        ("semantics overtaken::reader_for_a_time_of_a_number_used_again default",),
    ),
    Mutant(
        "own-end-taken-for-the-peers", "personalities/syswrap/src/state/session/gone.rs",
        "        if self.has_ended_itself() {\n            // The peer's own end",
        "        if false {\n            // The peer's own end",
        "behind a shutdown that woke a reader nobody is told of the peer's reset",
        ("semantics overtaken::reader_of_a_shut_direction default",),
    ),
    Mutant(
        "set-asked-for-room", "personalities/syswrap/src/io/poll/rings.rs",
        "fn asks_set(p: &pollfd) -> bool {\n    p.events & READABLE != 0\n",
        "fn asks_set(p: &pollfd) -> bool {\n    p.events != 0\n",
        "poll(2) on an event set for what it never has turns on the spot while the set has anything to tell",
        ("semantics nested::polled_for_room default",),
    ),
    Mutant(
        "kernel-bytes-read-forgotten", "personalities/syswrap/src/state/session/urgent.rs",
        "let is_read = drained && (head > 0 || taken >= given);",
        "let is_read = drained && (head > 0 || given == 0 && taken >= given);",
        "a doorbell in front of an urgent byte makes an ordinary one of it, where the ring has carried nothing yet",
        ("semantics urgent::urgent_byte_behind_another_early default",),
    ),
    # Loss-tolerant messages.
    Mutant(
        "tolerance-of-all-ignored", "crates/adapters/src/vrp/budget.rs",
        "        if self.spans.len() >= MOST_SPANS || !self.fits(self.lost + (to - from), sent) {",
        "        if self.spans.len() >= MOST_SPANS {",
        "of a short stream everything may be lost",
        ("unit madrigal-adapters vrp::budget", "unit madrigal-adapters vrp::simulation"),
    ),
    Mutant(
        "want-not-asked-again", "crates/adapters/src/vrp/receiver.rs",
        "                    self.gaps.ask(now, Gap { class, from: first, to: last });\n",
        "",
        "what was asked for and lost once more never comes",
        ("unit madrigal-adapters vrp::simulation",),
    ),
    Mutant(
        "stall-moves-nothing", "crates/adapters/src/stripe/sender.rs",
        "                piece.again = true;\n                self.again.insert(piece.from, piece.to);\n",
        "                piece.again = true;\n",
        "what a stream has that falls silent waits until it speaks again",
        ("unit madrigal-adapters speed::what_is_short",),
    ),
    Mutant(
        "block-of-any-length", "crates/adapters/src/adoc/codec.rs",
        "if count == block.len() { Ok(()) }",
        "if count <= block.len() { Ok(()) }",
        "a block may be shorter than it says",
        ("unit madrigal-adapters adoc::codec",),
    ),
    # --- handles of the library for C -------------------------------------------------------------------------------------------------
    Mutant(
        "handle-age-not-compared", "personalities/capi/src/table.rs",
        "        if place.handle.load(Ordering::SeqCst) != handle {\n            return None;",
        "        if kind_of(place.handle.load(Ordering::SeqCst)) != kind_of(handle) {\n            return None;",
        "a handle that was closed finds what is in its place now",
        ("unit madrigal-capi table::tests", "model madrigal-capi table 25"),
    ),
    Mutant(
        "handle-freed-in-use", "personalities/capi/src/table.rs",
        "        if !place.nobody_is_inside() {",
        "        if false {",
        "an object is dropped by who closes it though another thread is using it",
        ("model madrigal-capi table 25", "unit madrigal-capi an_object_stays_while_somebody_is_inside"),
    ),
    Mutant(
        "handle-freed-twice", "personalities/capi/src/table.rs",
        "        if place.closed.compare_exchange(handle, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {\n            return true;",
        "        if place.closed.swap(0, Ordering::SeqCst) == 1 {\n            return true;",
        "two threads that find a closed handle both free its place: two objects get one place",
        ("model madrigal-capi table 100",),
    ),
    Mutant(
        "handle-forgotten", "personalities/capi/src/table.rs",
        "        if closed != 0 {\n            self.reap(place, closed);",
        "        if false {\n            self.reap(place, closed);",
        "who comes last out of a place that was closed leaves its object behind",
        ("unit madrigal-capi table::tests", "model madrigal-capi table 25"),
    ),
]
