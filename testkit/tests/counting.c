/* Counts calls of the C library's I/O functions, and passes them on. Built and preloaded by preload.rs.
   No header is included: every function is declared as six words in, one word out, which is how they are called. */

typedef long word;
typedef word function(word, word, word, word, word, word);
extern void *dlsym(void *, const char *);

#define FUNCTIONS(f)                                                                                                   \
  f(read) f(write) f(readv) f(writev) f(pread64) f(pwrite64) f(recv) f(send) f(recvfrom) f(sendto) f(recvmsg)          \
  f(sendmsg) f(recvmmsg) f(sendmmsg) f(socket) f(socketpair) f(connect) f(bind) f(listen) f(accept) f(accept4)         \
  f(shutdown) f(getsockopt) f(setsockopt) f(getsockname) f(getpeername) f(epoll_create) f(epoll_create1) f(epoll_ctl)  \
  f(epoll_wait) f(epoll_pwait) f(epoll_pwait2) f(poll) f(ppoll) f(select) f(pselect) f(eventfd) f(pipe) f(pipe2)       \
  f(open) f(open64) f(openat) f(openat64) f(fcntl) f(fcntl64) f(ioctl) f(dup) f(dup2) f(dup3) f(memfd_create)          \
  f(ftruncate) f(ftruncate64) f(sendfile) f(splice) f(close)

enum {
#define NUMBER(name) number_##name,
  FUNCTIONS(NUMBER) count
};

static const char *const names[] = {
#define NAME(name) #name,
  FUNCTIONS(NAME) 0
};

static unsigned long calls[count];

/* The name of function `i`, or null after the last. */
const char *counting_name(int i) { return names[i]; }
/* How often it was called. */
unsigned long counting_calls(int i) { return __atomic_load_n(&calls[i], __ATOMIC_SEQ_CST); }

#define HOOK(name)                                                                                                     \
  word name(word a, word b, word c, word d, word e, word f) {                                                          \
    static function *next;                                                                                             \
    if (!next) next = (function *)dlsym((void *)-1L, #name);                                                           \
    __atomic_fetch_add(&calls[number_##name], 1, __ATOMIC_SEQ_CST);                                                    \
    return next(a, b, c, d, e, f);                                                                                     \
  }
FUNCTIONS(HOOK)
