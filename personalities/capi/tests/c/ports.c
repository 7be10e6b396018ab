/* Ports among three processes: every kind of item to two receivers at once, what is refused and why, a message at a time, a killed process.
   usage: ports [STACK], what carries the messages */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG = 100000, ADDRESS = 512 };
static const int64_t TIME = INT64_C(250000000000);

static mdg_runtime runtime;
static double numbers[LONG];
static char type[ADDRESS] = "unit=metre", other_type[ADDRESS] = "unit=foot";

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

/* What one of two receivers does: takes three messages, and says when it is done. */
static void receive(int in, int out, const char *name)
{
    mdg_receive_port port, other;
    mdg_incoming incoming, none;
    char text[ADDRESS];
    int kind;
    size_t count;
    int32_t three[3];
    static double got[LONG];
    CHECK(mdg_runtime_open(&runtime) == 0);
    CHECK(mdg_receive_port_open(runtime, name, type, &port) == 0);
    CHECK(mdg_receive_port_open(runtime, name, "", &other) == MDG_EINUSE);
    CHECK(mdg_receive_port_open(runtime, "x", "connection=few", &other) == MDG_EINVAL);
    CHECK(strstr(mdg_error_text(), "one-to-one") != NULL);
    CHECK(mdg_receive_port_open(runtime, "x", "stack=tls/adoc/tcp", &other) == MDG_EUNUSABLE);
    CHECK(mdg_address(port, text, sizeof text) > 0);
    put(out, text);
    CHECK(mdg_port_receive(port, TIME, &incoming) == 0);
    CHECK(mdg_port_receive(port, 0, &none) == MDG_EBUSY);
    CHECK(mdg_incoming_from(incoming, text, sizeof text) == 3 && strcmp(text, "out") == 0);
    CHECK(mdg_item(incoming, &kind, &count) == MDG_ITEM_NUMBER && kind == MDG_INT8 && count == 1);
    CHECK(mdg_get_number(incoming, MDG_UINT8, text) == MDG_EMISMATCH);
    CHECK(strcmp(mdg_error_text(), "one u8 is read, and one i8 is next") == 0);
    CHECK(mdg_get_number(incoming, MDG_INT8, text) == 0 && (signed char)text[0] == -7);
    CHECK(mdg_item(incoming, &kind, &count) == MDG_ITEM_TEXT && count == 5);
    CHECK(mdg_get_text(incoming, text, 5) == MDG_ETOOLONG);
    CHECK(mdg_get_text(incoming, text, 6) == 5 && strcmp(text, "hello") == 0);
    CHECK(mdg_get_record(incoming, MDG_ITEM_BEGIN) == 0);
    CHECK(mdg_item(incoming, &kind, &count) == MDG_ITEM_ARRAY && kind == MDG_INT32 && count == 3);
    CHECK(mdg_get_array(incoming, MDG_INT32, three, 2) == MDG_EMISMATCH);
    CHECK(mdg_get_array(incoming, MDG_INT32, three, 3) == 0 && three[0] == 1 && three[2] == -3);
    CHECK(mdg_get_record(incoming, MDG_ITEM_BEGIN) == MDG_EMISMATCH);
    CHECK(mdg_get_record(incoming, MDG_ITEM_END) == 0);
    CHECK(mdg_get_array(incoming, MDG_FLOAT64, got, LONG) == 0 && memcmp(got, numbers, sizeof got) == 0);
    CHECK(mdg_item(incoming, NULL, NULL) == MDG_ITEM_NOTHING);
    CHECK(mdg_incoming_end(incoming) == 0);
    CHECK(mdg_incoming_end(incoming) == MDG_EHANDLE);
    /* The second one is not read; the third one is. */
    CHECK(mdg_port_receive(port, TIME, &incoming) == 0);
    CHECK(mdg_incoming_end(incoming) == MDG_EMISMATCH);
    CHECK(mdg_port_receive(port, TIME, &incoming) == 0);
    CHECK(mdg_get_number(incoming, MDG_UINT64, text) == 0);
    CHECK(mdg_close(incoming) == 0);
    for (;;) {
        CHECK(mdg_port_changes(port, text, sizeof text) > 0);
        if (strstr(text, "\"left\"") != NULL)
            break;
        CHECK(mdg_port_receive(port, 10000000, &incoming) == MDG_ETIMEDOUT);
    }
    put(out, "done");
    /* The one that is killed waits here for that. */
    get(in, text);
    for (;;)
        CHECK(mdg_port_receive(port, INT64_C(10000000), &incoming) == MDG_ETIMEDOUT);
}

