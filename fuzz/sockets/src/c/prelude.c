/* What every program needs: turns, bytes, and the calls that take more than one line. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-result"
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 160
#define STEPS 320
#define ACTORS 40
#define STREAMS 64
#define AUX 40
#define ROOM (8 << 20)
enum { FULL, END, EMPTY, FAILED = 1000 };
enum { BLOCKED = -1, SKIPPED = -2 };
enum { LEAVE = 1 << 30, FREELY = 1 << 29 };

/* What all processes share. */
struct shared {
    atomic_int go[ACTORS], done[ACTORS], pid[ACTORS], tid[ACTORS], handled, run, port[SLOTS], six[SLOTS];
    atomic_ulong sent[STREAMS][4], got[STREAMS][4];
    atomic_int blind[STREAMS], made[STEPS], error[STEPS], notes[STEPS];
    atomic_long result[STEPS];
    atomic_ulong note[STEPS][AUX], wrong[STEPS];
};
static struct shared *shared;
static int fd[SLOTS];
static FILE *file[SLOTS];
static pthread_t thread_of[ACTORS];
static __thread char *memory;
extern char **environ;

struct step { int actor, together, done_at; long result; int error; const char *what; int notes; uint64_t note[AUX]; };
struct process { int main_actor, initial, wrapped; };
static void make(int step, int actor);
static const struct step steps[];
static const struct process processes[];
static const int count, process_count, actor_count, freely;
static int is_drivers(int step);
static void drive(int step);

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* The byte of a stream's lane at a place: every reader knows what must come. */
static unsigned char byte_at(uint32_t stream, int lane, uint64_t at) {
    static const uint8_t first[] = {33, 97, 161, 224}, spread[] = {63, 63, 62, 31};
    uint64_t raw = mix((uint64_t)(stream + 1) << 48 ^ (uint64_t)lane << 44 ^ at / 8);
    if (lane == 0 && raw >> 60 == 0 && (raw >> 57 & 7) == at % 8) return '\n';
    return (raw >> at % 8 * 8 & spread[lane]) + first[lane];
}

static void fill(int stream, int lane, char *to, size_t n) {
    for (size_t i = 0; stream < STREAMS && i < n; i++) to[i] = byte_at(stream, lane, shared->sent[stream][lane] + i);
}

static int lane_of(unsigned char c) {
    return c == '\n' || (c >= 33 && c < 97) ? 0 : c >= 224 ? 3 : c >= 161 ? 2 : c >= 97 ? 1 : -1;
}

static void check(int step, int stream, const char *data, size_t n, int taken) {
    if (stream >= STREAMS || shared->blind[stream]) return;
    uint64_t at[4];
    for (int lane = 0; lane < 4; lane++) at[lane] = shared->got[stream][lane];
    for (size_t i = 0; i < n; i++) {
        int lane = lane_of(data[i]);
        if (lane < 0 || (lane != 2 && byte_at(stream, lane, at[lane]) != (unsigned char)data[i])) {
            if (!shared->wrong[step]) shared->wrong[step] = i + 1;
            break;
        }
        at[lane]++;
    }
    for (int lane = 0; taken && lane < 4; lane++) shared->got[stream][lane] = at[lane];
}

static void tell(int step, long result) {
    shared->error[step] = result < 0 ? errno : 0;
    shared->result[step] = result;
}

static void note(int step, uint64_t value) {
    if (shared->notes[step] < AUX) shared->note[step][shared->notes[step]++] = value;
}

static void note_call(int step, long result) { note(step, result < 0 ? FAILED + errno : (uint64_t)result); }

static void take(int slot, int n) {
    for (int i = 0; n >= 0 && i < SLOTS; i++) if (fd[i] == n) fd[i] = -1;
    fd[slot] = n;
}

