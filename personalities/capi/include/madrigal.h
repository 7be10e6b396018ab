/* Madrigal for C and C++: libmadrigal.so. Written out of personalities/capi/src; do not edit.
 *
 * Link with `pkg-config --cflags --libs madrigal`. A guide is docs/c-api.md, a summary madrigal(3).
 *
 * Every function may be called from any thread, and from handlers. What fails returns a negative code (MDG_E...); mdg_strerror() has
 * a sentence for the code, mdg_error_text() one for what happened to whom. Times are nanoseconds.
 */

#ifndef MADRIGAL_H
#define MADRIGAL_H

#include <stddef.h>
#include <stdint.h>


/**
 * It went well.
 */
#define MDG_OK 0

/**
 * No such handle: it was closed before, or never was.
 */
#define MDG_EHANDLE -1

/**
 * The handle is of another kind than the function takes.
 */
#define MDG_ETYPE -2

/**
 * This process was forked from one that uses Madrigal: only exec(2) and _exit(2) are left to it.
 */
#define MDG_EFORKED -3

/**
 * A fault of Madrigal's own.
 */
#define MDG_EINTERNAL -4

/**
 * An argument that cannot be: a null pointer, a text that is not UTF-8, a flag that is not known.
 */
#define MDG_EINVAL -5

/**
 * The text is no address, or the driver takes another form of address.
 */
#define MDG_EADDRESS -6

/**
 * There is no driver of that name.
 */
#define MDG_ENODRIVER -7

/**
 * Nobody listens there.
 */
#define MDG_EREFUSED -8

/**
 * Too much waits already, or another thread is using the thing; later it may do.
 */
#define MDG_EBUSY -9

/**
 * The time given for it passed.
 */
#define MDG_ETIMEDOUT -10

/**
 * It belongs to another user.
 */
#define MDG_EPERM -11

/**
 * No path leads there; the text names each that was considered, with its reason.
 */
#define MDG_ENOPATH -12

/**
 * Our own side closed it.
 */
#define MDG_ECLOSED -13

/**
 * Somebody listens there already.
 */
#define MDG_EINUSE -14

/**
 * The driver cannot work here.
 */
#define MDG_EUNUSABLE -15

/**
 * The peer reset the connection, or died.
 */
#define MDG_ERESET -16

/**
 * The peer is gone: nothing can be written to it any more.
 */
#define MDG_EGONE -17

/**
 * The peer broke the protocol.
 */
#define MDG_ECORRUPT -18

/**
 * Longer than can be carried at once.
 */
#define MDG_ETOOLONG -19

/**
 * The kernel refused; mdg_error_number() is its errno.
 */
#define MDG_ESYSTEM -20

/**
 * Too many handles are open.
 */
#define MDG_EFULL -21

/**
 * There is no node of that rank in the group, or this one is not in it.
 */
#define MDG_ERANK -22

/**
 * A node of the group cannot be reached, or is gone.
 */
#define MDG_ELOST -23

/**
 * Sender and receiver of a message do not name the same pieces.
 */
#define MDG_EMISMATCH -24

/**
 * A time that never passes. Any other negative time is MDG_EINVAL: what is left of a time that has passed is 0.
 */
#define MDG_FOREVER -1

/**
 * Bytes of a node's address.
 */
#define MDG_ADDRESS 64

/**
 * A flag of mdg_circuit_open(): messages carry tags. All nodes of a group give the same flags.
 */
#define MDG_TAGS 1

/**
 * Any node, for mdg_begin_unpacking().
 */
#define MDG_ANY -1

/**
 * What a sender promises of a piece: nothing; the bytes may change as soon as mdg_pack() returns, for they are copied.
 */
#define MDG_SAFER 0

/**
 * The bytes may change until mdg_end_packing(): what they are then is sent.
 */
#define MDG_LATER 1

/**
 * The bytes do not change until mdg_end_packing() returns. For a receiver: they are there when mdg_end_unpacking() returns.
 */
#define MDG_CHEAPER 2

/**
 * What a receiver wants of a piece: the bytes are there when mdg_unpack() returns, so that they can say what follows.
 */
#define MDG_EXPRESS 3

/**
 * A number of 8 bits with a sign (int8_t). The kinds of numbers of messages.
 */
#define MDG_INT8 1

/**
 * uint8_t.
 */
#define MDG_UINT8 2

/**
 * int16_t.
 */
#define MDG_INT16 3

/**
 * uint16_t.
 */
#define MDG_UINT16 4

/**
 * int32_t.
 */
#define MDG_INT32 5

/**
 * uint32_t.
 */
#define MDG_UINT32 6

/**
 * int64_t.
 */
#define MDG_INT64 7

/**
 * uint64_t.
 */
#define MDG_UINT64 8

/**
 * float, of 32 bits.
 */
#define MDG_FLOAT32 9

/**
 * double, of 64 bits.
 */
#define MDG_FLOAT64 10

/**
 * What mdg_item() finds: the end of the message.
 */
#define MDG_ITEM_NOTHING 0

/**
 * A number.
 */
#define MDG_ITEM_NUMBER 1

/**
 * An array of numbers.
 */
#define MDG_ITEM_ARRAY 2

/**
 * A text.
 */
#define MDG_ITEM_TEXT 3

/**
 * The beginning of a record.
 */
#define MDG_ITEM_BEGIN 4

/**
 * The end of a record.
 */
#define MDG_ITEM_END 5

/**
 * Of a message: all of it is there. See mdg_lossy_receive().
 */
#define MDG_FATE_WHOLE 0

/**
 * Pieces of it are lost.
 */
#define MDG_FATE_PARTLY 1

/**
 * It failed: nothing of it is there.
 */
#define MDG_FATE_FAILED 2

/**
 * A message that passes the others, with places of its own in a mailbox. The kinds of messages.
 */
#define MDG_URGENT 0

/**
 * A message of a program's.
 */
#define MDG_DATA 1

/**
 * A message between the parts of a system: in order with data, with places of its own.
 */
#define MDG_MANAGEMENT 2

/**
 * Any kind, for one who selects.
 */
#define MDG_ANY_KIND -1

/**
 * The data of a message lie in the receiver's process. The policies of storage.
 */
#define MDG_AT_RECEIVER 0

/**
 * They stay in the sender's process until they are read.
 */
#define MDG_AT_SENDER 1

/**
 * They lie in a third process: of those that offer memory, the one with the least load.
 */
#define MDG_AT_THIRD 2

/**
 * The size of a pool that anybody joins at any time.
 */
#define MDG_POOL_OPEN 0

/**
 * The size of a pool that has as many members as the launcher has started processes, each with its rank there.
 */
#define MDG_POOL_LAUNCHED -1

/**
 * Instead of a member: the pool.
 */
#define MDG_POOL_ITSELF -1

/**
 * The winner is followed by another one when it has left or died: who asks next.
 */
#define MDG_POOL_FOLLOWED 0

/**
 * The winner stays the winner as long as the pool has a member.
 */
#define MDG_POOL_FOR_LIFE 1

/**
 * An event: `member` joined; `text` is its location.
 */
#define MDG_POOL_JOINED 1

/**
 * A closed pool has all its members.
 */
#define MDG_POOL_CLOSED 2

/**
 * `member` left.
 */
#define MDG_POOL_LEFT 3

/**
 * `member` died, or its host, or the way to it.
 */
#define MDG_POOL_DIED 4

/**
 * `member` won the election `text`.
 */
#define MDG_POOL_ELECTED 5

/**
 * The winner of the election `text` has left or died.
 */
#define MDG_POOL_VACANT 6

/**
 * The attribute `text` of `member`, or of the pool (MDG_POOL_ITSELF), was set or taken away.
 */
#define MDG_POOL_SET 7

/**
 * `member` sends `text`.
 */