int main(int argc, char **argv)
{
    int down[2][2], up[2][2], i;
    pid_t child[2];
    char to[2][ADDRESS], text[4 * ADDRESS];
    mdg_send_port out, wrong;
    mdg_message message, second;
    mdg_receive_port own;
    int8_t small = -7;
    uint64_t wide = 77;
    int32_t three[3] = {1, 2, -3};
    if (argc > 1) {
        snprintf(type, sizeof type, "unit=metre, stack=%s", argv[1]);
        snprintf(other_type, sizeof other_type, "unit=foot, stack=%s", argv[1]);
    }
    for (i = 0; i < LONG; i++)
        numbers[i] = i / 7.0;
    for (i = 0; i < 2; i++) {
        CHECK(pipe(down[i]) == 0 && pipe(up[i]) == 0);
        child[i] = fork();
        if (child[i] == 0) {
            receive(down[i][0], up[i][1], i == 0 ? "left" : "right");
            return 0;
        }
    }
    CHECK(mdg_runtime_open(&runtime) == 0);
    for (i = 0; i < 2; i++)
        get(up[i][0], to[i]);
    CHECK(mdg_send_port_open(runtime, "out", type, &out) == 0);
    CHECK(mdg_send_port_open(runtime, "out", other_type, &wrong) == 0);
    CHECK(mdg_message_new(out, &message) == 0);
    CHECK(mdg_port_send(out, message) == MDG_EGONE);
    CHECK(mdg_port_connect(wrong, to[0], TIME) == MDG_EREFUSED);
    CHECK(strstr(mdg_error_text(), "the send port has unit=foot, the receive port unit=metre") != NULL);
    CHECK(mdg_port_connect(out, "nothing", TIME) == MDG_EADDRESS);
    CHECK(mdg_port_connect(message, to[0], TIME) == MDG_ETYPE);
    CHECK(mdg_close(wrong) == 0 && mdg_port_connect(wrong, to[0], TIME) == MDG_EHANDLE);
    CHECK(mdg_port_connect(out, to[0], TIME) == 0 && mdg_port_connect(out, to[1], TIME) == 0);
    CHECK(mdg_put_number(message, MDG_INT8, &small) == 0);
    CHECK(mdg_put_number(message, 11, &small) == MDG_EINVAL);
    CHECK(mdg_put_text(message, "hello") == 0);
    CHECK(mdg_put_begin(message) == 0);
    CHECK(mdg_put_array(message, MDG_INT32, three, 3, MDG_CHEAPER) == 0);
    CHECK(mdg_put_end(message) == 0);
    CHECK(mdg_put_array(message, MDG_FLOAT64, numbers, LONG, MDG_LATER) == MDG_EINVAL);
    CHECK(mdg_put_array(message, MDG_FLOAT64, numbers, LONG, MDG_CHEAPER) == 0);
    CHECK(mdg_port_send(out, message) == 2);
    CHECK(mdg_port_send(out, message) == 2);
    CHECK(mdg_close(message) == 0 && mdg_port_send(out, message) == MDG_EHANDLE);
    CHECK(mdg_message_new(out, &second) == 0 && mdg_put_number(second, MDG_UINT64, &wide) == 0);
    CHECK(mdg_port_send(out, second) == 2);
    CHECK(mdg_why(out, text, sizeof text) > 0 && strstr(text, "right@") != NULL && strstr(text, "left@") != NULL);
    CHECK(mdg_port_disconnect(out, to[1]) == 0 && mdg_port_disconnect(out, to[1]) == MDG_EGONE);
    CHECK(mdg_port_disconnect(out, to[0]) == 0);
    /* Nobody turns it while it waits for the receivers' words. */
    CHECK(mdg_flush(out, TIME) == 0);
    CHECK(mdg_receive_port_open(runtime, "own", "", &own) == 0);
    for (i = 0; i < 2; i++) {
        get(up[i][0], text);
        CHECK(strcmp(text, "done") == 0);
        put(down[i][1], "go on");
    }
    /* One is killed: it is told, and the other one still gets what is sent. */
    CHECK(mdg_port_connect(out, to[0], TIME) == 0);
    CHECK(kill(child[0], SIGKILL) == 0 && waitpid(child[0], NULL, 0) == child[0]);
    for (;;) {
        CHECK(mdg_port_changes(out, text, sizeof text) > 0);
        if (strstr(text, "\"lost\"") != NULL && strstr(text, "left@") != NULL)
            break;
        usleep(1000);
    }
    CHECK(mdg_port_send(out, second) == MDG_ELOST || mdg_port_send(out, second) == MDG_EGONE);
    CHECK(kill(child[1], SIGKILL) == 0 && waitpid(child[1], NULL, 0) == child[1]);
    CHECK(mdg_close(runtime) == 0);
    CHECK(mdg_close(out) == MDG_EHANDLE);
    puts("good");
    return 0;
}
