/* Random calls with random arguments from eight threads: fuzz SEED CALLS. Nothing may crash, hang, or return a code that there is not;
 * what cannot be (no place for a result, no text, no buffer, a time below none) is always an error; and once every runtime is closed no
 * descriptor is left. Handles go through one table that all threads take from and put into, so each is used while another thread closes
 * it. */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RUNTIME = 1, LINK, ACCEPTOR, OP, WATCH, TIMER, CIRCUIT, PACKING, UNPACKING, SEND, RECEIVE, WRITTEN, INCOMING, LOSSY_ACCEPTOR, LOSSY_LINK, MAILBOX, BUFFER, POOL, KINDS };
enum { THREADS = 8, HANDLES = 8, BUFFERS = 256, ROOM = 4097, LAST_CODE = MDG_EMISMATCH };

/* By the kind that a handle says it is of. */
static uint64_t handles[KINDS][HANDLES];
/* How many calls went well. */
static unsigned long went_well;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long calls_each;
static int pairs[8][2];
/* Lent to operations that nobody waits for: never freed, written to by several at once. */
static char lent[BUFFERS][ROOM];

/* Addresses of receive ports and mailboxes, of now or of before. */
static char addresses[HANDLES][300] = {"nonsense"};

struct random {
    uint64_t state;
};

static uint64_t draw(struct random *random, uint64_t below)
{
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return random->state % below;
}

static void keep(struct random *random, uint64_t handle)
{
    CHECK(handle >> 56 >= 1 && handle >> 56 < KINDS);
    pthread_mutex_lock(&lock);
    handles[handle >> 56][draw(random, HANDLES)] = handle;
    pthread_mutex_unlock(&lock);
}

/* One of that kind, mostly. */
static uint64_t some(struct random *random, uint64_t kind)
{
    uint64_t handle;
    if (draw(random, 20) == 0)
        kind = draw(random, KINDS);
    pthread_mutex_lock(&lock);
    handle = handles[kind][draw(random, HANDLES)];
    pthread_mutex_unlock(&lock);
    switch (draw(random, 50)) {
    case 0:
        return handle + draw(random, 3);
    case 1:
        return draw(random, ~(uint64_t)0);
    default:
        return handle;
    }
}

/* Every runtime that was opened. */
static mdg_runtime opened[4096];
static unsigned count_opened;

static void note_opened(mdg_runtime runtime)
{
    unsigned at = __atomic_fetch_add(&count_opened, 1, __ATOMIC_RELAXED);
    CHECK(at < sizeof opened / sizeof opened[0]);
    opened[at] = runtime;
}

/* Every buffer that was made: no runtime closes it. */
static mdg_buffer buffers[65536];
static unsigned count_buffers;

static void note_buffer(mdg_buffer buffer)
{
    unsigned at = __atomic_fetch_add(&count_buffers, 1, __ATOMIC_RELAXED);
    CHECK(at < sizeof buffers / sizeof buffers[0]);
    buffers[at] = buffer;
}

/* Descriptors that this process has open. */
static int descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static int64_t known(int64_t code)
{
    CHECK(code >= LAST_CODE);
    if (code >= 0)
        __atomic_fetch_add(&went_well, 1, __ATOMIC_RELAXED);
    else
        CHECK(strlen(mdg_error_text()) > 0 && strstr(mdg_error_text(), "fault of Madrigal") == NULL);
    return code;
}

static void told(void *user, mdg_handle handle, int64_t result)
{
    struct random random = {(uint64_t)result * 2654435761u + 88172645463325252u};
    (void)user;
    /* What a handler does on its own: posts again, closes, waits a little. */
    switch (draw(&random, 8)) {
    case 0:
        known(mdg_close(handle));
        break;
    case 1:
        known(mdg_post_read(handle, lent[draw(&random, BUFFERS)], ROOM, told, NULL, NULL));
        break;
    case 2:
        known(mdg_read(handle, lent[draw(&random, BUFFERS)], ROOM, 1000));
        break;
    default:
        break;
    }
    if (result > (int64_t)1 << 56)
        keep(&random, (uint64_t)result);
}