#define MDG_POOL_SIGNAL 8

/**
 * `member` has terminated the pool.
 */
#define MDG_POOL_TERMINATED 9

/**
 * `count` events are missing here, for they were not taken in time. mdg_pool_members() and mdg_pool_get() have what they led to.
 */
#define MDG_POOL_MISSED 10

/**
 * Bytes of an event's text, with its nul.
 */
#define MDG_POOL_TEXT 4104

/**
 * Names something that was opened. Never 0, and below 2^63. A handle that was closed is never used again: a call with it fails with
 * MDG_EHANDLE, and one with a handle of another kind with MDG_ETYPE.
 */
typedef uint64_t mdg_handle;

/**
 * The engine and the drivers of a process.
 */
typedef mdg_handle mdg_runtime;

/**
 * A place where links arrive.
 */
typedef mdg_handle mdg_acceptor;

/**
 * A stream of bytes between two processes.
 */
typedef mdg_handle mdg_link;

/**
 * A function of the program's that is called when something completes or is ready: with what was given beside it (`user`), with the
 * handle it was asked of, and with the result, which is an error's code if it is negative; then mdg_error_text() says more.
 *
 * It is called by a thread that turns the engine (mdg_turn(), or any call that waits), never inside the call it was given to, and
 * without any lock: it may call whatever is declared here. It must return: no exception and no longjmp(3) may leave it.
 */
typedef void (*mdg_handler)(void *user, mdg_handle handle, int64_t result);

/**
 * An operation that was posted.
 */
typedef mdg_handle mdg_op;

/**
 * A place in a group of processes that send each other messages.
 */
typedef mdg_handle mdg_circuit;

/**
 * A message that is being packed.
 */
typedef mdg_handle mdg_packing;

/**
 * A message that is being unpacked.
 */
typedef mdg_handle mdg_unpacking;

/**
 * A named port where messages arrive.
 */
typedef mdg_handle mdg_receive_port;

/**
 * A port from which messages go to all ports that it is connected to.
 */
typedef mdg_handle mdg_send_port;

/**
 * A message that is written, item by item.
 */
typedef mdg_handle mdg_message;

/**
 * A message that came, and is read item by item.
 */
typedef mdg_handle mdg_incoming;

/**
 * A place where such links arrive.
 */
typedef mdg_handle mdg_lossy_acceptor;

/**
 * A link of messages of which a part may be lost.
 */
typedef mdg_handle mdg_lossy_link;

/**
 * A place for the headers of messages, whose data lie elsewhere until they are read.
 */
typedef mdg_handle mdg_mailbox;

/**
 * A message that is put into mailboxes.
 */
typedef struct {
  /**
   * The addresses of the mailboxes, each once.
   */
  const char *const *to;
  /**
   * How many: 1 to 512.
   */
  size_t to_count;
  /**
   * The program's own: receivers select by it.
   */
  uint64_t tag;
  /**
   * MDG_URGENT, MDG_DATA or MDG_MANAGEMENT.
   */
  int kind;
  /**
   * MDG_AT_RECEIVER, MDG_AT_SENDER or MDG_AT_THIRD.
   */
  int policy;
} mdg_letter;

/**
 * Bytes that are written once, and shared by processes of a host.
 */
typedef mdg_handle mdg_buffer;

/**
 * Which messages are meant: all that agree with everything that is given.
 */
typedef struct {
  /**
   * The address of the mailbox that they are from, or NULL: any.
   */
  const char *source;
  /**
   * Their tag, or NULL: any.
   */
  const uint64_t *tag;
  /**
   * Their kind, or MDG_ANY_KIND.
   */
  int kind;
} mdg_filter;

/**
 * A message as its receiver sees it, before any data move.
 */
typedef struct {
  /**
   * By which it is got or dropped: of this mailbox, never used again.
   */
  uint64_t id;
  /**
   * The sender's tag.
   */
  uint64_t tag;
  /**
   * Which message of that sender to this mailbox it is; the first one is 1.
   */
  uint64_t sequence;
  /**
   * Bytes of its data.
   */
  uint64_t size;
  /**
   * Its kind.
   */
  int kind;
  /**
   * Where its data were to lie.
   */
  int policy;
  /**
   * 1 where they lie in this process now, else 0.
   */
  int is_here;
} mdg_header;

/**
 * This process's place in a pool.
 */
typedef mdg_handle mdg_pool;

/**
 * Something that changed in a pool.
 */
typedef struct {
  /**
   * Its place in the order of all events of the pool, which is the same for all members. Signals to others are left out.
   */
  uint64_t number;
  /**
   * The member that it is about; -1 if it is about none.
   */
  int64_t member;
  /**
   * How many are missing (MDG_POOL_MISSED).
   */
  uint64_t count;
  /**
   * One of MDG_POOL_JOINED to MDG_POOL_MISSED.
   */
  int kind;
  /**
   * A text that ends with a nul.
   */
  char text[MDG_POOL_TEXT];
} mdg_pool_event;

/**
 * A descriptor of the program's own in the engine.
 */
typedef mdg_handle mdg_watch;

/**
 * A timer of the program's own in the engine.
 */
typedef mdg_handle mdg_timer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What a code means, in one sentence: for any number, never NULL. The text is static. Does not block; in a forked child, too.
 */
const char *mdg_strerror(int code);

/**
 * Why the last call of this thread that failed did so: one sentence that names the two ends, or the address, and the errno where there
 * is one; empty before any failed. Results of operations that are negative count as failed calls. The text is the library's and is good
 * until the next call of this thread fails, or the thread ends. Does not block; in a forked child, too.
 */
const char *mdg_error_text(void);

/**
 * The errno (errno(3)) that belongs to mdg_error_text(); 0 where there is none. Does not block; in a forked child, too.
 */
int mdg_error_number(void);

/**
 * The library's version, such as "0.1.0". The text is static. Does not block.
 */
const char *mdg_version(void);

/**
 * Opens a runtime, configured by the environment's MADRIGAL_* variables (madrigal(1)), and puts its handle into *runtime.
 *
 * A process may have several; they share nothing. Nothing listens and no thread is started. Everything else is opened from a runtime,
 * and closed with it. A process that forks later has children that cannot use Madrigal (MDG_EFORKED); one that forks before may. Does
 * not block. Thread-safe, as every function here.
 *
 * Returns 0, or MDG_EINVAL, MDG_ESYSTEM (no descriptor is free), MDG_EFULL, MDG_EFORKED.
 */
int mdg_runtime_open(mdg_runtime *runtime);

/**
 * Closes whatever a handle names. The handle is nothing from then on, and no call is refused for being made too late.
 *
 * * A runtime: everything opened from it is closed first, at once. Operations that are posted complete with MDG_ECLOSED, and their
 *   handlers are called before this returns, or in a thread that is turning the engine at this moment. No memory that was lent is
 *   touched any more, and every descriptor is closed. Waits for a thread that mdg_fd() began.
 * * A link: as mdg_post_close(): what was posted to be written is written, as long as somebody turns the engine; what is posted to be
 *   read completes with MDG_ECLOSED. Bytes of the peer's that were not read are dropped, and it is told so by a reset.
 * * An acceptor: nobody listens any more; accepts complete with MDG_ECLOSED.
 * * A link of messages of which a part may be lost: what was sent goes on as long as somebody turns the engine, ten seconds at most in
 *   which the peer takes nothing.
 * * An operation: it is taken back, as by mdg_cancel().
 * * A Circuit: who waits for a message of it gets MDG_ECLOSED. See mdg_circuit_open().
 * * A pool: this process leaves it, as by mdg_pool_leave() but without waiting; who waits for something of it gets MDG_ECLOSED.
 * * A message that is packed or unpacked: it is not sent, or the rest of it is thrown away.
 * * A mailbox: what is in it is dropped, and who waits gets MDG_ECLOSED. A buffer: its memory is gone from this process. It is closed with
 *   no runtime.
 * * A watch or a timer: its handler is not called any more, but may be running in another thread.
 *
 * Does not block but for what is said above. Returns 0, or MDG_EHANDLE (also where another thread closes the same handle first),
 * MDG_EBUSY (an operation that another thread waits for, a message that another thread is unpacking), MDG_EFORKED.
 */
