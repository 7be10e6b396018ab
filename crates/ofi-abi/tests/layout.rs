//! Our structures against the headers that are installed: sizes and places of members, as the C compiler sees them.
//!
//! `LIBFABRIC_INCLUDE` names another folder of headers. Members that came with version 2 are only compared where there are any.

use std::io::Write as _;
use std::mem::offset_of;
use std::process::Command;

use madrigal_ofi_abi::{endpoint, info, object, queue};
use madrigal_tests::trials::{need, skip};

madrigal_tests::trials![structures_are_those_of_the_installed_headers];

/// A structure: its name in C, its size here, whether older versions have exactly that size; its members.
struct Layout {
    name: &'static str,
    size: usize,
    grows: bool,
    members: Vec<(&'static str, usize)>,
    /// Those not there before version 2.
    later: Vec<(&'static str, usize)>,
}

macro_rules! layout {
    ($of:ty, $name:literal $(, $member:ident $(= $c:literal)?)* $(; $($later:ident),*)?) => {{
        #[allow(unused_mut, unused_assignments)]
        let mut later: Vec<(&'static str, usize)> = Vec::new();
        $(later = vec![$((stringify!($later), offset_of!($of, $later))),*];)?
        Layout {
            name: $name,
            size: size_of::<$of>(),
            grows: !later.is_empty(),
            members: vec![$((layout!(@name $member $($c)?), offset_of!($of, $member))),*],
            later,
        }
    }};
    (@name $member:ident $c:literal) => { $c };
    (@name $member:ident) => { stringify!($member) };
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn descriptions() -> Vec<Layout> {
    use info::{DomainAttr, EpAttr, FabricAttr, Info, Provider, RxAttr, TxAttr};
    vec![
        layout!(
            Info,
            "fi_info",
            next,
            caps,
            mode,
            addr_format,
            src_addrlen,
            dest_addrlen,
            src_addr,
            dest_addr,
            handle,
            tx_attr,
            rx_attr,
            ep_attr,
            domain_attr,
            fabric_attr,
            nic
        ),
        layout!(
            TxAttr,
            "fi_tx_attr",
            caps,
            mode,
            op_flags,
            msg_order,
            comp_order,
            inject_size,
            size,
            iov_limit,
            rma_iov_limit,
            tclass
        ),
        layout!(
            RxAttr,
            "fi_rx_attr",
            caps,
            mode,
            op_flags,
            msg_order,
            comp_order,
            total_buffered_recv,
            size,
            iov_limit
        ),
        layout!(
            EpAttr,
            "fi_ep_attr",
            kind = "type",
            protocol,
            protocol_version,
            max_msg_size,
            msg_prefix_size,
            max_order_raw_size,
            max_order_war_size,
            max_order_waw_size,
            mem_tag_format,
            tx_ctx_cnt,
            rx_ctx_cnt,
            auth_key_size,
            auth_key
        ),
        layout!(DomainAttr, "fi_domain_attr", domain, name, threading, control_progress, data_progress, resource_mgmt, av_type,
            mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx,
            max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key, auth_key_size, max_err_data, mr_cnt,
            tclass; max_ep_auth_key, max_group_id, max_cntr_value, max_err_cntr_value),
        layout!(FabricAttr, "fi_fabric_attr", fabric, name, prov_name, prov_version, api_version),
        layout!(Provider, "fi_provider", version, fi_version, context, name, getinfo, fabric, cleanup),
    ]
}

fn objects() -> Vec<Layout> {
    use object::{Alias, AtomicAttr, AvFid, AvOps, DomainFid, DomainOps, FabricFid, FabricOps, Fid, MrFid, MrOps, Ops};
    vec![
        layout!(Fid, "fid", class = "fclass", context, ops),
        layout!(Ops, "fi_ops", size, close, bind, control, ops_open, tostr, ops_set),
        layout!(Alias, "fi_alias", fid, flags),
        layout!(FabricFid, "fid_fabric", fid, ops, api_version),
        layout!(FabricOps, "fi_ops_fabric", size, domain, passive_ep, eq_open, wait_open, trywait, domain2),
        layout!(DomainFid, "fid_domain", fid, ops, mr),
        layout!(
            DomainOps,
            "fi_ops_domain",
            size,
            av_open,
            cq_open,
            endpoint,
            scalable_ep,
            cntr_open,
            poll_open,
            stx_ctx,
            srx_ctx,
            query_atomic,
            query_collective,
            endpoint2
        ),
        layout!(AtomicAttr, "fi_atomic_attr", count, size),
        layout!(AvFid, "fid_av", fid, ops),
        layout!(AvOps, "fi_ops_av", size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set; insert_auth_key,
            lookup_auth_key, set_user_id),
        layout!(MrFid, "fid_mr", fid, mem_desc, key),
        layout!(MrOps, "fi_ops_mr", size, reg, regv, regattr),
    ]
}

fn queues() -> Vec<Layout> {
    use queue::{
        AvAttr, CntrAttr, CntrFid, CntrOps, CqAttr, CqEntry, CqFid, CqMsgEntry, CqOps, EqAttr, EqEntry, EqErrEntry,
        EqFid, EqOps, PollFid, PollOps,
    };
    vec![
        layout!(AvAttr, "fi_av_attr", kind = "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags),
        layout!(EqAttr, "fi_eq_attr", size, flags, wait_obj, signaling_vector, wait_set),
        layout!(CqAttr, "fi_cq_attr", size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set),
        layout!(CntrAttr, "fi_cntr_attr", events, wait_obj, wait_set, flags),
        layout!(EqFid, "fid_eq", fid, ops),
        layout!(EqOps, "fi_ops_eq", size, read, readerr, write, sread, strerror),
        layout!(EqEntry, "fi_eq_entry", fid, context, data),
        layout!(EqErrEntry, "fi_eq_err_entry", fid, context, data, err, prov_errno, err_data, err_data_size),
        layout!(CqFid, "fid_cq", fid, ops),
        layout!(CqOps, "fi_ops_cq", size, read, readfrom, readerr, sread, sreadfrom, signal, strerror),
        layout!(CqMsgEntry, "fi_cq_msg_entry", op_context, flags, len),
        layout!(CqEntry, "fi_cq_tagged_entry", op_context, flags, len, buf, data, tag),
        layout!(CntrFid, "fid_cntr", fid, ops),
        layout!(CntrOps, "fi_ops_cntr", size, read, readerr, add, set, wait, adderr, seterr),
        layout!(PollFid, "fid_poll", fid, ops),
        layout!(PollOps, "fi_ops_poll", size, poll, poll_add, poll_del),
    ]
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn endpoints() -> Vec<Layout> {
    use endpoint::{
        AtomicOps, CmOps, EpFid, EpOps, Ioc, Msg, MsgAtomic, MsgOps, MsgRma, MsgTagged, RmaIoc, RmaIov, RmaOps,
        TaggedOps,
    };
    vec![
        layout!(EpFid, "fid_ep", fid, ops, cm, msg, rma, tagged, atomic, collective),
        layout!(EpOps, "fi_ops_ep", size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left),
        layout!(CmOps, "fi_ops_cm", size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join),
        layout!(Msg, "fi_msg", msg_iov, desc, iov_count, addr, context, data),
        layout!(MsgOps, "fi_ops_msg", size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata),
        layout!(MsgTagged, "fi_msg_tagged", msg_iov, desc, iov_count, addr, tag, ignore, context, data),
        layout!(
            TaggedOps,
            "fi_ops_tagged",
            size,
            recv,
            recvv,
            recvmsg,
            send,
            sendv,
            sendmsg,
            inject,
            senddata,
            injectdata
        ),
        layout!(RmaIov, "fi_rma_iov", addr, len, key),
        layout!(MsgRma, "fi_msg_rma", msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data),
        layout!(
            RmaOps,
            "fi_ops_rma",
            size,
            read,
            readv,
            readmsg,
            write,
            writev,
            writemsg,
            inject,
            writedata,
            injectdata
        ),
        layout!(Ioc, "fi_ioc", addr, count),
        layout!(RmaIoc, "fi_rma_ioc", addr, count, key),
        layout!(
            MsgAtomic,
            "fi_msg_atomic",
            msg_iov,
            desc,
            iov_count,
            addr,
            rma_iov,
            rma_iov_count,
            datatype,
            op,
            context,
            data
        ),
        layout!(
            AtomicOps,
            "fi_ops_atomic",
            size,
            write,
            writev,
            writemsg,
            inject,
            readwrite,
            readwritev,
            readwritemsg,
            compwrite,
            compwritev,
            compwritemsg,
            writevalid,
            readwritevalid,
            compwritevalid
        ),
    ]
}

/// Structures that grew behind what we use of them: only their fronts are compared.
fn fronts() -> Vec<Layout> {
    let mut all = vec![
        layout!(object::MrAttr, "fi_mr_attr", mr_iov, iov_count, access, offset, requested_key, context),
        layout!(
            queue::CqErrEntry,
            "fi_cq_err_entry",
            entry = "op_context",
            olen,
            err,
            prov_errno,
            err_data,
            err_data_size
        ),
    ];
    all.iter_mut().for_each(|layout| layout.grows = true);
    all
}

const HEADERS: &str = "#include <stdio.h>\n#include <stddef.h>\n#include <sys/uio.h>\n#include <rdma/fabric.h>\n\
    #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_tagged.h>\n\
    #include <rdma/fi_rma.h>\n#include <rdma/fi_atomic.h>\n#include <rdma/fi_cm.h>\n#include <rdma/providers/fi_prov.h>\n";

/// A C program that says what is not as we think.
fn program(layouts: &[Layout]) -> String {
    let mut text = format!("{HEADERS}int main(void) {{ int bad = 0;\n");
    text += "#define IS(what, value) if ((what) != (value)) { bad = 1; printf(#what \": %zu, not %zu\\n\", (size_t)(what), (size_t)(value)); }\n";
    text += "#define IN(what, value) if ((what) < (value)) { bad = 1; printf(#what \": %zu < %zu\\n\", (size_t)(what), (size_t)(value)); }\n";
    for Layout { name, size, grows, members, later } in layouts {
        match (grows, later.is_empty()) {
            (false, _) => text += &format!("IS(sizeof(struct {name}), {size})\n"),
            (true, true) => text += &format!("IN(sizeof(struct {name}), {size})\n"),
            (true, false) => text += &format!("#if FI_MAJOR_VERSION >= 2\nIN(sizeof(struct {name}), {size})\n#endif\n"),
        }
        for (member, at) in members {
            text += &format!("IS(offsetof(struct {name}, {member}), {at})\n");
        }
        text += "#if FI_MAJOR_VERSION >= 2\n";
        for (member, at) in later {
            text += &format!("IS(offsetof(struct {name}, {member}), {at})\n");
        }
        text += "#endif\n";
    }
    text + "return bad; }\n"
}

/// Compiles C into `to`; what the compiler said if it failed.
fn compile(source: &str, to: &std::path::Path) -> Result<(), String> {
    let mut cc = Command::new("cc");
    if let Some(folder) = std::env::var_os("LIBFABRIC_INCLUDE") {
        cc.arg("-I").arg(folder);
    }
    let cc = cc.args(["-w", "-x", "c", "-", "-o"]).arg(to).stdin(std::process::Stdio::piped());
    let mut child = cc.stderr(std::process::Stdio::piped()).spawn().expect("the compiler starts");
    child.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("it reads");
    let out = child.wait_with_output().expect("it ends");
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

fn structures_are_those_of_the_installed_headers() {
    let to = std::env::temp_dir().join(format!("madrigal-layout-{}", std::process::id()));
    need("cc");
    if compile(&format!("{HEADERS}int main(void) {{ return 0; }}"), &to).is_err() {
        skip("no headers of libfabric");
    }
    let layouts: Vec<_> = [descriptions(), objects(), queues(), endpoints(), fronts()].into_iter().flatten().collect();
    assert!(layouts.len() > 45);
    compile(&program(&layouts), &to).expect("our names of structures and members are libfabric's");
    let out = Command::new(&to).output().expect("the program runs");
    let _ = std::fs::remove_file(&to);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