static const char *some_address(struct random *random)
{
    static const char *const all[] = {"loopback://f0", "loopback://f1", "shm://capi-fuzz-0", "shm://capi-fuzz-1",
                                      "tcp://127.0.0.1:1", "tcp://127.0.0.1:0", "nonsense", "madrigal:x:y"};
    return all[draw(random, sizeof all / sizeof all[0])];
}

static void note_address(struct random *random, const char *text)
{
    pthread_mutex_lock(&lock);
    strcpy(addresses[draw(random, HANDLES)], text);
    pthread_mutex_unlock(&lock);
}

static void noted_address(struct random *random, char *text)
{
    pthread_mutex_lock(&lock);
    strcpy(text, addresses[draw(random, HANDLES)]);
    pthread_mutex_unlock(&lock);
}

/* What is short enough that its sender waits for nobody. */
static void put_something(struct random *random, mdg_message message, const char *buf)
{
    int kind = (int)draw(random, 12);
    switch (draw(random, 5)) {
    case 0:
        known(mdg_put_number(message, kind, buf));
        break;
    case 1:
        known(mdg_put_array(message, kind, buf, draw(random, 500), (int)draw(random, 3)));
        break;
    case 2:
        known(mdg_put_text(message, "something"));
        break;
    case 3:
        known(mdg_put_begin(message));
        break;
    default:
        known(mdg_put_end(message));
        break;
    }
}

static void get_something(struct random *random, mdg_incoming message, char *buf)
{
    int kind = 0;
    size_t count = 0;
    switch (known(mdg_item(message, &kind, &count))) {
    case MDG_ITEM_NUMBER:
        known(mdg_get_number(message, kind, buf));
        break;
    case MDG_ITEM_ARRAY:
        known(mdg_get_array(message, kind, buf, draw(random, 4) == 0 ? 1 : count));
        break;
    case MDG_ITEM_TEXT:
        known(mdg_get_text(message, buf, draw(random, 20)));
        break;
    default:
        known(mdg_get_record(message, (int)draw(random, 7)));
        break;
    }
}

/* Into a mailbox of now or of before, by any policy: short or shared. */
static void put_into(struct random *random, mdg_mailbox mailbox, const char *buf, int64_t time)
{
    char text[2][300];
    const char *to[2] = {text[0], text[1]};
    mdg_letter letter = {to, draw(random, 4) == 0 ? 2 : 1, draw(random, 3), (int)draw(random, 4), (int)draw(random, 4)};
    noted_address(random, text[0]);
    noted_address(random, text[1]);
    if (draw(random, 3) == 0)
        known(mdg_mailbox_put_buffer(mailbox, &letter, some(random, BUFFER), time));
    else
        known(mdg_mailbox_put(mailbox, &letter, buf, draw(random, ROOM), time));
}

/* Gets or drops one of the messages there. */
static void take_from(struct random *random, mdg_mailbox mailbox, int64_t time, uint64_t *made)
{
    char text[300];
    uint64_t tag = draw(random, 3);
    mdg_filter filter = {NULL, draw(random, 2) ? &tag : NULL, (int)draw(random, 4) - 1};
    mdg_header headers[3];
    int64_t count = known(mdg_mailbox_list(mailbox, draw(random, 2) ? &filter : NULL, headers, draw(random, 4)));
    if (count <= 0)
        count = known(mdg_mailbox_wait(mailbox, &filter, time, headers)) == 0;
    if (count > 0) {
        known(mdg_mailbox_source(mailbox, headers[0].id, text, draw(random, sizeof text)));
        known(mdg_mailbox_holder(mailbox, headers[0].id, text, draw(random, sizeof text)));
        if (draw(random, 3) == 0)
            known(mdg_mailbox_drop(mailbox, headers[0].id));
        else if (known(mdg_mailbox_get(mailbox, headers[0].id, time, made)) == 0)
            note_buffer(*made);
    }
}