int mdg_close(mdg_handle handle);

/**
 * Copies what is known of a handle to `buf`, as JSON that ends with a nul, cut to `len` bytes.
 *
 * Of a link: its driver and adapter, both addresses, and where Madrigal chose the path, the others and why not. Of a runtime: every
 * driver, whether it works here and why not, and what was wrong with the environment. More members may come. Does not block.
 *
 * Returns the text's length without the nul (call again with more room where that is `len` or more), or MDG_EHANDLE, MDG_EINVAL (`buf`
 * is NULL and `len` is not 0), MDG_EFORKED.
 */
int64_t mdg_why(mdg_handle handle,
                char *buf,
                size_t len);

/**
 * Copies an address to `buf`, a text that ends with a nul, cut to `len` bytes: of an acceptor, what others connect to (a port that was
 * left open is filled in); of a link, the peer's address as far as the driver knows it. Does not block.
 *
 * Returns the text's length without the nul, or MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EFORKED.
 */
int64_t mdg_address(mdg_handle handle,
                    char *buf,
                    size_t len);

/**
 * Listens at an address by the driver it names, and puts the acceptor's handle into *acceptor.
 *
 * Addresses are "tcp://ADDRESS:PORT" with numbers (port 0: the kernel's choice, see mdg_address()), to connect also "tcp://HOST:PORT" with
 * a host of the grid (docs/drivers/tcp.md), "shm://NAME" among processes of one user on one host, "loopback://NAME" inside this process. A stack of adapters may stand in front: links of
 * "adoc/stripe(4)/tcp://ADDRESS:PORT" are compressed where that makes them faster, and have four connections; both ends name the same
 * stack. With "tls" in it ("tls/tcp://ADDRESS:PORT", above any "stripe") links are enciphered, and both processes show certificates of one
 * grid and one user (`madrigal login`): a peer that is not let in never arrives, and its mdg_connect() fails with the reason. So do those
 * of "vrp/udp://ADDRESS:PORT", which go by QUIC: on a line that loses packets faster than TCP; messages of which a part may be lost go by
 * mdg_lossy_listen(). Links can arrive as soon as this returns, and wait to be accepted. Does not block.
 *
 * Returns 0, or MDG_EADDRESS, MDG_ENODRIVER, MDG_EINUSE, MDG_EUNUSABLE, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL,
 * MDG_EFORKED.
 */
int mdg_listen(mdg_runtime runtime,
               const char *at,
               mdg_acceptor *acceptor);

/**
 * Listens as NAME by every driver that may be used and works here, on this host only. The acceptor's address (mdg_address()) is a card,
 * one word to hand to others: who connects to it goes by the best path there is (mdg_why() says which, and why not the others).
 *
 * Does not block. Returns as mdg_listen().
 */
int mdg_serve(mdg_runtime runtime,
              const char *name,
              mdg_acceptor *acceptor);

/**
 * Waits for the next link that arrives, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its
 * handle into *link. Turns the engine meanwhile.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ECLOSED (the acceptor was closed), MDG_ESYSTEM (later it may do), MDG_EHANDLE, MDG_ETYPE,
 * MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
 */
int mdg_accept(mdg_acceptor acceptor,
               int64_t timeout_ns,
               mdg_link *link);

/**
 * Connects to an address (see mdg_listen()) or a card (see mdg_serve()), waits at most `timeout_ns` nanoseconds (MDG_FOREVER: until it
 * is decided, which takes no more than 15 s for each path) and puts the link's handle into *link. Turns the engine meanwhile. The peer
 * may not have accepted yet: what is written waits for it.
 *
 * Returns 0, or MDG_EREFUSED, MDG_EBUSY, MDG_ETIMEDOUT, MDG_EPERM, MDG_EADDRESS, MDG_ENODRIVER, MDG_ENOPATH, MDG_ECLOSED (the runtime was
 * closed), MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
 */
int mdg_connect(mdg_runtime runtime,
                const char *to,
                int64_t timeout_ns,
                mdg_link *link);

/**
 * Reads into `buf`, up to `len` bytes: waits until there is at least one, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end;
 * 0: only looks). Spins as the wait policy allows, then sleeps; other links go on meanwhile. The buffer is the program's again when
 * this returns. Reads of one link complete in the order they began.
 *
 * Returns how many bytes were read, 0 at the end of the stream (or if `len` is 0), or MDG_ETIMEDOUT (nothing was lost), MDG_ERESET (the
 * peer died, or closed without reading what we had sent), MDG_ECLOSED (our own side), MDG_ECORRUPT, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EINVAL, MDG_EFORKED.
 */
int64_t mdg_read(mdg_link link,
                 void *buf,
                 size_t len,
                 int64_t timeout_ns);

/**
 * Writes `len` bytes from `buf`: waits until all were taken, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only what
 * there is room for now). The buffer is the program's again when this returns. Bytes that were taken are not yet the peer's.
 *
 * Returns how many bytes were taken, less than `len` only if the time passed; or MDG_ETIMEDOUT (none were), MDG_EGONE (the peer closed,
 * or died), MDG_ECLOSED (our own side), MDG_ECORRUPT, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFORKED.
 */
int64_t mdg_write(mdg_link link,
                  const void *buf,
                  size_t len,
                  int64_t timeout_ns);

/**
 * Posts a read into `buf`, up to `len` bytes. Does not block. The buffer is the library's until the operation completed or was taken
 * back. Reads of one link complete in the order they were posted.
 *
 * Exactly one of `handler` and `op` is given, here and in the other four. With a handler, that is called once, with `user`, the link and
 * the result. Else the operation's handle goes into *op, to be tested, waited for, or taken back; it must come to one of these ends.
 * The result is the number of bytes, 0 at the end of the stream, or an error as mdg_read() returns.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED: then nothing was posted.
 */
int mdg_post_read(mdg_link link,
                  void *buf,
                  size_t len,
                  mdg_handler handler,
                  void *user,
                  mdg_op *op);

/**
 * Posts a write of all `len` bytes of `buf`. Does not block. The bytes must stay as they are until the operation completed or was taken
 * back. Writes of one link complete in the order they were posted. The result is `len`, or an error as mdg_write() returns.
 *
 * `handler`, `user`, `op` and what is returned: see mdg_post_read().
 */
int mdg_post_write(mdg_link link,
                   const void *buf,
                   size_t len,
                   mdg_handler handler,
                   void *user,
                   mdg_op *op);

/**
 * Posts a connect to an address or a card. Does not block. The result is the link's handle, or an error as mdg_connect() returns; it
 * comes after 15 s for each path at the latest, as long as somebody turns the engine. A handler is called with the runtime's handle.
 *
 * `handler`, `user`, `op`: see mdg_post_read(). Returns 0, or MDG_EADDRESS, MDG_ENODRIVER, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL,
 * MDG_EFULL, MDG_EFORKED: then nothing was posted.
 */
int mdg_post_connect(mdg_runtime runtime,
                     const char *to,
                     mdg_handler handler,
                     void *user,
                     mdg_op *op);

/**
 * Posts an accept: it completes with the next link that arrives. Does not block. The result is the link's handle, or an error as
 * mdg_accept() returns. Accepts of one acceptor complete in the order they were posted.
 *
 * `handler`, `user`, `op` and what is returned: see mdg_post_read().
 */
