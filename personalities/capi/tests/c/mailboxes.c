/* Mailboxes among three processes: headers first, data where they are told to lie, a shared buffer, what is refused, a killed process. */
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG = 1000000, ADDRESS = 512 };
static const int64_t TIME = INT64_C(250000000000);

static mdg_runtime runtime;

static void put(int fd, const char *text)
{
    size_t len = strlen(text) + 1;
    CHECK(write(fd, text, len) == (ssize_t)len);
}

static void get(int fd, char *text)
{
    size_t at = 0;
    do {
        CHECK(at < ADDRESS && read(fd, text + at, 1) == 1);
    } while (text[at++] != '\0');
}

/* The same, while data that others fetch leave. */
static void get_turning(mdg_mailbox mailbox, int fd, char *text)
{
    struct pollfd word = {fd, POLLIN, 0};
    while (poll(&word, 1, 0) == 0)
        CHECK(mdg_mailbox_turn(mailbox, 1000000) == 0);
    get(fd, text);
}

/* A process that keeps data of others, until it is killed. */
static void keep(int out)
{
    char text[ADDRESS];
    mdg_mailbox mailbox;
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_mailbox_open(runtime, "store", 1, &mailbox) == 0);
    CHECK(mdg_mailbox_offer(mailbox, 10 * LONG) == 0);
    CHECK(mdg_address(mailbox, text, sizeof text) > 0);
    put(out, text);
    mdg_mailbox_turn(mailbox, MDG_FOREVER);
}

static void is_right(mdg_mailbox mailbox, uint64_t id, unsigned seed, size_t len)
{
    mdg_buffer buffer;
    void *at = NULL;
    CHECK(mdg_mailbox_get(mailbox, id, TIME, &buffer) == 0);
    CHECK(mdg_buffer_data(buffer, &at) == (int64_t)len && is_filled((const unsigned char *)at, len, seed));
    CHECK(mdg_buffer_seal(buffer) == 0);
    CHECK(mdg_close(buffer) == 0);
    CHECK(mdg_mailbox_get(mailbox, id, 0, &buffer) == MDG_EGONE);
    CHECK(mdg_mailbox_drop(mailbox, id) == MDG_EGONE);
}

