/* A pipeline of three processes with mailboxes: fields go from one to the next in shared buffers, which nobody copies; an urgent message ends it. */
#include <madrigal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POINTS = 100000, STEPS = 3, ADDRESS = 512 };

static void check(int64_t code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, mdg_error_text());
        exit(1);
    }
}

/* Puts a field of numbers that begin with `first`. */
static void put(mdg_mailbox box, const char *to, uint64_t step, double first)
{
    mdg_letter letter = {&to, 1, step, MDG_DATA, MDG_AT_SENDER};
    mdg_buffer buffer;
    void *at;

    check(mdg_buffer_new(POINTS * sizeof(double), &buffer), "buffer");
    check(mdg_buffer_data(buffer, &at), "data");
    for (int i = 0; i < POINTS; i++)
        ((double *)at)[i] = first + i;
    check(mdg_buffer_seal(buffer), "seal");
    check(mdg_mailbox_put_buffer(box, &letter, buffer, MDG_FOREVER), "put");
    mdg_close(buffer);
}

/* The last stage prints, one before it hands on. Both end by the urgent message, which passes what is not read yet: so it says how much is. */
static void stage(mdg_mailbox box, const char *to)
{
    uint64_t steps = UINT64_MAX;
    mdg_header header;
    mdg_buffer buffer;
    void *at;

    for (uint64_t done = 0; done < steps;) {
        check(mdg_mailbox_wait(box, NULL, MDG_FOREVER, &header), "wait");
        if (header.kind == MDG_URGENT) {
            mdg_letter last = {&to, 1, header.tag, MDG_URGENT, MDG_AT_RECEIVER};
            steps = header.tag;
            check(mdg_mailbox_drop(box, header.id), "drop");
            if (to != NULL)
                check(mdg_mailbox_put(box, &last, NULL, 0, MDG_FOREVER), "put");
            continue;
        }
        check(mdg_mailbox_get(box, header.id, MDG_FOREVER, &buffer), "get");
        check(mdg_buffer_data(buffer, &at), "data");
        if (to != NULL)
            put(box, to, header.tag, 2 * *(double *)at);
        else
            printf("step %d begins with %.0f\n", (int)header.tag, *(double *)at);
        mdg_close(buffer);
        done++;
    }
}

/* A process with a mailbox: its address goes to `address`. */
static pid_t start(const char *to, char *address)
{
    int way[2];
    pid_t child;

    if (pipe(way) != 0 || (child = fork()) < 0)
        exit(1);
    if (child == 0) {
        mdg_runtime runtime;
        mdg_mailbox box;
        check(mdg_runtime_open(&runtime), "open");
        check(mdg_mailbox_open(runtime, "stage", 4, &box), "mailbox");
        check(mdg_address(box, address, ADDRESS), "address");
        if (write(way[1], address, ADDRESS) != ADDRESS)
            exit(1);
        stage(box, to);
        check(mdg_flush(box, MDG_FOREVER), "flush");
        check(mdg_close(runtime), "close");
        exit(0);
    }
    if (read(way[0], address, ADDRESS) != ADDRESS)
        exit(1);
    return child;
}

int main(void)
{
    char last[ADDRESS] = "", first[ADDRESS] = "";
    const char *to = first;
    mdg_letter end = {&to, 1, STEPS, MDG_URGENT, MDG_AT_RECEIVER};
    mdg_runtime runtime;
    mdg_mailbox box;

    start(NULL, last);
    start(last, first);
    check(mdg_runtime_open(&runtime), "open");
    check(mdg_mailbox_open(runtime, "source", 4, &box), "mailbox");
    for (int step = 1; step <= STEPS; step++)
        put(box, to, step, 10.0 * step);
    check(mdg_mailbox_put(box, &end, NULL, 0, MDG_FOREVER), "put");
    check(mdg_flush(box, MDG_FOREVER), "flush");
    check(mdg_close(runtime), "close");
    while (wait(NULL) > 0)
        continue;
    return 0;
}