static char *room(void) {
    if (!memory) {
        memory = mmap(NULL, ROOM + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(memory + ROOM, 4096, PROT_NONE);
    }
    return memory;
}

static int cut(struct iovec *v, char *at, size_t len, const char *how) {
    size_t third = len / 3;
    int n = !strcmp(how, "Many") ? 1024 : !strcmp(how, "TooMany") ? 1025 : 0;
    if (!strcmp(how, "None")) return 0;
    if (!strcmp(how, "Few")) {
        v[0] = (struct iovec){at, third}, v[1] = (struct iovec){at + third, third};
        v[2] = (struct iovec){at + 2 * third, len - 2 * third};
        return 3;
    }
    if (!strcmp(how, "Holes")) {
        v[0] = (struct iovec){at, 0}, v[1] = (struct iovec){at, third}, v[2] = (struct iovec){at + third, 0};
        v[3] = (struct iovec){at + third, len - third}, v[4] = (struct iovec){at + len, 0};
        return 5;
    }
    for (int i = 0; i < n; i++) v[i] = (struct iovec){at + i * (len / n), i + 1 == n ? len - i * (len / n) : len / n};
    if (!n) v[n++] = (struct iovec){at, len};
    return n;
}

static int parts(struct mmsghdr *m, struct iovec *v, int n) {
    int each = (n + 2) / 3 > 1 ? (n + 2) / 3 : 1, k = 0;
    memset(m, 0, 4 * sizeof *m);
    if (n == 0) return 1;
    for (int at = 0; at < n; at += each, k++) {
        m[k].msg_hdr.msg_iov = v + at;
        m[k].msg_hdr.msg_iovlen = n - at < each ? n - at : each;
    }
    return k;
}

static ssize_t many_out(int step, int s, struct iovec *v, int n, int flags, long *result) {
    struct mmsghdr m[4];
    long done = *result = sendmmsg(s, m, parts(m, v, n), flags), sum = 0;
    for (int i = 0; i < done; i++) note(step, m[i].msg_len), sum += m[i].msg_len;
    return done < 0 ? -1 : sum;
}

static ssize_t many_in(int step, int s, struct iovec *v, int n, int flags, char *at, long *result) {
    struct mmsghdr m[4];
    long done = *result = recvmmsg(s, m, parts(m, v, n), flags, NULL), sum = 0;
    for (int i = 0; i < done; i++) {
        note(step, m[i].msg_len), note(step, m[i].msg_hdr.msg_flags);
        if (m[i].msg_hdr.msg_iovlen) memmove(at + sum, m[i].msg_hdr.msg_iov->iov_base, m[i].msg_len);
        sum += m[i].msg_len;
    }
    return done < 0 ? -1 : sum;
}

static ssize_t aio_end(struct aiocb *a) {
    const struct aiocb *list[] = {a};
    while (aio_error(a) == EINPROGRESS) aio_suspend(list, 1, NULL);
    int error = aio_error(a);
    ssize_t n = aio_return(a);
    errno = error;
    return n;
}

static ssize_t by_aio(int s, char *at, size_t len, int in) {
    struct aiocb a = {.aio_fildes = s, .aio_buf = at, .aio_nbytes = len};
    struct pollfd p = {s, POLLIN, 0};
    a.aio_sigevent.sigev_notify = SIGEV_NONE;
    if (in && poll(&p, 1, 0) == 0) return errno = EAGAIN, -1;
    if ((in ? aio_read(&a) : aio_write(&a)) < 0) return -1;
    return aio_end(&a);
}

static ssize_t by_lio(int s, char *at, size_t len) {
    struct aiocb a = {.aio_fildes = s, .aio_buf = at, .aio_nbytes = len / 2, .aio_lio_opcode = LIO_WRITE}, b = a, *list[] = {&a, &b};
    b.aio_buf = at + len / 2, b.aio_nbytes = len - len / 2;
    lio_listio(LIO_WAIT, list, 2, NULL);
    ssize_t one = aio_end(&a), other = one < 0 ? -1 : aio_end(&b);
    return one < 0 ? -1 : other < 0 ? one : one + other;
}

static ssize_t from_file(int s, char *at, size_t len) {
    int f = memfd_create("repro", 0);
    off_t begin = 0;
    pwrite(f, at, len, 0);
    ssize_t n = sendfile(s, f, &begin, len);
    int error = errno;
    close(f), errno = error;
    return n;
}

static ssize_t by_pipe(int s, char *at, size_t len, int in) {
    int p[2];
    pipe(p);
    if (len > 65536) len = 65536;
    if (!in) write(p[1], at, len);
    ssize_t n = in ? splice(s, NULL, p[1], NULL, len, 0) : splice(p[0], NULL, s, NULL, len, 0);
    int error = errno;
    if (in && n > 0) read(p[0], at, n);
    close(p[0]), close(p[1]), errno = error;
    return n;
}

static void wait_for(int s, int events) {
    struct pollfd p = {s, events, 0};
    poll(&p, 1, 1000);
}

#define SEND_SOME(S, STREAM, LANE, LEN, CHUNK, CALL, MOVED, HOW) \
    do { \
        struct iovec v[8]; int n = 0; (void)v, (void)n; \
        HOW = FULL; \
        while (MOVED < (size_t)(LEN)) { \
            size_t len = (size_t)(LEN) - MOVED < (size_t)(CHUNK) ? (size_t)(LEN) - MOVED : (size_t)(CHUNK); \
            char *at = room(); \
            fill(STREAM, LANE, at, len), n = cut(v, at, len, "Few"); \
            ssize_t r = CALL; \
            if (r >= 0) shared->sent[STREAM][LANE] += r, MOVED += r; \
            else if (errno == EAGAIN) wait_for(S, POLLOUT); \
            else if (errno != EINTR) { HOW = FAILED + errno; break; } \
        } \
    } while (0)

#define RECV_SOME(STEP, S, STREAM, LEN, CHUNK, CALL, MOVED, HOW) \
    do { \
        struct iovec v[8]; int n = 0; (void)v, (void)n; \
        HOW = FULL; \
        while (MOVED < (size_t)(LEN)) { \
            size_t len = (size_t)(LEN) - MOVED < (size_t)(CHUNK) ? (size_t)(LEN) - MOVED : (size_t)(CHUNK); \
            char *at = room(); \
            n = cut(v, at, len, "One"); \
            ssize_t r = CALL; \
            if (r > 0) check(STEP, STREAM, at, r, 1), MOVED += r; \
            else if (r == 0) { HOW = END; break; } \
            else if (errno == EAGAIN) wait_for(S, POLLIN); \
            else if (errno != EINTR) { HOW = FAILED + errno; break; } \
        } \
    } while (0)

static ssize_t message_in(int s, struct iovec *v, int n, int flags, int step, int by_number) {
    char name[128], control[128];
    struct msghdr m = {.msg_name = name, .msg_namelen = sizeof name, .msg_iov = v, .msg_iovlen = n, .msg_control = control};
    m.msg_controllen = sizeof control;
    ssize_t r = by_number ? syscall(SYS_recvmsg, s, &m, flags) : recvmsg(s, &m, flags);
    if (r >= 0 && step >= 0) note(step, m.msg_flags), note(step, m.msg_namelen), note(step, m.msg_controllen);
    return r;
}

static ssize_t message_out(int s, struct iovec *v, int n, int flags, int by_number) {
    struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
    return by_number ? syscall(SYS_sendmsg, s, &m, flags) : sendmsg(s, &m, flags);
}

static void drain(int step, int s, int stream) {
    long sum = 0;
    int how = EMPTY;
    for (ssize_t n; (n = recv(s, room(), 65536, MSG_DONTWAIT)) != -1; sum += n) {
        if (n == 0) { how = END; break; }
        check(step, stream, room(), n, 1);
    }
    if (how == EMPTY && errno != EAGAIN) how = FAILED + errno;
    tell(step, sum), note(step, how);
}

/* An address: 4 IPv4, 6 IPv6, 46 IPv4 within IPv6. */
static socklen_t address(struct sockaddr_storage *to, int family, int port, int any) {
    memset(to, 0, sizeof *to);
    if (family == 4) {
        struct sockaddr_in *in = (void *)to;
        in->sin_family = AF_INET, in->sin_port = htons(port), in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof *in;
    }
    struct sockaddr_in6 *in = (void *)to;
    in->sin6_family = AF_INET6, in->sin6_port = htons(port);
    if (family == 6) in->sin6_addr = in6addr_loopback;
    else if (!any) inet_pton(AF_INET6, "::ffff:127.0.0.1", &in->sin6_addr);
    return sizeof *in;
}

static int port_of(int s) {
    struct sockaddr_in6 name;
    socklen_t len = sizeof name;
    syscall(SYS_getsockname, s, &name, &len);
    return ntohs(name.sin6_port);
}

static void listen_at(int step, int slot, int family, int flags) {
    struct sockaddr_storage to;
    socklen_t len = address(&to, family, 0, 1);
    int s = socket(family == 4 ? AF_INET : AF_INET6, SOCK_STREAM | flags, 0);
    tell(step, s), take(slot, s);
    note_call(step, bind(s, (void *)&to, len));
    note_call(step, listen(s, 64));
    shared->six[slot] = family, shared->port[slot] = port_of(s);
}

static int to_listener(int s, int to, int four) {
    struct sockaddr_storage name;
    socklen_t len = address(&name, four ? 4 : shared->six[to], shared->port[to], 0);
    return connect(s, (void *)&name, len);
}

static int new_socket(int to, int four, int flags) {
    while (freely && !shared->port[to]) usleep(100);
    return socket(four || shared->six[to] == 4 ? AF_INET : AF_INET6, SOCK_STREAM | flags, 0);
}

static int error_of(int s) {
    int value = 0;
    socklen_t len = sizeof value;
    return getsockopt(s, SOL_SOCKET, SO_ERROR, &value, &len) < 0 ? -1 : value;
}

static void connect_to(int step, int slot, int to, int four, const char *how) {
    int s = new_socket(to, four, strcmp(how, "SockNonblock") ? 0 : SOCK_NONBLOCK), blocks = !strcmp(how, "Block");
    tell(step, s), take(slot, s);
    if (!blocks) fcntl(s, F_SETFL, O_NONBLOCK);
    note_call(step, to_listener(s, to, four));
    if (blocks) return;
    struct pollfd p = {s, POLLOUT, 0};
    note_call(step, poll(&p, 1, 2000));
    note(step, p.revents), note_call(step, error_of(s));
    note_call(step, to_listener(s, to, four)), note_call(step, to_listener(s, to, four));
    if (!strcmp(how, "Nonblock")) fcntl(s, F_SETFL, 0);
}

static void refused(int step, int flags) {
    struct sockaddr_storage to;
    socklen_t len = address(&to, 4, 0, 0);
    int silent = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM | flags, 0);
    note_call(step, bind(silent, (void *)&to, len));
    len = address(&to, 4, port_of(silent), 0);
    tell(step, connect(s, (void *)&to, len));
    struct pollfd p = {s, POLLOUT | POLLIN, 0};
    note_call(step, poll(&p, 1, 1000));
    note(step, p.revents), note_call(step, error_of(s)), note_call(step, send(s, "x", 1, MSG_NOSIGNAL));
    close(s), close(silent);
}