/* Takes what the parent puts; `in` says when the store is dead. */
static void receive(int in, int out)
{
    char text[ADDRESS], why[2048];
    mdg_mailbox mailbox, other;
    mdg_header header, all[8];
    mdg_buffer buffer;
    void *at = NULL;
    uint64_t wanted = 3;
    mdg_filter filter = {NULL, NULL, MDG_URGENT};
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_mailbox_open(runtime, "in", 4, &mailbox) == 0);
    CHECK(mdg_mailbox_open(runtime, "in", 4, &other) == MDG_EINUSE);
    CHECK(mdg_mailbox_open(runtime, "x", 0, &other) == MDG_EINVAL);
    CHECK(mdg_mailbox_wait(mailbox, NULL, 0, &header) == MDG_ETIMEDOUT);
    CHECK(mdg_address(mailbox, text, sizeof text) > 0);
    put(out, text);
    /* The urgent one came last, and is found first. */
    CHECK(mdg_mailbox_wait(mailbox, &filter, TIME, &header) == 0 && header.tag == 4 && header.sequence == 4 && header.is_here == 1);
    CHECK(mdg_mailbox_list(mailbox, NULL, all, 8) == 4 && all[0].id == header.id && all[1].tag == 1 && all[3].tag == 3);
    CHECK(mdg_mailbox_list(mailbox, NULL, all, 2) == 2);
    CHECK(mdg_mailbox_source(mailbox, header.id, text, sizeof text) > 4 && memcmp(text, "out@", 4) == 0);
    filter.source = text;
    filter.tag = &wanted;
    CHECK(mdg_mailbox_list(mailbox, &filter, all, 8) == 0);
    filter.kind = MDG_ANY_KIND;
    CHECK(mdg_mailbox_list(mailbox, &filter, all, 8) == 1 && all[0].policy == MDG_AT_THIRD && all[0].size == LONG);
    CHECK(mdg_mailbox_drop(mailbox, header.id) == 0);
    CHECK(mdg_mailbox_list(mailbox, NULL, all, 8) == 3);
    CHECK(all[1].policy == MDG_AT_SENDER && all[1].is_here == 0);
    CHECK(mdg_mailbox_holder(mailbox, all[1].id, why, sizeof why) == 12 && mdg_mailbox_holder(mailbox, all[2].id, why, sizeof why) == 12);
    is_right(mailbox, all[0].id, 1, LONG);
    is_right(mailbox, all[2].id, 3, LONG);
    is_right(mailbox, all[1].id, 2, LONG);
    /* A shared buffer; the same memory for both, which nobody writes. */
    CHECK(mdg_mailbox_wait(mailbox, NULL, TIME, &header) == 0 && mdg_mailbox_get(mailbox, header.id, TIME, &buffer) == 0);
    CHECK(mdg_why(buffer, why, sizeof why) > 0 && strstr(why, "\"shared\"") != NULL);
    CHECK(mdg_buffer_data(buffer, &at) == LONG && is_filled((const unsigned char *)at, LONG, 5));
    if (fork() == 0) {
        *(volatile unsigned char *)at = 0;
        _exit(0);
    } else {
        int status = 0;
        CHECK(wait(&status) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    put(out, "got");
    /* The store is killed: what lies there is lost, with a word. */
    CHECK(mdg_mailbox_wait(mailbox, NULL, TIME, &header) == 0 && header.policy == MDG_AT_THIRD && header.is_here == 0);
    CHECK(mdg_mailbox_holder(mailbox, header.id, text, sizeof text) == 12);
    put(out, "there");
    get(in, why);
    CHECK(mdg_mailbox_get(mailbox, header.id, TIME, &other) == MDG_ELOST && strstr(mdg_error_text(), text) != NULL);
    CHECK(mdg_mailbox_drop(mailbox, header.id) == 0);
    /* It is full: four lie there. */
    while (mdg_mailbox_list(mailbox, NULL, all, 8) < 4)
        CHECK(mdg_mailbox_turn(mailbox, 1000000) == 0);
    get(in, why);
    CHECK(mdg_mailbox_list(mailbox, NULL, all, 8) == 4);
    CHECK(mdg_mailbox_changes(mailbox, why, sizeof why) > 0 && strstr(why, "\"connected\"") != NULL);
    CHECK(mdg_close(mailbox) == 0 && mdg_close(mailbox) == MDG_EHANDLE);
    CHECK(mdg_mailbox_drop(mailbox, all[0].id) == MDG_EHANDLE);
    /* A buffer belongs to no runtime. */
    CHECK(mdg_close(runtime) == 0);
    CHECK(is_filled((const unsigned char *)at, LONG, 5) && mdg_close(buffer) == 0);
    put(out, "closed");
}

static void give(mdg_mailbox out, const char *to, uint64_t tag, int kind, int policy, unsigned seed, size_t len)
{
    static unsigned char bytes[LONG];
    mdg_letter letter = {&to, 1, tag, kind, policy};
    fill(bytes, len, seed);
    CHECK(mdg_mailbox_put(out, &letter, bytes, len, TIME) == 1);
}

static pid_t started(int down[2], int up[2], void (*run)(int, int))
{
    pid_t child;
    CHECK(pipe(down) == 0 && pipe(up) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run(down[0], up[1]);
        exit(0);
    }
    return child;
}

static void store(int in, int out)
{
    (void)in;
    keep(out);
}

int main(void)
{
    int down[2][2], up[2][2], status, i;
    pid_t keeper = started(down[0], up[0], store), receiver = started(down[1], up[1], receive), child;
    char at_store[ADDRESS], to[ADDRESS], text[2048];
    const char *twice[2] = {to, to}, *nobody = "nobody";
    mdg_letter letter = {NULL, 1, 0, MDG_DATA, MDG_AT_RECEIVER};
    mdg_mailbox out;
    mdg_buffer buffer;
    void *at = NULL;
    get(up[0][0], at_store);
    get(up[1][0], to);
    /* A child of one that has a buffer alone may not use the library either. */
    CHECK(mdg_buffer_new(1, &buffer) == 0);
    child = fork();
    if (child == 0)
        _exit(mdg_close(buffer) == MDG_EFORKED && mdg_buffer_new(1, &buffer) == MDG_EFORKED ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mdg_close(buffer) == 0);
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_mailbox_open(runtime, "out", 8, &out) == 0);
    /* What cannot be. */
    letter.to = twice;
    CHECK(mdg_mailbox_put(out, NULL, "x", 1, TIME) == MDG_EINVAL && mdg_mailbox_put(out, &letter, NULL, 1, TIME) == MDG_EINVAL);
    letter.to_count = 2;
    CHECK(mdg_mailbox_put(out, &letter, "x", 1, TIME) == MDG_EINVAL);
    letter.to_count = 0;
    CHECK(mdg_mailbox_put(out, &letter, "x", 1, TIME) == MDG_EINVAL);
    letter.to_count = 1;
    letter.policy = 3;
    CHECK(mdg_mailbox_put(out, &letter, "x", 1, TIME) == MDG_EINVAL);
    letter.policy = MDG_AT_THIRD;
    CHECK(mdg_mailbox_put(out, &letter, "x", 1, TIME) == MDG_EUNUSABLE);
    letter.to = &nobody;
    CHECK(mdg_mailbox_put(out, &letter, "x", 1, TIME) == MDG_EADDRESS);
    CHECK(mdg_mailbox_add_store(out, at_store) == 0 && mdg_mailbox_add_store(out, "x") == MDG_EADDRESS);
    /* Data in three places. */
    give(out, to, 1, MDG_DATA, MDG_AT_RECEIVER, 1, LONG);
    give(out, to, 2, MDG_MANAGEMENT, MDG_AT_SENDER, 2, LONG);
    give(out, to, 3, MDG_DATA, MDG_AT_THIRD, 3, LONG);
    CHECK(mdg_why(out, text, sizeof text) > 0 && strstr(text, "\"held\":1004096") != NULL);
    give(out, to, 4, MDG_URGENT, MDG_AT_RECEIVER, 4, 10);
    CHECK(mdg_flush(out, TIME) == 0);
    /* A shared buffer. */
    CHECK(mdg_buffer_new(0, &buffer) == MDG_EINVAL && mdg_buffer_new(LONG, &buffer) == 0);
    CHECK(mdg_buffer_data(buffer, &at) == LONG);
    fill((unsigned char *)at, LONG, 5);
    letter.to = twice;
    letter.policy = MDG_AT_SENDER;
    CHECK(mdg_mailbox_put_buffer(out, &letter, buffer, TIME) == MDG_EBUSY);
    CHECK(mdg_buffer_seal(buffer) == 0 && mdg_buffer_seal(buffer) == 0);
    CHECK(mdg_mailbox_put_buffer(out, &letter, buffer, TIME) == 1);
    CHECK(mdg_flush(out, TIME) == 0);
    CHECK(mdg_close(buffer) == 0 && mdg_buffer_data(buffer, &at) == MDG_EHANDLE);
    get_turning(out, up[1][0], text);
    give(out, to, 6, MDG_DATA, MDG_AT_THIRD, 6, LONG);
    get_turning(out, up[1][0], text);
    CHECK(kill(keeper, SIGKILL) == 0 && waitpid(keeper, &status, 0) == keeper);
    put(down[1][1], "dead");
    for (i = 0; i < 4; i++)
        give(out, to, 7, MDG_DATA, MDG_AT_RECEIVER, 7, 10);
    letter.policy = MDG_AT_RECEIVER;
    CHECK(mdg_mailbox_put(out, &letter, "x", 1, 20000000) == MDG_ETIMEDOUT);
    CHECK(strstr(mdg_error_text(), "`in` is full: 4 data messages") != NULL);
    put(down[1][1], "full");
    get_turning(out, up[1][0], text);
    CHECK(strcmp(text, "closed") == 0);
    /* Whoever is gone is told. */
    do {
        status = mdg_mailbox_put(out, &letter, "x", 1, TIME);
    } while (status == 1);
    CHECK(status == MDG_EREFUSED || status == MDG_ELOST);
    CHECK(waitpid(receiver, &status, 0) == receiver && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    do {
        status = mdg_mailbox_put(out, &letter, "x", 1, TIME);
    } while (status == 1 || status == MDG_EREFUSED);
    CHECK(status == MDG_ELOST);
    /* A child that was forked may not use it. */
    if (fork() == 0)
        _exit(mdg_mailbox_drop(out, 1) == MDG_EFORKED && mdg_buffer_new(1, &buffer) == MDG_EFORKED ? 0 : 1);
    CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mdg_close(runtime) == 0);
    puts("good");
    return 0;
}