int mdg_post_accept(mdg_acceptor acceptor,
                    mdg_handler handler,
                    void *user,
                    mdg_op *op);

/**
 * Posts the end of a link: reads posted before complete with MDG_ECLOSED, writes posted before are written, then the peer sees the end of
 * the stream. Later posts fail. Does not block. The result is 0 when the link is closed on this side. The handle stays until
 * mdg_close().
 *
 * `handler`, `user`, `op` and what is returned: see mdg_post_read().
 */
int mdg_post_close(mdg_link link,
                   mdg_handler handler,
                   void *user,
                   mdg_op *op);

/**
 * Looks whether an operation completed, turning the engine once. Does not block. If it did, its result goes into *result and its handle
 * is nothing any more.
 *
 * Returns 1 if it completed (whatever the result), 0 if not yet; or MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EBUSY (another thread waits
 * for it), MDG_EFORKED.
 */
int mdg_test(mdg_op op,
             int64_t *result);

/**
 * Waits until an operation completed, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: as mdg_test()). Spins as the wait
 * policy allows, then sleeps; everything else in the runtime goes on meanwhile, and handlers are called.
 *
 * Returns as mdg_test(); 0: the time passed, and the operation is still posted.
 */
int mdg_wait(mdg_op op,
             int64_t timeout_ns,
             int64_t *result);

/**
 * Takes an operation back, and closes its handle: memory that was lent to it is the program's again. Does not block.
 *
 * A read that had completed is not lost: its bytes are in the buffer, and their number is returned. Of a write, the number of bytes
 * that were taken before; of others 0. A connection that came of a connect is closed; one that came of an accept waits for the next.
 *
 * Returns 0 or more, or the error the operation ended with, or MDG_EHANDLE, MDG_ETYPE, MDG_EBUSY (another thread waits for it),
 * MDG_EFORKED.
 */
int64_t mdg_cancel(mdg_op op);

/**
 * Opens a Circuit, which has an address, and is to join a group; its handle goes into *circuit. `flags` is 0 or MDG_TAGS. Any number of
 * Circuits of a runtime share one link to each other process. Does not block.
 *
 * What is sent on a Circuit goes by the nearest of shared memory, a fabric and TCP that reaches the other node, looked for at the first
 * message. Whoever waits in a call of a Circuit makes progress for all of the runtime's; nobody else does, mdg_turn() neither.
 *
 * mdg_close() of a Circuit waits until copies of MDG_SAFER pieces have left, and throws away what nobody unpacked.
 *
 * Returns 0, or MDG_EUNUSABLE (no driver of messages works here), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_circuit_open(mdg_runtime runtime,
                     uint32_t flags,
                     mdg_circuit *circuit);

/**
 * Copies the Circuit's address, MDG_ADDRESS bytes, to `address`. The program brings all addresses of a group to all its nodes by
 * whatever it has. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_circuit_address(mdg_circuit circuit,
                        void *address);

/**
 * Joins a group of `count` nodes, whose addresses lie one behind the other at `addresses`, MDG_ADDRESS bytes each: every node gives the
 * same ones in the same order, its own among them. A node's rank is its place there. A Circuit joins once. Nothing is sent yet; does not
 * block.
 *
 * Returns this node's rank, or MDG_ERANK (its own address is not among them), MDG_EADDRESS, MDG_EBUSY (it has joined before),
 * MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_circuit_join(mdg_circuit circuit,
                     const void *addresses,
                     size_t count);

/**
 * Joins the group of all processes that one launcher started: mpiexec of MPICH or of an MPI made from it, or `madrigal run`. Each of them
 * calls this once, and waits for the others, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end). The ranks are the launcher's; how
 * many there are goes into *size, which may be NULL. A process that nobody launched is a group of one. A program that uses an MPI, too, brings
 * addresses to all by that instead (mdg_circuit_join()), for a launcher answers one library; so does one that was started by PMIx alone
 * (Open MPI's mpirun). The launcher's barrier is not turned back: after MDG_ETIMEDOUT the job is best ended.
 *
 * Returns this node's rank, or MDG_EUNUSABLE (the launcher's answer, in the text), MDG_ETIMEDOUT, MDG_ELOST (the launcher is gone),
 * MDG_EBUSY (the launcher was asked before, or the Circuit has joined), MDG_EINVAL, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_circuit_world(mdg_circuit circuit,
                      int64_t timeout_ns,
                      int *size);

/**
 * Begins a message to the node of rank `to`; its handle goes into *packing. Without MDG_TAGS `tag` is 0. Nothing is sent before
 * mdg_end_packing(); mdg_close() of the handle sends nothing. Messages may be packed in several threads. Does not block.
 *
 * Returns 0, or MDG_ERANK, MDG_EBUSY (no group was joined), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_begin_packing(mdg_circuit circuit,
                      int to,
                      uint64_t tag,
                      mdg_packing *packing);

/**
 * Adds a piece of `len` bytes to a message. `mode` is what is promised of them: MDG_SAFER, MDG_LATER or MDG_CHEAPER; bytes that are not
 * MDG_SAFER are lent until mdg_end_packing() returns, or the handle is closed. The receiver unpacks the same pieces in the same
 * order; neither lengths nor modes are sent. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pack(mdg_packing packing,
             const void *buf,
             size_t len,
             int mode);

/**
 * Sends a message and closes its handle, whatever is returned; memory that was lent is the program's again.
 *
 * Pieces up to 4 KiB are the library's when this returns. They have left, too, where there is a path to the node and room in it; else they
 * leave while somebody is in a call of a Circuit: call mdg_flush() before a long time without one. For longer pieces that are not
 * MDG_SAFER it waits for the receiver, and so it does where the receiver has 64 MiB of ours that it did not unpack: nodes that all send
 * must also unpack now and then.
 *
 * Returns 0, or MDG_ELOST (the text says what was tried), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_end_packing(mdg_packing packing);

/**
 * Waits until whatever was sent on any Circuit or by any port of the runtime has left, or is given up because its node is gone, at most
 * `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only sends what there is room for). What has left may not have been received.
 * `of` is a Circuit or a send port; or a mailbox: then it waits also until the data that this process keeps of its messages were read.
 *
 * Returns 0, or MDG_ETIMEDOUT (nothing was lost), MDG_ECLOSED (another thread closed it), MDG_EBUSY (no group was joined), MDG_EINVAL,
 * MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_flush(mdg_handle of,
              int64_t timeout_ns);

/**
 * Waits for a message, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks): of the node of rank `from`, or of
 * MDG_ANY; with a tag that equals `tag` but for the bits of `ignore` (all ones: any tag). Of those that fit, the one that came first.
 * Its handle goes into *unpacking. Messages may be unpacked in several threads.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ELOST (that node is gone; of MDG_ANY, all others are), MDG_ECLOSED (the Circuit was closed), MDG_ERANK,
 * MDG_EBUSY (no group was joined), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_begin_unpacking(mdg_circuit circuit,
                        int from,
                        uint64_t tag,
                        uint64_t ignore,
                        int64_t timeout_ns,
                        mdg_unpacking *unpacking);

/**
 * Who sent a message, and its tag. Either place may be NULL. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_sender(mdg_unpacking unpacking, int *from, uint64_t *tag);

/**
 * Takes the next piece of a message, `len` bytes to `buf`. `mode` is MDG_EXPRESS or MDG_CHEAPER; memory for the latter is lent until
 * mdg_end_unpacking() returns, or the handle is closed. Waits for the sender only for an MDG_EXPRESS piece above 4 KiB.
 *
 * Returns 0, or MDG_ELOST, MDG_EMISMATCH (the sender packed other pieces), MDG_EBUSY (another thread is unpacking this message),
 * MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_unpack(mdg_unpacking unpacking,
               void *buf,
               size_t len,
               int mode);

/**
 * Waits until every piece of a message is there, and closes its handle, whatever is returned but MDG_EBUSY.
 *
 * Returns 0, or MDG_EMISMATCH (the sender packed other pieces), MDG_ELOST, MDG_EBUSY (another thread is unpacking this message),
 * MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_end_unpacking(mdg_unpacking unpacking);

/**
 * Opens a receive port named `name`, and puts its handle into *port. `type` is what send ports must have, too: `key=value`, several with
 * commas between them, "" for none. The keys `connection` (one-to-one, one-to-many, many-to-one, many-to-many), `receive` (explicit, upcall)
 * and `stack` (such as adoc/tls/stripe(4)/tcp: what carries the messages, and nothing else does) mean something here; all others are the
 * program's. mdg_address() of the port is what others connect to. Does not block.
 *
 * Ports answer others, and see that these are gone, while a thread of the process is in a call of a port, and then only. mdg_close() tells
 * its senders, and throws away what was not received.
 *
 * Returns 0, or MDG_EINUSE (there is one of that name), MDG_EUNUSABLE (no driver of messages works here, or there cannot be such a stack),
 * MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_receive_port_open(mdg_runtime runtime,
                          const char *name,
                          const char *type,
                          mdg_receive_port *port);

/**
 * Opens a send port named `name`, which those it connects to are told, of a type (see mdg_receive_port_open()), and puts its handle into
 * *port. It has no connection. mdg_close() leaves all receive ports, which still get what was sent. Does not block.
 *
 * Returns as mdg_receive_port_open().
 */
