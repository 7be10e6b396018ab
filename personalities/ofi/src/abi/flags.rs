//! Capabilities, flags and enumerations.
#![allow(missing_docs)]

/// Capabilities, and flags of operations and completions.
pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const TAGGED: u64 = 1 << 3;
pub(crate) const ATOMIC: u64 = 1 << 4;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const MULTI_RECV: u64 = 1 << 16;
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const PEEK: u64 = 1 << 19;
pub(crate) const FENCE: u64 = 1 << 21;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const RMA_PMEM: u64 = 1 << 49;
pub(crate) const LOCAL_COMM: u64 = 1 << 51;
pub(crate) const REMOTE_COMM: u64 = 1 << 52;
pub(crate) const SOURCE: u64 = 1 << 57;
pub(crate) const DIRECTED_RECV: u64 = 1 << 59;

/// Flags of `fi_getinfo`: the node names ourselves.
pub(crate) const GETINFO_SOURCE: u64 = SOURCE;
/// Flags of `fi_getinfo`: the node is digits.
pub(crate) const NUMERICHOST: u64 = 1 << 55;

/// Flags of tagged receives.
pub(crate) const CLAIM: u64 = 1 << 59;
pub(crate) const DISCARD: u64 = 1 << 58;

/// Flags of `fi_ep_bind`.
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Flags of queries about atomics.
pub(crate) const FETCH_ATOMIC: u64 = 1 << 58;
pub(crate) const COMPARE_ATOMIC: u64 = 1 << 59;

/// Flags of event queues.
pub(crate) const AV_EVENT: u64 = COMPLETION;
pub(crate) const SYNC_ERR: u64 = 1 << 58;

/// How memory is registered.
pub(crate) const MR_BASIC: i32 = 1;
pub(crate) const MR_SCALABLE: i32 = 1 << 1;

/// Messages in the order sent.
pub(crate) const ORDER_SAS: u64 = 1 << 8;
/// Atomic operations on one place in the order posted, whether they read or write.
pub(crate) const ORDER_ATOMIC: u64 = 0xf << 36;

/// Forms of addresses.
pub(crate) const FORMAT_UNSPEC: u32 = 0;
pub(crate) const SOCKADDR: u32 = 1;
pub(crate) const SOCKADDR_IN: u32 = 2;

/// Types of endpoints.
pub(crate) const EP_UNSPEC: u32 = 0;
pub(crate) const EP_RDM: u32 = 3;

/// Who may call at the same time.
pub(crate) const THREAD_SAFE: u32 = 1;
/// Who makes progress: the caller, when he asks.
pub(crate) const PROGRESS_AUTO: u32 = 1;
pub(crate) const PROGRESS_MANUAL: u32 = 2;
/// The provider watches over its queues.
pub(crate) const RM_ENABLED: u32 = 2;

/// Types of address vectors.
pub(crate) const AV_UNSPEC: u32 = 0;
pub(crate) const AV_TABLE: u32 = 2;

/// Classes of objects.
pub(crate) const CLASS_FABRIC: usize = 1;
pub(crate) const CLASS_DOMAIN: usize = 2;
pub(crate) const CLASS_EP: usize = 3;
pub(crate) const CLASS_AV: usize = 11;
pub(crate) const CLASS_MR: usize = 12;
pub(crate) const CLASS_EQ: usize = 13;
pub(crate) const CLASS_CQ: usize = 14;
pub(crate) const CLASS_CNTR: usize = 15;
pub(crate) const CLASS_POLL: usize = 17;

/// Commands of `fi_control`.
pub(crate) const GETOPSFLAG: i32 = 2;
pub(crate) const SETOPSFLAG: i32 = 3;
pub(crate) const ALIAS: i32 = 4;
pub(crate) const GETWAIT: i32 = 5;
pub(crate) const ENABLE: i32 = 6;
pub(crate) const GETWAITOBJ: i32 = 16;

/// What a queue offers to wait on.
pub(crate) const WAIT_NONE: u32 = 0;
pub(crate) const WAIT_UNSPEC: u32 = 1;
pub(crate) const WAIT_FD: u32 = 3;
pub(crate) const WAIT_YIELD: u32 = 5;

/// Forms of completions.
pub(crate) const CQ_FORMAT_UNSPEC: u32 = 0;
pub(crate) const CQ_FORMAT_CONTEXT: u32 = 1;
pub(crate) const CQ_FORMAT_MSG: u32 = 2;
pub(crate) const CQ_FORMAT_DATA: u32 = 3;
pub(crate) const CQ_FORMAT_TAGGED: u32 = 4;

/// Events of an event queue.
pub(crate) const EVENT_AV_COMPLETE: u32 = 5;

/// Options of endpoints.
pub(crate) const OPT_ENDPOINT: i32 = 0;
pub(crate) const OPT_MIN_MULTI_RECV: i32 = 0;
pub(crate) const OPT_CM_DATA_SIZE: i32 = 1;
pub(crate) const OPT_TX_SIZE: i32 = 6;
pub(crate) const OPT_RX_SIZE: i32 = 7;
pub(crate) const OPT_HMEM_P2P: i32 = 8;
pub(crate) const OPT_CUDA_API_PERMITTED: i32 = 10;
pub(crate) const OPT_SHARED_MEMORY_PERMITTED: i32 = 11;
pub(crate) const OPT_MAX_MSG_SIZE: i32 = 12;
pub(crate) const OPT_MAX_TAGGED_SIZE: i32 = 13;
pub(crate) const OPT_MAX_RMA_SIZE: i32 = 14;
pub(crate) const OPT_MAX_ATOMIC_SIZE: i32 = 15;
pub(crate) const OPT_INJECT_MSG_SIZE: i32 = 16;
pub(crate) const OPT_INJECT_TAGGED_SIZE: i32 = 17;
pub(crate) const OPT_INJECT_RMA_SIZE: i32 = 18;
pub(crate) const OPT_INJECT_ATOMIC_SIZE: i32 = 19;
