/* Links of messages of which a part may be lost, between two processes: classes, what is told at both ends, what is refused and why, the end,
   a killed process. MADRIGAL_CONFIG_DIR has a certificate. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ADDRESS = 256, LEN = 20000 };
static const int64_t TIME = INT64_C(20000000000);
/* One may lose a tenth, in records of 188 bytes behind 12 that always come; the other one nothing. */
static const uint32_t CLASSES[8] = {100, 1 << 20, 188, 12, 0, 1 << 20, 1, 0};

static mdg_runtime runtime;
static unsigned char room[LEN];

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

/* The other process: sends every message back, by the same class, until the end; then waits to be killed. */
static void answer(const char *to, int out)
{
    mdg_lossy_link link, none;
    uint32_t about[4], lost[8];
    uint32_t other[4] = {50, 1 << 20, 188, 12};
    int64_t len;
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_lossy_connect(runtime, to, other, 1, TIME, &none) == MDG_ENOPATH);
    CHECK(strstr(mdg_error_text(), "tolerance 50") != NULL && strstr(mdg_error_text(), "tolerance 100") != NULL);
    CHECK(mdg_connect(runtime, to, TIME, &none) == MDG_ENOPATH);
    CHECK(strstr(mdg_error_text(), "a stream of bytes") != NULL);
    CHECK(mdg_lossy_connect(runtime, to, CLASSES, 2, TIME, &link) == 0);
    while ((len = mdg_lossy_receive(link, room, LEN, TIME, about, lost, 4)) > 0)
        CHECK(mdg_lossy_send(link, (int)about[0], room, (size_t)len, MDG_FOREVER, TIME) >= 0);
    /* One fails, and one more comes. */
    CHECK(len == 0 && about[0] == 1 && about[1] == 10 && about[2] == MDG_FATE_FAILED);
    CHECK(mdg_lossy_receive(link, room, LEN, TIME, about, lost, 4) == 7 && about[1] == 11);
    len = mdg_lossy_receive(link, room, LEN, TIME, about, lost, 4);
    CHECK(len == MDG_EGONE);
    CHECK(mdg_lossy_receive(link, room, LEN, 0, NULL, NULL, 0) == MDG_EGONE);
    CHECK(mdg_close(link) == 0);
    CHECK(mdg_lossy_connect(runtime, to, CLASSES, 2, TIME, &link) == 0);
    put(out, "again");
    for (;;)
        CHECK(mdg_lossy_receive(link, room, LEN, TIME, about, NULL, 0) == MDG_ETIMEDOUT);
}