static void use_buffer(struct random *random, mdg_buffer buffer)
{
    void *at = NULL;
    /* Nobody looks into it: another thread may close it. */
    known(mdg_buffer_data(buffer, &at));
    if (draw(random, 2) == 0)
        known(mdg_buffer_seal(buffer));
}

/* Calls with something that cannot be, of any handle. */
static void wrong(struct random *random)
{
    char byte = 0;
    int64_t result = 0, negative = -2 - (int64_t)draw(random, (uint64_t)1 << 62);
    uint64_t handle = some(random, 1 + draw(random, KINDS - 1)), made = 0;
    mdg_header header;
    CHECK(known(mdg_listen(handle, NULL, &made)) < 0 && known(mdg_listen(handle, "shm://x", NULL)) < 0);
    CHECK(known(mdg_connect(handle, "loopback://f0", negative, &made)) < 0 && known(mdg_connect(handle, NULL, 0, &made)) < 0);
    CHECK(known(mdg_accept(handle, negative, &made)) < 0 && known(mdg_accept(handle, 0, NULL)) < 0);
    CHECK(known(mdg_read(handle, &byte, 1, negative)) < 0 && known(mdg_read(handle, NULL, 1, 0)) < 0);
    CHECK(known(mdg_write(handle, &byte, 1, negative)) < 0 && known(mdg_write(handle, &byte, SIZE_MAX, 0)) < 0);
    CHECK(known(mdg_post_read(handle, &byte, 1, told, NULL, &made)) < 0 && known(mdg_post_write(handle, &byte, 1, NULL, NULL, NULL)) < 0);
    CHECK(known(mdg_post_connect(handle, NULL, told, NULL, NULL)) < 0 && known(mdg_post_accept(handle, NULL, NULL, NULL)) < 0);
    CHECK(known(mdg_test(handle, NULL)) < 0 && known(mdg_wait(handle, negative, &result)) < 0);
    CHECK(known(mdg_turn(handle, negative)) < 0 && known(mdg_watch_open(handle, -1, 1, told, NULL, &made)) < 0);
    CHECK(known(mdg_watch_open(handle, 0, 1, NULL, NULL, &made)) < 0 && known(mdg_timer_open(handle, 1, 1, NULL, NULL, &made)) < 0);
    CHECK(known(mdg_set_weight(handle, NULL, 1)) < 0 && known(mdg_circuit_open(handle, ~0u, &made)) < 0);
    CHECK(known(mdg_circuit_address(handle, NULL)) < 0 && known(mdg_circuit_join(handle, NULL, SIZE_MAX)) < 0);
    CHECK(known(mdg_begin_packing(handle, -1, 0, &made)) < 0 && known(mdg_begin_packing(handle, 0, 0, NULL)) < 0);
    CHECK(known(mdg_pack(handle, NULL, 1, MDG_SAFER)) < 0 && known(mdg_unpack(handle, &byte, 1, 17)) < 0);
    CHECK(known(mdg_begin_unpacking(handle, 0, 0, 0, negative, &made)) < 0 && made == 0 && result == 0);
    CHECK(known(mdg_receive_port_open(handle, NULL, "", &made)) < 0 && known(mdg_receive_port_open(handle, "x", "?", &made)) < 0);
    CHECK(known(mdg_send_port_open(handle, "", "", &made)) < 0 && known(mdg_send_port_open(handle, "x", "", NULL)) < 0);
    CHECK(known(mdg_port_connect(handle, NULL, 0)) < 0 && known(mdg_port_connect(handle, "x", negative)) < 0);
    CHECK(known(mdg_message_new(handle, NULL)) < 0 && known(mdg_port_receive(handle, negative, &made)) < 0);
    CHECK(known(mdg_put_number(handle, 1, NULL)) < 0 && known(mdg_put_array(handle, 10, &byte, SIZE_MAX / 4, 0)) < 0);
    CHECK(known(mdg_get_number(handle, 0, &byte)) < 0 && known(mdg_get_array(handle, 1, NULL, 1)) < 0 && made == 0);
    CHECK(known(mdg_mailbox_open(handle, "", 1, &made)) < 0 && known(mdg_mailbox_open(handle, "x", 0, &made)) < 0);
    CHECK(known(mdg_mailbox_put(handle, NULL, &byte, 1, 0)) < 0 && known(mdg_mailbox_put_buffer(handle, NULL, handle, 0)) < 0);
    CHECK(known(mdg_mailbox_wait(handle, NULL, negative, &header)) < 0 && known(mdg_mailbox_wait(handle, NULL, 0, NULL)) < 0);
    CHECK(known(mdg_mailbox_get(handle, 1, negative, &made)) < 0 && known(mdg_mailbox_get(handle, ~(uint64_t)0, 0, &made)) < 0);
    CHECK(known(mdg_mailbox_drop(handle, ~(uint64_t)0)) < 0 && known(mdg_mailbox_list(handle, NULL, NULL, 1)) < 0);
    CHECK(known(mdg_mailbox_turn(handle, negative)) < 0 && known(mdg_mailbox_add_store(handle, "?")) < 0);
    CHECK(known(mdg_lossy_listen(handle, "?", NULL, 0, &made)) < 0 && known(mdg_lossy_connect(handle, "?", NULL, 9, 0, &made)) < 0);
    CHECK(known(mdg_lossy_accept(handle, negative, &made)) < 0 && known(mdg_lossy_send(handle, -1, &byte, 1, 0, negative)) < 0);
    CHECK(known(mdg_lossy_receive(handle, NULL, 1, 0, NULL, NULL, 1)) < 0 && known(mdg_lossy_settled(handle, negative, NULL, NULL, 0)) < 0);
    CHECK(known(mdg_lossy_flush(handle, negative)) < 0 && known(mdg_pool_join(handle, "", 0, NULL, 1, negative, &made)) < 0);
    CHECK(known(mdg_pool_leave(handle, negative)) < 0 && known(mdg_pool_elect(handle, NULL, 9, 0, NULL)) < 0 && known(mdg_pool_next(handle, 0, NULL)) < 0);
    CHECK(known(mdg_pool_signal(handle, NULL, 1, NULL, 0)) < 0 && known(mdg_pool_set(handle, 7, NULL, NULL, 1, negative)) < 0);
    CHECK(known(mdg_pool_get(handle, 0, NULL, NULL, 1)) < 0 && known(mdg_pool_blob(handle, 0, NULL, 1)) < 0 && known(mdg_pool_members(handle, NULL, 1)) < 0);
    CHECK(known(mdg_buffer_new(0, &made)) < 0 && known(mdg_buffer_new(SIZE_MAX, &made)) < 0 && known(mdg_buffer_data(handle, NULL)) < 0 && made == 0);
}

