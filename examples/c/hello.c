/* A link inside one process: who waits for what. */
#include <madrigal.h>
#include <stdio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

int main(void)
{
    char question[64] = "";
    mdg_runtime runtime;
    mdg_acceptor acceptor;
    mdg_link client, server;

    if (mdg_runtime_open(&runtime) < 0)
        return failed("open");
    if (mdg_listen(runtime, "loopback://hello", &acceptor) < 0)
        return failed("listen");
    if (mdg_connect(runtime, "loopback://hello", MDG_FOREVER, &client) < 0)
        return failed("connect");
    if (mdg_write(client, "who is there?", 13, MDG_FOREVER) < 0)
        return failed("write");
    if (mdg_accept(acceptor, MDG_FOREVER, &server) < 0)
        return failed("accept");
    if (mdg_read(server, question, sizeof question - 1, MDG_FOREVER) < 0)
        return failed("read");
    printf("%s\n", question);
    return mdg_close(runtime) < 0 ? failed("close") : 0;
}
