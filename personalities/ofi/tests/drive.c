/* Drives the provider through the installed libfabric, as an MPI would: two endpoints, in this process or in two.
 *   drive local             everything between two endpoints of one process
 *   drive pair              the same between two processes (the child's address comes over a pipe)
 *   drive pair asleep       and they sleep in poll(2) while there is nothing
 *   drive named PORT        two processes that find each other by host and port
 * Prints what went wrong and ends with 1. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define MUST(call) do { long r_ = (long)(call); if (r_ < 0) { printf("%s:%d: %s = %ld (%s)\n", __FILE__, __LINE__, #call, r_, fi_strerror(-r_)); exit(1); } } while (0)
#define IS(a, b) do { long long a_ = (long long)(a), b_ = (long long)(b); if (a_ != b_) { printf("%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #a, a_, b_); exit(1); } } while (0)

#define LARGE (3u << 20)
#define KEY 77

struct side {
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_cntr *writes;
    struct fid_mr *mr;
    fi_addr_t peer;
    char name[128];
    size_t name_len;
    char *memory;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static int asleep;

static void open_side(struct side *s)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = asleep ? FI_WAIT_FD : FI_WAIT_UNSPEC };
    struct fi_av_attr av = { .type = FI_AV_MAP };
    struct fi_cntr_attr cntr = { .events = FI_CNTR_EVENTS_COMP };
    size_t min = 256, got = 0, len = sizeof(got);
    MUST(fi_domain(fabric, info, &s->domain, NULL));
    MUST(fi_cq_open(s->domain, &cq, &s->cq, NULL));
    MUST(fi_av_open(s->domain, &av, &s->av, NULL));
    MUST(fi_cntr_open(s->domain, &cntr, &s->writes, NULL));
    MUST(fi_endpoint(s->domain, info, &s->ep, NULL));
    IS(fi_enable(s->ep), -FI_ENOAV);
    MUST(fi_ep_bind(s->ep, &s->av->fid, 0));
    MUST(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_ep_bind(s->ep, &s->writes->fid, FI_WRITE));
    IS(fi_send(s->ep, "x", 1, NULL, 0, NULL), -FI_EOPBADSTATE);
    MUST(fi_enable(s->ep));
    MUST(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof(min)));
    MUST(fi_getopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &len));
    IS(got, 256);
    s->memory = calloc(1, LARGE);
    MUST(fi_mr_reg(s->domain, s->memory, LARGE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &s->mr, NULL));
    s->name_len = 0;
    IS(fi_getname(&s->ep->fid, NULL, &s->name_len), -FI_ETOOSMALL);
    MUST(fi_getname(&s->ep->fid, s->name, &s->name_len));
}

static void meet(struct side *s, const char *name)
{
    char back[128], text[256];
    size_t len = sizeof(back), room = sizeof(text);
    IS(fi_av_insert(s->av, name, 1, &s->peer, 0, NULL), 1);
    MUST(fi_av_lookup(s->av, s->peer, back, &len));
    IS(len, s->name_len);
    IS(memcmp(back, name, len), 0);
    IS(fi_av_straddr(s->av, back, text, &room) == text, 1);
    IS(strncmp(text, "fi_madrigal://", 14), 0);
}

static void close_side(struct side *s)
{
    IS(fi_close(&s->cq->fid), -FI_EBUSY);
    MUST(fi_close(&s->ep->fid));
    MUST(fi_close(&s->mr->fid));
    MUST(fi_close(&s->cq->fid));
    MUST(fi_close(&s->writes->fid));
    MUST(fi_close(&s->av->fid));
    MUST(fi_close(&s->domain->fid));
    free(s->memory);
}

/* Both sides of one process make progress; a watchdog (alarm) ends what hangs. */
static struct side *other;

/* Nothing came: sleeps as programs do that wait for other things too. */
static void rest(struct side *s)
{
    struct fid *fids[] = { &s->cq->fid };
    struct pollfd fd = { .events = POLLIN };
    MUST(fi_control(&s->cq->fid, FI_GETWAIT, &fd.fd));
    if (fi_trywait(fabric, fids, 1) == 0)
        IS(poll(&fd, 1, 30000), 1);
}