int mdg_send_port_open(mdg_runtime runtime,
                       const char *name,
                       const char *type,
                       mdg_send_port *port);

/**
 * Connects to a receive port, whose address `to` its process has from mdg_address(), and waits for that process's answer at most
 * `timeout_ns` nanoseconds (MDG_FOREVER: until it answers, or is gone). A port sends to all that it is connected to.
 *
 * Returns 0, or MDG_EREFUSED (the text says why: the key in which the types differ, no such port, it has its one connection),
 * MDG_ETIMEDOUT, MDG_ELOST, MDG_EBUSY (the type allows one connection), MDG_ECLOSED (the runtime was closed), MDG_EADDRESS, MDG_EINVAL,
 * MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_port_connect(mdg_send_port port,
                     const char *to,
                     int64_t timeout_ns);

/**
 * Leaves a receive port, which still gets what was sent before.
 *
 * Returns 0, or MDG_EGONE (there is no such connection), MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_port_disconnect(mdg_send_port port, const char *to);

/**
 * Copies what became of a port's connections since the last call to `buf`, as a JSON array that ends with a nul, cut to `len` bytes: of a
 * receive port "connected", "left" and "lost", of a send port "lost", each with the other port and, of one lost, why. Where they do not fit
 * they are told again by the next call. Does not block.
 *
 * Returns the text's length without the nul, or MDG_EBUSY (another thread is sending by the port, or connecting it), MDG_EINVAL (`buf` is
 * NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_port_changes(mdg_handle port,
                         char *buf,
                         size_t len);

/**
 * Makes an empty message for a send port, and puts its handle into *message. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_message_new(mdg_send_port port, mdg_message *message);

/**
 * Adds a number of that kind (MDG_INT8 to MDG_FLOAT64), which lies at `value`. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_put_number(mdg_message message, int kind, const void *value);

/**
 * Adds an array of `count` numbers of that kind, which lie at `values`. With MDG_CHEAPER an array of more than 4 KiB is lent until the
 * message's handle is closed, and is sent from where it lies; with MDG_SAFER it is copied at once. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EBUSY (another thread is sending the message), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_put_array(mdg_message message,
                  int kind,
                  const void *values,
                  size_t count,
                  int mode);

/**
 * Adds a text, UTF-8, which ends with a nul at `value`. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_put_text(mdg_message message, const char *value);

/**
 * Begins a record: what follows belongs together, up to mdg_put_end(). Records may lie in records. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_put_begin(mdg_message message);

/**
 * Ends a record. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_put_end(mdg_message message);

/**
 * Sends a message to every receive port that a send port is connected to; it may be sent again, by other ports, too. Waits until all have
 * its arrays of more than 4 KiB, and where a receiver has no room: as mdg_end_packing().
 *
 * Returns to how many receive ports it went, or MDG_EGONE (the port has no connection), MDG_ELOST or MDG_EREFUSED (the last one it had is
 * lost, and why), MDG_ETOOLONG (more than 64 MiB of numbers, texts and short arrays), MDG_EBUSY, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_port_send(mdg_send_port port,
                  mdg_message message);

/**
 * Waits for a message of any send port, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its handle
 * into *incoming. Messages of one send port come in the order in which they were sent. One message of a port at a time: until it is ended
 * (mdg_incoming_end(), mdg_close()) there is no other.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_EBUSY (one is being read), MDG_ECLOSED (the port or the runtime was closed), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFULL, MDG_EFORKED.
 */
int mdg_port_receive(mdg_receive_port port,
                     int64_t timeout_ns,
                     mdg_incoming *incoming);

/**
 * Copies the name of the send port that a message came from to `buf`, with a nul, cut to `len` bytes. Does not block.
 *
 * Returns the name's length, or MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_incoming_from(mdg_incoming incoming, char *buf, size_t len);

/**
 * What comes next in a message. Of numbers, their kind goes into *kind; of an array, how many there are into *count, of a text, how many
 * bytes. Either place may be NULL. Does not block.
 *
 * Returns one of MDG_ITEM_NOTHING to MDG_ITEM_END, or MDG_ECORRUPT, MDG_EBUSY, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_item(mdg_incoming incoming,
             int *kind,
             size_t *count);

/**
 * Takes the next item, a number of that kind, to `value`. Does not block.
 *
 * Returns 0, or MDG_EMISMATCH (something else is next, which stays), MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int mdg_get_number(mdg_incoming incoming,
                   int kind,
                   void *value);

/**
 * Takes the next item, an array of `count` numbers of that kind, to `values`. An array of more than 4 KiB comes straight from the
 * sender's memory where that can be, and is waited for.
 *
 * Returns 0, or MDG_EMISMATCH (something else is next, which stays), MDG_ELOST, MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE,
 * MDG_ETYPE, MDG_EFORKED.
 */
int mdg_get_array(mdg_incoming incoming,
                  int kind,
                  void *values,
                  size_t count);

/**
 * Takes the next item, a text, to `buf`, with a nul. Does not block.
 *
 * Returns its length without the nul, or MDG_ETOOLONG (`len` is not more than that: the text stays), MDG_EMISMATCH (something else is
 * next, which stays), MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_get_text(mdg_incoming incoming,
                     char *buf,
                     size_t len);

/**
 * Takes the next item, the beginning of a record (MDG_ITEM_BEGIN) or its end (MDG_ITEM_END). Does not block.
 *
 * Returns 0, or MDG_EMISMATCH (something else is next, which stays), MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int mdg_get_record(mdg_incoming incoming,
                   int item);

/**
 * Ends a message, and closes its handle, whatever is returned but MDG_EBUSY. What was not read is thrown away.
 *
 * Returns 0, or MDG_EMISMATCH (something was not read), MDG_EBUSY (another thread is reading it), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_incoming_end(mdg_incoming incoming);

/**
 * Listens at "vrp/udp://ADDRESS:PORT" for links of messages of which a part may be lost, and puts the acceptor's handle into *acceptor.
 *
 * Each message has one of `count` classes, 15 at most, which are numbered from 0. `classes` has four numbers for each: how many of a
 * thousand bytes may be lost, of how many bytes that follow each other (1 to 16 MiB), a multiple of how many bytes at which pieces that
 * are lost begin (1 to 1000: the length of a record), and how many bytes at the front of each message are never lost. With a `count` of
 * 0 there is one class: of "vrp(N)/udp://ADDRESS:PORT" N of a thousand bytes may be lost, in 1 MiB. Both ends name the same classes.
 *
 * Links are enciphered, and both processes show certificates of one grid and one user, as with "tls" (see mdg_listen()). The acceptor's
 * address is told by mdg_address(). Does not block.
 *
 * Returns 0, or MDG_EADDRESS, MDG_EINUSE, MDG_EUNUSABLE (no certificate, a class that cannot be), MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
 */
