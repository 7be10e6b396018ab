/* Vio: `shout serve shm://NAME` answers one client in capitals; `shout ask shm://NAME hello` asks it. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <vio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, vio_error_text());
    return 1;
}

static int serve(int vio, const char *address)
{
    char text[256];
    ssize_t got, at;
    struct pollfd one = {vio, POLLIN, 0};

    if (vio_listen(vio, address) < 0)
        return failed("listen");
    printf("ready\n");
    fflush(stdout);
    if (vio_poll(&one, 1, -1) < 0 || (vio = vio_accept(vio)) < 0)
        return failed("accept");
    while ((got = vio_read(vio, text, sizeof text)) > 0) {
        for (at = 0; at < got; at++)
            text[at] = (char)toupper((unsigned char)text[at]);
        if (vio_write(vio, text, (size_t)got) < 0)
            return failed("write");
    }
    return got < 0 ? failed("read") : vio_close(vio);
}

static int ask(int vio, const char *address, const char *question)
{
    char text[256];
    ssize_t got;

    if (vio_connect(vio, address) < 0 || vio_write(vio, question, strlen(question)) < 0)
        return failed("ask");
    got = vio_read(vio, text, sizeof text);
    if (got < 0)
        return failed("read");
    printf("%.*s\n", (int)got, text);
    return vio_close(vio);
}

int main(int argc, char **argv)
{
    int vio = vio_socket();

    if (argc > 3 && strcmp(argv[1], "ask") == 0)
        return ask(vio, argv[2], argv[3]);
    return argc > 2 ? serve(vio, argv[2]) : 2;
}