int main(void)
{
    int down[2], up[2], round;
    pid_t child;
    char at[ADDRESS], text[ADDRESS];
    mdg_lossy_acceptor acceptor, second;
    mdg_lossy_link link, other;
    uint32_t about[4], lost[8], wrong[4] = {1001, 1, 1, 0};
    static unsigned char sent[LEN];
    CHECK(pipe(down) == 0 && pipe(up) == 0);
    child = fork();
    if (child == 0) {
        get(down[0], at);
        answer(at, up[1]);
        return 0;
    }
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_lossy_listen(runtime, "tcp://127.0.0.1:0", NULL, 0, &acceptor) == MDG_EUNUSABLE);
    CHECK(mdg_lossy_listen(runtime, "vrp/tcp://127.0.0.1:0", NULL, 0, &acceptor) == MDG_EADDRESS);
    CHECK(mdg_lossy_listen(runtime, "vrp(7)/udp://127.0.0.1:0", CLASSES, 2, &acceptor) == MDG_EUNUSABLE);
    CHECK(mdg_lossy_listen(runtime, "vrp/udp://127.0.0.1:0", wrong, 1, &acceptor) == MDG_EUNUSABLE);
    CHECK(strstr(mdg_error_text(), "the tolerance is 1001") != NULL);
    CHECK(mdg_lossy_listen(runtime, "vrp/udp://127.0.0.1:0", NULL, 1, &acceptor) == MDG_EINVAL);
    CHECK(mdg_lossy_listen(runtime, "vrp/udp://127.0.0.1:0", CLASSES, 2, &acceptor) == 0);
    CHECK(mdg_address(acceptor, at, sizeof at) > 0 && strncmp(at, "vrp/udp://127.0.0.1:", 20) == 0);
    CHECK(mdg_lossy_listen(runtime, at, CLASSES, 2, &second) == MDG_EINUSE);
    CHECK(mdg_lossy_accept(acceptor, 0, &link) == MDG_ETIMEDOUT);
    put(down[1], at);
    CHECK(mdg_lossy_accept(acceptor, TIME, &link) == 0);
    CHECK(mdg_lossy_accept(link, TIME, &other) == MDG_ETYPE);
    CHECK(mdg_why(link, text, sizeof text) > 0 && strstr(text, "vrp/udp") != NULL);
    for (round = 0; round < 20; round++) {
        size_t len = (size_t)(1 + round * 997);
        fill(sent, len, (unsigned)round);
        CHECK(mdg_lossy_send(link, round % 2, sent, len, MDG_FOREVER, TIME) == round / 2);
        if (len > 10)
            CHECK(mdg_lossy_receive(link, room, 10, TIME, about, lost, 4) == MDG_ETOOLONG);
        CHECK(mdg_lossy_receive(link, room, LEN, TIME, about, lost, 4) == (int64_t)len);
        CHECK(about[0] == (uint32_t)round % 2 && about[1] == (uint32_t)round / 2);
        CHECK(about[2] == MDG_FATE_WHOLE && about[3] == 0 && memcmp(room, sent, len) == 0);
        CHECK(mdg_lossy_settled(link, TIME, about, lost, 4) == 0);
        CHECK(about[0] == (uint32_t)round % 2 && about[1] == (uint32_t)round / 2 && about[2] == MDG_FATE_WHOLE);
    }
    CHECK(mdg_lossy_send(link, 2, sent, 1, MDG_FOREVER, 0) == MDG_EINVAL);
    CHECK(mdg_lossy_send(link, -1, sent, 1, MDG_FOREVER, 0) == MDG_EINVAL);
    CHECK(mdg_lossy_send(link, 0, sent, 0, MDG_FOREVER, 0) == MDG_EINVAL);
    CHECK(mdg_lossy_send(link, 0, NULL, 1, MDG_FOREVER, 0) == MDG_EINVAL);
    CHECK(mdg_lossy_receive(link, room, LEN, -2, about, lost, 4) == MDG_EINVAL);
    CHECK(mdg_lossy_receive(link, room, LEN, 0, about, NULL, 4) == MDG_EINVAL);
    CHECK(mdg_lossy_receive(link, room, LEN, 1000, about, lost, 4) == MDG_ETIMEDOUT);
    CHECK(mdg_lossy_settled(link, 0, about, lost, 4) == MDG_ETIMEDOUT);
    CHECK(mdg_lossy_flush(link, TIME) == 0);
    /* What is too late fails, unless it is there already. */
    CHECK(mdg_lossy_send(link, 1, sent, LEN, 0, 0) == 10);
    CHECK(mdg_lossy_settled(link, TIME, about, lost, 4) == 0 && about[1] == 10 && about[2] == MDG_FATE_FAILED);
    CHECK(mdg_lossy_send(link, 1, sent, 7, MDG_FOREVER, 0) == 11);
    CHECK(mdg_close(link) == 0 && mdg_lossy_send(link, 0, sent, 1, MDG_FOREVER, 0) == MDG_EHANDLE);
    /* The end is told as one; the next link's process is killed, and that is told, too. */
    CHECK(mdg_lossy_accept(acceptor, TIME, &link) == 0);
    get(up[0], text);
    CHECK(strcmp(text, "again") == 0);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK(mdg_lossy_receive(link, room, LEN, 3 * TIME, about, lost, 4) == MDG_ERESET);
    CHECK(mdg_lossy_send(link, 0, sent, 1, MDG_FOREVER, 0) == MDG_EGONE);
    CHECK(mdg_close(acceptor) == 0 && mdg_close(link) == 0 && mdg_close(runtime) == 0);
    puts("good");
    return 0;
}
