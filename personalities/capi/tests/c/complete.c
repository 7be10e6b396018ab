/* The five primitives, completing by test, by wait, by handler; taken back; and cut off by the end of their runtime: complete ADDRESS. */
#include "check.h"

struct told {
    int calls;
    mdg_handle handle;
    int64_t result;
};

static void tell(void *user, mdg_handle handle, int64_t result)
{
    struct told *told = (struct told *)user;
    told->calls++;
    told->handle = handle;
    told->result = result;
}

/* Turns the engine until it was told so often. */
static void until(mdg_runtime runtime, struct told *told, int calls)
{
    int turns = 0;
    while (told->calls < calls) {
        CHECK(mdg_turn(runtime, SECOND) >= 0);
        CHECK(++turns < 1000);
    }
    CHECK(told->calls == calls);
}

static void by_handler(mdg_runtime runtime, const char *at)
{
    static const char question[] = "who is there?";
    char address[512], buf[64];
    struct told accepted = {0, 0, 0}, connected = {0, 0, 0}, written = {0, 0, 0}, got = {0, 0, 0}, ended = {0, 0, 0};
    mdg_acceptor acceptor;
    mdg_link client, server;
    CHECK(mdg_listen(runtime, at, &acceptor) == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) > 0);
    CHECK(mdg_post_accept(acceptor, tell, &accepted, NULL) == 0);
    CHECK(mdg_post_connect(runtime, address, tell, &connected, NULL) == 0);
    CHECK(accepted.calls == 0 && connected.calls == 0);
    until(runtime, &connected, 1);
    until(runtime, &accepted, 1);
    CHECK(connected.handle == runtime && connected.result > 0);
    CHECK(accepted.handle == acceptor && accepted.result > 0);
    client = (mdg_link)connected.result;
    server = (mdg_link)accepted.result;
    CHECK(mdg_post_read(server, buf, sizeof buf, tell, &got, NULL) == 0);
    CHECK(mdg_post_write(client, question, sizeof question, tell, &written, NULL) == 0);
    until(runtime, &written, 1);
    until(runtime, &got, 1);
    CHECK(written.handle == client && written.result == (int64_t)sizeof question);
    CHECK(got.handle == server && got.result == (int64_t)sizeof question && strcmp(buf, question) == 0);
    CHECK(mdg_post_close(client, tell, &ended, NULL) == 0);
    until(runtime, &ended, 1);
    CHECK(ended.result == 0);
    CHECK(mdg_post_read(server, buf, sizeof buf, tell, &got, NULL) == 0);
    until(runtime, &got, 2);
    CHECK(got.result == 0);
    CHECK(mdg_close(client) == 0 && mdg_close(server) == 0 && mdg_close(acceptor) == 0);
}

static void by_test(mdg_runtime runtime, const char *at)
{
    char address[512], buf[8] = "";
    mdg_acceptor acceptor;
    mdg_op connect, accept, in, out;
    int64_t client, server, result = -77;
    CHECK(mdg_listen(runtime, at, &acceptor) == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) > 0);
    CHECK(mdg_post_accept(acceptor, NULL, NULL, &accept) == 0);
    CHECK(mdg_test(accept, &server) == 0);
    CHECK(mdg_post_connect(runtime, address, NULL, NULL, &connect) == 0);
    while (mdg_test(connect, &client) == 0)
        ;
    CHECK(mdg_wait(accept, 10 * SECOND, &server) == 1);
    CHECK(client > 0 && server > 0);
    CHECK(mdg_test(connect, &client) == MDG_EHANDLE);
    CHECK(mdg_post_read((mdg_link)server, buf, sizeof buf, NULL, NULL, &in) == 0);
    CHECK(mdg_test(in, &result) == 0 && mdg_wait(in, 1000000, &result) == 0 && result == -77);
    CHECK(mdg_post_write((mdg_link)client, "hi", 3, NULL, NULL, &out) == 0);
    while (mdg_test(out, &result) == 0)
        ;
    CHECK(result == 3);
    while (mdg_test(in, &result) == 0)
        ;
    CHECK(result == 3 && strcmp(buf, "hi") == 0);
    CHECK(mdg_close((mdg_link)client) == 0 && mdg_close((mdg_link)server) == 0 && mdg_close(acceptor) == 0);
}