int mdg_lossy_listen(mdg_runtime runtime,
                     const char *at,
                     const uint32_t *classes,
                     size_t count,
                     mdg_lossy_acceptor *acceptor);

/**
 * Waits for the next link, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its handle into *link.
 * Turns the engine meanwhile.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ECLOSED, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
 */
int mdg_lossy_accept(mdg_lossy_acceptor acceptor,
                     int64_t timeout_ns,
                     mdg_lossy_link *link);

/**
 * Connects to where a process listens by mdg_lossy_listen(), with the same classes, waits at most `timeout_ns` nanoseconds (MDG_FOREVER:
 * until it is decided, 15 s at most), and puts the link's handle into *link. Turns the engine meanwhile.
 *
 * Returns 0, or MDG_EREFUSED, MDG_ETIMEDOUT, MDG_EADDRESS, MDG_ENOPATH (certificates, or other classes at the other end: the text says
 * which), MDG_ECLOSED, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
 */
int mdg_lossy_connect(mdg_runtime runtime,
                      const char *to,
                      const uint32_t *classes,
                      size_t count,
                      int64_t timeout_ns,
                      mdg_lossy_link *link);

/**
 * Sends a message of that class, `len` bytes from `buf`, 1 to 16,777,215, which are copied. It is to be there within `within_ns`
 * nanoseconds (MDG_FOREVER: it may take any time); what would come later is not sent again, and if too much is missing then, it fails.
 * Waits at most `timeout_ns` nanoseconds for room: 16 MiB may be under way.
 *
 * Returns its number in its class, from 0 on, or MDG_ETIMEDOUT (there was no room), MDG_EGONE (the peer closed, or died), MDG_ECLOSED,
 * MDG_EINVAL (no such class, no such length), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_lossy_send(mdg_lossy_link link,
                       int class_number,
                       const void *buf,
                       size_t len,
                       int64_t within_ns,
                       int64_t timeout_ns);

/**
 * Waits for the next message, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and copies it to `buf`; what is
 * lost of it is 0. Those of a class come in order. Turns the engine meanwhile.
 *
 * `about` has room for four numbers: its class, its number, one of MDG_FATE_WHOLE to MDG_FATE_FAILED, and how many pieces are lost. Of
 * these go to `lost`, which has room for `most`, two numbers for each: the first byte, and the one behind the last. The sender is told of
 * the same ones (mdg_lossy_settled()). Either may be NULL, `lost` with a `most` of 0.
 *
 * Returns its length, which is 0 of one that failed, or MDG_ETOOLONG (it is longer than `len`, or more pieces are lost than `most`; it
 * stays, and `about` is written), MDG_ETIMEDOUT, MDG_EGONE (the peer closed, and every message was received), MDG_ERESET (the peer died),
 * MDG_ECLOSED, MDG_ECORRUPT, MDG_EBUSY (another thread is receiving), MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFORKED.
 */
int64_t mdg_lossy_receive(mdg_lossy_link link,
                          void *buf,
                          size_t len,
                          int64_t timeout_ns,
                          uint32_t *about,
                          uint32_t *lost,
                          size_t most);

/**
 * Waits for what became of a message that was sent, at most `timeout_ns` nanoseconds. `about` and `lost` are as in mdg_lossy_receive().
 * Each message is told of once; of those that nobody asked about the last 65,536 are kept. Turns the engine meanwhile.
 *
 * Returns 0, or MDG_ETOOLONG (more pieces are lost than `most`; the report stays, and `about` is written), MDG_ETIMEDOUT, MDG_ERESET (the
 * link is over), MDG_ECLOSED, MDG_EBUSY (another thread asks), MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFORKED.
 */
int mdg_lossy_settled(mdg_lossy_link link,
                      int64_t timeout_ns,
                      uint32_t *about,
                      uint32_t *lost,
                      size_t most);

/**
 * Waits until it is known of every message that was sent what became of it, at most `timeout_ns` nanoseconds. Turns the engine meanwhile.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ERESET (the link is over, and of some it is not known), MDG_ECLOSED, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EINVAL, MDG_EFORKED.
 */
int mdg_lossy_flush(mdg_lossy_link link,
                    int64_t timeout_ns);

/**
 * Opens a mailbox named `name`, with so many places for each sender and each kind of message (1 to 65536), and puts its handle into *mailbox.
 * mdg_address() of it is what others put messages to. Messages are put by it, too. Does not block.
 *
 * Mailboxes answer others, give them data, and see that these are gone, while a thread of the process is in a call of a mailbox, and then only:
 * a process that keeps data for others has to be in mdg_mailbox_turn() or another one. mdg_close() drops what is in it; data that were put by
 * it stay until they are read, or the runtime is closed.
 *
 * Returns 0, or MDG_EINUSE (there is one of that name), MDG_EUNUSABLE (no driver of messages works here), MDG_EINVAL, MDG_EHANDLE,
 * MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_mailbox_open(mdg_runtime runtime,
                     const char *name,
                     uint32_t places,
                     mdg_mailbox *mailbox);

/**
 * Puts a message into mailboxes: the header into each, `len` bytes of data to where the letter says, one copy for all. The bytes are free when
 * this returns. Waits at most `timeout_ns` nanoseconds (MDG_FOREVER: without end): for the first answer of a receiver, for a place in a mailbox
 * that is full, for memory. Nobody has anything of it when it fails.
 *
 * Returns how many mailboxes have it (less than `to_count` where some were lost meanwhile), or MDG_ETIMEDOUT (the text says who does not read,
 * or does not answer), MDG_EREFUSED (there is no such mailbox, or it was closed), MDG_ELOST, MDG_EUNUSABLE (MDG_AT_THIRD, and nobody is known
 * to offer memory: mdg_mailbox_add_store()), MDG_ECLOSED, MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_mailbox_put(mdg_mailbox mailbox,
                    const mdg_letter *letter,
                    const void *data,
                    size_t len,
                    int64_t timeout_ns);

/**
 * The same of a buffer that is sealed: no byte is copied here, and none to processes of this host where it was made by mdg_buffer_new().
 *
 * Returns as mdg_mailbox_put(), or MDG_EBUSY (it is not sealed).
 */
int mdg_mailbox_put_buffer(mdg_mailbox mailbox,
                           const mdg_letter *letter,
                           mdg_buffer buffer,
                           int64_t timeout_ns);

/**
 * Copies the headers of messages in a mailbox that are meant to `headers`, at most `count` of them: urgent ones first, each kind as they came,
 * those of one sender in the order in which they were put. `filter` may be NULL: all. No data move. Does not block.
 *
 * Returns how many, or MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_mailbox_list(mdg_mailbox mailbox,
                         const mdg_filter *filter,
                         mdg_header *headers,
                         size_t count);

/**
 * Waits for a message that is meant at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its header into
 * *header. It stays in the mailbox. `filter` may be NULL: any.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ECLOSED (the mailbox or the runtime was closed), MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int mdg_mailbox_wait(mdg_mailbox mailbox,
                     const mdg_filter *filter,
                     int64_t timeout_ns,
                     mdg_header *header);

/**
 * Copies the address of the mailbox that a message is from to `buf`, with a nul, cut to `len` bytes. Does not block.
 *
 * Returns its length, or MDG_EGONE (there is no such message any more), MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int64_t mdg_mailbox_source(mdg_mailbox mailbox,
                           uint64_t id,
                           char *buf,
                           size_t len);

/**
 * Copies the node of the process in which the data of a message lie to `buf`, with a nul, cut to `len` bytes; "" where that is this one. Does
 * not block.
 *
 * Returns as mdg_mailbox_source().
 */
