//! Capabilities, flags and enumerations.

/// Capabilities, and flags of operations and completions.
pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const TAGGED: u64 = 1 << 3;
pub const ATOMIC: u64 = 1 << 4;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const MULTI_RECV: u64 = 1 << 16;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const PEEK: u64 = 1 << 19;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const RMA_PMEM: u64 = 1 << 49;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
pub const SOURCE: u64 = 1 << 57;
pub const DIRECTED_RECV: u64 = 1 << 59;

/// Flags of `fi_getinfo`: the node names ourselves.
pub const GETINFO_SOURCE: u64 = SOURCE;
/// Flags of `fi_getinfo`: the node is digits.
pub const NUMERICHOST: u64 = 1 << 55;

/// Flags of tagged receives.
pub const CLAIM: u64 = 1 << 59;
pub const DISCARD: u64 = 1 << 58;

/// Flags of `fi_ep_bind`.
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Flags of queries about atomics.
pub const FETCH_ATOMIC: u64 = 1 << 58;
pub const COMPARE_ATOMIC: u64 = 1 << 59;

/// Flags of event queues.
pub const AV_EVENT: u64 = COMPLETION;
pub const SYNC_ERR: u64 = 1 << 58;

/// What a provider may ask of its caller: room behind the context of each operation.
pub const MODE_CONTEXT: u64 = 1 << 59;
pub const MODE_CONTEXT2: u64 = 1 << 52;
pub const MODE_RX_CQ_DATA: u64 = 1 << 56;

/// How memory is registered.
pub const MR_BASIC: i32 = 1;
pub const MR_SCALABLE: i32 = 1 << 1;
pub const MR_LOCAL: i32 = 1 << 2;
pub const MR_VIRT_ADDR: i32 = 1 << 4;
pub const MR_ALLOCATED: i32 = 1 << 5;
pub const MR_PROV_KEY: i32 = 1 << 6;
pub const MR_ENDPOINT: i32 = 1 << 9;

/// Messages in the order sent.
pub const ORDER_SAS: u64 = 1 << 8;
/// Atomic operations on one place in the order posted, whether they read or write.
pub const ORDER_ATOMIC: u64 = 0xf << 36;

/// Forms of addresses.
pub const FORMAT_UNSPEC: u32 = 0;
pub const SOCKADDR: u32 = 1;
pub const SOCKADDR_IN: u32 = 2;

/// Types of endpoints.
pub const EP_UNSPEC: u32 = 0;
pub const EP_RDM: u32 = 3;

/// Who may call at the same time.
pub const THREAD_SAFE: u32 = 1;
pub const THREAD_DOMAIN: u32 = 3;
/// Who makes progress: the caller, when he asks.
pub const PROGRESS_AUTO: u32 = 1;
pub const PROGRESS_MANUAL: u32 = 2;
/// The provider watches over its queues.
pub const RM_ENABLED: u32 = 2;

/// Types of address vectors.
pub const AV_UNSPEC: u32 = 0;
pub const AV_TABLE: u32 = 2;

/// Classes of objects.
pub const CLASS_FABRIC: usize = 1;
pub const CLASS_DOMAIN: usize = 2;
pub const CLASS_EP: usize = 3;
pub const CLASS_AV: usize = 11;
pub const CLASS_MR: usize = 12;
pub const CLASS_EQ: usize = 13;
pub const CLASS_CQ: usize = 14;
pub const CLASS_CNTR: usize = 15;
pub const CLASS_POLL: usize = 17;

/// Commands of `fi_control`.
pub const GETOPSFLAG: i32 = 2;
pub const SETOPSFLAG: i32 = 3;
pub const ALIAS: i32 = 4;
pub const GETWAIT: i32 = 5;
pub const ENABLE: i32 = 6;
pub const GETWAITOBJ: i32 = 16;

/// What a queue offers to wait on.
pub const WAIT_NONE: u32 = 0;
pub const WAIT_UNSPEC: u32 = 1;
pub const WAIT_FD: u32 = 3;
pub const WAIT_YIELD: u32 = 5;

/// Forms of completions.
pub const CQ_FORMAT_UNSPEC: u32 = 0;
pub const CQ_FORMAT_CONTEXT: u32 = 1;
pub const CQ_FORMAT_MSG: u32 = 2;
pub const CQ_FORMAT_DATA: u32 = 3;
pub const CQ_FORMAT_TAGGED: u32 = 4;

/// Events of an event queue.
pub const EVENT_AV_COMPLETE: u32 = 5;

/// Options of endpoints.
pub const OPT_ENDPOINT: i32 = 0;
pub const OPT_MIN_MULTI_RECV: i32 = 0;
pub const OPT_CM_DATA_SIZE: i32 = 1;
pub const OPT_TX_SIZE: i32 = 6;
pub const OPT_RX_SIZE: i32 = 7;
pub const OPT_HMEM_P2P: i32 = 8;
pub const OPT_CUDA_API_PERMITTED: i32 = 10;
pub const OPT_SHARED_MEMORY_PERMITTED: i32 = 11;
pub const OPT_MAX_MSG_SIZE: i32 = 12;
pub const OPT_MAX_TAGGED_SIZE: i32 = 13;
pub const OPT_MAX_RMA_SIZE: i32 = 14;
pub const OPT_MAX_ATOMIC_SIZE: i32 = 15;
pub const OPT_INJECT_MSG_SIZE: i32 = 16;
pub const OPT_INJECT_TAGGED_SIZE: i32 = 17;
pub const OPT_INJECT_RMA_SIZE: i32 = 18;
pub const OPT_INJECT_ATOMIC_SIZE: i32 = 19;
