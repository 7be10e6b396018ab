/* Two processes: `echo serve` prints a card; `echo ask CARD` connects to it by the best path, and says which. */
#include <madrigal.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

static int serve(mdg_runtime runtime)
{
    char card[1024], buf[4096];
    int64_t got;
    mdg_acceptor acceptor;
    mdg_link link;

    if (mdg_serve(runtime, "example-echo", &acceptor) < 0 || mdg_address(acceptor, card, sizeof card) < 0)
        return failed("serve");
    printf("%s\n", card);
    fflush(stdout);
    if (mdg_accept(acceptor, MDG_FOREVER, &link) < 0)
        return failed("accept");
    while ((got = mdg_read(link, buf, sizeof buf, MDG_FOREVER)) > 0)
        if (mdg_write(link, buf, (size_t)got, MDG_FOREVER) < 0)
            return failed("write");
    return got < 0 ? failed("read") : 0;
}

static int ask(mdg_runtime runtime, const char *card)
{
    char answer[64] = "", why[4096];
    mdg_link link;

    if (mdg_connect(runtime, card, MDG_FOREVER, &link) < 0)
        return failed("connect");
    if (mdg_write(link, "hello", 5, MDG_FOREVER) < 0)
        return failed("write");
    if (mdg_read(link, answer, sizeof answer - 1, MDG_FOREVER) < 0)
        return failed("read");
    if (mdg_why(link, why, sizeof why) < 0)
        return failed("why");
    printf("%s\n%s\n", answer, why);
    return 0;
}

int main(int argc, char **argv)
{
    int result = 2;
    mdg_runtime runtime;

    if (mdg_runtime_open(&runtime) < 0)
        return failed("open");
    if (argc == 2 && strcmp(argv[1], "serve") == 0)
        result = serve(runtime);
    else if (argc == 3 && strcmp(argv[1], "ask") == 0)
        result = ask(runtime, argv[2]);
    else
        fprintf(stderr, "usage: echo serve | ask CARD\n");
    mdg_close(runtime);
    return result;
}
