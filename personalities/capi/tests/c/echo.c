/* Echo between two processes: echo ADDRESS, where ADDRESS is a locator, or serve:NAME for a card. Every byte is compared. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static const size_t sizes[] = {1, 8, 24, 25, 64, 1000, 4096, 65536, 100000, 1 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], ROUNDS = 5 };

static void serve(const char *at, int tell)
{
    char address[1024], *buf = (char *)malloc(1 << 20);
    mdg_runtime runtime;
    mdg_acceptor acceptor;
    mdg_link link;
    int64_t got;
    CHECK(mdg_runtime_open(&runtime) == 0);
    if (strncmp(at, "serve:", 6) == 0)
        CHECK(mdg_serve(runtime, at + 6, &acceptor) == 0);
    else
        CHECK(mdg_listen(runtime, at, &acceptor) == 0);
    CHECK(mdg_address(acceptor, address, sizeof address) < (int64_t)sizeof address);
    CHECK(write(tell, address, strlen(address) + 1) == (ssize_t)strlen(address) + 1);
    close(tell);
    CHECK(mdg_accept(acceptor, 30 * SECOND, &link) == 0);
    while ((got = mdg_read(link, buf, 1 << 20, MDG_FOREVER)) > 0)
        CHECK(mdg_write(link, buf, (size_t)got, MDG_FOREVER) == got);
    CHECK(got == 0);
    CHECK(mdg_close(link) == 0);
    CHECK(mdg_close(runtime) == 0);
    free(buf);
    _exit(0);
}

static void ask(int told, const char *at)
{
    char address[1024], why[2048];
    unsigned char *out = (unsigned char *)malloc(1 << 20), *in = (unsigned char *)malloc(1 << 20);
    mdg_runtime runtime;
    mdg_link link;
    mdg_op op;
    int64_t result;
    size_t size, round, len = 0;
    do
        CHECK(len < sizeof address && read(told, address + len, 1) == 1);
    while (address[len++] != '\0');
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_connect(runtime, address, 30 * SECOND, &link) == 0);
    for (size = 0; size < SIZES; size++)
        for (round = 0; round < ROUNDS; round++) {
            unsigned seed = (unsigned)(size * 31 + round);
            fill(out, sizes[size], seed);
            memset(in, 0xee, sizes[size]);
            CHECK(mdg_post_write(link, out, sizes[size], NULL, NULL, &op) == 0);
            read_all(link, in, sizes[size]);
            CHECK(mdg_wait(op, 10 * SECOND, &result) == 1 && result == (int64_t)sizes[size]);
            CHECK(is_filled(in, sizes[size], seed));
        }
    CHECK(mdg_why(link, why, sizeof why) < (int64_t)sizeof why);
    printf("%s\n", why);
    if (strncmp(at, "serve:", 6) == 0)
        CHECK(strstr(why, "\"driver\":\"shm\"") != NULL && strstr(why, "shm is better") != NULL);
    else
        CHECK(strstr(why, "\"rejected\":null") != NULL);
    CHECK(mdg_post_close(link, NULL, NULL, &op) == 0);
    CHECK(mdg_wait(op, 10 * SECOND, &result) == 1 && result == 0);
    CHECK(mdg_read(link, in, 1, MDG_FOREVER) == MDG_ECLOSED);
    CHECK(mdg_write(link, in, 1, MDG_FOREVER) == MDG_ECLOSED);
    CHECK(mdg_close(link) == 0);
    CHECK(mdg_close(runtime) == 0);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    int ends[2], status;
    pid_t child;
    CHECK(argc == 2 && pipe(ends) == 0);
    /* Before any runtime is open a process may fork as it likes. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[0]);
        serve(argv[1], ends[1]);
    }
    close(ends[1]);
    ask(ends[0], argv[1]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("good");
    return 0;
}