int64_t mdg_mailbox_holder(mdg_mailbox mailbox,
                           uint64_t id,
                           char *buf,
                           size_t len);

/**
 * Takes a message out of a mailbox: its data come, from wherever they lie, and the handle of a buffer with them goes into *buffer. Waits for
 * them at most `timeout_ns` nanoseconds (MDG_FOREVER: without end). Where it fails the message stays, to be got again or dropped.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ELOST (they are lost with the process that had them, which the text names), MDG_EGONE (it was got or dropped,
 * or never was), MDG_ETOOLONG (there is not so much memory), MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_mailbox_get(mdg_mailbox mailbox,
                    uint64_t id,
                    int64_t timeout_ns,
                    mdg_buffer *buffer);

/**
 * Takes a message out of a mailbox without its data, which are freed where they lie if no other message needs them. Does not block.
 *
 * Returns 0, or MDG_EGONE (it was got or dropped, or never was), MDG_ECLOSED, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_mailbox_drop(mdg_mailbox mailbox,
                     uint64_t id);

/**
 * Copies what became of those who send to a mailbox since the last call to `buf`, as mdg_port_changes(): "connected", "left" and "lost", each with
 * the sender's address. Does not block.
 *
 * Returns the text's length without the nul, or MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_mailbox_changes(mdg_mailbox mailbox,
                            char *buf,
                            size_t len);

/**
 * From now on this process keeps so many bytes of data of messages between others. What it keeps stays where that becomes less. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_mailbox_offer(mdg_mailbox mailbox,
                      uint64_t bytes);

/**
 * The process of the mailbox at `address` offers memory: messages of this process whose data are to lie elsewhere may use it. Does not block.
 *
 * Returns 0, or MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_mailbox_add_store(mdg_mailbox mailbox,
                          const char *address);

/**
 * Answers others, and gives them data, for `timeout_ns` nanoseconds (MDG_FOREVER: until the runtime is closed).
 *
 * Returns 0, or MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_mailbox_turn(mdg_mailbox mailbox, int64_t timeout_ns);

/**
 * Makes a buffer of `len` bytes, all 0, that processes of one host can share, and puts its handle into *buffer. It is written where
 * mdg_buffer_data() says, then sealed, then put into mailboxes. It belongs to no runtime: its memory is there until mdg_close() of its handle, in
 * this process, and of all others who got it in theirs; the kernel counts these, killed or not. Does not block.
 *
 * Returns 0, or MDG_ESYSTEM (no memory, no descriptor is free), MDG_EINVAL (no byte), MDG_EFULL, MDG_EFORKED.
 */
int mdg_buffer_new(size_t len,
                   mdg_buffer *buffer);

/**
 * From now on nobody writes a buffer: who does so, by an address of before too, gets SIGSEGV. Of one that is sealed or was got from a mailbox,
 * nothing. Does not block.
 *
 * Returns 0, or MDG_ESYSTEM (it is lost), MDG_EBUSY (another thread seals it), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_buffer_seal(mdg_buffer buffer);

/**
 * Puts the address of a buffer's bytes into *data: the same before it is sealed and after, and as long as its handle is open. They may be written
 * until it is sealed, and only by a process that made it. Does not block.
 *
 * Returns how many there are, or MDG_EINVAL, MDG_ECLOSED (it could not be sealed), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_buffer_data(mdg_buffer buffer,
                        void **data);

/**
 * Joins the pool `name` (1 to 64 letters, digits and . _ - : @) by this user's daemon of this host, which `madrigal up` starts, and puts the
 * handle into *pool. The pool is the same on all hosts of the daemon's grid. `size` is MDG_POOL_OPEN, or how many members the pool is to
 * have, or MDG_POOL_LAUNCHED; all members must say the same. `blob`, of `len` bytes (4,096 at most), is what others find with
 * mdg_pool_blob(), such as the address of a port.
 *
 * Waits at most `timeout_ns` nanoseconds (MDG_FOREVER: without end) until the process is a member, and of a pool with a size until all have
 * joined; then no more are let in. With 0 it does not wait for that: mdg_pool_joined() does. A process that ends without mdg_pool_leave() or
 * mdg_close() has died, and the others are told so.
 *
 * Returns 0, or MDG_EUNUSABLE (no daemon is up, it refuses, or there is no launcher), MDG_EREFUSED (the pool is closed, or was terminated),
 * MDG_EMISMATCH (others gave another size), MDG_ERANK (the rank cannot be had), MDG_EBUSY (it is full), MDG_ETIMEDOUT, MDG_ELOST (where pools
 * are kept cannot be reached), MDG_ESYSTEM, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_pool_join(mdg_runtime runtime,
                  const char *name,
                  int size,
                  const void *blob,
                  size_t len,
                  int64_t timeout_ns,
                  mdg_pool *pool);

/**
 * Waits at most `timeout_ns` nanoseconds for what mdg_pool_join() waits for, if that did not wait.
 *
 * Returns 0, or as mdg_pool_join(), or MDG_ECLOSED.
 */
int mdg_pool_joined(mdg_pool pool, int64_t timeout_ns);

/**
 * Leaves the pool, and waits at most `timeout_ns` nanoseconds until that has its place in the order. The handle stays, for mdg_close().
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_leave(mdg_pool pool,
                   int64_t timeout_ns);

/**
 * This process's id in the pool: how many joined before it. No two members of a pool have the same. Does not block.
 *
 * Returns the id, or MDG_EBUSY (it is no member yet), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_pool_id(mdg_pool pool);

/**
 * The ids of all living members, in the order in which they joined, as far as there is room for `room`. They are those of now: of events
 * that mdg_pool_next() has not taken, too. Does not block.
 *
 * Returns how many members there are, or MDG_EINVAL (`ids` is NULL and `room` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_pool_members(mdg_pool pool,
                         int64_t *ids,
                         size_t room);

/**
 * The rank of a member of a pool with a size: the one of its launcher, or, once all have joined, that in the order of joins. Does not block.
 *
 * Returns the rank, or MDG_ERANK (it has none), MDG_EGONE (there is no such member), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_rank(mdg_pool pool,
                  int64_t member);

/**
 * Copies where a member is, `host@site`, to `buf`, with a nul, cut to `len` bytes. Does not block.
 *
 * Returns the text's length, or MDG_EGONE (there is no such member), MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int64_t mdg_pool_location(mdg_pool pool,
                          int64_t member,
                          char *buf,
                          size_t len);

/**
 * Copies what a member brought along to `buf`, cut to `len` bytes. Does not block.
 *
 * Returns the blob's length, or MDG_EGONE (there is no such member), MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int64_t mdg_pool_blob(mdg_pool pool,
                      int64_t member,
                      void *buf,
                      size_t len);

/**
 * Wants to win the election `name`, and waits at most `timeout_ns` nanoseconds until somebody has won it. All candidates must say the same
 * of what comes after the winner: MDG_POOL_FOLLOWED or MDG_POOL_FOR_LIFE. Never two are winners at once, in the order of the pool's events.
 * Where `number` is not NULL, the number of the election goes there: a later winner has a higher one.
 * Behind MDG_ETIMEDOUT this process is a candidate still, and may have won: the next call with this name goes on with that.
 *
 * Returns the winner's id, which may be one's own, or MDG_EMISMATCH (others said something else of what comes after the winner),
 * MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED (this process has left), MDG_EBUSY (1,024 elections), MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE,
 * MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_pool_elect(mdg_pool pool,
                       const char *name,
                       int after,
                       int64_t timeout_ns,
                       uint64_t *number);

/**
 * Waits at most `timeout_ns` nanoseconds (0: only looks) until the election `name` has a winner, and is no candidate.
 *
 * Returns the winner's id, or MDG_ETIMEDOUT, MDG_ELOST, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_pool_winner(mdg_pool pool, const char *name, int64_t timeout_ns);

/**
 * Sends `value`, a text of at most 4,096 bytes, to the `many` members at `to`, or to all if `many` is 0, and waits at most `timeout_ns`
 * nanoseconds until it has its place in the order. They find it by mdg_pool_next().
 *
 * Returns 0, or MDG_EGONE (one of them is no member), MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE,
 * MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_signal(mdg_pool pool,
                    const int64_t *to,
                    size_t many,
                    const char *value,
                    int64_t timeout_ns);

/**
 * Sets the attribute `key` of the pool, or with `own` of this member, to the `len` bytes (4,096 at most) at `value`, or takes it away if
 * `value` is NULL, and waits at most `timeout_ns` nanoseconds until that has its place in the order.
 *
 * Returns 0, or MDG_EBUSY (the pool is full), MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int mdg_pool_set(mdg_pool pool,
                 int own,
                 const char *key,
                 const void *value,
                 size_t len,
                 int64_t timeout_ns);

/**
 * Copies the attribute `key` of a member, or of the pool (MDG_POOL_ITSELF), to `buf`, cut to `len` bytes. Does not block.
 *
 * Returns the value's length, or MDG_EGONE (there is no such attribute, or member), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_pool_get(mdg_pool pool,
                     int64_t member,
                     const char *key,
                     void *buf,
                     size_t len);

/**
 * Has a member checked that may be dead. If it is, or its host does not answer within 1.5 s, all are told that it died. Does not wait for
 * that, but at most `timeout_ns` nanoseconds until the question has its place in the order.
 *
 * Returns 0, or MDG_EGONE (it is no member), MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFORKED.
 */