static void option(int step, int s, int level, int name, int len) {
    uint32_t value[64] = {0};
    socklen_t got = len;
    int r = getsockopt(s, level, name, value, &got);
    tell(step, r);
    if (r < 0) return;
    if (name == TCP_INFO && level == IPPROTO_TCP) { note(step, value[0] & 0xFF); return; }
    note(step, got);
    for (unsigned i = 0; i < got / 4; i++) note(step, value[i]);
}

static struct timespec *span(struct timespec *t, int ms) {
    *t = (struct timespec){ms / 1000, ms % 1000 * 1000000L};
    return ms < 0 ? NULL : t;
}

static void by_select(int step, struct pollfd *p, int n, int ms) {
    static const int bits[] = {POLLIN, POLLOUT, POLLPRI};
    fd_set sets[3];
    int most = -1;
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    for (int k = 0; k < 3; k++) FD_ZERO(&sets[k]);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++)
            if (p[i].fd >= 0 && p[i].events & bits[k]) FD_SET(p[i].fd, &sets[k]), most = p[i].fd > most ? p[i].fd : most;
    int r = select(most + 1, &sets[0], &sets[1], &sets[2], ms < 0 ? NULL : &t);
    tell(step, r);
    for (int i = 0; r >= 0 && i < n; i++) {
        int ready = 0;
        for (int k = 0; k < 3; k++)
            if (p[i].fd >= 0 && p[i].events & bits[k] && FD_ISSET(p[i].fd, &sets[k])) ready |= bits[k];
        note(step, ready);
    }
}