static struct fi_cq_tagged_entry next(struct side *s)
{
    struct fi_cq_tagged_entry entry = { 0 };
    for (;;) {
        ssize_t r = fi_cq_read(s->cq, &entry, 1);
        if (r == 1)
            return entry;
        if (r != -FI_EAGAIN) {
            struct fi_cq_err_entry error = { 0 };
            fi_cq_readerr(s->cq, &error, 0);
            printf("unexpected: read %zd, error %d (%s)\n", r, error.err, fi_strerror(error.err));
            exit(1);
        }
        if (asleep)
            rest(s);
        if (other)
            fi_cq_read(other->cq, NULL, 0);
    }
}

static struct fi_cq_err_entry next_error(struct side *s)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { 0 };
    ssize_t r;
    while ((r = fi_cq_read(s->cq, &entry, 1)) == -FI_EAGAIN)
        if (other)
            fi_cq_read(other->cq, NULL, 0);
    IS(r, -FI_EAVAIL);
    IS(fi_cq_readerr(s->cq, &error, 0), 1);
    return error;
}

static void post(struct side *s, struct fid_ep *ep, const void *buf, size_t len, uint64_t tag, void *context)
{
    ssize_t r;
    while ((r = fi_tsenddata(ep, buf, len, NULL, tag * 10, s->peer, tag, context)) == -FI_EAGAIN)
        fi_cq_read(s->cq, NULL, 0);
    MUST(r);
}

static void fill(char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (char)(i * 7 + seed + (i >> 8));
}

static void check(const char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (buf[i] != (char)(i * 7 + seed + (i >> 8))) {
            printf("byte %zu of %zu is wrong\n", i, len);
            exit(1);
        }
}

static const size_t SIZES[] = { 0, 1, 8, 500, 5000, 20000, 100000, LARGE };
#define COUNT (sizeof(SIZES) / sizeof(*SIZES))

/* What the sending side does. The receiving side below expects exactly this, in this order. */
static char *out;

static void send_all(struct side *s)
{
    struct iovec parts[2];
    for (size_t i = 0; i < COUNT; i++) {
        struct fi_cq_tagged_entry done;
        fill(out, SIZES[i], (unsigned)i);
        post(s, s->ep, out, SIZES[i], 100 + i, &parts[i % 2]);
        done = next(s);
        IS(done.op_context == &parts[i % 2], 1);
        IS(done.flags & (FI_SEND | FI_TAGGED), FI_SEND | FI_TAGGED);
    }
    fill(out, 64, 1);
    MUST(fi_tinject(s->ep, out, 64, s->peer, 200));
    MUST(fi_tinject(s->ep, out, 64, s->peer, 201));
    MUST(fi_tinject(s->ep, out, 32, s->peer, 202));
    for (int i = 0; i < 12; i++) {
        fill(out, 100, (unsigned)i);
        MUST(fi_inject(s->ep, out, 100, s->peer));
    }
    fill(out, 300, 9);
    parts[0] = (struct iovec){ out, 100 };
    parts[1] = (struct iovec){ out + 100, 200 };
    MUST(fi_tsendv(s->ep, parts, NULL, 2, s->peer, 203, NULL));
    next(s);
}

static void expect_error(struct side *s, int errnum, void *context)
{
    struct fi_cq_err_entry error = next_error(s);
    IS(error.err, errnum);
    IS(error.op_context == context, 1);
}

static void look(struct side *s, uint64_t tag, uint64_t flags, void *context)
{
    struct fi_msg_tagged msg = { .addr = s->peer, .tag = tag, .context = context };
    MUST(fi_trecvmsg(s->ep, &msg, flags));
}