static void call(struct random *random)
{
    char text[300];
    int64_t result = 0;
    static const uint64_t kinds[] = {0,    RUNTIME, RUNTIME, ACCEPTOR, RUNTIME, RUNTIME, RUNTIME, ACCEPTOR, ACCEPTOR, LINK, LINK,
                                     LINK, LINK,    LINK,    LINK,     LINK,    OP,      OP,      OP,       RUNTIME,  RUNTIME, RUNTIME,
                                     WATCH, RUNTIME, LINK,   RUNTIME,  CIRCUIT, CIRCUIT, PACKING, PACKING,  CIRCUIT,  UNPACKING,
                                     RUNTIME, RUNTIME, RECEIVE, SEND,  SEND,    WRITTEN, SEND,    RECEIVE, INCOMING,
                                     RUNTIME, MAILBOX, MAILBOX, MAILBOX, MAILBOX, RUNTIME, BUFFER,  MAILBOX};
    uint64_t made = 0, what = draw(random, 54), kind = what < sizeof kinds / sizeof kinds[0] ? kinds[what] : 1 + draw(random, KINDS - 1);
    uint64_t handle = some(random, kind);
    char *buf = lent[draw(random, BUFFERS)];
    size_t len = draw(random, ROOM + 1);
    int64_t time = (int64_t)draw(random, 3) * 50000;
    int by_handler = draw(random, 2) == 0;
    mdg_handler handler = by_handler ? told : NULL;
    uint64_t *op = by_handler ? NULL : &made;
    switch (what) {
    case 0:
        if (draw(random, 10) == 0 && known(mdg_runtime_open(&made)) == 0)
            note_opened(made);
        break;
    case 1:
        known(mdg_listen(handle, some_address(random), &made));
        break;
    case 2:
        if (draw(random, 8) == 0)
            known(mdg_serve(handle, "capi-fuzz-served", &made));
        break;
    case 3:
        known(mdg_accept(handle, time, &made));
        break;
    case 4:
    case 5:
        known(mdg_connect(handle, some_address(random), time, &made));
        break;
    case 6:
        known(mdg_post_connect(handle, some_address(random), handler, NULL, op));
        break;
    case 7:
    case 8:
        known(mdg_post_accept(handle, handler, NULL, op));
        break;
    case 9:
    case 10:
        known(mdg_post_read(handle, buf, len, handler, NULL, op));
        break;
    case 11:
    case 12:
        known(mdg_post_write(handle, buf, len, handler, NULL, op));
        break;
    case 13:
        known(mdg_post_close(handle, handler, NULL, op));
        break;
    case 14:
        known(mdg_read(handle, buf, len, time));
        break;
    case 15:
        known(mdg_write(handle, buf, len, time));
        break;
    case 16:
        if (known(mdg_test(handle, &result)) == 1 && known(result) > (int64_t)1 << 56)
            made = (uint64_t)result;
        break;
    case 17:
        if (known(mdg_wait(handle, time, &result)) == 1 && known(result) > (int64_t)1 << 56)
            made = (uint64_t)result;
        break;
    case 18:
        known(mdg_cancel(handle));
        break;
    case 19:
        known(mdg_turn(handle, time));
        break;
    case 20:
        known(mdg_call(handle));
        if (draw(random, 10) == 0)
            known(mdg_fd(handle));
        break;
    case 21:
        known(mdg_watch_open(handle, pairs[draw(random, 8)][0], (uint32_t)draw(random, 8), told, NULL, &made));
        break;
    case 22:
        known(mdg_watch_change(handle, (uint32_t)draw(random, 8)));
        CHECK(write(pairs[draw(random, 8)][1], "x", 1) <= 1);
        CHECK(read(pairs[draw(random, 8)][0], text, sizeof text) <= (ssize_t)sizeof text);
        break;
    case 23:
        known(mdg_timer_open(handle, draw(random, 1000000), draw(random, 2) * 500000, told, NULL, &made));
        break;
    case 24:
        known(mdg_why(handle, text, draw(random, sizeof text)));
        known(mdg_address(handle, text, draw(random, sizeof text)));
        known(mdg_set_weight(handle, "tcp", (uint32_t)draw(random, 4)));
        break;
    case 25:
        if (draw(random, 10) == 0)
            known(mdg_circuit_open(handle, (uint32_t)draw(random, 3), &made));
        break;
    case 26:
        /* A group of one: what is sent to others is in circuit.c. */
        if (known(mdg_circuit_address(handle, text)) == 0)
            known(mdg_circuit_join(handle, text, draw(random, 2)));
        break;
    case 27:
        known(mdg_begin_packing(handle, (int)draw(random, 3) - 1, draw(random, 2), &made));
        break;
    case 28:
        known(mdg_pack(handle, buf, draw(random, 2) == 0 ? 10 : ROOM, (int)draw(random, 5)));
        break;
    case 29:
        known(mdg_end_packing(handle));
        break;
    case 30:
        known(mdg_begin_unpacking(handle, (int)draw(random, 3) - 1, 0, draw(random, 2), time, &made));
        break;
    case 31:
        if (known(mdg_unpack(handle, buf, 10, (int)draw(random, 5))) == 0 && draw(random, 2) == 0)
            known(mdg_end_unpacking(handle));
        break;
    case 32:
        if (draw(random, 4) == 0)
            known(mdg_receive_port_open(handle, draw(random, 2) ? "in" : "other", draw(random, 2) ? "" : "a=1", &made));
        break;
    case 33:
        if (draw(random, 4) == 0)
            known(mdg_send_port_open(handle, "out", draw(random, 2) ? "" : "a=1", &made));
        break;
    case 34:
        if (known(mdg_address(handle, text, sizeof text)) > 0)
            note_address(random, text);
        known(mdg_port_changes(handle, text, draw(random, sizeof text)));
        break;
    case 35:
        noted_address(random, text);
        known(draw(random, 3) == 0 ? mdg_port_disconnect(handle, text) : mdg_port_connect(handle, text, time));
        break;
    case 36:
        known(mdg_message_new(handle, &made));
        break;
    case 37:
        put_something(random, handle, buf);
        break;
    case 38:
        known(mdg_port_send(handle, some(random, WRITTEN)));
        break;
    case 39:
        known(mdg_port_receive(handle, time, &made));
        break;
    case 40:
        get_something(random, handle, buf);
        known(mdg_incoming_from(handle, text, draw(random, 10)));
        if (draw(random, 3) == 0)
            known(mdg_incoming_end(handle));
        break;
    case 41:
        if (draw(random, 4) == 0)
            known(mdg_mailbox_open(handle, draw(random, 2) ? "box" : "other", 1 + (uint32_t)draw(random, 3), &made));
        break;
    case 42:
    case 43:
        put_into(random, handle, buf, time);
        break;
    case 44:
    case 45:
        take_from(random, handle, time, &made);
        break;
    case 46:
        if (draw(random, 4) == 0 && known(mdg_buffer_new(1 + draw(random, ROOM), &made)) == 0)
            note_buffer(made);
        break;
    case 47:
        use_buffer(random, handle);
        break;
    case 48:
        if (known(mdg_address(handle, text, sizeof text)) > 0)
            note_address(random, text);
        known(mdg_mailbox_changes(handle, text, draw(random, sizeof text)));
        known(mdg_mailbox_offer(handle, draw(random, 100000)));
        noted_address(random, text);
        known(mdg_mailbox_add_store(handle, text));
        known(mdg_mailbox_turn(handle, time));
        break;
    case 49:
    case 50:
        wrong(random);
        break;
    default:
        if (handle >> 56 != RUNTIME || draw(random, 40) == 0)
            known(mdg_close(handle));
        break;
    }
    if (made != 0)
        keep(random, made);
}