/* What was taken back loses nothing: of reads that time out at random moments, too. */
static void taken_back(mdg_runtime runtime, const char *at)
{
    enum { LEN = 1 << 22 };
    unsigned char *out = (unsigned char *)malloc(LEN), *in = (unsigned char *)malloc(LEN);
    size_t sent = 0, got = 0, round = 0;
    mdg_link client, server;
    mdg_op op;
    int64_t n;
    join(runtime, at, &client, &server);
    fill(out, LEN, 3);
    memset(in, 0, LEN);
    while (got < LEN) {
        size_t ask = 1 + (round * 7919) % 5000;
        round++;
        if (sent < LEN && round % 3 != 0) {
            CHECK(mdg_post_write(client, out + sent, LEN - sent < 100000 ? LEN - sent : 100000, NULL, NULL, &op) == 0);
            n = mdg_cancel(op);
            CHECK(n >= 0);
            sent += (size_t)n;
        }
        if (ask > LEN - got)
            ask = LEN - got;
        if (round % 2 == 0) {
            n = mdg_read(server, in + got, ask, 0);
            CHECK(n > 0 || n == MDG_ETIMEDOUT);
        } else {
            CHECK(mdg_post_read(server, in + got, ask, NULL, NULL, &op) == 0);
            n = mdg_cancel(op);
            CHECK(n >= 0);
        }
        got += n > 0 ? (size_t)n : 0;
        CHECK(got <= sent);
    }
    CHECK(sent == LEN && is_filled(in, LEN, 3));
    CHECK(mdg_close(client) == 0 && mdg_close(server) == 0);
    free(out);
    free(in);
}

/* A write that nobody reads, cut off: its outcome is told, and its memory is free, as soon as the runtime is closed. */
static void cut_off(const char *at)
{
    enum { LEN = 64 << 20 };
    char *out = (char *)calloc(1, LEN), buf[8];
    struct told written = {0, 0, 0}, got = {0, 0, 0}, accepted = {0, 0, 0};
    char address[512];
    mdg_runtime runtime;
    mdg_acceptor acceptor;
    mdg_link client, server;
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_listen(runtime, at, &acceptor) == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) > 0);
    CHECK(mdg_connect(runtime, address, 10 * SECOND, &client) == 0 && mdg_accept(acceptor, 10 * SECOND, &server) == 0);
    CHECK(mdg_post_write(client, out, LEN, tell, &written, NULL) == 0);
    CHECK(mdg_post_read(client, buf, sizeof buf, tell, &got, NULL) == 0);
    CHECK(mdg_post_accept(acceptor, tell, &accepted, NULL) == 0);
    CHECK(mdg_turn(runtime, 0) >= 0);
    CHECK(written.calls == 0 && got.calls == 0);
    CHECK(mdg_close(runtime) == 0);
    CHECK(written.calls == 1 && written.result == MDG_ECLOSED);
    CHECK(got.calls == 1 && got.result == MDG_ECLOSED);
    CHECK(accepted.calls == 1 && accepted.result == MDG_ECLOSED);
    free(out);
}

int main(int argc, char **argv)
{
    mdg_runtime runtime;
    CHECK(argc == 2);
    CHECK(mdg_runtime_open(&runtime) == 0);
    by_handler(runtime, argv[1]);
    by_test(runtime, argv[1]);
    taken_back(runtime, argv[1]);
    CHECK(mdg_close(runtime) == 0);
    cut_off(argv[1]);
    puts("good");
    return 0;
}