static int by_data(const void *a, const void *b) {
    const struct epoll_event *x = a, *y = b;
    return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}

static void events(int step, int r, struct epoll_event *e) {
    tell(step, r);
    if (r > 0) qsort(e, r, sizeof *e, by_data);
    for (int i = 0; i < r; i++) note(step, e[i].data.u64), note(step, e[i].events);
}

static socklen_t unix_name(struct sockaddr_un *to, int slot) {
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    return 3 + sprintf(to->sun_path + 1, "repro-%d-%d", (int)shared->run, slot);
}

static void pass(int step, int through, int what) {
    char c = 'p', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&m);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &what, sizeof what);
    tell(step, sendmsg(through, &m, MSG_NOSIGNAL));
}

static void take_passed(int step, int through, int slot) {
    char c, control[64];
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int got = -1;
    tell(step, recvmsg(through, &m, 0));
    struct cmsghdr *head = CMSG_FIRSTHDR(&m);
    if (shared->result[step] > 0 && head && head->cmsg_type == SCM_RIGHTS) memcpy(&got, CMSG_DATA(head), sizeof got);
    note(step, got), take(slot, got);
}

static atomic_int counts[65], action, action_slot, action_stream, action_len;

static void handler(int signal) {
    int error = errno;
    counts[signal]++;
    if (signal == SIGUSR1 && action) {
        char data[1024];
        int n = action_len, stream = action_stream;
        if (action == 1) {
            fill(stream, 1, data, n);
            ssize_t r = send(fd[action_slot], data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (r > 0) shared->sent[stream][1] += r;
        } else {
            shared->blind[stream] = 1;
            recv(fd[action_slot], data, n, MSG_DONTWAIT);
        }
    }
    if (signal == SIGUSR1 || signal == SIGUSR2) shared->handled++;
    errno = error;
}

static void handle_signals(void) {
    int all[] = {SIGUSR1, SIGPIPE, SIGURG, SIGIO, SIGUSR2, SIGALRM};
    for (int i = 0; i < 6; i++) {
        struct sigaction a = {.sa_handler = handler, .sa_flags = i < 4 ? SA_RESTART : 0};
        sigaction(all[i], &a, NULL);
    }
}

static void timer(long us) {
    struct itimerval t = {{us / 1000000, us % 1000000}, {us / 1000000, us % 1000000}};
    setitimer(ITIMER_REAL, &t, NULL);
}

/* Waits for turns, and makes them. */
static void live(int actor, int last) {
    if (last) shared->done[actor] = last;
    shared->pid[actor] = getpid(), shared->tid[actor] = syscall(SYS_gettid);
    for (;;) {
        int go = shared->go[actor];
        if (go == last) { usleep(100); continue; }
        last = go;
        if (go == LEAVE) exit(0);
        if (go == FREELY) {
            for (int i = 0; i < count; i++) if (steps[i].actor == actor && !is_drivers(i)) make(i, actor);
        } else {
            make(go - 1, actor);
        }
        shared->done[actor] = go;
    }
}

static void *thread(void *actor) { return live((intptr_t)actor, 0), NULL; }

/* This program once more: for an actor, after a step, with the descriptors it has. */
static void image(char **args, int actor, int step) {
    static char texts[2][16], slots[SLOTS * 12];
    int at = slots[0] = 0;
    for (int i = 0; i < SLOTS; i++) if (fd[i] >= 0) at += sprintf(slots + at, "%d:%d,", i, fd[i]);
    sprintf(texts[0], "%d", actor), sprintf(texts[1], "%d", step);
    args[0] = "/proc/self/exe", args[1] = texts[0], args[2] = texts[1], args[3] = slots, args[4] = NULL;
}

static char **environment(int plain) {
    static char *list[512];
    int n = 0;
    for (char **e = environ; *e && n < 511; e++) if (!plain || strncmp(*e, "LD_PRELOAD=", 11)) list[n++] = *e;
    list[n] = NULL;
    return list;
}

static int begin(int actor, int plain, int fork_exec) {
    char *args[5];
    image(args, actor, 0);
    if (!fork_exec) {
        pid_t child;
        return posix_spawn(&child, args[0], NULL, NULL, args, environment(plain));
    }
    pid_t child = fork();
    if (child == 0) execve(args[0], args, environment(plain)), _exit(127);
    return child < 0;
}

static int idle_child(const char *how) {
    char *args[] = {"true", NULL};
    int status = 0;
    pid_t child = 0;
    if (!strcmp(how, "System")) return system("true");
    if (!strcmp(how, "Popen")) return pclose(popen("true", "r"));
    if (!strcmp(how, "Spawn")) posix_spawn(&child, "/bin/true", NULL, NULL, args, environ);
    else if (!strcmp(how, "Spawnp")) posix_spawnp(&child, "true", NULL, NULL, args, environ);
    else if (!strcmp(how, "Vfork")) {
        if ((child = vfork()) == 0) execv("/bin/true", args), _exit(127);
    } else if ((child = fork()) == 0) {
        if (!strcmp(how, "ForkClose")) close_range(3, ~0U, 0);
        if (!strcmp(how, "ForkQuick")) exit(0);
        if (!strcmp(how, "ForkExec")) execv("/bin/true", args);
        if (!strcmp(how, "Kill")) for (;;) pause();
        _exit(0);
    }
    if (!strcmp(how, "Kill")) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

static atomic_int echoing;

/* What comes goes back, until the end. */
static void echo(int s) {
    static __thread char data[65536];
    for (ssize_t n, put; (n = recv(s, data, sizeof data, 0)) != 0;)
        for (ssize_t at = 0; at < n; at += put)
            if ((put = send(s, data + at, n - at, MSG_NOSIGNAL)) < 0) { close(s); return; }
    close(s);
}

static void *echo_thread(void *s) {
    echoing++;
    echo((intptr_t)s);
    echoing--;
    return NULL;
}

/* The same for many connections, by an event loop. */
static int echo_all(int listener, int conns) {
    static char data[65536];
    int set = epoll_create1(0), over = 0;
    struct epoll_event e = {EPOLLIN, {.fd = listener}}, ready[8];
    fcntl(listener, F_SETFL, O_NONBLOCK);
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &e);
    while (over < conns) {
        int n = epoll_wait(set, ready, 8, -1);
        for (int i = 0; i < n; i++) {
            int s = ready[i].data.fd;
            if (s == listener) {
                while ((s = accept(listener, NULL, NULL)) >= 0) {
                    e.data.fd = s;
                    epoll_ctl(set, EPOLL_CTL_ADD, s, &e);
                }
                continue;
            }
            ssize_t got = recv(s, data, sizeof data, MSG_DONTWAIT);
            if (got > 0) send(s, data, got, MSG_NOSIGNAL);
            else if (got == 0 || (errno != EAGAIN && errno != EINTR)) close(s), over++;
        }
    }
    return over;
}

/* Connects, asks, checks the answers, closes, and again. */
static void churn(int step, int actor, int to, int conns, int requests, uint32_t size) {
    static __thread unsigned char out[65536], in[65536];
    uint64_t random = step, sum = 0;
    for (int conn = 0; conn < conns; conn++) {
        int s = new_socket(to, 0, 0), key = 1000 + actor * 1000 + conn, broken = 0;
        uint64_t at = 0;
        if (to_listener(s, to, 0) < 0) { note(step, FAILED + errno); break; }
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        for (int r = 0; r < requests && !broken; r++) {
            uint32_t len = 1 + (random = mix(random + r)) % (size < 65536 ? size : 65536);
            for (uint32_t i = 0; i < len; i++) out[i] = byte_at(key, 0, at + i);
            for (uint32_t sent = 0, got = 0; got < len && !broken;) {
                ssize_t n = sent < len ? send(s, out + sent, len - sent, MSG_NOSIGNAL) : 0;
                if (n < 0 && errno != EINTR) broken = 1;
                sent += n > 0 ? n : 0;
                if (sent < len) continue;
                n = recv(s, in + got, len - got, 0);
                if (n == 0 || (n < 0 && errno != EINTR)) broken = 1;
                got += n > 0 ? n : 0;
            }
            if (broken) note(step, FAILED + errno), shared->wrong[step] = at + 1;
            else if (memcmp(in, out, len)) shared->wrong[step] = at + 1;
            at += len, sum += len;
        }
        close(s);
    }
    tell(step, sum);
}


static int failures, violent;

/* Whether a step left other words than plain; some leave fewer here. */
static int other_notes(int step) {
    const struct step *s = &steps[step];
    if (shared->notes[step] != s->notes) return 0;
    for (int i = 0; i < s->notes; i++) if (shared->note[step][i] != s->note[i]) return 1;
    return 0;
}

static void report(int step) {
    const struct step *s = &steps[step];
    printf("%d: actor %d %s -> %ld", step, s->actor, s->what, (long)shared->result[step]);
    if (shared->result[step] < 0) printf(" (%s)", strerror(shared->error[step]));
    for (int i = 0; i < shared->notes[step]; i++) printf(" 0x%lx", (long)shared->note[step][i]);
    if (shared->wrong[step]) printf("   <-- WRONG BYTE at %ld", (long)shared->wrong[step] - 1), failures++;
    if (!freely && (shared->result[step] != s->result || shared->error[step] != s->error || other_notes(step))) {
        printf("   <-- plain: %ld (%s)", s->result, s->error ? strerror(s->error) : "no error"), failures++;
        for (int i = 0; i < s->notes; i++) printf(" 0x%lx", (long)s->note[i]);
    }
    printf("\n");
}

static void await(int actor, int what, int step) {
    for (int i = 0; i < 50000; i++, usleep(100)) {
        if (shared->done[actor] == what) return;
        int pid = shared->pid[actor];
        if (pid && waitpid(pid, NULL, WNOHANG) == pid) break;
    }
    if (violent) return;
    printf("%d: actor %d %s   <-- NOT DONE, or its process is gone\n", step, steps[step].actor, steps[step].what);
    kill(0, SIGKILL);
}

static void await_begin(int actor) {
    for (int i = 0; i < 50000 && !shared->tid[actor]; i++) usleep(100);
}

/* One step at a time, as a run on plain TCP went. */
static void by_turns(void) {
    for (int i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && steps[end - 1].together; end++) {}
        int made = steps[i].done_at != SKIPPED;
        for (int k = i; made && k < end; k++) {
            if (is_drivers(k)) drive(k);
            else shared->go[steps[k].actor] = k + 1;
        }
        for (int k = i; made && k < end; k++) {
            if (steps[k].done_at < i || steps[k].done_at >= end) usleep(30000);
            else if (!is_drivers(k) && strncmp(steps[k].what, "Exit", 4)) await(steps[k].actor, k + 1, k), report(k);
        }
        usleep(2000);
        for (int k = 0; k < i; k++)
            if (steps[k].done_at >= i && steps[k].done_at < end) await(steps[k].actor, k + 1, k), report(k);
    }
}