static void *thread(void *user)
{
    struct random *random = (struct random *)user;
    unsigned long at;
    for (at = 0; at < calls_each; at++)
        call(random);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    struct random randoms[THREADS];
    uint64_t seed;
    int at, before;
    unsigned runtime;
    CHECK(argc == 3);
    seed = strtoull(argv[1], NULL, 10);
    calls_each = strtoul(argv[2], NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    for (at = 0; at < 8; at++)
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pairs[at]) == 0);
    before = descriptors();
    for (at = 0; at < HANDLES; at++)
        if (at < 2) {
            CHECK(mdg_runtime_open(&handles[RUNTIME][at]) == 0);
            note_opened(handles[RUNTIME][at]);
        } else
            handles[RUNTIME][at] = handles[RUNTIME][at % 2];
    for (at = 0; at < THREADS; at++) {
        randoms[at].state = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)at;
        CHECK(pthread_create(&threads[at], NULL, thread, &randoms[at]) == 0);
    }
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    printf("%lu of %lu calls went well\n", went_well, calls_each * THREADS);
    CHECK(went_well > calls_each * THREADS / 10);
    for (runtime = 0; runtime < count_opened; runtime++)
        known(mdg_close(opened[runtime]));
    for (runtime = 0; runtime < count_buffers; runtime++)
        known(mdg_close(buffers[runtime]));
    CHECK(descriptors() == before);
    puts("good");
    return 0;
}