int mdg_pool_suspect(mdg_pool pool,
                     int64_t member,
                     int64_t timeout_ns);

/**
 * Terminates the pool: nobody joins any more, and mdg_pool_wait_terminated() of all members returns. Waits at most `timeout_ns`
 * nanoseconds until that has its place in the order.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_terminate(mdg_pool pool,
                       int64_t timeout_ns);

/**
 * Waits at most `timeout_ns` nanoseconds until a member has terminated the pool.
 *
 * Returns 0, or MDG_ETIMEDOUT, MDG_ELOST, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_wait_terminated(mdg_pool pool, int64_t timeout_ns);

/**
 * Takes the next event into *event, and waits for it at most `timeout_ns` nanoseconds (0: only looks). The first ones tell of the members,
 * attributes and elections that there were when this process joined. Up to 16,384 events wait to be taken; of more the oldest are dropped
 * and counted (MDG_POOL_MISSED).
 *
 * Returns the event's kind, or MDG_ETIMEDOUT, MDG_ELOST (no member any more: the text says why), MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE,
 * MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_next(mdg_pool pool,
                  int64_t timeout_ns,
                  mdg_pool_event *event);

/**
 * A descriptor that poll(2) shows as readable while mdg_pool_next() with the time 0 has an event, and sometimes when it has none. It is the
 * pool's: the program does not read, write or close it. Does not block.
 *
 * Returns the descriptor, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_pool_fd(mdg_pool pool);

/**
 * Turns the engine: posted operations go on, handlers are called. If there is nothing to do, waits until there is, at most `timeout_ns`
 * nanoseconds (MDG_FOREVER: without end; 0: does not block), or until mdg_call().
 *
 * Any call that waits turns the engine, too; a program that only waits need not call this.
 *
 * Returns how much was done, 0 for nothing; or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_turn(mdg_runtime runtime,
                 int64_t timeout_ns);

/**
 * Lets the threads that wait in mdg_turn() return, or if there is none the next that is about to; makes the descriptor of mdg_fd()
 * readable. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_call(mdg_runtime runtime);

/**
 * A descriptor for an event loop of the program's own (poll(2), epoll(7)): readable when there is something to do for mdg_turn(), which
 * makes it unreadable again; and when another thread has done something, so that operations are worth a test. It is readable at first.
 * It is the library's: the program neither reads nor closes it, and it ends with the runtime.
 *
 * The first call starts a thread, which sleeps in place of the program and does no work: handlers run where the engine is turned. A
 * program whose own descriptors are few may give them to the engine instead (mdg_watch_open()), which needs no thread. Does not block.
 *
 * Returns the descriptor, the same each time, or MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_fd(mdg_runtime runtime);

/**
 * Has the engine watch a descriptor of the program's: `handler` is called with `user`, the watch and the events, once a turn as long
 * as one of the asked events lasts (it is not told once only). Its handle goes into *watch.
 *
 * `events` and what is told are those of poll(2): POLLIN, POLLPRI, POLLOUT, POLLRDHUP; POLLERR and POLLHUP are told in any case. The
 * descriptor stays the program's, and must stay open until the watch is closed. One descriptor can be watched once in a runtime.
 * Handlers of the descriptors of one runtime are called one after the other. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_ESYSTEM (EPERM: a file that one cannot wait for; EEXIST: it is watched), MDG_EHANDLE, MDG_ETYPE,
 * MDG_EFULL, MDG_EFORKED.
 */
int mdg_watch_open(mdg_runtime runtime,
                   int fd,
                   uint32_t events,
                   mdg_handler handler,
                   void *user,
                   mdg_watch *watch);

/**
 * Other events of a watched descriptor count from now on. Does not block.
 *
 * Returns 0, or MDG_ESYSTEM (the descriptor was closed), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_watch_change(mdg_watch watch, uint32_t events);

/**
 * Sets a timer: `handler` is called with `user`, the timer and how often it ran out since it was last called, `delay_ns` nanoseconds from
 * now and, if `period_ns` is not 0, every so many after that. It runs out while somebody turns the engine, else when that is next done.
 * Its handle goes into *timer; one that has run out for good must be closed, too. Does not block.
 *
 * Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
 */
int mdg_timer_open(mdg_runtime runtime,
                   uint64_t delay_ns,
                   uint64_t period_ns,
                   mdg_handler handler,
                   void *user,
                   mdg_timer *timer);

/**
 * How much the sources of a class may do each time the engine is turned, at least 1; 16 unless set. Takes effect at once.
 *
 * Classes are the drivers ("loopback", "shm", "tcp"), "descriptors" and "timers". Does not block.
 *
 * Returns 0, or MDG_EINVAL (no such class; the text names them), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_set_weight(mdg_runtime runtime,
                   const char *class_name,
                   uint32_t weight);

/**
 * How much the sources of a class have done so far: reads, writes, accepts and connects that completed, events of descriptors, timers that
 * ran out. Operations that complete in the thread that waits for them are not counted. Does not block.
 *
 * Returns that, or MDG_EINVAL (no such class), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int64_t mdg_work_done(mdg_runtime runtime,
                      const char *class_name);

/**
 * Looks at the kernel only with every so many turns of the engine (at least 1; 32 unless set) while there are links in memory to look at,
 * which costs a thousandth of that. Takes effect at once. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_set_kernel_every(mdg_runtime runtime,
                         uint32_t turns);

/**
 * The longest time in nanoseconds that a waiting thread looks again and again before it sleeps, a second at most; 0 turns that off (50,000
 * unless set here or by MADRIGAL_SPIN_US). Takes effect at once. Does not block.
 *
 * Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
 */
int mdg_set_spin(mdg_runtime runtime,
                 uint64_t ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MADRIGAL_H */