/* Everybody at once. */
static void all_at_once(void) {
    for (int i = 0; i < actor_count; i++) shared->go[i] = FREELY;
    for (int i = 0; i < count; i++) if (is_drivers(i)) drive(i);
    for (int i = 0; i < actor_count; i++) {
        int last = -1;
        for (int k = 0; k < count; k++) if (steps[k].actor == i && !is_drivers(k)) last = k;
        if (last >= 0) await(i, FREELY, last);
    }
    for (int i = 0; i < count; i++) if (!is_drivers(i)) report(i);
}

int main(int argc, char **argv) {
    enum { REGION = 900 };
    for (int i = 0; i < SLOTS; i++) fd[i] = -1;
    if (argc < 2) {
        int region = memfd_create("repro", 0);
        ftruncate(region, sizeof *shared);
        dup2(region, REGION), close(region);
        setpgid(0, 0);
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, REGION, 0);
    if (argc > 3) {
        for (char *at = argv[3]; *at; at = strchr(at, ',') + 1) {
            int slot, n;
            if (sscanf(at, "%d:%d", &slot, &n) == 2 && fcntl(n, F_GETFD) >= 0) fd[slot] = n;
        }
        handle_signals();
        live(atoi(argv[1]), atoi(argv[2]));
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    shared->run = getpid();
    for (int p = 0; p < process_count; p++) {
        if (!processes[p].initial) continue;
        char *args[5];
        image(args, processes[p].main_actor, 0);
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            execve(args[0], args, environment(!processes[p].wrapped)), _exit(127);
        }
        await_begin(processes[p].main_actor);
    }
    freely ? all_at_once() : by_turns();
    for (int i = 0; !freely && i < count; i++)
        if (steps[i].done_at == BLOCKED && shared->go[steps[i].actor] == i + 1 && shared->done[steps[i].actor] == i + 1)
            report(i), printf("   it sleeps plain\n"), failures++;
    printf("%s\n", failures ? "FAILED" : "ok");
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    usleep(20000);
    for (int i = 0; i < actor_count; i++) if (shared->pid[i]) kill(shared->pid[i], SIGKILL);
    return failures != 0;
}