static void receive_all(struct side *s)
{
    static char in[LARGE], many[1000];
    struct fi_context2 ctx[4];
    struct fi_cq_tagged_entry done;
    struct fi_cq_err_entry error;
    struct iovec parts[3] = { { in, 50 }, { in + 50, 150 }, { in + 200, 100 } };
    for (size_t i = 0; i < COUNT; i++) {
        memset(in, 0, sizeof(in));
        MUST(fi_trecv(s->ep, in, sizeof(in), NULL, s->peer, 100 + i, 0, &ctx[1]));
        done = next(s);
        IS(done.op_context == &ctx[1], 1);
        IS(done.flags & (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA), FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
        IS(done.len, SIZES[i]);
        IS(done.tag, 100 + i);
        IS(done.data, (100 + i) * 10);
        check(in, SIZES[i], (unsigned)i);
    }
    /* Nothing there; there, seen; claimed, invisible, received. */
    look(s, 999, FI_PEEK, &ctx[2]);
    expect_error(s, FI_ENOMSG, &ctx[2]);
    MUST(fi_trecv(s->ep, in, sizeof(in), NULL, s->peer, 203, 0, &ctx[3]));
    done = next(s);
    IS(done.len, 300);
    check(in, 300, 9);
    look(s, 200, FI_PEEK, &ctx[0]);
    done = next(s);
    IS(done.len, 64);
    look(s, 200, FI_PEEK | FI_CLAIM, &ctx[0]);
    done = next(s);
    IS(done.len, 64);
    look(s, 200, FI_PEEK, &ctx[2]);
    expect_error(s, FI_ENOMSG, &ctx[2]);
    struct iovec whole = { in, 64 };
    struct fi_msg_tagged claimed = { .msg_iov = &whole, .iov_count = 1, .addr = s->peer, .tag = 200, .context = &ctx[0] };
    MUST(fi_trecvmsg(s->ep, &claimed, FI_CLAIM));
    done = next(s);
    IS(done.len, 64);
    check(in, 64, 1);
    look(s, 201, FI_PEEK | FI_DISCARD, &ctx[0]);
    done = next(s);
    look(s, 201, FI_PEEK, &ctx[2]);
    expect_error(s, FI_ENOMSG, &ctx[2]);
    /* Too long for its buffer. */
    MUST(fi_trecv(s->ep, in, 10, NULL, s->peer, 202, 0, &ctx[1]));
    error = next_error(s);
    IS(error.err, FI_ETRUNC);
    IS(error.len, 10);
    IS(error.olen, 22);
    /* Taken back. */
    MUST(fi_trecv(s->ep, in, 10, NULL, FI_ADDR_UNSPEC, 5555, 0, &ctx[1]));
    MUST(fi_cancel(&s->ep->fid, &ctx[1]));
    expect_error(s, FI_ECANCELED, &ctx[1]);
    IS(fi_cancel(&s->ep->fid, &ctx[1]) < 0, 1);
    /* Many messages into one buffer: 1000 bytes take 8 messages of 100 until fewer than 256 are free. */
    struct iovec room = { many, sizeof(many) };
    struct fi_msg all = { .msg_iov = &room, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &ctx[2] };
    MUST(fi_recvmsg(s->ep, &all, FI_MULTI_RECV));
    for (int i = 0;; i++) {
        done = next(s);
        IS(done.op_context == &ctx[2], 1);
        if (done.flags & FI_RECV && done.len) {
            IS((char *)done.buf - many, i * 100);
            check(done.buf, 100, (unsigned)i);
        }
        if (done.flags & FI_MULTI_RECV) {
            IS(i, 7);
            break;
        }
    }
    for (int i = 8; i < 12; i++) {
        MUST(fi_recvv(s->ep, parts, NULL, 3, FI_ADDR_UNSPEC, &ctx[2]));
        done = next(s);
        IS(done.len, 100);
        check(in, 100, (unsigned)i);
    }
}

/* One side works on the other's memory. */
static void reach(struct side *s)
{
    static char in[LARGE];
    uint64_t five = 5, seven = 7, old = 1, before = fi_cntr_read(s->writes);
    size_t count = 0;
    fill(out, LARGE, 3);
    MUST(fi_write(s->ep, out, LARGE - 64, NULL, s->peer, 64, KEY, out));
    IS(next(s).op_context == out, 1);
    MUST(fi_read(s->ep, in, LARGE - 64, NULL, s->peer, 64, KEY, in));
    IS(next(s).op_context == in, 1);
    check(in, LARGE - 64, 3);
    IS(fi_read(s->ep, in, 64, NULL, s->peer, LARGE - 32, KEY, in), 0);
    next_error(s);
    IS(fi_write(s->ep, in, 64, NULL, s->peer, 0, KEY + 1, in), 0);
    next_error(s);
    MUST(fi_inject_write(s->ep, &five, 8, s->peer, 8, KEY));
    MUST(fi_cntr_wait(s->writes, before + 2, 30000));
    MUST(fi_fetch_atomicvalid(s->ep, FI_UINT64, FI_SUM, &count));
    IS(count > 0, 1);
    MUST(fi_fetch_atomic(s->ep, &seven, 1, NULL, &old, NULL, s->peer, 8, KEY, FI_UINT64, FI_SUM, NULL));
    next(s);
    IS(old, 5);
    MUST(fi_compare_atomic(s->ep, &five, 1, NULL, &seven, NULL, &old, NULL, s->peer, 8, KEY, FI_UINT64, FI_CSWAP, NULL));
    next(s);
    IS(old, 12);
    MUST(fi_read(s->ep, in, 8, NULL, s->peer, 8, KEY, in));
    next(s);
    IS(*(uint64_t *)in, 12);
}

static void local(void)
{
    struct side a = { 0 }, b = { 0 };
    open_side(&a);
    open_side(&b);
    meet(&a, b.name);
    meet(&b, a.name);
    IS(a.name_len, b.name_len);
    other = &b;
    /* The sender's queue fills before anybody receives: long messages wait for their receive, so one by one. */
    for (size_t i = 0; i < COUNT; i++) {
        static char in[LARGE];
        fill(out, SIZES[i], 5);
        MUST(fi_trecv(b.ep, in, LARGE, NULL, b.peer, i, 0, in));
        post(&a, a.ep, out, SIZES[i], i, out);
        next(&a);
        other = &a;
        IS(next(&b).len, SIZES[i]);
        other = &b;
        check(in, SIZES[i], 5);
    }
    reach(&a);
    close_side(&a);
    close_side(&b);
}

static void whole(int fd, void *buf, size_t len, int writes)
{
    for (size_t done = 0; done < len;) {
        ssize_t r = writes ? write(fd, (char *)buf + done, len - done) : read(fd, (char *)buf + done, len - done);
        if (r <= 0)
            exit(1);
        done += (size_t)r;
    }
}

static void pair(void)
{
    struct side s = { 0 };
    char theirs[128], end = 0;
    int to_child[2], to_parent[2], status = 0;
    pid_t child;
    MUST(pipe(to_child));
    MUST(pipe(to_parent));
    fflush(stdout);
    child = fork();
    int from = child ? to_parent[0] : to_child[0], to = child ? to_child[1] : to_parent[1];
    alarm(60);
    open_side(&s);
    whole(to, s.name, sizeof(s.name), 1);
    whole(from, theirs, sizeof(theirs), 0);
    meet(&s, theirs);
    if (child) {
        send_all(&s);
        reach(&s);
        receive_all(&s);
    } else {
        receive_all(&s);
        /* The parent works on our memory meanwhile; our first completion is of what we send. */
        send_all(&s);
    }
    whole(to, &end, 1, 1);
    close_side(&s);
    whole(from, &end, 1, 0);
    if (!child)
        exit(0);
    waitpid(child, &status, 0);
    IS(status, 0);
}

static void named(struct fi_info *hints, const char *port)
{
    static char theirs[128];
    struct side s = { 0 };
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    alarm(60);
    fi_freeinfo(info);
    MUST(fi_getinfo(FI_VERSION(1, 9), child ? NULL : "127.0.0.1", port, child ? FI_SOURCE : 0, hints, &info));
    IS(info->addr_format, FI_SOCKADDR_IN);
    open_side(&s);
    IS(s.name_len, 16);
    if (child) {
        MUST(fi_trecv(s.ep, theirs, sizeof(theirs), NULL, FI_ADDR_UNSPEC, 1, 0, theirs));
        IS(next(&s).len, 16);
        meet(&s, theirs);
        post(&s, s.ep, "hello", 5, 2, NULL);
        next(&s);
    } else {
        IS(fi_av_insert(s.av, info->dest_addr, 1, &s.peer, 0, NULL), 1);
        post(&s, s.ep, s.name, s.name_len, 1, NULL);
        next(&s);
        MUST(fi_trecv(s.ep, theirs, sizeof(theirs), NULL, s.peer, 2, 0, theirs));
        IS(next(&s).len, 5);
    }
    close_side(&s);
    if (!child)
        exit(0);
    waitpid(child, &status, 0);
    IS(status, 0);
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo();
    alarm(60);
    asleep = argc > 2 && !strcmp(argv[2], "asleep");
    out = malloc(LARGE);
    hints->fabric_attr->prov_name = strdup("madrigal");
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV;
    hints->ep_attr->type = FI_EP_MSG;
    IS(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info), -FI_ENODATA);
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    MUST(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
    IS(strcmp(info->fabric_attr->prov_name, "madrigal"), 0);
    IS(info->domain_attr->threading, FI_THREAD_DOMAIN);
    IS(info->domain_attr->av_type, FI_AV_UNSPEC);
    MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
    if (argc > 1 && !strcmp(argv[1], "pair"))
        pair();
    else if (argc > 2 && !strcmp(argv[1], "named"))
        named(hints, argv[2]);
    else
        local();
    MUST(fi_close(&fabric->fid));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    printf("good\n");
    return 0;
}
